"""What a registry must do; see `deodar/v1/cluster.proto` for what is kept in it.

Keys are text, values bytes.  Revisions are those of the whole registry and only rise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

# Compares, and operations, of one commit: etcd's default bound.
OPERATIONS_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    mod_revision: int
    lease: int = 0  # 0 = none


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds when the key's revision is `mod_revision`; 0 = the key is absent."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one key; `value` None = deleted."""

    key: str
    value: bytes | None
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes up to `revision` since the last of these; without events: a sign of life."""

    revision: int
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The entries of a prefix at one revision; also sent by a watch that had to start over."""

    revision: int
    entries: tuple[Entry, ...]


class RegistryError(Exception):
    """Base of what a registry may raise."""


class RegistryUnavailable(RegistryError):  # noqa: N818
    """No endpoint answered in time; a read or a commit that was refused before it was sent."""


class RegistryRefused(RegistryError):  # noqa: N818
    """The registry answered and will not: a wrong password, no permission, a value too large."""


class OutcomeUnknown(RegistryError):  # noqa: N818
    """The answer to a commit was lost: read the keys back to learn whether it happened."""


class LeaseLost(RegistryError):  # noqa: N818
    """The lease has ended; nothing was done under it."""


class Compacted(RegistryError):  # noqa: N818
    """The registry no longer has the changes behind the revision asked for."""


class HeldByAnother(RegistryError):  # noqa: N818
    """The key to register under belongs to another identity."""


class BadRecord(RegistryError):  # noqa: N818
    """A value in the registry is not what its key promises."""


class Lease(Protocol):
    """A lease that keeps itself alive.

    Its end is known by the local clock, counted from when the last good keep-alive was *sent*:
    an answer of the registry is no proof of ownership.
    """

    @property
    def id(self) -> int: ...
    @property
    def lost(self) -> bool: ...
    @property
    def remaining_ms(self) -> int:
        """Milliseconds until it ends if no keep-alive succeeds any more; 0 when lost."""

    async def wait_lost(self) -> None:
        """Returns when the lease has ended."""

    async def revoke(self) -> None:
        """Ends it now; its keys go.  Idempotent."""

    async def stop(self) -> None:
        """Counts as lost from now on; the registry lets it run out.  Idempotent."""


class Registry(Protocol):
    """Every call has a bounded time (the registry's `timeout_ms`) and raises RegistryError."""

    @property
    def kind(self) -> str:
        """``etcd`` or ``embedded``."""

    @property
    def endpoints(self) -> list[str]: ...

    async def range(self, prefix: str) -> Snapshot: ...
    async def get(self, key: str) -> Entry | None: ...
    async def commit(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> int | None:
        """Do all operations if all compares hold: the new revision; None when one did not hold.

        At most OPERATIONS_MAX compares and as many operations, each key written once (ValueError).
        Raises OutcomeUnknown when the answer was lost, LeaseLost when a lease named is gone.
        """

    async def grant_lease(self, ttl_ms: int) -> Lease: ...
    def watch(self, prefix: str) -> AsyncIterator[Snapshot | Changes]:
        """First a Snapshot, then Changes in order without gap or duplicate, for ever.

        Resumes by itself behind the last revision seen after any loss of connection; after a
        compaction it starts over with a Snapshot.  Ends only when its consumer closes it.
        """

    async def close(self) -> None: ...
