"""The blocking client."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .core import DEFAULT_TIMEOUT_S, Core
from .plan import Pause, Plan, Send, T
from .records import Delete, Durability, Event, Item, Put, Written
from .requests import checked_number
from .routing import Routing, parse_endpoints
from .scanning import ScanState, Stream, cursor_behind
from .transport import Transport
from .watching import WatchState
from .wire import Unreached, failure_of, unreached

CONNECTIONS_MAX = 64


class Client:
    """A client of one cluster; any number of threads may use it at once.

    Nothing is connected before the first call.  Each call has a deadline (`timeout` seconds, 10 by
    default) and raises a child of `deodar.Error`, TypeError for keys and values that are not
    bytes.  What certainly was not done is tried again until the deadline.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        smart: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
        connections: int = 1,
    ) -> None:
        routing = Routing(parse_endpoints(endpoint), smart=smart)
        self._core = Core(routing, timeout)
        self._transport = Transport(
            routing, checked_number("connections", connections, 1, CONNECTIONS_MAX)
        )
        # Closes a client that is dropped without `close`, and all at the interpreter's exit.
        self._close = weakref.finalize(self, self._transport.close)

    def get(
        self, key: bytes, *, table: str = DEFAULT_TABLE, timeout: float | None = None
    ) -> bytes | None:
        """The value; None when there is none.  Sees every write acknowledged before it began."""
        return self._run(self._core.get(key, table, timeout))

    def get_item(
        self, key: bytes, *, table: str = DEFAULT_TABLE, timeout: float | None = None
    ) -> Item | None:
        """The value with its version and the milliseconds it has left."""
        return self._run(self._core.get_item(key, table, timeout))

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        table: str = DEFAULT_TABLE,
        ttl_ms: int | None = None,
        if_version: int | None = None,
        if_absent: bool = False,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> int:
        """Writes and returns the version, which rises with every write of a key.

        `ttl_ms`: milliseconds until the record expires (None = never; also when it overwrites one
        that would).  `if_version`: write only over this version; `if_absent`: only where there is
        no record; else `ConditionFailed`.  `durability`: "buffered" (in memory; a crash loses a few
        milliseconds at most), "replicated", "durable" (on disk); None = the table's default.
        """
        put = Put(key, value, ttl_ms, if_version, if_absent)
        return self._run(self._core.put(put, table, durability, timeout))

    def delete(
        self,
        key: bytes,
        *,
        table: str = DEFAULT_TABLE,
        if_version: int | None = None,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Deletes and returns whether there was something."""
        return self._run(self._core.delete(Delete(key, if_version), table, durability, timeout))

    def increment(
        self,
        key: bytes,
        delta: int = 1,
        *,
        table: str = DEFAULT_TABLE,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> int:
        """Adds to a decimal number of 64 bits (an absent key counts as 0); returns the sum.

        Raises `NotANumber`, or `OutOfRange` when the sum does not fit; the value stays.
        """
        return self._run(self._core.increment(key, delta, table, durability, timeout))

    def batch_get(
        self, keys: Sequence[bytes], *, table: str = DEFAULT_TABLE, timeout: float | None = None
    ) -> list[bytes | None]:
        """Values in the order and number of `keys`, None for absent ones; at most 10,000.

        Raises `BatchError` with each key's result when some could not be read, and the error itself
        when the whole call was refused.
        """
        return self._run(self._core.batch_get(keys, table, timeout))

    def batch_write(
        self,
        operations: Sequence[Put | Delete],
        *,
        table: str = DEFAULT_TABLE,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> list[Written]:
        """Does the operations, at most 10,000 and 16 MiB; results in their order.

        Operations on one shard are atomic, those on different shards are not: raises `BatchError`
        with each operation's result when some failed.
        """
        return self._run(self._core.batch_write(operations, table, durability, timeout))

    def scan(
        self,
        *,
        table: str = DEFAULT_TABLE,
        cursor: bytes | None = None,
        limit: int | None = None,
        key_prefix: bytes = b"",
        keys_only: bool = False,
        timeout: float | None = None,
    ) -> Scan:
        """Iterates over the records in hash order.

        A record that exists throughout comes exactly once, whatever is written or moved meanwhile.
        `cursor`: go on where a `Scan.cursor` stood; `limit`: records in all; `key_prefix`: only
        keys that start so; `keys_only`: leave the values out.  `timeout` bounds the wait for
        progress, not the whole scan.
        """
        state = self._core.scan(
            table=table,
            cursor=cursor,
            limit=limit,
            key_prefix=key_prefix,
            keys_only=keys_only,
            timeout=timeout,
        )
        return Scan(self._transport, state)

    def watch(
        self,
        key: bytes | None = None,
        *,
        prefix: bytes | None = None,
        table: str = DEFAULT_TABLE,
        position: bytes | None = None,
        timeout: float | None = None,
    ) -> Watch:
        """Iterates over the durable changes of one key, or of all keys with a prefix.

        Neither key nor prefix: the whole table.  Returns when the watch stands: what is written
        after that will be seen.  The changes of a key come in order, each once; moves and restarts
        are followed.  `position`: go on behind a `Watch.position` or `Event.position` of earlier;
        raises `WatchPositionLost` when the changes behind it are not all there any more.
        `timeout` bounds how long nobody may serve the watch, not the wait for a change.  A record
        that expires is no change.

        Iterate in one thread; use it with ``with``, or `close` it from any thread.
        """
        state = self._core.watch(
            key=key, prefix=prefix, table=table, position=position, timeout=timeout
        )
        return Watch(self._transport, state)

    def sync(self, *, table: str = DEFAULT_TABLE, timeout: float | None = None) -> None:
        """Makes every write acknowledged before the call durable."""
        self._run(self._core.sync(table, timeout))

    def close(self) -> None:
        """Closes the connections; later calls raise `Closed`.  Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, plan: Plan[T]) -> T:
        """Drives a plan to its end."""
        transport = self._transport
        try:
            step = next(plan)
            while True:
                if isinstance(step, Send):
                    step = plan.send(transport.send(step.calls))
                else:
                    transport.pause(step)
                    step = plan.send([])
        except StopIteration as end:
            result: T = end.value
            return result


class Scan(Iterator[Item]):
    """The items of a scan; `cursor` always stands behind the last one that was taken.

    `cursor` is bytes that stay valid for ever, to go on with in another scan; None once the end of
    the table was reached.
    """

    def __init__(self, transport: Transport, state: ScanState) -> None:
        self.cursor: bytes | None = state.cursor
        self._transport = transport
        self._state = state
        self._items = self._run()

    def __next__(self) -> Item:
        return next(self._items)

    def close(self) -> None:
        """Ends the scan; `cursor` stays.  Scans that are read to their end need no close."""
        self._items.close()

    def _run(self) -> Generator[Item, None, None]:
        state = self._state
        while not state.done:
            stream = state.open()
            for page in self._pages(stream):
                for item in page:
                    self.cursor = cursor_behind(item.key)
                    yield item
                self.cursor = state.cursor

    def _pages(self, stream: Stream) -> Iterator[list[Item]]:
        """The pages of one stream; raises when the scan cannot go on."""
        pause: Pause | None = None
        try:
            for response in self._transport.pages(stream):
                yield self._state.page(response)
        except Unreached:
            pause = self._state.failed(unreached(stream.target.address), stream)
        except grpc.RpcError as error:
            pause = self._state.failed(failure_of(error, repeatable=True), stream)
        else:
            self._state.ended(stream)
        if pause is not None:
            self._transport.pause(pause)


class Watch(Iterator[Event]):
    """The events of a watch; ends when it is closed."""

    def __init__(self, transport: Transport, state: WatchState) -> None:
        self._transport = transport
        self._state = state
        self._closed = False
        self._call: Any = None
        self._answers = self._run()
        next(self._answers)

    @property
    def position(self) -> bytes:
        """Where another watch goes on behind the last event that was taken; valid for as long as
        the log reaches back to it."""
        return self._state.position

    def __next__(self) -> Event:
        while True:
            if self._closed:
                raise StopIteration
            event = self._state.take()
            if event is not None:
                return event
            next(self._answers)

    def close(self) -> None:
        """Ends the watch; `position` stays.  Idempotent."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> Generator[None, None, None]:
        """Yields behind each answer; raises when the watch cannot go on."""
        while not self._closed:
            stream = self._state.open()
            try:
                self._call = self._transport.watch(stream)
                for response in self._call:
                    self._state.answer(response)
                    yield
                failure = unreached(stream.target.address)
            except Unreached:
                failure = unreached(stream.target.address)
            except grpc.RpcError as error:
                if self._closed:
                    return
                failure = failure_of(error, repeatable=True)
            self._transport.pause(self._state.failed(failure, stream))
