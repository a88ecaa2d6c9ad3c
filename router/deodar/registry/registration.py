"""A record that stays in the registry as long as its owner lives, whatever happens to the registry.

G1: the key is written by compare-and-set, and never over another identity's record.
G2: a lost lease is replaced: a new grant and a new put, for ever, until `close`.
G3: the lease's word is not taken for the record's: the key is read back from time to time, since it
    may be gone though the lease lives (an operator, a restored backup).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from deodar.v1.cluster_pb2 import NodeRecord

from .backoff import Backoff
from .interface import (
    BadRecord,
    Compare,
    HeldByAnother,
    Lease,
    OutcomeUnknown,
    Put,
    Registry,
    RegistryError,
    RegistryUnavailable,
)
from .records import decode
from .tasks import start_task, stop_task

# Leases' lengths between two readings of the key.
CHECK_TTLS: Final = 4
_CLAIM_ATTEMPTS: Final = 5

_log = structlog.get_logger(__name__)


def node_identity(key: str, value: bytes) -> str:
    """The identity in a NodeRecord; raises BadRecord."""
    return decode(NodeRecord, key, value).identity


class Registration:
    """Keeps `key` at `make_value()` under a lease of `ttl_ms`.

    `identity_of(key, value)` tells whose record it is; one of the same identity is taken over, as
    after a restart.
    """

    def __init__(
        self,
        registry: Registry,
        key: str,
        make_value: Callable[[], bytes],
        ttl_ms: int,
        *,
        identity_of: Callable[[str, bytes], str] = node_identity,
    ) -> None:
        self._registry = registry
        self._key = key
        self._make_value = make_value
        self._ttl_ms = ttl_ms
        self._identity_of = identity_of
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def registered(self) -> bool:
        """Whether the record is certainly still there, by the local clock."""
        return self._lease is not None and not self._lease.lost

    @property
    def remaining_ms(self) -> int:
        """Milliseconds for which `registered` holds if the registry is never reached again."""
        return self._lease.remaining_ms if self._lease is not None else 0

    async def start(self) -> None:
        """Register once, then keep it so in the background.

        Raises HeldByAnother, and RegistryError when the registry cannot do it.
        """
        self._lease = await self._register()
        self._task = start_task(self._run(), f"registration {self._key}")

    async def close(self) -> None:
        """Take the record out, or let its lease run out when the registry cannot be reached."""
        if self._task is not None:
            await stop_task(self._task)
        if self._lease is not None:
            lease, self._lease = self._lease, None
            try:
                await lease.revoke()
            except RegistryError as error:
                _log.warning("registration left to its lease", key=self._key, error=str(error))

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            if self._lease is not None:
                await self._hold(self._lease)
                self._lease = None
            try:
                self._lease = await self._register()
                _log.info("registered again", key=self._key)
                backoff.reset()
            except HeldByAnother as error:
                _log.error("registration refused", key=self._key, error=str(error))
                await backoff.wait()
            except RegistryError as error:
                _log.warning("not registered", key=self._key, error=str(error))
                await backoff.wait()

    async def _hold(self, lease: Lease) -> None:
        """Returns when the lease is lost or the key is no longer ours."""
        while not lease.lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._ttl_ms * CHECK_TTLS / 1000):
                    await lease.wait_lost()
                return
            try:
                entry = await self._registry.get(self._key)
            except RegistryError as error:
                _log.warning("registration not checked", key=self._key, error=str(error))
                continue
            if entry is None or entry.lease != lease.id:
                _log.error("registration gone from the registry", key=self._key)
                await lease.stop()

    async def _register(self) -> Lease:
        lease = await self._registry.grant_lease(self._ttl_ms)
        try:
            await self._claim(lease)
        except BaseException:  # also when cancelled: nobody else could stop the lease
            await lease.stop()
            raise
        return lease

    async def _claim(self, lease: Lease) -> None:
        for _ in range(_CLAIM_ATTEMPTS):
            value = self._make_value()
            entry = await self._registry.get(self._key)
            if entry is not None:
                if entry.lease == lease.id:
                    return
                self._check_owner(entry.value, value)
            compare = Compare(self._key, entry.mod_revision if entry else 0)
            try:
                if await self._registry.commit([compare], [Put(self._key, value, lease.id)]):
                    return
            except OutcomeUnknown as error:
                # The next round reads whether it happened.
                _log.warning("registration in doubt", key=self._key, error=str(error))
        raise RegistryUnavailable(f"{self._key} could not be claimed")

    def _check_owner(self, held: bytes, ours: bytes) -> None:
        try:
            holder = self._identity_of(self._key, held)
        except BadRecord as error:
            raise HeldByAnother(f"{self._key} holds something else: {error}") from error
        if holder != self._identity_of(self._key, ours):
            raise HeldByAnother(f"{self._key} belongs to identity {holder}")
