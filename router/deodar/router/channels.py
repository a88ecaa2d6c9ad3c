"""Connections to nodes.

A node has up to `CHANNELS_MAX` connections; one more is opened when each has `CALLS_EACH` calls in
flight, since the calls of one connection share its flow control and its place in the kernel.
A node that hangs keeps its connections open, so keep-alive pings find it: within
`KEEPALIVE_MS` + `KEEPALIVE_TIMEOUT_MS` every call in flight on it fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from deodar.contract.rpc_status import channel_options

CHANNELS_MAX: Final = 4
CALLS_EACH: Final = 16
KEEPALIVE_MS: Final = 2_000
KEEPALIVE_TIMEOUT_MS: Final = 2_000
# Of one attempt to connect; gRPC takes it from the least back-off.
CONNECT_MS: Final = 1_000
# How long a node that says it stops is left alone: longer than it goes on refusing calls.
HOLD_S: Final = 0.5
CLOSE_GRACE_S: Final = 30.0  # for calls in flight to a node that moved to another address

_OPTIONS: Final = tuple(
    (
        dict(channel_options())
        | {
            "grpc.use_local_subchannel_pool": 1,  # a channel is a connection of its own
            "grpc.keepalive_time_ms": KEEPALIVE_MS,
            "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
            "grpc.http2.ping_timeout_ms": KEEPALIVE_TIMEOUT_MS,
            "grpc.min_reconnect_backoff_ms": CONNECT_MS,
        }
    ).items()
)

_log = structlog.get_logger(__name__)

_READY = grpc.ChannelConnectivity.READY
_SHUTDOWN = grpc.ChannelConnectivity.SHUTDOWN


class NodeChannel:
    """One connection; it reconnects by itself until it is closed."""

    def __init__(self, address: str) -> None:
        self.calls_in_flight = 0
        self._address = address
        # Its multi-callables are typed by serialisers, and bytes need none.
        self._channel: Any = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._connected = asyncio.Event()
        self._unary: dict[str, Callable[..., Any]] = {}
        self._following = asyncio.create_task(self._follow())

    @property
    def ready(self) -> bool:
        return self._connected.is_set() and self._channel.get_state() is _READY

    async def wait_ready(self, timeout_s: float) -> bool:
        """Whether it is connected, or was within the time."""
        if self.ready:
            return True
        # A state that changed a moment ago may not have reached the event yet.
        self._connected.clear()
        if self._channel.get_state(try_to_connect=True) is _READY:
            self._connected.set()
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Raises grpc.aio.AioRpcError."""
        unary = self._unary.get(method)
        if unary is None:
            unary = self._unary[method] = self._channel.unary_unary(method)
        self.calls_in_flight += 1
        try:
            answer: bytes = await unary(request, timeout=timeout_s)
            return answer
        finally:
            self.calls_in_flight -= 1

    @asynccontextmanager
    async def stream(
        self, method: str, request: bytes, timeout_s: float | None
    ) -> AsyncIterator[Any]:
        """The call of a stream of answers, cancelled on the way out if it has not ended."""
        self.calls_in_flight += 1
        call = self._channel.unary_stream(method)(request, timeout=timeout_s)
        try:
            yield call
        finally:
            self.calls_in_flight -= 1
            call.cancel()

    async def close(self, grace_s: float | None) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self._channel.close(grace_s)

    async def _follow(self) -> None:
        while True:
            state = self._channel.get_state(try_to_connect=True)
            if state is _SHUTDOWN:
                return
            if state is _READY:
                _log.info("connected to node", address=self._address)
                self._connected.set()
                await self._channel.wait_for_state_change(state)
                self._connected.clear()
                _log.warning("lost connection to node", address=self._address)
            else:
                await self._channel.wait_for_state_change(state)


class NodeChannels:
    """The connections to one node."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channels = [NodeChannel(address)]
        self._held_until = 0.0  # of the monotonic clock

    def hold(self) -> None:
        """Sends nothing for a while, since the node has said that it stops.

        What reaches a gRPC server in the moment of its stop is cancelled without a word, and a
        write would have an unknown outcome.
        """
        self._held_until = time.monotonic() + HOLD_S

    async def ready_channel(self, timeout_s: float) -> NodeChannel | None:
        """The connected channel with the fewest calls; None when none is within the time."""
        held_s = self._held_until - time.monotonic()
        if held_s > 0:
            await asyncio.sleep(min(held_s, timeout_s))
            timeout_s -= held_s
            if timeout_s <= 0:
                return None
        ready = [channel for channel in self._channels if channel.ready]
        if not ready:
            first = self._channels[0]
            return first if await first.wait_ready(timeout_s) else None
        channel = min(ready, key=lambda channel: channel.calls_in_flight)
        if channel.calls_in_flight >= CALLS_EACH and len(self._channels) < CHANNELS_MAX:
            self._channels.append(NodeChannel(self.address))
        return channel

    async def close(self, grace_s: float | None) -> None:
        await asyncio.gather(*(channel.close(grace_s) for channel in self._channels))


class ChannelPool:
    """The connections to all nodes, by node id."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeChannels] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def node(self, node: str, address: str) -> NodeChannels:
        """The node's connections; those to another address of it are given up."""
        channels = self._nodes.get(node)
        if channels is None or channels.address != address:
            self._drop(node)
            channels = self._nodes[node] = NodeChannels(address)
        return channels

    def hold(self, node: str, address: str) -> None:
        """Leaves the node alone for a while, if it still is at that address."""
        channels = self._nodes.get(node)
        if channels is not None and channels.address == address:
            channels.hold()

    def keep(self, addresses: Mapping[str, str]) -> None:
        """Drops the connections to nodes that are not in `addresses`, or elsewhere."""
        for node, channels in list(self._nodes.items()):
            if addresses.get(node) != channels.address:
                self._drop(node)

    async def close(self) -> None:
        for node in list(self._nodes):
            self._drop(node, None)
        await asyncio.gather(*self._closing)

    def _drop(self, node: str, grace_s: float | None = CLOSE_GRACE_S) -> None:
        channels = self._nodes.pop(node, None)
        if channels is not None:
            closing = asyncio.create_task(channels.close(grace_s))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
