"""The contract of the KV service on the wire, through a router: what any gRPC client sees.

Each test runs on both registries.  The clusters are shared by the module; every test has keys of
its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status

from deodar.contract.limits import (
    BATCH_OPERATIONS_MAX,
    KEY_BYTES_MAX,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
)
from deodar.contract.reasons import Reason
from deodar.v1 import kv_pb2
from tests.cluster_harness import Cluster
from tests.wire import Service, connected, failure

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)

Get, Put = kv_pb2.GetRequest, kv_pb2.PutRequest
Operation = kv_pb2.WriteOperation


@pytest.fixture(scope="module", params=["embedded", "etcd"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=2, registry=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Service]:
    with connected(cluster.endpoint) as stubs:
        yield stubs


_numbers = itertools.count()


@pytest.fixture
def name() -> bytes:
    """A key that no other test has."""
    return b"key-%d" % next(_numbers)


def put(key: bytes, value: bytes = b"", if_version: int | None = None) -> Operation:
    return Operation(put=Operation.Put(key=key, value=value, if_version=if_version))


def test_put_get_delete(service: Service, name: bytes) -> None:
    assert not service.kv.Get(Get(key=name)).found
    written = service.kv.Put(Put(key=name, value=b"one"))
    assert written.header.map_revision > 0
    assert written.receipt.shard.startswith("default/")
    answer = service.kv.Get(Get(key=name))
    assert answer.found
    assert answer.record.value == b"one"
    assert answer.record.version == written.version
    assert not answer.record.HasField("ttl_ms")
    assert service.kv.Delete(kv_pb2.DeleteRequest(key=name)).found
    assert not service.kv.Delete(kv_pb2.DeleteRequest(key=name)).found
    assert not service.kv.Get(Get(key=name)).found


def test_an_empty_value_is_not_absent(service: Service, name: bytes) -> None:
    service.kv.Put(Put(key=name, value=b""))
    assert service.kv.Get(Get(key=name)).found
    missing = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=[name, name + b"-missing"]))
    assert [result.found for result in missing.results] == [True, False]


@pytest.mark.parametrize("suffix", [b"\0", b"\0\1\0\0", b"\xff\xfe", b"{", b"}", b"{}"])
def test_any_bytes_are_a_key(service: Service, name: bytes, suffix: bytes) -> None:
    service.kv.Put(Put(key=name, value=b"plain"))
    service.kv.Put(Put(key=name + suffix, value=b"\0value\0"))
    assert service.kv.Get(Get(key=name)).record.value == b"plain"
    assert service.kv.Get(Get(key=name + suffix)).record.value == b"\0value\0"


def test_conditions(service: Service, name: bytes) -> None:
    """The truth table of if_version and if_absent, with the current version in the error."""
    absent = failure(lambda: service.kv.Put(Put(key=name, if_version=1)))
    assert absent.code is grpc.StatusCode.ABORTED
    assert absent.reason is Reason.CONDITION_FAILED
    assert "current_version" not in absent.metadata
    first = service.kv.Put(Put(key=name, value=b"a", if_absent=True)).version
    again = failure(lambda: service.kv.Put(Put(key=name, value=b"b", if_absent=True)))
    assert again.metadata["current_version"] == str(first)
    second = service.kv.Put(Put(key=name, value=b"b", if_version=first)).version
    assert second > first
    stale = failure(lambda: service.kv.Put(Put(key=name, value=b"c", if_version=first)))
    assert stale.metadata["current_version"] == str(second)
    delete = kv_pb2.DeleteRequest(key=name, if_version=first)
    assert failure(lambda: service.kv.Delete(delete)).reason is Reason.CONDITION_FAILED
    assert service.kv.Get(Get(key=name)).record.value == b"b"


def test_increment_and_its_range(service: Service, name: bytes) -> None:
    request = kv_pb2.IncrementRequest
    assert service.kv.Increment(request(key=name, delta=5)).value == 5
    assert service.kv.Increment(request(key=name, delta=INT64_MAX - 5)).value == INT64_MAX
    over = failure(lambda: service.kv.Increment(request(key=name, delta=1)))
    assert over.code is grpc.StatusCode.OUT_OF_RANGE
    assert service.kv.Get(Get(key=name)).record.value == str(INT64_MAX).encode()
    service.kv.Put(Put(key=name, value=str(INT64_MIN).encode()))
    under = failure(lambda: service.kv.Increment(request(key=name, delta=-1)))
    assert under.reason is Reason.OUT_OF_RANGE
    service.kv.Put(Put(key=name, value=b"ten"))
    word = failure(lambda: service.kv.Increment(request(key=name, delta=1)))
    assert word.code is grpc.StatusCode.FAILED_PRECONDITION
    assert word.reason is Reason.NOT_A_NUMBER


def test_expiry(service: Service, name: bytes) -> None:
    service.kv.Put(Put(key=name, value=b"a", ttl_ms=TTL_MS_MAX))
    left = service.kv.Get(Get(key=name)).record.ttl_ms
    assert TTL_MS_MAX - 60_000 < left <= TTL_MS_MAX
    for ttl_ms in (0, TTL_MS_MAX + 1, 2**63 - 1, 2**64 - 1):
        bad = failure(partial(service.kv.Put, Put(key=name, ttl_ms=ttl_ms)))
        assert bad.metadata["field"] == "ttl_ms"
    assert service.kv.Get(Get(key=name)).record.value == b"a"


def raw_call(service: Service, path: str, request: bytes) -> Any:
    channel: Any = service.channel
    if path.endswith(("/Scan", "/WatchShardMap")):
        return list(channel.unary_stream(path)(request, timeout=5))
    return channel.unary_unary(path)(request, timeout=5)


def calls_with_key(service: Service, key: bytes) -> dict[str, Callable[[], object]]:
    """A call of every method that takes a key, and the field that a bad key is named by."""
    kv = service.kv
    operation = [put(b"good"), put(key)]
    return {
        "Get key": lambda: kv.Get(Get(key=key)),
        "Put key": lambda: kv.Put(Put(key=key)),
        "Delete key": lambda: kv.Delete(kv_pb2.DeleteRequest(key=key)),
        "Increment key": lambda: kv.Increment(kv_pb2.IncrementRequest(key=key, delta=1)),
        "BatchGet keys[1]": lambda: kv.BatchGet(kv_pb2.BatchGetRequest(keys=[b"good", key])),
        "BatchWrite operations[1].put.key": lambda: kv.BatchWrite(
            kv_pb2.BatchWriteRequest(operations=operation)
        ),
    }


@pytest.mark.parametrize("size", [0, KEY_BYTES_MAX + 1])
def test_a_bad_key_is_refused_alike_by_every_call(service: Service, size: int) -> None:
    for what, call in calls_with_key(service, b"k" * size).items():
        refused = failure(call)
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT, what
        assert refused.reason is Reason.INVALID_FIELD, what
        assert refused.metadata["field"] == what.split()[1]
        assert str(size) in refused.message


def test_the_error_details_are_the_standard_ones(service: Service) -> None:
    """ErrorInfo and BadRequest of google.rpc, as any client library unpacks them."""
    with pytest.raises(grpc.RpcError) as caught:
        service.kv.Get(Get())
    status = rpc_status.from_call(caught.value)
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert any(detail.Unpack(info) for detail in status.details)
    assert any(detail.Unpack(bad) for detail in status.details)
    assert (info.domain, info.reason) == ("deodar", "INVALID_FIELD")
    assert bad.field_violations[0].field == "key"


def test_the_largest_key_and_large_values_pass(service: Service, name: bytes) -> None:
    key = name.ljust(KEY_BYTES_MAX, b"k")
    value = bytes(range(256)) * 65_536  # 16 MiB
    service.kv.Put(Put(key=key, value=value))
    assert service.kv.Get(Get(key=key)).record.value == value
    service.kv.Delete(kv_pb2.DeleteRequest(key=key))


def test_the_largest_value_passes_and_one_more_byte_does_not(service: Service, name: bytes) -> None:
    value = bytes(VALUE_BYTES_MAX)
    service.kv.Put(Put(key=name, value=value))
    assert len(service.kv.Get(Get(key=name)).record.value) == VALUE_BYTES_MAX
    over = failure(lambda: service.kv.Put(Put(key=name, value=value + b"\0")))
    assert over.metadata["field"] == "value"
    assert str(VALUE_BYTES_MAX) in over.message
    assert str(VALUE_BYTES_MAX + 1) in over.message
    assert len(service.kv.Get(Get(key=name)).record.value) == VALUE_BYTES_MAX
    service.kv.Delete(kv_pb2.DeleteRequest(key=name))


@pytest.mark.parametrize(
    "method",
    ["Get", "Put", "Delete", "Increment", "BatchGet", "BatchWrite", "Sync", "Scan"],
)
def test_malformed_bytes_are_an_invalid_argument(service: Service, method: str) -> None:
    refused = failure(lambda: raw_call(service, f"/deodar.v1.KV/{method}", b"\xff\xff"))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.metadata["field"] == "request"


@pytest.mark.parametrize("method", ["ClusterStatus", "SetDraining", "MoveShard", "WatchShardMap"])
def test_malformed_bytes_to_the_admin_service(service: Service, method: str) -> None:
    refused = failure(lambda: raw_call(service, f"/deodar.v1.Admin/{method}", b"\xff\xff"))
    assert refused.metadata["field"] == "request"


def test_an_unknown_table_is_not_found(service: Service, name: bytes) -> None:
    kv = service.kv
    calls = [
        lambda: kv.Get(Get(table="none", key=name)),
        lambda: kv.Put(Put(table="none", key=name)),
        lambda: kv.BatchGet(kv_pb2.BatchGetRequest(table="none", keys=[name])),
        lambda: kv.BatchWrite(kv_pb2.BatchWriteRequest(table="none", operations=[put(name)])),
        lambda: list(kv.Scan(kv_pb2.ScanRequest(table="none"))),
        lambda: kv.Sync(kv_pb2.SyncRequest(table="none")),
    ]
    for call in calls:
        refused = failure(call)
        assert refused.code is grpc.StatusCode.NOT_FOUND
        assert refused.metadata == {"table": "none"}


def test_the_default_table_has_a_name(service: Service, name: bytes) -> None:
    service.kv.Put(Put(table="default", key=name, value=b"v"))
    assert service.kv.Get(Get(key=name)).record.value == b"v"


def test_a_level_without_replicas_is_refused(service: Service, name: bytes) -> None:
    request = Put(key=name, durability=kv_pb2.DURABILITY_REPLICATED)
    refused = failure(lambda: service.kv.Put(request))
    assert refused.reason is Reason.NOT_ENOUGH_REPLICAS
    assert not service.kv.Get(Get(key=name)).found
    service.kv.Put(Put(key=name, durability=kv_pb2.DURABILITY_DURABLE))


def test_batch_get_keeps_order_number_and_duplicates(service: Service, name: bytes) -> None:
    keys = [name + b"-%d" % number for number in range(40)]
    for key in keys[::2]:
        service.kv.Put(Put(key=key, value=key))
    asked = [*keys, *reversed(keys), keys[0], keys[0]]
    answer = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=asked))
    assert answer.header.map_revision > 0
    there = set(keys[::2])
    assert [result.record.value if result.found else None for result in answer.results] == [
        key if key in there else None for key in asked
    ]


def test_batch_write_keeps_order_and_duplicates(service: Service, name: bytes) -> None:
    keys = [name + b"-%d" % number for number in range(40)]
    operations = [put(key, b"first") for key in keys] + [put(key, key) for key in keys]
    operations.append(Operation(delete=Operation.Delete(key=keys[0])))
    answer = service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations))
    assert len(answer.results) == len(operations)
    assert not any(result.HasField("error") for result in answer.results)
    assert answer.results[-1].found
    shards = [receipt.shard for receipt in answer.receipts]
    assert len(shards) == len(set(shards)) > 1
    values = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=keys)).results
    assert not values[0].found
    assert [result.record.value for result in values[1:]] == keys[1:]


def test_a_failed_condition_is_reported_with_its_operation(service: Service, name: bytes) -> None:
    """Other shards are not held back; in the shard of the failed operation nothing is done."""
    tag = b"{" + name + b"}"
    beside = tag + b"-beside"
    elsewhere = [name + b"-elsewhere-%d" % number for number in range(16)]
    operations = [put(beside, b"v"), put(tag, b"v", if_version=77)]
    operations += [put(key, b"v") for key in elsewhere]
    results = service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations)).results
    assert results[1].error.reason == Reason.CONDITION_FAILED
    assert results[1].error.code == grpc.StatusCode.ABORTED.value[0]
    assert results[0].HasField("error")
    assert not service.kv.Get(Get(key=beside)).found
    assert sum(result.HasField("error") for result in results[2:]) < len(elsewhere)


def test_empty_batches_are_answered(service: Service) -> None:
    read = service.kv.BatchGet(kv_pb2.BatchGetRequest())
    assert not read.results
    assert read.header.map_revision > 0
    assert not service.kv.BatchWrite(kv_pb2.BatchWriteRequest()).results


def test_batch_bounds(service: Service, name: bytes) -> None:
    over = [b"k"] * (BATCH_OPERATIONS_MAX + 1)
    refused = failure(lambda: service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=over)))
    assert refused.metadata["field"] == "keys"
    answer = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=over[1:]))
    assert len(answer.results) == BATCH_OPERATIONS_MAX
    large = [put(name, bytes(9 << 20)), put(name, bytes(9 << 20))]
    refused = failure(lambda: service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=large)))
    assert refused.metadata["field"] == "operations"
    assert not service.kv.Get(Get(key=name)).found


def test_an_answer_above_the_transports_default_bound(service: Service, name: bytes) -> None:
    """6 MiB in one BatchGet; past 16 MiB the rest has to be asked for again, never absent."""
    keys = [name + b"-%d" % number for number in range(24)]
    for key in keys:
        service.kv.Put(Put(key=key, value=bytes(1 << 20)))
    results = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=keys[:6])).results
    assert [len(result.record.value) for result in results] == [1 << 20] * 6
    results = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=keys)).results
    assert sum(result.found for result in results) == 16
    for result in results:
        assert result.found or result.error.reason == Reason.LIMIT_EXCEEDED
    for key in keys:
        service.kv.Delete(kv_pb2.DeleteRequest(key=key))


def pages(service: Service, request: kv_pb2.ScanRequest) -> list[kv_pb2.ScanResponse]:
    return list(service.kv.Scan(request, timeout=30))


def records(answers: list[kv_pb2.ScanResponse]) -> list[bytes]:
    return [record.key for answer in answers for record in answer.records]


def test_scan_finds_every_match_once(service: Service, name: bytes) -> None:
    keys = {name + b"/%d" % number for number in range(500)}
    operations = [put(key, b"v" * 1000) for key in keys]
    service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations))
    answers = pages(service, kv_pb2.ScanRequest(key_prefix=name + b"/"))
    assert sorted(records(answers)) == sorted(keys)
    assert answers[-1].cursor == b""
    assert all(answer.header.map_revision > 0 for answer in answers)
    only = pages(service, kv_pb2.ScanRequest(key_prefix=name + b"/", keys_only=True))
    assert records(only) == records(answers)
    assert not any(record.value for answer in only for record in answer.records)


@pytest.mark.parametrize("limit", [1, 7, 63, 64, 65, 200])
def test_scan_in_pages_of_an_exact_limit(service: Service, name: bytes, limit: int) -> None:
    """A limit counts over the borders of shards, and a cursor goes on exactly behind it."""
    keys = {name + b"/%d" % number for number in range(200)}
    operations = [put(key) for key in keys]
    service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations))
    prefix, cursor, found = name + b"/", b"", list[bytes]()
    while True:
        request = kv_pb2.ScanRequest(key_prefix=prefix, cursor=cursor, limit=limit)
        answers = pages(service, request)
        part = records(answers)
        cursor = answers[-1].cursor
        found += part
        if not cursor:
            assert len(part) <= limit
            break
        assert len(part) == limit
    assert len(found) == len(keys)
    assert set(found) == keys


def test_scan_from_a_bad_cursor(service: Service) -> None:
    refused = failure(lambda: pages(service, kv_pb2.ScanRequest(cursor=b"short")))
    assert refused.metadata["field"] == "cursor"


def test_scan_from_the_last_position_is_empty(service: Service) -> None:
    answers = pages(service, kv_pb2.ScanRequest(cursor=b"\xff" * 16 + b"\xff" * 64))
    assert records(answers) == []
    assert answers[-1].cursor == b""


def test_sync_names_every_shard(service: Service, cluster: Cluster) -> None:
    answer = service.kv.Sync(kv_pb2.SyncRequest())
    shards = {receipt.shard for receipt in answer.receipts}
    assert len(shards) == len(answer.receipts) == cluster.shard_count


def test_a_generic_client_in_json(service: Service) -> None:
    """As grpcurl does: put and get in JSON, built from what reflection tells."""
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(service.channel))
    kv = pool.FindServiceByName("deodar.v1.KV")

    def call(method: str, text: str) -> dict[str, object]:
        descriptor = kv.FindMethodByName(method)
        request = message_factory.GetMessageClass(descriptor.input_type)
        answer = message_factory.GetMessageClass(descriptor.output_type)
        rpc = service.channel.unary_unary(
            f"/deodar.v1.KV/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        answered: dict[str, object] = json_format.MessageToDict(
            rpc(json_format.Parse(text, request()), timeout=5)
        )
        return answered

    key = "YS1rZXk="  # "a-key"
    assert "version" in call("Put", f'{{"key": "{key}", "value": "dmFsdWU="}}')
    assert call("Get", f'{{"key": "{key}"}}')["found"] is True
    assert service.kv.Get(Get(key=b"a-key")).record.value == b"value"
