"""The Admin service: how the cluster stands, its map for clients, and changes of its shape.

Changes are compare-and-set transactions on the registry's records; the controller and the nodes
act on the records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from deodar.contract.keypath import Prefix
from deodar.contract.limits import DEFAULT_TABLE
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import invalid_field
from deodar.registry.interface import (
    Compare,
    OutcomeUnknown,
    Put,
    Registry,
    RegistryError,
)
from deodar.registry.records import Keys, decode, encode
from deodar.v1 import admin_pb2, cluster_pb2

from .channels import ChannelPool
from .map_watch import MapFeed
from .messages import parse
from .routing import Routing
from .status import ask_nodes, cluster_status

SERVICE: Final = "deodar.v1.Admin"
# Tries of a change whose record somebody else has just changed.
CHANGE_TRIES: Final = 5
MAP_WAIT_S: Final = 60.0
# How long evening out leaves a shard where an operator has moved it.
PIN_MS: Final = 600_000

M = TypeVar("M", bound=Message)
R = TypeVar("R", cluster_pb2.MemberRecord, cluster_pb2.ShardRecord)
Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer:
    def __init__(self, keys: Keys, registry: Registry, routing: Routing, pool: ChannelPool) -> None:
        self._keys = keys
        self._registry = registry
        self._routing = routing
        self._pool = pool
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends the watches, so that a server that stops does not wait for them."""
        self._stopping.set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The service for `add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ClusterStatus": _unary(admin_pb2.ClusterStatusRequest, self.cluster_status),
                "SetDraining": _unary(admin_pb2.SetDrainingRequest, self.set_draining),
                "MoveShard": _unary(admin_pb2.MoveShardRequest, self.move_shard),
                "WatchShardMap": grpc.unary_stream_rpc_method_handler(self.watch_shard_map),
            },
        )

    async def cluster_status(
        self, _request: admin_pb2.ClusterStatusRequest
    ) -> admin_pb2.ClusterStatusResponse:
        reports = await ask_nodes(self._routing, self._pool)
        return cluster_status(
            self._keys.cluster,
            self._registry.kind,
            self._registry.endpoints,
            self._routing.state,
            reports,
        )

    async def watch_shard_map(self, data: bytes, _context: Context) -> AsyncIterator[bytes]:
        request = parse(admin_pb2.WatchShardMapRequest, data)
        feed = MapFeed(request.table)
        while not self._stopping.is_set():
            state = self._routing.state
            message = feed.advance(state)
            if message is not None:
                yield message.SerializeToString()
            await self._change_or_stop(state.revision)
        raise ServiceError(Reason.SHUTTING_DOWN, "the router stops")

    async def _change_or_stop(self, revision: int) -> None:
        waits: list[asyncio.Task[bool]] = [
            asyncio.create_task(self._routing.wait_newer(revision, MAP_WAIT_S)),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def set_draining(
        self, request: admin_pb2.SetDrainingRequest
    ) -> admin_pb2.SetDrainingResponse:
        try:
            key = self._keys.member(request.node)
        except ValueError as error:
            raise invalid_field("node", str(error)) from error

        def change(member: cluster_pb2.MemberRecord) -> bool:
            changed = member.draining != request.draining
            member.draining = request.draining
            return changed

        unknown = ServiceError(
            Reason.UNKNOWN_NODE, f"no node {request.node!r}", {"node": request.node}
        )
        _, revision = await self._change(key, cluster_pb2.MemberRecord, change, unknown)
        return admin_pb2.SetDrainingResponse(map_revision=revision)

    async def move_shard(self, request: admin_pb2.MoveShardRequest) -> admin_pb2.MoveShardResponse:
        table = request.table or DEFAULT_TABLE
        try:
            prefix = Prefix.from_bytes(request.prefix, request.prefix_bits)
        except ValueError as error:
            raise invalid_field("prefix", str(error)) from error
        if not request.target:
            raise invalid_field("target", "empty")
        if table not in self._routing.state.tables:
            raise ServiceError(Reason.UNKNOWN_TABLE, f"no table {table!r}", {"table": table})

        def change(shard: cluster_pb2.ShardRecord) -> bool:
            now_ms = time.time_ns() // 1_000_000
            if shard.state == cluster_pb2.SHARD_STATE_MOVING and shard.target == request.target:
                if shard.pinned_until_ms > now_ms:
                    return False
                shard.pinned_until_ms = now_ms + PIN_MS  # the controller had begun the same move
                return True
            self._check_move(shard, request.target)
            shard.state = cluster_pb2.SHARD_STATE_MOVING
            shard.target = request.target
            shard.move_id += 1
            shard.pinned_until_ms = now_ms + PIN_MS
            return True

        unknown = ServiceError(
            Reason.UNKNOWN_SHARD, f"no shard {table}/{prefix}", {"shard": f"{table}/{prefix}"}
        )
        key = self._keys.shard(table, prefix)
        shard, revision = await self._change(key, cluster_pb2.ShardRecord, change, unknown)
        return admin_pb2.MoveShardResponse(map_revision=revision, move_id=shard.move_id)

    def _check_move(self, shard: cluster_pb2.ShardRecord, target: str) -> None:
        """Raises UNKNOWN_NODE or MOVE_REFUSED."""
        state = self._routing.state
        if target not in state.members:
            raise ServiceError(Reason.UNKNOWN_NODE, f"no node {target!r}", {"node": target})
        if shard.state == cluster_pb2.SHARD_STATE_CREATING:
            why = f"node {shard.primary} is making it"
        elif shard.state == cluster_pb2.SHARD_STATE_MOVING:
            why = f"it is moving to node {shard.target}"
        elif shard.primary == target:
            why = f"node {target} has it"
        elif target not in state.nodes:
            why = f"node {target} is down"
        elif state.members[target].draining:
            why = f"node {target} is draining"
        else:
            return
        raise ServiceError(Reason.MOVE_REFUSED, f"the shard cannot move: {why}")

    async def _change(
        self, key: str, kind: type[R], change: Callable[[R], bool], absent: ServiceError
    ) -> tuple[R, int]:
        """Changes a record as `change` says (False = it is as it should be already); returns it
        with its revision.

        A lost answer is settled by reading the record again: each change is its own proof.
        """
        unsettled = False
        try:
            for _ in range(CHANGE_TRIES):
                entry = await self._registry.get(key)
                if entry is None:
                    raise absent
                record = decode(kind, key, entry.value)
                if not change(record):
                    return record, entry.mod_revision
                unsettled = False
                try:
                    revision = await self._registry.commit(
                        [Compare(key, entry.mod_revision)], [Put(key, encode(record))]
                    )
                except OutcomeUnknown:
                    unsettled = True
                    continue
                if revision is not None:
                    return record, revision
        except RegistryError as error:
            reason = Reason.OUTCOME_UNKNOWN if unsettled else Reason.REGISTRY_UNAVAILABLE
            raise ServiceError(reason, str(error)) from error
        if unsettled:
            raise ServiceError(Reason.OUTCOME_UNKNOWN, f"the change of {key} was not answered")
        message = f"the record {key} changed {CHANGE_TRIES} times meanwhile"
        raise ServiceError(Reason.REGISTRY_UNAVAILABLE, message)


def _unary(kind: type[M], behaviour: Callable[[M], Awaitable[Message]]) -> Any:
    """A handler of bytes, so that a malformed request is refused as such."""

    async def handler(data: bytes, _context: Context) -> bytes:
        answer = await behaviour(parse(kind, data))
        return answer.SerializeToString()

    return grpc.unary_unary_rpc_method_handler(handler)
