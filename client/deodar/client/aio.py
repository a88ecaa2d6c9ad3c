"""The async client: the calls of `client.Client`, awaited."""

# ruff: noqa: ASYNC109 - `timeout` is a name of this face, and also a deadline on the wire

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import grpc

from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .client import CONNECTIONS_MAX
from .core import DEFAULT_TIMEOUT_S, Core
from .plan import Pause, Plan, Send, T
from .records import Delete, Durability, Event, Item, Put, Written
from .requests import checked_number
from .routing import Routing, parse_endpoints
from .scanning import ScanState, Stream, cursor_behind
from .transport_aio import AsyncTransport
from .watching import WatchState
from .wire import Unreached, failure_of, unreached


class AsyncClient:
    """A client of one cluster in one event loop; see `deodar.client.client.Client`.

    Use it with ``async with``; awaiting it gives itself.  A write whose task is cancelled may have
    been done or not.
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
        self._transport = AsyncTransport(
            routing, checked_number("connections", connections, 1, CONNECTIONS_MAX)
        )

    async def get(
        self, key: bytes, *, table: str = DEFAULT_TABLE, timeout: float | None = None
    ) -> bytes | None:
        """See `Client.get`."""
        return await self._run(self._core.get(key, table, timeout))

    async def get_item(
        self, key: bytes, *, table: str = DEFAULT_TABLE, timeout: float | None = None
    ) -> Item | None:
        """See `Client.get_item`."""
        return await self._run(self._core.get_item(key, table, timeout))

    async def put(
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
        """See `Client.put`."""
        put = Put(key, value, ttl_ms, if_version, if_absent)
        return await self._run(self._core.put(put, table, durability, timeout))

    async def delete(
        self,
        key: bytes,
        *,
        table: str = DEFAULT_TABLE,
        if_version: int | None = None,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> bool:
        """See `Client.delete`."""
        delete = Delete(key, if_version)
        return await self._run(self._core.delete(delete, table, durability, timeout))

    async def increment(
        self,
        key: bytes,
        delta: int = 1,
        *,
        table: str = DEFAULT_TABLE,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> int:
        """See `Client.increment`."""
        return await self._run(self._core.increment(key, delta, table, durability, timeout))

    async def batch_get(
        self, keys: Sequence[bytes], *, table: str = DEFAULT_TABLE, timeout: float | None = None
    ) -> list[bytes | None]:
        """See `Client.batch_get`."""
        return await self._run(self._core.batch_get(keys, table, timeout))

    async def batch_write(
        self,
        operations: Sequence[Put | Delete],
        *,
        table: str = DEFAULT_TABLE,
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> list[Written]:
        """See `Client.batch_write`."""
        return await self._run(self._core.batch_write(operations, table, durability, timeout))

    def scan(
        self,
        *,
        table: str = DEFAULT_TABLE,
        cursor: bytes | None = None,
        limit: int | None = None,
        key_prefix: bytes = b"",
        keys_only: bool = False,
        timeout: float | None = None,
    ) -> AsyncScan:
        """See `Client.scan`; iterate with ``async for``."""
        state = self._core.scan(
            table=table,
            cursor=cursor,
            limit=limit,
            key_prefix=key_prefix,
            keys_only=keys_only,
            timeout=timeout,
        )
        return AsyncScan(self._transport, state)

    def watch(
        self,
        key: bytes | None = None,
        *,
        prefix: bytes | None = None,
        table: str = DEFAULT_TABLE,
        position: bytes | None = None,
        timeout: float | None = None,
    ) -> AsyncWatch:
        """See `Client.watch`; stands once ``async with`` or the first iteration has begun."""
        state = self._core.watch(
            key=key, prefix=prefix, table=table, position=position, timeout=timeout
        )
        return AsyncWatch(self._transport, state)

    async def sync(self, *, table: str = DEFAULT_TABLE, timeout: float | None = None) -> None:
        """See `Client.sync`."""
        await self._run(self._core.sync(table, timeout))

    async def close(self) -> None:
        """Closes the connections; later calls raise `Closed`.  Idempotent."""
        await self._transport.close()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, plan: Plan[T]) -> T:
        """Drives a plan to its end."""
        transport = self._transport
        try:
            step = next(plan)
            while True:
                if isinstance(step, Send):
                    step = plan.send(await transport.send(step.calls))
                else:
                    await transport.pause(step)
                    step = plan.send([])
        except StopIteration as end:
            result: T = end.value
            return result


class AsyncScan(AsyncIterator[Item]):
    """The items of a scan; see `deodar.client.client.Scan`."""

    def __init__(self, transport: AsyncTransport, state: ScanState) -> None:
        self.cursor: bytes | None = state.cursor
        self._transport = transport
        self._state = state
        self._items = self._run()

    async def __anext__(self) -> Item:
        return await anext(self._items)

    async def close(self) -> None:
        """Ends the scan; `cursor` stays.  Scans that are read to their end need no close."""
        await self._items.aclose()

    async def _run(self) -> AsyncGenerator[Item, None]:
        state = self._state
        while not state.done:
            async with aclosing(self._pages(state.open())) as pages:
                async for page in pages:
                    for item in page:
                        self.cursor = cursor_behind(item.key)
                        yield item
                    self.cursor = state.cursor

    async def _pages(self, stream: Stream) -> AsyncGenerator[list[Item], None]:
        """The pages of one stream; raises when the scan cannot go on."""
        pause: Pause | None = None
        try:
            async with aclosing(self._transport.pages(stream)) as responses:
                async for response in responses:
                    yield self._state.page(response)
        except Unreached:
            pause = self._state.failed(unreached(stream.target.address), stream)
        except grpc.RpcError as error:
            pause = self._state.failed(failure_of(error, repeatable=True), stream)
        else:
            self._state.ended(stream)
        if pause is not None:
            await self._transport.pause(pause)


class AsyncWatch(AsyncIterator[Event]):
    """The events of a watch; see `deodar.client.client.Watch`.  Of one task."""

    def __init__(self, transport: AsyncTransport, state: WatchState) -> None:
        self._transport = transport
        self._state = state
        self._answers = self._run()

    @property
    def position(self) -> bytes:
        """See `Watch.position`; empty before the watch stands."""
        return self._state.position

    async def __anext__(self) -> Event:
        while True:
            event = self._state.take()
            if event is not None:
                return event
            await anext(self._answers)

    async def close(self) -> None:
        """Ends the watch; `position` stays.  Idempotent."""
        await self._answers.aclose()

    async def __aenter__(self) -> Self:
        await anext(self._answers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self) -> AsyncGenerator[None, None]:
        """Yields behind each answer; raises when the watch cannot go on."""
        while True:
            stream = self._state.open()
            try:
                async with aclosing(self._transport.watch(stream)) as responses:
                    async for response in responses:
                        self._state.answer(response)
                        yield
                failure = unreached(stream.target.address)
            except Unreached:
                failure = unreached(stream.target.address)
            except grpc.RpcError as error:
                failure = failure_of(error, repeatable=True)
            await self._transport.pause(self._state.failed(failure, stream))
