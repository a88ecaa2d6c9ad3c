"""Watches across shards.

A node serves the watch of one shard; here those of all the shards that are asked for become one
stream.  Each is followed by itself: whatever ends it - a move, a restart, a lost connection - it is
taken up behind the last answer that was passed on, wherever the shard is then.  One short queue
joins them, so a caller who reads slowly slows down the nodes, and nothing piles up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from time import monotonic
from typing import Final, NamedTuple

import structlog

from deodar.contract.keypath import PATH_BYTES, Prefix, path_bytes, path_of
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import invalid_field
from deodar.contract.watchpos import Mark, WatchPosition, position_lost
from deodar.v1 import kv_pb2

from .forward import Forwarder
from .messages import check_key, parse
from .retry import AnswerLost, Attempts, Deadline, may_retry

# Each holds a stream to every node; more are refused.
WATCHES_MAX: Final = 1_024
# A position names every shard, and each answer holds one.
SHARDS_MAX: Final = 1_024
# Answers of about 1 MiB that wait for the caller.
QUEUE_ANSWERS: Final = 2
PROGRESS_S: Final = 1.0
# A node says something every second.
SILENCE_S: Final = 10.0
# How long a watch that stands does without one of its shards.
RECOVER_S: Final = 30.0

_MAY_COME_BACK: Final = (Reason.NODE_UNREACHABLE, Reason.SHARD_UNAVAILABLE)

_log = structlog.get_logger(__name__)


class Watches:
    """The watches that a router serves."""

    def __init__(self) -> None:
        self._open = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends all of them with SHUTTING_DOWN."""
        self._stopping.set()

    async def watch(
        self, forwarder: Forwarder, data: bytes, deadline: Deadline | None
    ) -> AsyncGenerator[bytes, None]:
        """The answers of one watch, until the caller closes it."""
        request = parse(kv_pb2.WatchRequest, data)
        with self._admitted():
            merged = _Merged(forwarder, request, deadline)
            try:
                await merged.start(self._stopping)
                while True:
                    yield await merged.answer()
            finally:
                await merged.close()

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._stopping.is_set():
            raise ServiceError(Reason.SHUTTING_DOWN, "the router stops")
        if self._open >= WATCHES_MAX:
            message = f"{self._open} watches are open"
            raise ServiceError(Reason.OVERLOADED, message, {"watches_max": str(WATCHES_MAX)})
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class _Part(NamedTuple):
    """What one shard has to say."""

    prefix: Prefix
    mark: Mark
    response: kv_pb2.WatchResponse


class _Merged:
    """One watch: its shards, and how far each of them is."""

    def __init__(
        self, forwarder: Forwarder, request: kv_pb2.WatchRequest, deadline: Deadline | None
    ) -> None:
        """Raises INVALID_FIELD."""
        self._forwarder = forwarder
        self._request = request
        self._deadline = deadline
        self._path = _watched_path(request)
        self._given = _position(request)
        self._table = ""
        self._marks: dict[Prefix, Mark] = {}  # of what was passed on
        self._queue: asyncio.Queue[_Part | ServiceError] = asyncio.Queue(QUEUE_ANSWERS)
        self._standing = asyncio.Event()
        self._told_at: float | None = None  # None = not even that the watch stands
        self._waited_for: set[Prefix] = set()  # shards that have not said so yet
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, stopping: asyncio.Event) -> None:
        """Raises UNKNOWN_TABLE, WATCH_POSITION_LOST, LIMIT_EXCEEDED, SHARD_UNAVAILABLE."""
        prefixes = await self._find_shards()
        if self._given is not None and self._given.table != self._table:
            raise invalid_field("position", f"is of table {self._given.table!r}")
        if len(prefixes) > SHARDS_MAX:
            message = f"a watch of {len(prefixes)} shards, at most {SHARDS_MAX} are allowed"
            raise ServiceError(Reason.LIMIT_EXCEEDED, message)
        marks = {prefix: self._given_mark(prefix) for prefix in prefixes}
        self._waited_for = set(prefixes)
        self._tasks = [
            asyncio.create_task(self._guarded(prefix, mark)) for prefix, mark in marks.items()
        ]
        self._tasks.append(asyncio.create_task(self._end_with(stopping)))

    async def answer(self) -> bytes:
        """The next answer: first that the watch stands, then events and progress."""
        while True:
            part = await self._queue.get()
            if isinstance(part, ServiceError):
                raise part
            self._marks[part.prefix] = part.mark
            self._waited_for.discard(part.prefix)
            if self._waited_for:
                continue
            self._standing.set()
            if not part.response.events and self._was_told_lately():
                continue
            self._told_at = monotonic()
            position = WatchPosition(self._table, self._marks).encode()
            header = kv_pb2.ResponseHeader(map_revision=self._forwarder.routing.revision)
            return kv_pb2.WatchResponse(
                header=header, events=part.response.events, position=position
            ).SerializeToString()

    def _was_told_lately(self) -> bool:
        return self._told_at is not None and monotonic() - self._told_at < PROGRESS_S

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _find_shards(self) -> list[Prefix]:
        routing = self._forwarder.routing
        attempts = Attempts(self._deadline or Deadline())
        while True:
            revision = routing.revision
            try:
                self._table = routing.table(self._request.table)
                if self._path is not None:
                    return [routing.locate(self._table, self._path).shard.prefix]
                return [shard.prefix for shard in routing.state.map.shards(self._table)]
            except ServiceError as error:
                await self._forwarder.pause(error, attempts, revision, write=False)

    def _given_mark(self, prefix: Prefix) -> Mark | None:
        if self._given is None:
            return None
        mark = self._given.mark(prefix)
        if mark is None:
            name = f"{self._table}/{prefix}"
            raise position_lost("the position does not tell of this shard", name)
        return mark

    async def _end_with(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        await self._queue.put(ServiceError(Reason.SHUTTING_DOWN, "the router stops"))

    async def _guarded(self, prefix: Prefix, mark: Mark | None) -> None:
        log = _log.bind(table=self._table, prefix=str(prefix))
        try:
            await self._follow(prefix, mark)
        except ServiceError as error:
            await self._queue.put(error)
        except Exception:
            log.exception("watch of a shard failed")
            await self._queue.put(ServiceError(Reason.INTERNAL, "a watch failed in the router"))

    async def _follow(self, prefix: Prefix, mark: Mark | None) -> None:
        """Feeds the queue with what the shard says, wherever it is."""
        attempts: Attempts | None = None
        while True:
            revision = self._forwarder.routing.revision
            try:
                async with aclosing(self._parts(prefix, mark)) as parts:
                    async for part in parts:
                        attempts, mark = None, part.mark
                        await self._queue.put(part)
                        await self._standing.wait()
            except ServiceError as error:
                if attempts is None:
                    patience_s = RECOVER_S if self._standing.is_set() else None
                    attempts = Attempts(self._deadline or Deadline(), patience_s)
                await self._pause(error, attempts, revision)

    async def _parts(self, prefix: Prefix, mark: Mark | None) -> AsyncGenerator[_Part, None]:
        target = self._forwarder.routing.locate(self._table, prefix.first_path)
        request = kv_pb2.WatchRequest()
        request.CopyFrom(self._request)
        request.path = path_bytes(prefix.first_path)
        request.position = b""
        if mark is not None:
            request.position = WatchPosition(self._table, {prefix: mark}).encode()
        data = request.SerializeToString()
        async with self._forwarder.stream(target, "Watch", data, self._deadline) as answers:
            while True:
                try:
                    async with asyncio.timeout(SILENCE_S):
                        answer = await answers.read()
                except TimeoutError as error:
                    message = f"node {target.node} was silent for {SILENCE_S:.0f} s"
                    raise AnswerLost(Reason.NODE_UNREACHABLE, message, target.facts()) from error
                if not isinstance(answer, bytes):
                    message = f"node {target.node} ended a watch"
                    raise AnswerLost(Reason.NODE_UNREACHABLE, message, target.facts())
                response = kv_pb2.WatchResponse.FromString(answer)
                found = WatchPosition.decode(response.position).mark(prefix)
                if found is None:
                    message = f"node {target.node} answered for another shard"
                    raise ServiceError(Reason.INTERNAL, message, target.facts())
                yield _Part(prefix, found, response)

    async def _pause(self, error: ServiceError, attempts: Attempts, revision: int) -> None:
        """As `Forwarder.pause`; a watch that stands also waits for nodes to come back."""
        comes_back = self._standing.is_set() and error.reason in _MAY_COME_BACK
        if not comes_back or may_retry(error, write=False):
            await self._forwarder.pause(error, attempts, revision, write=False)
            return
        pause_s = attempts.pause_s(error)
        if pause_s is None:
            raise error
        await self._forwarder.routing.wait_newer(revision, pause_s)


def _watched_path(request: kv_pb2.WatchRequest) -> int | None:
    """The path of the one shard to watch; None = all.  Raises INVALID_FIELD."""
    selection = request.WhichOneof("selection")
    if selection is None:
        raise invalid_field("selection", "neither a key nor a prefix of keys")
    if selection == "key":
        check_key(request.key)
        return path_of(request.key)
    if not request.path:
        return None
    if len(request.path) != PATH_BYTES:
        raise invalid_field("path", f"{len(request.path)} bytes, not {PATH_BYTES}")
    return int.from_bytes(request.path, "big")


def _position(request: kv_pb2.WatchRequest) -> WatchPosition | None:
    if not request.position:
        return None
    try:
        return WatchPosition.decode(request.position)
    except ValueError as error:
        raise invalid_field("position", str(error)) from error
