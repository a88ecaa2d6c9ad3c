"""The registry of a one-machine cluster: in one process, kept in an engine store.

E1: a commit is on disk before it is answered and before anyone sees it.
E2: commits are made one at a time; a revision is one commit that changed something.
E3: recent changes are kept in memory for watches; older ones are compacted, and after a restart
    all are.
E4: a lease runs by a monotonic clock, and gets a fresh full ttl when the registry starts: while it
    was down nobody could keep one alive.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import structlog
from google.protobuf.message import DecodeError

from deodar.engine import errors
from deodar.engine.store import Delete as StoreDelete
from deodar.engine.store import Put as StorePut
from deodar.engine.store import Store
from deodar.v1.registry_pb2 import RegistryEntry

from .follow import follow
from .interface import (
    BadRecord,
    Changes,
    Compacted,
    Compare,
    Delete,
    Entry,
    Event,
    LeaseLost,
    OutcomeUnknown,
    Put,
    RegistryRefused,
    RegistryUnavailable,
    Snapshot,
)
from .lease import KeptLease, now_ms
from .tasks import start_task, stop_task
from .transaction import check_transaction

# Keys of the store: "r" the revision; "e" + key an entry; "l" + id (8 bytes) a lease's ttl.
REVISION_KEY: Final = b"r"
ENTRY_KEY: Final = b"e"
LEASE_KEY: Final = b"l"

HISTORY_EVENTS_MAX: Final = 10_000
SIGN_OF_LIFE_S: Final = 1.0
TTL_MS_MIN: Final = 2_000  # etcd's
VALUE_BYTES_MAX: Final = 1_048_576  # below etcd's bound of a request
_TICK_S: Final = 0.1
# A tick later than this means that the process stood still, which is no fault of lease holders.
_PAUSE_MS: Final = 1_000

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class HeldLease:
    ttl_ms: int
    end_ms: float


def _lease_key(lease_id: int) -> bytes:
    return LEASE_KEY + lease_id.to_bytes(8, "big")


def _not_opened(directory: Path, error: errors.EngineError) -> RegistryUnavailable:
    why = "it is in use by another process" if isinstance(error, errors.Locked) else str(error)
    return RegistryUnavailable(f"the embedded registry in {directory} cannot be opened: {why}")


class EmbeddedRegistry:
    """`Registry` in this process; all calls from one event loop."""

    kind = "embedded"

    def __init__(self, store: Store, endpoints: Sequence[str] = ()) -> None:
        """Use `open`."""
        self._store = store
        self._endpoints = list(endpoints)
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, HeldLease] = {}
        self._ended: set[int] = set()  # leases whose keys are about to go
        self._kept: list[KeptLease] = []  # granted to this process itself
        self._history: deque[tuple[Event, ...]] = deque()
        self._history_events = 0
        self._failure: errors.EngineError | None = None
        self._closed = False
        self._commit_lock = asyncio.Lock()
        self._commits: set[asyncio.Task[int | None]] = set()
        self._changed = asyncio.Event()  # replaced at each change
        self._load()
        self._trimmed_revision = self._revision
        self._ticker = start_task(self._tick(), "registry leases")

    @classmethod
    async def open(cls, directory: Path, endpoints: Sequence[str] = ()) -> Self:
        """Open the registry kept in `directory`, or make it.

        Raises RegistryUnavailable when the store is in use, damaged or cannot be opened, and
        BadRecord when it holds something else.
        """
        try:
            store = await asyncio.to_thread(Store.open, directory)
            try:
                return cls(store, endpoints)
            except BaseException:  # whatever it is: nobody else could close the store
                await asyncio.to_thread(store.close)
                raise
        except errors.EngineError as error:
            raise _not_opened(directory, error) from error

    def _load(self) -> None:
        revision = self._store.get(REVISION_KEY)
        self._revision = int(revision) if revision is not None else 1
        for item in self._store.scan():
            kind, rest = item.key[:1], item.key[1:]
            if kind == ENTRY_KEY:
                kept = self._decode(item.key, item.value)
                self._entries[kept.key] = Entry(kept.key, kept.value, kept.mod_revision, kept.lease)
            elif kind == LEASE_KEY:
                ttl_ms = int(item.value)
                lease_id = int.from_bytes(rest, "big")
                self._leases[lease_id] = HeldLease(ttl_ms, now_ms() + ttl_ms)
            elif item.key != REVISION_KEY:
                raise BadRecord(f"{self._store.path}: {item.key!r} is no key of a registry")

    def _decode(self, key: bytes, value: bytes) -> RegistryEntry:
        try:
            return RegistryEntry.FromString(value)
        except DecodeError as error:
            raise BadRecord(f"{self._store.path}: {key!r}: {error}") from error

    @property
    def endpoints(self) -> list[str]:
        return list(self._endpoints)

    @property
    def revision(self) -> int:
        """Of the last change."""
        return self._revision

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        await stop_task(self._ticker)
        for lease in self._kept:
            await lease.stop()
        if self._commits:
            await asyncio.wait(self._commits)
        await asyncio.to_thread(self._store.close)

    async def range(self, prefix: str) -> Snapshot:
        self._check_open()
        entries = [entry for key, entry in self._entries.items() if key.startswith(prefix)]
        return Snapshot(self._revision, tuple(sorted(entries, key=lambda entry: entry.key)))

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        return self._entries.get(key)

    async def commit(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> int | None:
        self._check_open()
        check_transaction(compares, operations)
        for operation in operations:
            if isinstance(operation, Put) and len(operation.value) > VALUE_BYTES_MAX:
                raise RegistryRefused(f"{operation.key}: a value over {VALUE_BYTES_MAX} bytes")
        return await self._finish(self._commit(compares, operations))

    async def grant_lease(self, ttl_ms: int) -> KeptLease:
        sent_ms = now_ms()
        lease_id, granted_ms = await self.new_lease(ttl_ms)
        lease = KeptLease(self, lease_id, granted_ms, sent_ms)
        self._kept = [kept for kept in self._kept if not kept.lost]
        self._kept.append(lease)
        return lease

    async def new_lease(self, ttl_ms: int) -> tuple[int, int]:
        """A lease that its holder keeps alive: (id, ttl in milliseconds)."""
        self._check_open()
        ttl_ms = max(ttl_ms, TTL_MS_MIN)
        lease_id = secrets.randbits(62) + 1
        async with self._commit_lock:
            await self._write([StorePut(_lease_key(lease_id), b"%d" % ttl_ms)])
        self._leases[lease_id] = HeldLease(ttl_ms, now_ms() + ttl_ms)
        return lease_id, ttl_ms

    async def keep_lease(self, lease_id: int, timeout_ms: float) -> int:
        self._check_open()
        del timeout_ms  # answered at once
        held = self._leases.get(lease_id)
        if held is None:
            return 0
        held.end_ms = now_ms() + held.ttl_ms
        return held.ttl_ms

    async def revoke_lease(self, lease_id: int) -> None:
        self._check_open()
        if self._leases.pop(lease_id, None) is not None:
            self._ended.add(lease_id)
            await self._finish(self._end_lease(lease_id))

    def watch(self, prefix: str) -> AsyncIterator[Snapshot | Changes]:
        return follow(
            partial(self.range, prefix), partial(self.changes_after, prefix), prefix=prefix
        )

    async def changes_after(self, prefix: str, revision: int) -> AsyncGenerator[Changes, None]:
        """What lies behind a revision, then each change as it comes, and signs of life.

        Raises Compacted, RegistryUnavailable when the registry closes.
        """
        if revision > self._revision:
            raise Compacted(f"the registry is at revision {self._revision}, not at {revision}")
        while True:
            self._check_open()
            if revision < self._trimmed_revision:
                raise Compacted(f"changes are kept from {self._trimmed_revision + 1} on")
            changed = self._changed
            events = tuple(self._events_after(prefix, revision))
            revision = self._revision
            yield Changes(revision, events)
            if self._revision == revision:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SIGN_OF_LIFE_S):
                        await changed.wait()

    def _events_after(self, prefix: str, revision: int) -> Iterable[Event]:
        newer: list[tuple[Event, ...]] = []
        for events in reversed(self._history):
            if events[0].mod_revision <= revision:
                break
            newer.append(events)
        return (
            event for events in reversed(newer) for event in events if event.key.startswith(prefix)
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RegistryUnavailable("the embedded registry is closed")

    async def _finish(self, commit: Coroutine[Any, Any, int | None]) -> int | None:
        """Run a commit to its end even when its caller is gone."""
        task = asyncio.create_task(commit)
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return await asyncio.shield(task)

    async def _commit(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> int | None:
        async with self._commit_lock:
            for compare in compares:
                entry = self._entries.get(compare.key)
                if compare.mod_revision != (entry.mod_revision if entry else 0):
                    return None
            for operation in operations:
                if isinstance(operation, Put) and operation.lease:
                    self._check_lease(operation.lease)
            return await self._change(operations, [])

    def _check_lease(self, lease_id: int) -> None:
        held = self._leases.get(lease_id)
        if held is None or held.end_ms <= now_ms():
            raise LeaseLost(f"there is no lease {lease_id:x}")

    async def _end_lease(self, lease_id: int) -> int | None:
        """Delete an ended lease and its keys."""
        async with self._commit_lock:
            keys = [entry.key for entry in self._entries.values() if entry.lease == lease_id]
            revision = await self._change(
                [Delete(key) for key in keys], [StoreDelete(_lease_key(lease_id))]
            )
            self._ended.discard(lease_id)
            return revision

    async def _change(
        self, operations: Sequence[Put | Delete], extra: Sequence[StorePut | StoreDelete]
    ) -> int:
        """Write the operations, then show them.  Under `_commit_lock`."""
        revision = self._revision + 1
        batch: list[StorePut | StoreDelete] = list(extra)
        events: list[Event] = []
        for operation in operations:
            store_key = ENTRY_KEY + operation.key.encode()
            if isinstance(operation, Put):
                kept = RegistryEntry(
                    key=operation.key,
                    value=operation.value,
                    mod_revision=revision,
                    lease=operation.lease,
                )
                batch.append(StorePut(store_key, kept.SerializeToString()))
                events.append(Event(operation.key, operation.value, revision, operation.lease))
            elif operation.key in self._entries:
                batch.append(StoreDelete(store_key))
                events.append(Event(operation.key, None, revision))
        if events:
            batch.append(StorePut(REVISION_KEY, b"%d" % revision))
        if batch:
            await self._write(batch)
        if events:
            self._show(revision, tuple(events))
        return self._revision

    async def _write(self, batch: Sequence[StorePut | StoreDelete]) -> None:
        if self._failure is not None:
            raise RegistryUnavailable(f"the embedded registry's store failed: {self._failure}")
        try:
            await asyncio.to_thread(self._store.write, batch, durability="durable")
        except (errors.DiskFull, errors.Overloaded, errors.LimitExceeded) as error:
            raise RegistryUnavailable(f"the embedded registry cannot write: {error}") from error
        except errors.EngineError as error:
            # It may be on disk or not: only opening the store again tells.
            self._failure = error
            _log.error("registry store failed", error=str(error))
            raise OutcomeUnknown(f"the embedded registry's store failed: {error}") from error

    def _show(self, revision: int, events: tuple[Event, ...]) -> None:
        for event in events:
            if event.value is None:
                del self._entries[event.key]
            else:
                self._entries[event.key] = Entry(event.key, event.value, revision, event.lease)
        self._revision = revision
        self._history.append(events)
        self._history_events += len(events)
        while self._history_events > HISTORY_EVENTS_MAX:
            trimmed = self._history.popleft()
            self._history_events -= len(trimmed)
            self._trimmed_revision = trimmed[0].mod_revision
        self._changed.set()
        self._changed = asyncio.Event()

    async def _tick(self) -> None:
        """Ends leases whose time is over."""
        last_ms = now_ms()
        while True:
            await asyncio.sleep(_TICK_S)
            pause_ms = now_ms() - last_ms
            last_ms += pause_ms
            if pause_ms > _PAUSE_MS:
                _log.warning("registry stood still", pause_ms=int(pause_ms))
                for held in self._leases.values():
                    held.end_ms += pause_ms
            for lease_id, held in list(self._leases.items()):
                if held.end_ms <= last_ms:
                    del self._leases[lease_id]
                    self._ended.add(lease_id)
            for lease_id in list(self._ended):
                try:
                    await self._end_lease(lease_id)
                    _log.info("lease ended", lease=f"{lease_id:x}")
                except (RegistryUnavailable, OutcomeUnknown) as error:
                    _log.warning("lease not ended yet", lease=f"{lease_id:x}", error=str(error))
                    await asyncio.sleep(1.0)
