"""The transport of the async client: channels by address, and the task that follows the map.

Everything happens in the event loop of the first call.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
import grpc.aio

from deodar.v1 import admin_pb2, kv_pb2

from .errors import Closed
from .plan import Call, Method, Outcome, Pause
from .routing import Routing
from .scanning import Stream
from .watching import WatchStream
from .wire import (
    FOLLOW_PAUSE_MAX_S,
    FOLLOW_PAUSE_S,
    OPTIONS,
    READY_S,
    STUBS,
    Leavers,
    Unreached,
    failure_of,
    out_of_time,
    unreached,
)

_GONE: Final = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class Connection:
    """One channel."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        self.stubs: dict[str, Any] = {name: stub(self._channel) for name, stub in STUBS.items()}

    async def wait_ready(self, seconds: float) -> bool:
        """Whether the connection stands; waits while it is being made."""
        state = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return True
        try:
            async with asyncio.timeout(seconds):
                while state is not grpc.ChannelConnectivity.READY:
                    if state in _GONE:
                        return False
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True

    def method(self, method: Method) -> Any:
        return getattr(self.stubs[method.service], method.name)

    async def close(self) -> None:
        await self._channel.close()


class AsyncTransport:
    """Drives the plans' sends and pauses."""

    def __init__(self, routing: Routing, connections: int) -> None:
        self._routing = routing
        self._connections_each = connections
        self._turn = itertools.count()
        self._connections: dict[str, list[Connection]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._follower: asyncio.Task[None] | None = None
        self._map_changed = asyncio.Event()  # replaced at each change
        self._closed = False
        self._leavers = Leavers()

    async def send(self, calls: tuple[Call, ...]) -> list[Outcome]:
        if len(calls) == 1:
            return [await self._call(calls[0])]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._call(call)) for call in calls]
        return [task.result() for task in tasks]

    async def pages(self, stream: Stream) -> AsyncGenerator[kv_pb2.ScanResponse, None]:
        """The answers of a Scan; raises grpc.RpcError, or Unreached when nothing was sent."""
        connection = self._connection(stream.target.address)
        if not await connection.wait_ready(min(READY_S, stream.timeout_s)):
            raise Unreached(stream.target.address)
        call = connection.stubs["KV"].Scan(stream.request, timeout=stream.timeout_s)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def watch(self, stream: WatchStream) -> AsyncGenerator[kv_pb2.WatchResponse, None]:
        """The answers of a Watch; raises grpc.RpcError, or Unreached when nothing was sent."""
        connection = self._connection(stream.target.address)
        if not await connection.wait_ready(min(READY_S, max(stream.timeout_s, 0.0))):
            raise Unreached(stream.target.address)
        call = connection.stubs["KV"].Watch(stream.request)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def pause(self, pause: Pause) -> None:
        """Waits for a newer map or for the time to pass."""
        deadline = time.monotonic() + pause.seconds
        while self._routing.map.revision <= pause.newer_than:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._map_changed.wait()
            except TimeoutError:
                break
        self._check_open()

    async def close(self) -> None:
        """Ends the task and all channels; calls under way end with an error.  Idempotent."""
        self._closed = True
        self._announce()
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.wait([follower])
        connections = [c for group in self._connections.values() for c in group]
        self._connections = {}
        for connection in connections:
            await connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the client is closed")

    def _announce(self) -> None:
        self._map_changed.set()
        self._map_changed = asyncio.Event()

    def _connection(self, address: str) -> Connection:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            if self._routing.smart:
                self._follower = loop.create_task(self._follow(), name="deodar-shard-map")
        elif self._loop is not loop:
            raise Closed("the client belongs to another event loop")
        group = self._connections.get(address)
        if group is None:
            group = [Connection(address) for _ in range(self._connections_each)]
            self._connections[address] = group
        return group[next(self._turn) % len(group)]

    async def _call(self, call: Call) -> Outcome:
        begun = time.monotonic()
        connection = self._connection(call.address)
        if call.timeout_s <= 0:
            return out_of_time(call.address)
        if not await connection.wait_ready(min(READY_S, call.timeout_s)):
            return unreached(call.address)
        seconds = call.timeout_s - (time.monotonic() - begun)
        if seconds <= 0:
            return out_of_time(call.address)
        try:
            return await connection.method(call.method)(call.request, timeout=seconds)
        except grpc.RpcError as error:
            return failure_of(error, repeatable=call.method.repeatable)
        except grpc.aio.UsageError as error:  # the channel was closed meanwhile
            raise Closed(str(error)) from error

    async def _close_leavers(self) -> None:
        due = self._leavers.due(self._connections, self._routing.servers, time.monotonic())
        for connection in [one for name in due for one in self._connections.pop(name)]:
            await connection.close()

    async def _follow(self) -> None:
        """Keeps the routing's map, from one router or another, until cancelled."""
        pause_s = FOLLOW_PAUSE_S
        while True:
            target = self._routing.router_target()
            connection = self._connection(target.address)
            try:
                if await connection.wait_ready(READY_S):
                    request = admin_pb2.WatchShardMapRequest()
                    async for change in connection.stubs["Admin"].WatchShardMap(request):
                        self._routing.update(change)
                        await self._close_leavers()
                        self._announce()
                        pause_s = FOLLOW_PAUSE_S
                else:
                    self._routing.avoid(target)
            except (grpc.RpcError, ValueError):
                # No router there, or a map that cannot be read: routers are asked instead.
                self._routing.avoid(target)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, FOLLOW_PAUSE_MAX_S)
