"""What the KV service of a node answers, on one real node with two shards."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from deodar.contract.keypath import path_bytes, path_of
from deodar.contract.limits import (
    BATCH_BYTES_MAX,
    BATCH_OPERATIONS_MAX,
    KEY_BYTES_MAX,
    SCAN_PAGE_BYTES,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
)
from deodar.contract.reasons import Reason
from deodar.contract.rpc_status import channel_options, error_from_operation, error_from_rpc
from deodar.v1 import kv_pb2
from deodar.v1.kv_pb2_grpc import KVStub
from tests.etcd_server import EtcdServer

from .harness import NodeProcess, eventually, refused, running_cluster

INT64_MAX = 2**63 - 1
HALF = 1 << 127


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, shared_etcd: EtcdServer) -> Iterator[str]:
    """A node that has both shards of the table; keys are the tests' own."""
    directory: Path = tmp_path_factory.mktemp("node")

    async def start() -> tuple[str, NodeProcess]:
        async with running_cluster(shared_etcd.url, directory) as cluster:
            names = await cluster.make_shards(1, "n1")
            cluster.add("n1")
            await cluster.up("n1")
            await cluster.serving(*names)
            return cluster.address("n1"), cluster.nodes.pop("n1")

    found, node = asyncio.run(start())
    yield found
    assert node.stop() == 0, node.text()


@pytest.fixture
async def kv(address: str) -> AsyncIterator[KVStub]:
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        yield KVStub(channel)


def put(key: bytes, value: bytes = b"v", **fields: object) -> kv_pb2.PutRequest:
    return kv_pb2.PutRequest(key=key, value=value, **fields)


def put_operation(key: bytes, value: bytes = b"v", **fields: object) -> kv_pb2.WriteOperation:
    return kv_pb2.WriteOperation(put=kv_pb2.WriteOperation.Put(key=key, value=value, **fields))


def delete_operation(key: bytes, **fields: object) -> kv_pb2.WriteOperation:
    return kv_pb2.WriteOperation(delete=kv_pb2.WriteOperation.Delete(key=key, **fields))


def batch(*operations: kv_pb2.WriteOperation, **fields: object) -> kv_pb2.BatchWriteRequest:
    return kv_pb2.BatchWriteRequest(operations=operations, **fields)


def keys_of(half: int, count: int, name: str = "k") -> list[bytes]:
    """Keys of one of the two shards."""
    found: list[bytes] = []
    number = 0
    while len(found) < count:
        key = b"%s-%d" % (name.encode(), number)
        if path_of(key) // HALF == half:
            found.append(key)
        number += 1
    return found


async def value_of(kv: KVStub, key: bytes) -> bytes | None:
    answer = await kv.Get(kv_pb2.GetRequest(key=key))
    return answer.record.value if answer.found else None


@pytest.mark.parametrize("key", [b"\0", b"\0\1\0\0", b"a\0b", b"a", bytes(range(256))])
@pytest.mark.parametrize("value", [b"", b"\0", b"a\0b"])
async def test_bytes_come_back_as_they_went(kv: KVStub, key: bytes, value: bytes):
    answer = await kv.Put(put(key, value))
    assert answer.version > 0
    assert answer.header.map_revision > 0
    assert answer.receipt.shard in ("default/00-1", "default/80-1")
    found = await kv.Get(kv_pb2.GetRequest(key=key))
    assert (found.found, found.record.value, found.record.version) == (True, value, answer.version)
    assert not found.record.HasField("ttl_ms")
    assert found.record.key == b""


async def test_an_absent_key_is_an_answer(kv: KVStub):
    answer = await kv.Get(kv_pb2.GetRequest(key=b"absent"))
    assert not answer.found
    assert not answer.HasField("record")
    assert not (await kv.Delete(kv_pb2.DeleteRequest(key=b"absent"))).found


async def test_conditions(kv: KVStub):
    """The truth table of if_absent and if_version over absent and present keys."""
    key = b"conditions"
    error = await refused(kv.Put(put(key, if_version=1)))
    assert (error.reason, error.metadata) == (Reason.CONDITION_FAILED, {})
    error = await refused(kv.Delete(kv_pb2.DeleteRequest(key=key, if_version=0)))
    assert error.reason is Reason.CONDITION_FAILED
    first = (await kv.Put(put(key, b"1", if_absent=True))).version
    error = await refused(kv.Put(put(key, b"2", if_absent=True)))
    assert error.metadata == {"current_version": str(first)}
    second = (await kv.Put(put(key, b"2", if_version=first))).version
    assert second > first
    error = await refused(kv.Put(put(key, b"3", if_version=first)))
    assert error.metadata == {"current_version": str(second)}
    error = await refused(kv.Delete(kv_pb2.DeleteRequest(key=key, if_version=first)))
    assert error.reason is Reason.CONDITION_FAILED
    assert await value_of(kv, key) == b"2"
    assert (await kv.Delete(kv_pb2.DeleteRequest(key=key, if_version=second))).found
    assert (await kv.Put(put(key, b"4", if_absent=True))).version > second


async def test_expiry(kv: KVStub):
    key = b"expiry"
    await kv.Put(put(key, ttl_ms=300))
    answer = await kv.Get(kv_pb2.GetRequest(key=key))
    assert 1 <= answer.record.ttl_ms <= 300
    await asyncio.sleep(0.35)
    assert await value_of(kv, key) is None
    # Expired is absent: to conditions, to increments, to deletes.
    assert not (await kv.Delete(kv_pb2.DeleteRequest(key=key))).found
    assert (await kv.Increment(kv_pb2.IncrementRequest(key=key, delta=1))).value == 1
    await kv.Put(put(key, ttl_ms=TTL_MS_MAX))
    await kv.Put(put(key))
    assert not (await kv.Get(kv_pb2.GetRequest(key=key))).record.HasField("ttl_ms")


async def test_increment(kv: KVStub):
    key = b"counter"
    answer = await kv.Increment(kv_pb2.IncrementRequest(key=key, delta=5))
    assert (answer.value, await value_of(kv, key)) == (5, b"5")
    answer = await kv.Increment(kv_pb2.IncrementRequest(key=key, delta=-7))
    assert answer.value == -2
    assert (await kv.Get(kv_pb2.GetRequest(key=key))).record.version == answer.version
    for limit, step in ((INT64_MAX, 1), (-INT64_MAX - 1, -1)):
        await kv.Put(put(key, b"%d" % limit))
        error = await refused(kv.Increment(kv_pb2.IncrementRequest(key=key, delta=step)))
        assert error.reason is Reason.OUT_OF_RANGE
        assert await value_of(kv, key) == b"%d" % limit
    await kv.Put(put(key, b"no number"))
    error = await refused(kv.Increment(kv_pb2.IncrementRequest(key=key, delta=1)))
    assert error.reason is Reason.NOT_A_NUMBER
    assert await value_of(kv, key) == b"no number"


async def test_limits_are_met_exactly(kv: KVStub):
    key = b"k" * KEY_BYTES_MAX
    value = bytes(VALUE_BYTES_MAX)
    await kv.Put(put(key, value))
    assert await value_of(kv, key) == value
    assert (await kv.Delete(kv_pb2.DeleteRequest(key=key))).found


@pytest.mark.parametrize(
    ("request_", "field", "numbers"),
    [
        (put(b""), "key", ()),
        (put(b"k" * (KEY_BYTES_MAX + 1)), "key", (KEY_BYTES_MAX + 1, KEY_BYTES_MAX)),
        (put(b"refused", bytes(VALUE_BYTES_MAX + 1)), "value", (VALUE_BYTES_MAX + 1,)),
        (put(b"refused", ttl_ms=0), "ttl_ms", (0, TTL_MS_MAX)),
        (put(b"refused", ttl_ms=TTL_MS_MAX + 1), "ttl_ms", (TTL_MS_MAX + 1, TTL_MS_MAX)),
        (put(b"refused", ttl_ms=2**64 - 1), "ttl_ms", (2**64 - 1,)),
        (put(b"refused", if_version=1, if_absent=True), "if_absent", ()),
        (put(b"refused", durability=99), "durability", (99,)),
        (kv_pb2.GetRequest(), "key", ()),
        (kv_pb2.DeleteRequest(), "key", ()),
        (kv_pb2.DeleteRequest(key=b"refused", durability=99), "durability", ()),
        (kv_pb2.IncrementRequest(delta=1), "key", ()),
        (kv_pb2.BatchGetRequest(keys=[b"k", b""]), "keys[1]", ()),
        (
            kv_pb2.BatchGetRequest(keys=[b"k"] * (BATCH_OPERATIONS_MAX + 1)),
            "keys",
            (10_001, 10_000),
        ),
        (batch(put_operation(b"refused"), put_operation(b"")), "operations[1].put.key", ()),
        (batch(put_operation(b"refused"), kv_pb2.WriteOperation()), "operations[1].operation", ()),
        (batch(delete_operation(b"")), "operations[0].delete.key", ()),
        (batch(put_operation(b"refused", ttl_ms=0)), "operations[0].put.ttl_ms", ()),
        (
            batch(put_operation(b"refused", if_absent=True, if_version=0)),
            "operations[0].put.if_absent",
            (),
        ),
        (
            batch(*[delete_operation(b"refused")] * (BATCH_OPERATIONS_MAX + 1)),
            "operations",
            (10_001, 10_000),
        ),
        (
            batch(put_operation(b"refused", bytes(BATCH_BYTES_MAX)), put_operation(b"refused")),
            "operations",
            (BATCH_BYTES_MAX,),
        ),
    ],
)
async def test_bad_requests_change_nothing(
    kv: KVStub, request_: object, field: str, numbers: tuple[int, ...]
):
    """INVALID_FIELD with the field's name, both numbers in the text, and nothing written."""
    method = {
        kv_pb2.PutRequest: kv.Put,
        kv_pb2.GetRequest: kv.Get,
        kv_pb2.DeleteRequest: kv.Delete,
        kv_pb2.IncrementRequest: kv.Increment,
        kv_pb2.BatchGetRequest: kv.BatchGet,
        kv_pb2.BatchWriteRequest: kv.BatchWrite,
    }[type(request_)]
    error = await refused(method(request_))
    assert error.reason is Reason.INVALID_FIELD
    assert error.metadata["field"] == field
    for number in numbers:
        assert str(number) in error.message
    assert await value_of(kv, b"refused") is None


async def test_one_large_operation_alone_is_allowed(kv: KVStub):
    value = bytes(BATCH_BYTES_MAX + 1)
    answer = await kv.BatchWrite(batch(put_operation(b"large", value)))
    assert not answer.results[0].HasField("error")
    assert await value_of(kv, b"large") == value


async def test_unknown_tables_and_levels(kv: KVStub):
    error = await refused(kv.Get(kv_pb2.GetRequest(table="other", key=b"k")))
    assert (error.reason, error.metadata) == (Reason.UNKNOWN_TABLE, {"table": "other"})
    for call in (
        kv.Sync(kv_pb2.SyncRequest(table="other")),
        kv.BatchGet(kv_pb2.BatchGetRequest(table="other", keys=[b"k"])),
        kv.BatchWrite(batch(put_operation(b"k"), table="other")),
        kv.Scan(kv_pb2.ScanRequest(table="other")).read(),
    ):
        assert (await refused(call)).reason is Reason.UNKNOWN_TABLE
    error = await refused(kv.Put(put(b"k", durability=kv_pb2.DURABILITY_REPLICATED)))
    assert error.reason is Reason.NOT_ENOUGH_REPLICAS
    assert (await kv.Put(put(b"named", table="default"))).version
    assert await value_of(kv, b"named") == b"v"


async def test_batch_get_is_aligned(kv: KVStub):
    (low,), (high,) = keys_of(0, 1, "bg"), keys_of(1, 1, "bg")
    await kv.Put(put(low, b"low"))
    await kv.Put(put(high, b""))
    asked = [high, low, high, b"bg-missing", low]
    answer = await kv.BatchGet(kv_pb2.BatchGetRequest(keys=asked))
    assert [(result.found, result.record.value) for result in answer.results] == [
        (True, b""),
        (True, b"low"),
        (True, b""),
        (False, b""),
        (True, b"low"),
    ]
    assert not any(result.HasField("error") for result in answer.results)
    assert len((await kv.BatchGet(kv_pb2.BatchGetRequest())).results) == 0


async def test_a_batch_get_too_large_for_one_answer_says_so(kv: KVStub):
    """Never a transport error: keys beyond the bound are to be asked for again."""
    keys = keys_of(0, 5, "big")
    for key in keys:
        await kv.Put(put(key, bytes(BATCH_BYTES_MAX // 4)))
    answer = await kv.BatchGet(kv_pb2.BatchGetRequest(keys=keys))
    assert [result.found for result in answer.results] == [True] * 4 + [False]
    error = error_from_operation(answer.results[4].error)
    assert error.reason is Reason.LIMIT_EXCEEDED


async def test_batch_write_is_atomic_within_a_shard(kv: KVStub):
    low, high = keys_of(0, 3, "bw"), keys_of(1, 2, "bw")
    answer = await kv.BatchWrite(
        batch(
            put_operation(low[0], b"0"),
            put_operation(high[0], b"1"),
            put_operation(low[1], b"2", if_version=12345),
            delete_operation(high[1]),
            put_operation(low[2], b"4"),
        )
    )
    reasons = [result.error.reason for result in answer.results]
    assert reasons == ["CONDITION_FAILED", "", "CONDITION_FAILED", "", "CONDITION_FAILED"]
    assert [dict(result.error.metadata) for result in answer.results][::2] == [
        {"caused_by_other": "true"},
        {},
        {"caused_by_other": "true"},
    ]
    assert [await value_of(kv, key) for key in low] == [None, None, None]
    assert await value_of(kv, high[0]) == b"1"
    assert not answer.results[3].found
    assert [receipt.shard for receipt in answer.receipts] == ["default/80-1"]


async def test_batch_write_in_order_and_durable(kv: KVStub):
    key = b"ordered"
    answer = await kv.BatchWrite(
        batch(
            put_operation(key, b"1"),
            delete_operation(key),
            put_operation(key, b"2", if_absent=True),
            durability=kv_pb2.DURABILITY_DURABLE,
        )
    )
    assert [result.found for result in answer.results] == [False, True, False]
    versions = [result.version for result in answer.results]
    assert versions == sorted(set(versions))
    assert await value_of(kv, key) == b"2"
    many = [put_operation(b"many-%d" % number) for number in range(BATCH_OPERATIONS_MAX)]
    answer = await kv.BatchWrite(batch(*many))
    assert not any(result.HasField("error") for result in answer.results)
    assert len(answer.receipts) == 2
    assert len((await kv.BatchWrite(batch())).results) == 0


async def scan(kv: KVStub, **fields: object) -> tuple[list[kv_pb2.Record], list[bytes]]:
    records: list[kv_pb2.Record] = []
    cursors = []
    async for page in kv.Scan(kv_pb2.ScanRequest(**fields)):
        records.extend(page.records)
        cursors.append(page.cursor)
    return records, cursors


async def scan_table(kv: KVStub, **fields: object) -> list[kv_pb2.Record]:
    records: list[kv_pb2.Record] = []
    cursor = b""
    while True:
        found, cursors = await scan(kv, cursor=cursor, **fields)
        records.extend(found)
        cursor = cursors[-1]
        if not cursor:
            return records


async def test_scan_in_hash_order(kv: KVStub):
    keys = {b"scan-%d" % number for number in range(3_000)}
    await kv.BatchWrite(batch(*(put_operation(key, key) for key in keys)))
    records, cursors = await scan(kv, key_prefix=b"scan-")
    assert cursors[-1] == path_bytes(HALF), "ends where the other shard starts"
    rest, more = await scan(kv, key_prefix=b"scan-", cursor=cursors[-1])
    assert more[-1] == b""
    found = [record.key for record in [*records, *rest]]
    assert sorted(found) == sorted(keys)
    assert [path_of(key) for key in found] == sorted(path_of(key) for key in keys)
    assert all(record.value == record.key for record in records)
    slim = await scan_table(kv, key_prefix=b"scan-", keys_only=True)
    assert [(record.key, record.value) for record in slim] == [(key, b"") for key in found]
    assert all(record.version for record in slim)


async def test_scan_goes_on_at_every_limit(kv: KVStub):
    """Whatever the limit, the pieces make the whole: no loss, no duplicate, also over the border
    of the shards."""
    keys = {b"piece-%d" % number for number in range(40)}
    await kv.BatchWrite(batch(*(put_operation(key) for key in keys)))
    for limit in (1, 7, 39, 40, 41):
        found: list[bytes] = []
        cursor = b""
        while True:
            records, cursors = await scan(kv, cursor=cursor, key_prefix=b"piece-", limit=limit)
            assert len(records) <= limit
            found.extend(record.key for record in records)
            cursor = cursors[-1]
            if not cursor:
                break
        assert sorted(found) == sorted(keys), limit


async def test_scan_of_a_prefix_that_matches_nothing(kv: KVStub):
    await kv.BatchWrite(batch(*(put_operation(b"noise-%d" % number) for number in range(2_500))))
    records, cursors = await scan(kv, key_prefix=b"there is none")
    assert records == []
    assert len(cursors) > 1, "a page is bounded work"
    assert cursors == sorted(set(cursors)), "the cursor advances"


async def test_scan_with_large_values_never_overflows_a_message(kv: KVStub):
    low = keys_of(0, 3, "huge")
    for key in low[:2]:
        await kv.Put(put(key, bytes(VALUE_BYTES_MAX)))
    await kv.Put(put(low[2], b"small"))
    records = await scan_table(kv, key_prefix=b"huge")
    assert sorted(record.key for record in records) == sorted(low)
    for key in low:
        await kv.Delete(kv_pb2.DeleteRequest(key=key))


async def test_a_scan_fits_the_default_limit_of_any_client(kv: KVStub, address: str):
    """4 MiB a message, as generic clients have it, whatever the records below that."""
    # In the order of the scan, so that each meets each of the large ones.
    sizes = [0, 1, 500_000, 3_900_000, SCAN_PAGE_BYTES - 1, 3_900_000, SCAN_PAGE_BYTES + 1] * 2
    keys = [b"fit-%d-" % number + b"k" * (number * 2_000) for number in range(len(sizes))]
    keys.sort(key=path_of)
    for key, size in zip(keys, sizes, strict=True):
        await kv.Put(put(key, bytes(size)))
    async with grpc.aio.insecure_channel(address) as channel:
        found = await scan_table(KVStub(channel), key_prefix=b"fit-")
        slim = await scan_table(KVStub(channel), key_prefix=b"fit-", keys_only=True)
    assert sorted(record.key for record in found) == sorted(keys)
    assert sorted(record.key for record in slim) == sorted(keys)
    for key in keys:
        await kv.Delete(kv_pb2.DeleteRequest(key=key))


@pytest.mark.parametrize("cursor", [b"x", bytes(15)])
async def test_a_bad_cursor(kv: KVStub, cursor: bytes):
    error = await refused(kv.Scan(kv_pb2.ScanRequest(cursor=cursor)).read())
    assert (error.reason, error.metadata["field"]) == (Reason.INVALID_FIELD, "cursor")


async def test_sync_covers_what_was_acknowledged(kv: KVStub):
    written = await kv.Put(put(b"synced"))
    answer = await kv.Sync(kv_pb2.SyncRequest())
    epochs = {receipt.shard: receipt.epoch for receipt in answer.receipts}
    assert sorted(epochs) == ["default/00-1", "default/80-1"]
    assert epochs[written.receipt.shard] >= written.receipt.epoch


async def test_durable_writes_share_flushes(kv: KVStub):
    """Group commit end to end.  Calls arrive one by one, so how many share a flush depends on how
    long the disk takes; that those do who can is held by a disk that waits, in test_durability."""
    keys = keys_of(0, 200, "group")
    started = time.monotonic()
    answers = await asyncio.gather(
        *(kv.Put(put(key, durability=kv_pb2.DURABILITY_DURABLE)) for key in keys)
    )
    shards = {answer.receipt.shard for answer in answers}
    flushes = {(answer.receipt.shard, answer.receipt.epoch) for answer in answers}
    assert len(shards) <= len(flushes) < len(keys)
    assert time.monotonic() - started < 10.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


async def test_a_full_disk_refuses_writes_and_goes_on_reading(
    shared_etcd: EtcdServer, small_disk: Path
):
    """DISK_FULL for puts, reads and deletes go on, writes come back once there is room."""
    async with running_cluster(shared_etcd.url, small_disk) as cluster:
        names = await cluster.make_shards(0, "n1")
        cluster.add("n1")
        await cluster.up("n1")
        await cluster.serving(*names)
        stub = cluster.kv("n1")
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(4 << 20))
        written = 0
        while True:
            try:
                await stub.Put(put(b"%d" % written, bytes(100_000)))
            except grpc.aio.AioRpcError as failed:
                error = error_from_rpc(failed)
                break
            written += 1
            assert written < 400
        assert error.reason is Reason.DISK_FULL, error.message
        assert written > 10
        for number in range(written):
            assert len(await value_of(stub, b"%d" % number) or b"") == 100_000
        assert (await stub.Delete(kv_pb2.DeleteRequest(key=b"0"))).found
        ballast.unlink()

        async def room() -> bool:
            try:
                await stub.Put(put(b"again", bytes(100_000)))
            except grpc.aio.AioRpcError:
                return False
            return True

        await eventually(room, "writes resume", 10.0)
        assert cluster.nodes["n1"].stop() == 0
