"""The Replication service of a node: the source's end of moves, and sizes of shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from deodar.contract.keypath import Prefix
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import invalid_field
from deodar.engine import Closed, Store
from deodar.v1 import replication_pb2
from deodar.v1.replication_pb2_grpc import ReplicationServicer

from .copysource import copy_stream
from .host import Host
from .shard import HostedShard
from .validation import now_ms, table_name

# Longer than both ends take for their digests, clocks apart included.
DIGEST_MARGIN_MS = 30_000

Context = grpc.aio.ServicerContext[Any, Any]


def _prefix(shard: replication_pb2.ShardName) -> Prefix:
    try:
        return Prefix.from_bytes(shard.prefix, shard.prefix_bits)
    except ValueError as error:
        raise invalid_field("shard.prefix", str(error)) from error


class NodeReplication(ReplicationServicer):
    """Thin: parse, ask the host, build the answer."""

    def __init__(self, host: Host, incarnation: int) -> None:
        self._host = host
        self._incarnation = incarnation

    async def CopyShard(
        self,
        request: replication_pb2.CopyShardRequest,
        context: Context,
    ) -> AsyncIterator[replication_pb2.CopyShardResponse]:
        table, prefix = table_name(request.shard.table), _prefix(request.shard)
        shard = await self._host.moving(table, prefix, request.term, request.move_id)

        def is_current() -> bool:
            return not self._host.stopping and self._host.is_source(
                shard.name, request.term, request.move_id
            )

        async with aclosing(copy_stream(shard, is_current)) as stream:
            async for response in stream:
                yield response

    async def FenceShard(
        self,
        request: replication_pb2.FenceShardRequest,
        context: Context,
    ) -> replication_pb2.FenceShardResponse:
        table, prefix = table_name(request.shard.table), _prefix(request.shard)
        if self._host.stopping:
            raise ServiceError(Reason.SHUTTING_DOWN, f"node {self._host.node} is stopping")
        shard = await self._host.fenced(table, prefix, request.term, request.move_id)
        store = shard.store
        if store is None:
            raise ServiceError(Reason.STALE_MOVE, f"{shard.name} is no longer here")
        alive_at_ms = now_ms() + DIGEST_MARGIN_MS
        keys, xor = await shard.aside(Store.digest, alive_at_ms=alive_at_ms)
        return replication_pb2.FenceShardResponse(
            last_version=store.last_version,
            digest_keys=keys,
            digest_xor=xor,
            digest_alive_at_ms=alive_at_ms,
            history=shard.history,
        )

    async def NodeShards(
        self,
        request: replication_pb2.NodeShardsRequest,
        context: Context,
    ) -> replication_pb2.NodeShardsResponse:
        return replication_pb2.NodeShardsResponse(
            incarnation=self._incarnation,
            shards=[*map(_describe, self._host.shards), *self._faults()],
        )

    def _faults(self) -> Iterator[replication_pb2.NodeShard]:
        """Shards that are not here because a step of theirs failed; it is tried again."""
        for name, why in self._host.faults.items():
            found = self._host.state.shards.get(name)
            if found is None or self._host.shards.get(name) is not None:
                continue
            record = found[0]
            shard = replication_pb2.ShardName(
                table=record.table, prefix=record.prefix, prefix_bits=record.prefix_bits
            )
            yield replication_pb2.NodeShard(shard=shard, state="failed", reason=why)


def _describe(shard: HostedShard) -> replication_pb2.NodeShard:
    described = replication_pb2.NodeShard(
        shard=replication_pb2.ShardName(
            table=shard.table,
            prefix=shard.prefix.to_bytes(),
            prefix_bits=shard.prefix.bits,
        ),
        state=shard.state.value,
        reason=shard.reason,
        moved_keys=shard.moved_keys,
    )
    store = shard.store
    if store is not None:
        try:
            described.keys = len(store)
            described.bytes = int(store.stats()["disk_bytes"])
        except Closed:
            described.reason = "closing"
    return described
