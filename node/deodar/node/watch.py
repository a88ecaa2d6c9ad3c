"""The watch of one shard: its changes as they become durable, until it goes elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

from deodar.contract.keypath import PATH_BYTES, path_of
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import invalid_field
from deodar.contract.watchpos import Mark, WatchPosition, position_lost
from deodar.engine import Change
from deodar.v1 import kv_pb2

from .copysource import chunks
from .shard import HostedShard, ShardState
from .validation import check_key, table_name

# How often a watch that has nothing to tell says how far it is.
PROGRESS_S = 1.0


class WatchLimit:
    """How many watches a node serves at once."""

    def __init__(self, watches_max: int) -> None:
        self.open = 0
        self._watches_max = watches_max

    @contextmanager
    def admit(self) -> Iterator[None]:
        """For the length of a watch; raises OVERLOADED."""
        if self.open >= self._watches_max:
            raise ServiceError(
                Reason.OVERLOADED,
                f"the node serves {self.open} watches, and no more",
                {"watches_max": str(self._watches_max)},
            )
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class Wanted(NamedTuple):
    """A request to a node, checked."""

    table: str
    path: int
    selects: Callable[[bytes], bool]
    position: WatchPosition | None

    def after(self, shard: HostedShard) -> int | None:
        """The version to go on behind in this shard; None = from now on.

        Raises WATCH_POSITION_LOST for a position that is not of this shard's history.
        """
        if self.position is None:
            return None
        mark = self.position.mark(shard.prefix)
        if mark is None:
            raise position_lost("the position does not tell of this shard", shard.name)
        if mark.history != shard.history:
            raise position_lost("the position is of another history", shard.name)
        return mark.version


def check_watch(request: kv_pb2.WatchRequest) -> Wanted:
    """Raises INVALID_FIELD."""
    table = table_name(request.table)
    match request.WhichOneof("selection"):
        case "key":
            key = request.key
            check_key(key)
            path = path_of(key)
            selects: Callable[[bytes], bool] = key.__eq__
        case "key_prefix":
            prefix = request.key_prefix
            if len(request.path) != PATH_BYTES:
                message = f"has {len(request.path)} bytes: on a node it says which shard to watch"
                raise invalid_field("path", message)
            path = int.from_bytes(request.path, "big")

            def selects(key: bytes) -> bool:
                return key.startswith(prefix)

        case _:
            raise invalid_field("selection", "is neither a key nor a prefix of keys")
    position = None
    if request.position:
        try:
            position = WatchPosition.decode(request.position)
        except ValueError as error:
            raise invalid_field("position", str(error)) from error
        if position.table != table:
            raise invalid_field("position", f"is of table {position.table!r}")
    return Wanted(table, path, selects, position)


async def watch_shard(
    shard: HostedShard, wanted: Wanted, is_stopping: Callable[[], bool]
) -> AsyncGenerator[tuple[list[Change], Mark], None]:
    """Changes that are wanted, and the place behind them; without changes to begin with, and about
    every `PROGRESS_S` in which there are none.

    A shard that is fenced is read to its end, so that nothing of the watch is missing where it goes
    on.  Raises SHARD_MOVING then, SHUTTING_DOWN, WATCH_POSITION_LOST, STORE_READ_ONLY, EngineError.
    """
    feed, history = shard.feed, shard.history
    with feed.follow(wanted.after(shard)) as follower:
        while feed.durable < follower.version:
            await feed.beyond(follower.version - 1)
        told_at = monotonic()
        yield [], Mark(history, follower.version)
        while True:
            if is_stopping():
                raise ServiceError(Reason.SHUTTING_DOWN, f"{shard.name}: the node is stopping")
            until = await feed.beyond(follower.version)
            if until > follower.version:
                changes = await feed.read(follower.version, until)
                follower.advance(changes[-1].version if changes else until)
                selected = [change for change in changes if wanted.selects(change.key)]
                parts = list(chunks(selected))
                for part in parts:
                    told_at = monotonic()
                    last = follower.version if part is parts[-1] else part[-1].version
                    yield part, Mark(history, last)
            elif shard.state is not ShardState.SERVING and _at_the_end(shard, until):
                yield [], Mark(history, follower.version)
                raise ServiceError(
                    Reason.SHARD_MOVING, f"{shard.name} is moving", {"shard": shard.name}
                )
            if monotonic() - told_at >= PROGRESS_S:
                told_at = monotonic()
                yield [], Mark(history, follower.version)


def _at_the_end(shard: HostedShard, version: int) -> bool:
    return shard.store is None or version >= shard.store.last_version
