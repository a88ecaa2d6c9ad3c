"""One call to one node, and the loop that finds the right one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio

from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import error_from_rpc

from .channels import ChannelPool, NodeChannel
from .retry import AnswerLost, Attempts, Deadline, may_retry
from .routing import Routing, Target

KV: Final = "/deodar.v1.KV/"
READY_S: Final = 1.0  # how long a call waits for the connection to a node
READY_WITHOUT_LEASE_S: Final = 0.25  # ... to a node that the registry has lost


class Forwarder:
    """Sends bytes to the nodes that hold their shards."""

    def __init__(self, routing: Routing, pool: ChannelPool) -> None:
        self.routing = routing
        self._pool = pool

    async def call(
        self, method: str, table: str, path: int, request: bytes, deadline: Deadline, *, write: bool
    ) -> bytes:
        """The answer of the node that serves `path`, as it is.

        Tries again as `retry.py` says; raises ServiceError.
        """
        attempts = Attempts(deadline)
        while True:
            revision = self.routing.revision
            try:
                target = self.routing.locate(self.routing.table(table), path)
                return await self.send(target, method, request, deadline, write=write)
            except ServiceError as error:
                await self.pause(error, attempts, revision, write=write)

    async def send(
        self, target: Target, method: str, request: bytes, deadline: Deadline, *, write: bool
    ) -> bytes:
        """One attempt; raises ServiceError, AnswerLost when the answer was lost."""
        channel = await self.connect(target, deadline)
        try:
            return await channel.call(KV + method, request, deadline.remaining_s)
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, target, write=write) from error

    @asynccontextmanager
    async def stream(
        self, target: Target, method: str, request: bytes, deadline: Deadline | None
    ) -> AsyncIterator[Any]:
        """One attempt of a streaming read; failures inside are ServiceErrors as those of `send`."""
        channel = await self.connect(target, deadline or Deadline())
        timeout_s = None if deadline is None else deadline.remaining_s
        try:
            async with channel.stream(KV + method, request, timeout_s) as answers:
                yield answers
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, target, write=False) from error

    async def connect(self, target: Target, deadline: Deadline) -> NodeChannel:
        """A connection to the node; NODE_UNREACHABLE (nothing was sent) when there is none."""
        if target.address:
            wait_s = READY_S if target.up else READY_WITHOUT_LEASE_S
            node = self._pool.node(target.node, target.address)
            channel = await node.ready_channel(min(wait_s, deadline.remaining_s))
            if channel is not None:
                return channel
        where = target.address or "an unknown address"
        lease = "" if target.up else ", and its lease has ended"
        message = f"node {target.node} at {where} does not answer{lease}: {target.shard.name}"
        if self.routing.target_changed(target):
            raise ServiceError(Reason.MOVED, message, target.facts())
        raise ServiceError(Reason.NODE_UNREACHABLE, message, target.facts())

    async def pause(
        self, error: ServiceError, attempts: Attempts, revision: int, *, write: bool
    ) -> None:
        """Waits for a newer map or a while before the next attempt, or raises the error."""
        if not may_retry(error, write=write):
            raise error
        pause_s = attempts.pause_s(error)
        if pause_s is None:
            raise attempts.given_up(error)
        newer = await self.routing.wait_newer(revision, pause_s)
        if not newer and error.reason is Reason.MOVED:
            await self.routing.reread()

    def _failure(self, error: grpc.aio.AioRpcError, target: Target, *, write: bool) -> ServiceError:
        """The node's own error as it is; a failure of the transport names the node."""
        failure = error_from_rpc(error, may_have_run=write)
        if failure.reason is Reason.SHUTTING_DOWN:
            self._pool.hold(target.node, target.address)
        if failure.reason not in (Reason.NODE_UNREACHABLE, Reason.OUTCOME_UNKNOWN):
            return failure
        message = f"node {target.node} at {target.address}: {failure.message}"
        return AnswerLost(failure.reason, message, target.facts())
