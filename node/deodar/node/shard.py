"""One shard on this node: its store, and the one gate that every operation passes.

G1  An operation touches the store only between entering and leaving the gate; what runs on the
    event loop without an await between is one moment.
G2  The gate is open in state SERVING alone.
G3  `emptied` and `close` return when no operation is inside, so that what is read from the store
    afterwards holds every write that was or will be acknowledged.
All methods belong to the event loop.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

from deodar.contract.keypath import Prefix
from deodar.contract.reasons import Reason, ServiceError
from deodar.engine import Delete, Overloaded, Put, Store, Written

from .durability import DurabilityWaiter
from .feed import ShardFeed
from .workers import Workers

# A call that touches more than this leaves the event loop; below it takes some 100 microseconds.
INLINE_BYTES_MAX = 262_144
INLINE_OPERATIONS_MAX = 64
# How long a write waits for room in the write buffer, and how often it looks.
ROOM_WAIT_S = 5.0
ROOM_POLL_S = 0.005

P = ParamSpec("P")
T = TypeVar("T")


class ShardState(enum.StrEnum):
    SERVING = "serving"
    FENCED = "fenced"  # a move is about to end; the store is whole and nobody may use it
    COPYING = "copying"  # being copied to this node
    MISSING = "missing"  # the record names this node, the store is not here
    FAILED = "failed"  # the store is here and cannot be used
    DROPPED = "dropped"  # served elsewhere now


class HostedShard:
    """A shard that this node has, is to have, or should have.

    `store` is owned: closed by `close`.  `term` is the record's when this state was reached; a
    record of a lower term is old news.
    """

    def __init__(
        self,
        table: str,
        prefix: Prefix,
        term: int,
        workers: Workers,
        store: Store | None = None,
        state: ShardState = ShardState.SERVING,
        reason: str = "",
        failure: ServiceError | None = None,
    ) -> None:
        self.table = table
        self.prefix = prefix
        self.name = f"{table}/{prefix}"
        self.term = term
        self.state = state
        self.reason = reason
        self.moved_keys = 0
        self.move_id = 0  # of the move that fenced it
        self.history = 0  # of the shard, see `contract.watchpos.Mark`
        self.feed = ShardFeed(self)
        self._workers = workers
        self._failure = failure
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._store: Store | None = None
        self._durability: DurabilityWaiter | None = None
        if store is not None:
            self.attach(store)

    def attach(self, store: Store) -> None:
        """Take the store over; its history begins here until another one is set."""
        self._store = store
        self.history = store.store_id
        self._durability = DurabilityWaiter(store, self._workers)

    @property
    def store(self) -> Store | None:
        """The store whatever the state: for moves and statistics, never for requests."""
        return self._store

    @property
    def store_id(self) -> int:
        return 0 if self._store is None else self._store.store_id

    def gate(self) -> Store:
        """The store, for use until the next await.  Raises ServiceError unless SERVING."""
        if self.state is ShardState.SERVING and self._store is not None:
            return self._store
        raise self._closed_gate()

    def _closed_gate(self) -> ServiceError:
        metadata = {"shard": self.name}
        match self.state:
            case ShardState.FENCED | ShardState.DROPPED | ShardState.COPYING:
                return ServiceError(Reason.SHARD_MOVING, f"{self.name} is moving", metadata)
            case _:
                return self._failure or ServiceError(
                    Reason.SHARD_UNAVAILABLE, f"{self.name}: {self.reason}", metadata
                )

    async def in_thread(
        self, function: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call `function(store, ...)` in a thread, inside the gate."""
        store = self.gate()
        return await self._inside_until_done(self._workers.run(function, store, *args, **kwargs))

    async def aside(
        self, function: Callable[Concatenate[Store, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same for moves, which use a store that is shut to requests.

        Raises SHARD_MOVING when the store is gone.
        """
        if self._store is None:
            raise self._closed_gate()
        return await self._inside_until_done(
            self._workers.run(function, self._store, *args, **kwargs)
        )

    async def sync(self) -> int:
        """Make every write acknowledged so far durable; returns its epoch."""
        return await self._inside_until_done(self._workers.run_flush(self.gate().sync))

    async def _inside_until_done(self, call: Coroutine[Any, Any, T]) -> T:
        """Counted inside until the thread has really ended: a cancelled request does not let a
        fence overtake its write."""
        self._inside += 1
        self._empty.clear()
        running = asyncio.ensure_future(call)
        running.add_done_callback(self._left)
        return await asyncio.shield(running)

    def _left(self, _call: asyncio.Task[Any]) -> None:
        self._inside -= 1
        self.feed.touch()
        if self._inside == 0:
            self._empty.set()

    async def write(self, batch: Sequence[Put | Delete], payload_bytes: int) -> list[Written]:
        """`Store.write`; waits for room in the write buffer without holding a thread."""
        if len(batch) > INLINE_OPERATIONS_MAX or payload_bytes > INLINE_BYTES_MAX:
            return await self._with_room(lambda: self.in_thread(Store.write, batch))

        async def inline() -> list[Written]:
            written = self.gate().write(batch)
            self.feed.touch()
            return written

        return await self._with_room(inline)

    async def increment(self, key: bytes, delta: int) -> tuple[int, Written]:
        """`Store.increment`, waiting as `write` does."""

        async def inline() -> tuple[int, Written]:
            sum_and_written = self.gate().increment(key, delta)
            self.feed.touch()
            return sum_and_written

        return await self._with_room(inline)

    async def _with_room(self, operation: Callable[[], Awaitable[T]]) -> T:
        give_up = monotonic() + ROOM_WAIT_S
        while True:
            try:
                return await operation()
            except Overloaded:
                if monotonic() >= give_up:
                    raise
                await asyncio.sleep(ROOM_POLL_S)

    async def durable(self, epoch: int) -> None:
        """Return when `epoch` is on disk; see `DurabilityWaiter.wait`."""
        if self._durability is None:
            raise self._closed_gate()
        await self._durability.wait(epoch)

    def fence(self, move_id: int) -> None:
        """Shut the gate for a move; `emptied` says when the last operation has left."""
        self.state = ShardState.FENCED
        self.move_id = move_id
        self.feed.touch()

    async def emptied(self) -> None:
        await self._empty.wait()

    def unfence(self) -> None:
        """Open the gate again: the move is out of the record."""
        if self.state is ShardState.FENCED:
            self.state = ShardState.SERVING
            self.move_id = 0

    def serve(self, term: int) -> None:
        """Open the gate of a finished copy."""
        self.term = term
        self.moved_keys = 0
        self.state = ShardState.SERVING

    async def close(self) -> None:
        """Shut the gate, wait until nobody is inside and close the store.  Idempotent.

        Those who watch it may read its log to the end for a moment.
        """
        if self.state in (ShardState.SERVING, ShardState.FENCED, ShardState.COPYING):
            self.state = ShardState.DROPPED
        await self.feed.close()
        await self._empty.wait()
        store, self._store = self._store, None
        if self._durability is not None:
            await self._durability.close()
            self._durability = None
        if store is not None:
            await self._workers.run_flush(store.close)
