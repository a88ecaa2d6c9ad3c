"""The KV service of a node, over the shards that it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio

from deodar.contract.keypath import PATH_BITS, path_bytes, path_of
from deodar.contract.limits import BATCH_BYTES_MAX, SCAN_PAGE_BYTES, SCAN_PAGE_RECORDS_MAX
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import error_to_operation
from deodar.contract.watchpos import WatchPosition
from deodar.engine import Change, ConditionFailed, Delete, EngineError, Item, Put, Store, Written
from deodar.v1 import kv_pb2
from deodar.v1.kv_pb2_grpc import KVServicer

from .copysource import chunks
from .errors import service_error
from .host import Host
from .shard import INLINE_OPERATIONS_MAX, HostedShard
from .validation import (
    check_cursor,
    check_durability,
    check_key,
    check_keys,
    check_operations,
    check_put,
    now_ms,
    table_name,
)
from .watch import WatchLimit, check_watch, watch_shard

Context = grpc.aio.ServicerContext[Any, Any]
HASH_SPACE_END = 1 << PATH_BITS


def to_record(item: Item, *, with_key: bool) -> kv_pb2.Record:
    record = kv_pb2.Record(value=item.value, version=item.version)
    if with_key:
        record.key = item.key
    if item.deadline_ms is not None:
        record.ttl_ms = max(item.deadline_ms - now_ms(), 1)
    return record


def to_event(change: Change) -> kv_pb2.WatchEvent:
    deleted = change.value is None
    return kv_pb2.WatchEvent(
        kind=kv_pb2.WATCH_EVENT_KIND_DELETE if deleted else kv_pb2.WATCH_EVENT_KIND_PUT,
        key=change.key,
        value=change.value or b"",
        version=change.version,
        deadline_ms=change.deadline_ms,
    )


def to_put(put: kv_pb2.PutRequest | kv_pb2.WriteOperation.Put) -> Put:
    return Put(
        put.key,
        put.value,
        put.ttl_ms if put.HasField("ttl_ms") else None,
        put.if_version if put.HasField("if_version") else None,
        put.if_absent,
    )


def to_delete(delete: kv_pb2.DeleteRequest | kv_pb2.WriteOperation.Delete) -> Delete:
    return Delete(delete.key, delete.if_version if delete.HasField("if_version") else None)


class NodeKV(KVServicer):
    """Parse, find the shard, call the engine, build the answer."""

    def __init__(self, host: Host, incarnation: int, watches: WatchLimit) -> None:
        self._host = host
        self._incarnation = incarnation
        self._watches = watches

    def _header(self) -> kv_pb2.ResponseHeader:
        return kv_pb2.ResponseHeader(map_revision=self._host.map_revision)

    def _receipt(self, shard: HostedShard, epoch: int) -> kv_pb2.Receipt:
        return kv_pb2.Receipt(shard=shard.name, incarnation=self._incarnation, epoch=epoch)

    def _is_durable(self, table: str, asked: int) -> bool:
        known = self._host.state.tables.get(table)
        return check_durability(asked, known.default_durability if known else 0)

    async def Get(self, request: kv_pb2.GetRequest, context: Context) -> kv_pb2.GetResponse:
        check_key(request.key)
        shard = self._host.find(table_name(request.table), path_of(request.key))
        item = shard.gate().get_item(request.key)
        if item is None:
            return kv_pb2.GetResponse(header=self._header())
        record = to_record(item, with_key=False)
        return kv_pb2.GetResponse(header=self._header(), found=True, record=record)

    async def Put(self, request: kv_pb2.PutRequest, context: Context) -> kv_pb2.PutResponse:
        check_put(request)
        table = table_name(request.table)
        durable = self._is_durable(table, request.durability)
        shard = self._host.find(table, path_of(request.key))
        (written,) = await shard.write([to_put(request)], len(request.value))
        if durable:
            await shard.durable(written.epoch)
        return kv_pb2.PutResponse(
            header=self._header(),
            version=written.version,
            receipt=self._receipt(shard, written.epoch),
        )

    async def Delete(
        self,
        request: kv_pb2.DeleteRequest,
        context: Context,
    ) -> kv_pb2.DeleteResponse:
        check_key(request.key)
        table = table_name(request.table)
        durable = self._is_durable(table, request.durability)
        shard = self._host.find(table, path_of(request.key))
        (written,) = await shard.write([to_delete(request)], 0)
        if durable:
            await shard.durable(written.epoch)
        return kv_pb2.DeleteResponse(
            header=self._header(),
            found=written.existed,
            receipt=self._receipt(shard, written.epoch),
        )

    async def Increment(
        self,
        request: kv_pb2.IncrementRequest,
        context: Context,
    ) -> kv_pb2.IncrementResponse:
        check_key(request.key)
        table = table_name(request.table)
        durable = self._is_durable(table, request.durability)
        shard = self._host.find(table, path_of(request.key))
        value, written = await shard.increment(request.key, request.delta)
        if durable:
            await shard.durable(written.epoch)
        return kv_pb2.IncrementResponse(
            header=self._header(),
            value=value,
            version=written.version,
            receipt=self._receipt(shard, written.epoch),
        )

    async def BatchGet(
        self,
        request: kv_pb2.BatchGetRequest,
        context: Context,
    ) -> kv_pb2.BatchGetResponse:
        check_keys(request.keys)
        results: list[kv_pb2.BatchGetResult] = [kv_pb2.BatchGetResult()] * len(request.keys)
        groups, refused = self._group(table_name(request.table), request.keys)
        for index, error in refused.items():
            results[index] = kv_pb2.BatchGetResult(error=error_to_operation(error))
        room = BATCH_BYTES_MAX
        for shard, indices in groups:
            keys = [request.keys[index] for index in indices]
            try:
                if len(keys) <= INLINE_OPERATIONS_MAX:
                    items = shard.gate().get_items(keys)
                else:
                    items = await shard.in_thread(Store.get_items, keys)
            except (ServiceError, EngineError) as error:
                result = kv_pb2.BatchGetResult(error=error_to_operation(_known(error)))
                for index in indices:
                    results[index] = result
                continue
            for index, item in zip(indices, items, strict=True):
                results[index], room = _batch_result(item, room)
        return kv_pb2.BatchGetResponse(header=self._header(), results=results)

    async def BatchWrite(
        self,
        request: kv_pb2.BatchWriteRequest,
        context: Context,
    ) -> kv_pb2.BatchWriteResponse:
        check_operations(request.operations)
        table = table_name(request.table)
        durable = self._is_durable(table, request.durability)
        batch = [
            to_put(operation.put) if operation.HasField("put") else to_delete(operation.delete)
            for operation in request.operations
        ]
        groups, refused = self._group(table, [operation.key for operation in batch])
        results: list[kv_pb2.WriteResult] = [kv_pb2.WriteResult()] * len(batch)
        for index, error in refused.items():
            results[index] = kv_pb2.WriteResult(error=error_to_operation(error))

        async def write(
            shard: HostedShard, indices: Sequence[int]
        ) -> tuple[list[kv_pb2.WriteResult], int | None]:
            return await _write_group(shard, [batch[index] for index in indices], durable)

        outcomes = await asyncio.gather(*(write(shard, indices) for shard, indices in groups))
        receipts = []
        for (shard, indices), (written, epoch) in zip(groups, outcomes, strict=True):
            for index, result in zip(indices, written, strict=True):
                results[index] = result
            if epoch is not None:
                receipts.append(self._receipt(shard, epoch))
        return kv_pb2.BatchWriteResponse(header=self._header(), results=results, receipts=receipts)

    def _group(
        self, table: str, keys: Sequence[bytes]
    ) -> tuple[list[tuple[HostedShard, list[int]]], dict[int, ServiceError]]:
        """Indices of the keys by shard, and the errors of keys whose shard is not here.

        Raises UNKNOWN_TABLE and SHUTTING_DOWN, which hold for all keys.
        """
        groups: dict[str, tuple[HostedShard, list[int]]] = {}
        refused = {}
        for index, key in enumerate(keys):
            try:
                shard = self._host.find(table, path_of(key))
            except ServiceError as error:
                if error.reason in (Reason.UNKNOWN_TABLE, Reason.SHUTTING_DOWN):
                    raise
                refused[index] = error
                continue
            groups.setdefault(shard.name, (shard, []))[1].append(index)
        return list(groups.values()), refused

    async def Scan(
        self,
        request: kv_pb2.ScanRequest,
        context: Context,
    ) -> AsyncIterator[kv_pb2.ScanResponse]:
        """To the end of the shard that holds the cursor; nothing is held between two pages."""
        table = table_name(request.table)
        path = check_cursor(request.cursor)
        prefix = request.key_prefix
        left = request.limit or None
        cursor: bytes | None = request.cursor
        while cursor is not None:
            shard = self._host.find(table, path)
            limit = SCAN_PAGE_RECORDS_MAX
            if left is not None and not prefix:
                limit = min(limit, left)
            items, cursor = await shard.in_thread(
                Store.scan_page,
                cursor,
                limit=limit,
                bytes_max=SCAN_PAGE_BYTES,
                keys_only=request.keys_only,
            )
            if prefix:
                items = [item for item in items if item.key.startswith(prefix)]
            if left is not None:
                if len(items) > left:
                    items = items[:left]
                    cursor = cursor_behind(items[-1].key)
                left -= len(items)
            end = shard.prefix.end_path
            behind = cursor
            if behind is None:
                behind = path_bytes(end) if end < HASH_SPACE_END else b""
            parts = list(chunks(items)) or [[]]
            for part in parts:
                yield kv_pb2.ScanResponse(
                    header=self._header(),
                    records=[to_record(item, with_key=True) for item in part],
                    cursor=behind if part is parts[-1] else cursor_behind(part[-1].key),
                )
            if left == 0:
                return

    async def Watch(
        self,
        request: kv_pb2.WatchRequest,
        context: Context,
    ) -> AsyncIterator[kv_pb2.WatchResponse]:
        """Of the shard that holds the key or the path, for as long as it is served here."""
        wanted = check_watch(request)
        shard = self._host.find(wanted.table, wanted.path)
        with self._watches.admit():
            answers = watch_shard(shard, wanted, lambda: self._host.stopping)
            async with aclosing(answers):
                async for changes, mark in answers:
                    position = WatchPosition(wanted.table, {shard.prefix: mark})
                    yield kv_pb2.WatchResponse(
                        header=self._header(),
                        events=map(to_event, changes),
                        position=position.encode(),
                    )

    async def Sync(self, request: kv_pb2.SyncRequest, context: Context) -> kv_pb2.SyncResponse:
        shards = self._host.own(table_name(request.table))

        async def sync(shard: HostedShard) -> kv_pb2.Receipt:
            epoch = await shard.sync()
            return self._receipt(shard, epoch)

        receipts = await asyncio.gather(*map(sync, shards))
        return kv_pb2.SyncResponse(header=self._header(), receipts=receipts)


def cursor_behind(key: bytes) -> bytes:
    """The cursor that goes on behind this key."""
    return path_bytes(path_of(key)) + key


def _known(error: ServiceError | EngineError) -> ServiceError:
    known = error if isinstance(error, ServiceError) else service_error(error)
    if known is None:
        raise AssertionError("an engine error without a reason")
    return known


def _batch_result(item: Item | None, room: int) -> tuple[kv_pb2.BatchGetResult, int]:
    """The result, and the bytes that are left in the answer; one larger value alone is allowed."""
    if item is None:
        return kv_pb2.BatchGetResult(), room
    if len(item.value) > room and room < BATCH_BYTES_MAX:
        error = ServiceError(
            Reason.LIMIT_EXCEEDED,
            f"the answer would hold more than {BATCH_BYTES_MAX} bytes: ask for this key again",
        )
        return kv_pb2.BatchGetResult(error=error_to_operation(error)), room
    record = to_record(item, with_key=False)
    return kv_pb2.BatchGetResult(found=True, record=record), room - len(item.value)


async def _write_group(
    shard: HostedShard, batch: list[Put | Delete], durable: bool
) -> tuple[list[kv_pb2.WriteResult], int | None]:
    """Results of one shard's operations, all done or none, and their epoch."""
    size = sum(len(operation.value) for operation in batch if isinstance(operation, Put))
    try:
        written: list[Written] = await shard.write(batch, size)
        epoch = max(outcome.epoch for outcome in written)
        if durable:
            await shard.durable(epoch)
    except ConditionFailed as error:
        return _condition_failed(error, len(batch)), None
    except (ServiceError, EngineError) as error:
        failed = kv_pb2.WriteResult(error=error_to_operation(_known(error)))
        return [failed] * len(batch), None
    results = [
        kv_pb2.WriteResult(version=outcome.version, found=outcome.existed) for outcome in written
    ]
    return results, epoch


def _condition_failed(error: ConditionFailed, count: int) -> list[kv_pb2.WriteResult]:
    """The operation whose condition failed says so; the others of its shard were not done
    because of it."""
    own = kv_pb2.WriteResult(error=error_to_operation(_known(error)))
    others = kv_pb2.WriteResult(
        error=error_to_operation(
            ServiceError(
                Reason.CONDITION_FAILED,
                "not done: the condition of another operation of the same shard failed",
                {"caused_by_other": "true"},
            )
        )
    )
    return [own if index == error.index else others for index in range(count)]
