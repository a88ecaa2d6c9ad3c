"""One controller at a time: the key `controller`, written under a lease.

Who holds the key may act.  Since a holder can be paused after any look at its lease, every change
it makes also compares the key's revision (`fence`), so that a deposed controller changes nothing.
"""

from __future__ import annotations

from typing import Final

import structlog

from deodar.registry.cluster_view import ClusterView
from deodar.registry.interface import (
    Compare,
    Lease,
    OutcomeUnknown,
    Put,
    Registry,
    RegistryError,
)

LEASE_MS: Final = 5_000
# Longest wait for the news that the key is free.
LOOK_AGAIN_S: Final = 10.0

_log = structlog.get_logger(__name__)


class Election:
    def __init__(
        self, registry: Registry, view: ClusterView, name: str, lease_ms: int = LEASE_MS
    ) -> None:
        """`name` is unique to this candidate."""
        self._registry = registry
        self._view = view
        self._key = view.keys.controller
        self._name = name
        self._lease_ms = lease_ms
        self._lease: Lease | None = None
        self._revision = 0

    @property
    def won(self) -> bool:
        """Whether the key is certainly ours, by the local clock; others may still change it."""
        return self._lease is not None and not self._lease.lost

    @property
    def fence(self) -> Compare:
        """To be part of every change the controller makes."""
        return Compare(self._key, self._revision)

    async def win(self) -> None:
        """Returns once elected.  Raises RegistryError."""
        while not await self._try():
            held = self._view.state
            while held.controller:
                newer = await self._view.wait_change(held.revision, LOOK_AGAIN_S)
                if newer is held:
                    break
                held = newer

    async def resign(self) -> None:
        """Free the key, or let its lease run out when the registry cannot be reached."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            try:
                await lease.revoke()
            except RegistryError as error:
                _log.warning("controller key left to its lease", error=str(error))

    async def _try(self) -> bool:
        if await self._registry.get(self._key) is not None:
            await self._view.refresh()
            return False
        lease = await self._registry.grant_lease(self._lease_ms)
        try:
            revision = await self._take(lease)
        except BaseException:  # also when cancelled: nobody else could stop the lease
            await lease.stop()
            raise
        if revision is None:
            await lease.revoke()
            await self._view.refresh()
            return False
        self._lease, self._revision = lease, revision
        _log.info("controller elected", name=self._name, revision=revision)
        return True

    async def _take(self, lease: Lease) -> int | None:
        """The revision of our key; None when somebody else was faster."""
        put = Put(self._key, self._name.encode(), lease.id)
        try:
            return await self._registry.commit([Compare(self._key, 0)], [put])
        except OutcomeUnknown:
            entry = await self._registry.get(self._key)
            ours = entry is not None and entry.lease == lease.id
            return entry.mod_revision if entry is not None and ours else None
