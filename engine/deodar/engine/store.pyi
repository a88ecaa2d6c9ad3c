"""The embedded store: one directory, one writer at a time, any number of reader threads.

Keys are 1 to 65,536 bytes and values up to 64 MiB, any bytes.  Every method may be called from any
thread and releases the GIL while it works.

Promises
- **Prefix.** A crash at any moment reopens to exactly the operations of epochs up to some epoch c,
  in the order in which they were made.  When the crash falls in epoch e, c >= e - 2; an epoch that
  `sync`, `wait_durable` or ``durability="durable"`` has answered for is never lost.
- **Versions** rise with every write of the store and never repeat, also after deletion or a crash;
  numbers are left out after a crash, since some that were given may have been lost.
- **Batches** of `write` are all or nothing after a crash.
- **Errors** are children of `deodar.engine.EngineError` and mean that nothing was changed.  After a
  failed write or fsync the store answers writes with `ReadOnly` until it is reopened.
"""

from collections.abc import Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Literal, Self, final

from .items import Change, Delete, Durability, Item, Put, Written

__all__ = ["Change", "Delete", "Durability", "Item", "Put", "Store", "Written", "check_directory"]

@final
class Store:
    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: a store is made by `open`."""

    @staticmethod
    def open(
        path: str | PathLike[str],
        *,
        create: bool = True,
        region_bytes: int = ...,  # of the data space; fixed at creation
        sluggishness: int = 16,  # entries a child slot holds before it is split
        epoch_ms: float = 5.0,  # 1..1000: how long an epoch collects writes
        write_buffer_bytes: int = 67_108_864,  # unflushed bytes at which writers wait
        stall_ms: int = 30_000,  # how long a writer waits there before `Overloaded`
        checkpoint_log_bytes: int = 268_435_456,  # log since the last checkpoint that starts one
        memory_bytes: int | None = None,  # of regions kept in memory; None = half of the machine's
        compaction: bool = True,  # reclaim space in the background
        disk_backend: Literal["auto", "io_uring", "aio", "pwrite"] = "auto",
        direct_io: bool = True,  # where the file system allows it
        read_only: bool = False,
    ) -> Store:
        """Open the store in `path`, recovering it if it was not closed.

        Raises `NotAStore` (no store and not `create`, or foreign files), `FormatVersion`, `Locked`,
        `Corruption` (file, offset and rule), `DiskFull`, `IOFailure`, `InvalidArgument`.
        """

    @property
    def path(self) -> str: ...
    @property
    def store_id(self) -> int:
        """Random 64-bit identity given at creation."""

    @property
    def last_version(self) -> int:
        """Version of the newest write."""

    @property
    def recovered_epoch(self) -> int:
        """Last epoch that survived when the store was opened; 0 for a new store."""

    @property
    def durable_epoch(self) -> int:
        """Every epoch up to this one is on disk."""

    def get(self, key: bytes) -> bytes | None: ...
    def get_item(self, key: bytes) -> Item | None: ...
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values aligned with `keys`."""

    def get_items(self, keys: Sequence[bytes]) -> list[Item | None]: ...
    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        ttl_ms: int | None = None,  # 1..TTL_MS_MAX; None = never expires
        if_version: int | None = None,  # write only over this version
        if_absent: bool = False,  # write only where there is no live record
        durability: Durability = "buffered",
    ) -> int:
        """Write and return the version.  Raises `ConditionFailed` with the current version."""

    def delete(
        self, key: bytes, *, if_version: int | None = None, durability: Durability = "buffered"
    ) -> bool:
        """Delete and return whether there was something."""

    def increment(
        self, key: bytes, delta: int = 1, *, durability: Durability = "buffered"
    ) -> tuple[int, Written]:
        """Add to a signed 64-bit decimal value (absent = 0); keeps the expiry.

        Raises `NotANumber`, or `OutOfRange` when the sum does not fit; the value stays.
        """

    def write(
        self, batch: Sequence[Put | Delete], *, durability: Durability = "buffered"
    ) -> list[Written]:
        """Apply all operations in order, or none: the first failed condition raises
        `ConditionFailed` with its `index`.  At most 10,000 operations."""

    def apply(self, changes: Sequence[Change]) -> int:
        """Apply changes of another store under their own versions, for copies of a shard.

        A change is skipped when the key's record here has its version or a newer one.  Returns how
        many were applied.  `last_version` becomes at least the highest version seen.
        """

    def scan(self, *, after: bytes | None = None, limit: int | None = None) -> Iterator[Item]:
        """Items in hash order; `after` is a cursor from `scan_page`."""

    def scan_page(
        self,
        cursor: bytes = b"",
        *,
        limit: int = 1000,
        bytes_max: int = 1_048_576,
        end: bytes | None = None,
        keys_only: bool = False,
    ) -> tuple[list[Item], bytes | None]:
        """Items behind `cursor` in (path, key) order, and the cursor to go on with (None = done).

        A cursor is a position: 16 bytes of path, then the last key returned there; 16 bytes alone
        mean "from this path on".  `end` is a 16-byte path to stop before.  Items that exist
        throughout are returned exactly once, whatever is written meanwhile.
        """

    def read_log(
        self, after_version: int, *, limit: int = 1000, bytes_max: int = 1_048_576
    ) -> list[Change]:
        """Changes with a higher version, in order, durable or not; empty = caught up.

        Raises `LogTrimmed` when compaction has freed part of what was asked for; `pin_log`
        prevents that.
        """

    def pin_log(self, after_version: int) -> int:
        """Keep the log behind `after_version` until `unpin_log` of the token returned."""

    def unpin_log(self, token: int) -> None: ...
    def digest(self, *, alive_at_ms: int | None = None) -> tuple[int, int]:
        """(live keys, XOR over them of XXH3_64 of key, value, version and deadline).

        Two stores with the same live records have the same digest.  `alive_at_ms` (milliseconds
        since 1970; None = now) says at which moment they must be alive: two stores that are
        compared at different times name one moment, not before either of them.
        """

    def sync(self, timeout: float | None = None) -> int:
        """Close the open epoch and wait until it is on disk; returns it."""

    def wait_durable(self, epoch: int, timeout: float | None = None) -> bool:
        """Wait until `epoch` is on disk, hurrying it; False on time-out (seconds)."""

    def checkpoint(self) -> None:
        """Write an image of the trie now, so that a restart replays nothing before this moment."""

    def set_memory_bytes(self, memory_bytes: int) -> None:
        """Change the bound given to `open`; what is above it leaves memory with the next
        flushes."""

    def compact(self) -> int:
        """Reclaim what can be reclaimed now; returns bytes freed."""

    def stats(self) -> dict[str, int | float | str]: ...
    def check(self) -> list[str]:
        """Check every invariant and checksum; returns what is broken, empty when nothing is."""

    def close(self) -> None:
        """Sync, checkpoint and release.  Idempotent; later calls raise `Closed`."""

    def __len__(self) -> int:
        """Keys, expired ones included until they are reclaimed."""

    def __contains__(self, key: bytes, /) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def check_directory(path: str | PathLike[str]) -> list[str]:
    """`Store.check` of a closed store, without changing a byte."""
