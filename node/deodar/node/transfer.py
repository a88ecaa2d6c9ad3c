"""The target's end of a move: copy, catch up, fence the source, verify, take the record over."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import grpc.aio
import structlog

from deodar.contract.reasons import ServiceError
from deodar.contract.rpc_status import channel_options, error_from_rpc
from deodar.engine import Change, EngineError, Overloaded, Store
from deodar.registry.records import record_prefix, record_shard_name
from deodar.v1.cluster_pb2 import ShardRecord
from deodar.v1.replication_pb2 import (
    CopyShardRequest,
    CopyShardResponse,
    FenceShardRequest,
    FenceShardResponse,
    ShardChange,
    ShardName,
)
from deodar.v1.replication_pb2_grpc import ReplicationStub

from .record import ShardRecords, is_move, without_move
from .shard import ROOM_POLL_S, HostedShard
from .workers import Workers

if TYPE_CHECKING:
    from deodar.v1.replication_pb2_grpc import ReplicationAsyncStub  # in the stub file alone

CONNECT_TIMEOUT_S = 5.0
# A source sends something every few milliseconds once it has copied, and a page in far less.
SILENCE_TIMEOUT_S = 15.0
FENCE_TIMEOUT_S = 10.0
# So few changes behind, the rest takes milliseconds: time to fence.
CAUGHT_UP_CHANGES = 1_000

_log = structlog.get_logger(__name__)

# What the world can do to a move; everything else is a fault of ours.
FAILURES = (ServiceError, EngineError, OSError, TimeoutError)


class TransferFailed(Exception):  # noqa: N818
    """The move cannot be finished; the source has everything."""


class Transfer:
    """One attempt at one move.

    `shard` is in state COPYING with a new empty store attached; it is left so by every failure.
    """

    def __init__(
        self,
        shard: HostedShard,
        record: ShardRecord,
        records: ShardRecords,
        workers: Workers,
        keep_history: Callable[[int], Awaitable[None]],
    ) -> None:
        """`keep_history` makes the shard's history durable."""
        self._shard = shard
        self._record = record
        self._records = records
        self._workers = workers
        self._keep_history = keep_history
        self._name = ShardName(
            table=record.table, prefix=record.prefix, prefix_bits=record.prefix_bits
        )

    async def run(self, source_address: str) -> int:
        """Move the shard; returns its new term once the record names this node.

        Raises TransferFailed or one of FAILURES; then the record does not name this node's copy
        and never will.
        """
        async with grpc.aio.insecure_channel(source_address, options=channel_options()) as channel:
            await asyncio.wait_for(channel.channel_ready(), CONNECT_TIMEOUT_S)
            stub: ReplicationAsyncStub = ReplicationStub(channel)
            try:
                fence = await self._copy(stub)
                await self._verify(fence)
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error, may_have_run=False) from error
        store = self._store()
        await self._workers.run_flush(store.sync)
        if fence.history:
            self._shard.history = fence.history
            await self._keep_history(fence.history)
        return await self._take_over(store.store_id)

    def _store(self) -> Store:
        store = self._shard.store
        if store is None:
            raise TransferFailed("the copy was closed")
        return store

    async def _copy(self, stub: ReplicationAsyncStub) -> FenceShardResponse:
        """Copy everything, fence on the way: when this returns, the source is fenced and the copy
        has all of its log."""
        request = CopyShardRequest(
            shard=self._name, term=self._record.term, move_id=self._record.move_id
        )
        stream = stub.CopyShard(request)
        copied = False
        fence: FenceShardResponse | None = None
        try:
            while True:
                response = await asyncio.wait_for(stream.read(), SILENCE_TIMEOUT_S)
                if not isinstance(response, CopyShardResponse):
                    raise TransferFailed("the source ended the copy")
                await self._apply(response.changes)
                if response.copied:
                    copied = True
                    if response.version > 0:
                        await self._raise_version(response.version)
                if not copied:
                    self._shard.moved_keys += len(response.changes)
                    continue
                if fence is None and response.behind <= CAUGHT_UP_CHANGES:
                    fence = await self._fence(stub)
                if fence is not None and response.version >= fence.last_version:
                    return fence
        finally:
            stream.cancel()

    async def _fence(self, stub: ReplicationAsyncStub) -> FenceShardResponse:
        request = FenceShardRequest(
            shard=self._name, term=self._record.term, move_id=self._record.move_id
        )
        return await stub.FenceShard(request, timeout=FENCE_TIMEOUT_S)

    async def _apply(self, changes: Iterable[ShardChange]) -> None:
        batch = [
            Change(
                change.key,
                change.value if change.HasField("value") else None,
                change.version,
                change.deadline_ms if change.HasField("deadline_ms") else None,
            )
            for change in changes
        ]
        while batch:
            try:
                await self._shard.aside(Store.apply, batch)
            except Overloaded:
                await asyncio.sleep(ROOM_POLL_S)
            else:
                return

    async def _raise_version(self, version: int) -> None:
        """Never give a version again that the source gave to a record deleted since: deleting a
        key that nobody has, under the source's version, carries the number over.

        Twice: the second is no next version, so the engine begins its log behind both, and those
        who follow the log see neither of them for what was really written then.
        """
        for _ in range(2):
            await self._apply([ShardChange(key=secrets.token_bytes(24), version=version)])

    async def _verify(self, source: FenceShardResponse) -> None:
        """Compare the digests of the fenced source and of the copy."""
        keys, xor = await self._shard.aside(Store.digest, alive_at_ms=source.digest_alive_at_ms)
        if (keys, xor) != (source.digest_keys, source.digest_xor):
            raise TransferFailed(
                f"digests differ: {source.digest_keys} keys at the source, {keys} in the copy"
            )

    async def _take_over(self, store_id: int) -> int:
        """Make the record name this node, if it is still in this move.

        A change that leaves it in the move, such as a pin, is no reason to give up.
        """
        record, term = self._record, self._record.term + 1
        while True:
            found = await self._records.read(record.table, record_prefix(record))
            if found is None or not is_move(found[0], record.term, record.move_id):
                raise TransferFailed("the move was taken out of the record")
            taken = without_move(found[0])
            taken.primary = record.target
            taken.term = term
            taken.failed_moves = 0
            taken.move_failure = ""
            taken.store_id = store_id
            if await self._records.change(taken, found[1]):
                return term


async def take_out(record: ShardRecord, records: ShardRecords, failure: str = "") -> None:
    """Take this move out of the record, if it is still there: the source serves on.

    `failure` as for `without_move`.
    """
    while True:
        found = await records.read(record.table, record_prefix(record))
        if found is None or not is_move(found[0], record.term, record.move_id):
            return
        await records.change(without_move(found[0], failure), found[1])
        _log.info(
            "move taken out by its target",
            shard=record_shard_name(record),
            move_id=record.move_id,
        )
