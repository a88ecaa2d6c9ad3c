"""Whether a channel's connection is up: a call sent over one that is not may hang or be lost."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from .interface import RegistryUnavailable
from .lease import now_ms


async def channel_ready(channel: grpc.aio.Channel, timeout_ms: float) -> bool:
    """True once connected; False after a failed attempt or `timeout_ms`.

    Raises RegistryUnavailable when the channel was closed.
    """
    end_ms = now_ms() + timeout_ms
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.SHUTDOWN:
            raise RegistryUnavailable("the registry's client is closed")
        left_ms = end_ms - now_ms()
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE or left_ms <= 0:
            return False
        try:
            async with asyncio.timeout(left_ms / 1000):
                await channel.wait_for_state_change(state)
        except TimeoutError:
            return False
        state = channel.get_state(try_to_connect=True)
    return True
