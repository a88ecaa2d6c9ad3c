"""Nodes and registries that die, hang and come back, seen through a router: bounded, clear errors
for what is gone, and nothing at all for the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from deodar.contract.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from deodar.contract.reasons import Reason
from deodar.contract.rpc_status import error_from_rpc
from deodar.v1 import kv_pb2
from tests.cluster_harness import Cluster
from tests.processes import wait_until
from tests.wire import Failure, Service, connected, failure, keys_of_node

DEAD_S = 1.5  # a call to a dead node has failed by then
HUNG_S = 5.5  # a call to a node that stands still has: two pings and a last look
BACK_S = 15.0

Get, Put = kv_pb2.GetRequest, kv_pb2.PutRequest


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, nodes=2, registry="etcd") as running:
        yield running


@pytest.fixture
def service(cluster: Cluster) -> Iterator[Service]:
    with connected(cluster.endpoint) as stubs:
        yield stubs


def keys_on(cluster: Cluster, node: str, count: int = 20) -> list[bytes]:
    return list(islice(keys_of_node(cluster.status(), node), count))


def timed_failure(call: Callable[[], object]) -> tuple[Failure, float]:
    began = time.monotonic()
    failed = failure(call)
    return failed, time.monotonic() - began


def wait_answers(call: Callable[[], object], what: str) -> None:
    def answers() -> bool:
        try:
            call()
        except grpc.RpcError:
            return False
        return True

    wait_until(answers, BACK_S, what)


def test_a_dead_node_fails_fast_and_alone(cluster: Cluster, service: Service) -> None:
    """Every kind of call, right after the kill and after the lease ended; then it comes back."""
    kv = service.kv
    gone, there = keys_on(cluster, "n2"), keys_on(cluster, "n1")
    for key in gone + there:
        kv.Put(Put(key=key, value=b"v", durability=kv_pb2.DURABILITY_DURABLE))
    cluster.nodes["n2"].kill()
    # The router may take a call or two to notice: those writes may have been sent.
    failure(lambda: kv.Get(Get(key=gone[0])))
    address = cluster.nodes["n2"].address
    for lease in ("alive", "ended"):
        for call in (
            lambda: kv.Get(Get(key=gone[0])),
            lambda: kv.Put(Put(key=gone[0], value=b"w")),
            lambda: kv.Delete(kv_pb2.DeleteRequest(key=gone[0])),
            lambda: kv.Increment(kv_pb2.IncrementRequest(key=gone[0], delta=1)),
            lambda: kv.Sync(kv_pb2.SyncRequest()),
            lambda: list(kv.Scan(kv_pb2.ScanRequest())),
        ):
            failed, took_s = timed_failure(call)
            assert failed.code is grpc.StatusCode.UNAVAILABLE, lease
            assert failed.reason is Reason.NODE_UNREACHABLE, lease
            assert failed.metadata["node"] == "n2"
            assert failed.metadata["address"] == address
            assert failed.metadata["shard"].startswith("default/")
            assert took_s < DEAD_S, lease
        assert kv.Get(Get(key=there[0])).record.value == b"v"
        cluster.wait(lambda status: cluster.node_state(status, "n2") == "down", "the lease ends")
    cluster.start_node("n2")
    cluster.wait_serving()
    assert kv.Get(Get(key=gone[0])).record.value == b"v"


def test_a_batch_with_a_dead_node_has_errors_where_it_cannot_know(
    cluster: Cluster, service: Service
) -> None:
    """Interleaved keys of both nodes: what is reached is answered, the rest is never "absent"."""
    gone, there = keys_on(cluster, "n2"), keys_on(cluster, "n1")
    asked = [key for pair in zip(gone, there, strict=True) for key in pair]
    for key in asked:
        service.kv.Put(Put(key=key, value=key))
    cluster.nodes["n2"].kill()
    began = time.monotonic()
    results = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=asked)).results
    assert time.monotonic() - began < DEAD_S
    for index, key in enumerate(asked):
        if key in there:
            assert results[index].record.value == key
        else:
            assert results[index].error.reason == Reason.NODE_UNREACHABLE
            assert results[index].error.metadata["node"] == "n2"
    operations = [
        kv_pb2.WriteOperation(put=kv_pb2.WriteOperation.Put(key=key, value=b"new")) for key in asked
    ]
    written = service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations))
    for index, key in enumerate(asked):
        assert written.results[index].HasField("error") == (key in gone)
        if key in there:
            assert service.kv.Get(Get(key=key)).record.value == b"new"
    assert len(written.receipts) == len({receipt.shard for receipt in written.receipts}) > 0


def test_a_node_that_stands_still_is_noticed(cluster: Cluster, service: Service) -> None:
    """SIGSTOP leaves its connections open.  A read in flight finds the node unreachable, a write
    in flight has an unknown outcome; later calls are not even sent.  A call's own deadline counts
    before all of that."""
    (key,) = keys_on(cluster, "n2", 1)
    service.kv.Put(Put(key=key, value=b"v"))
    outcomes: dict[str, tuple[Failure, float]] = {}
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: service.kv.Get(Get(key=key)),
        "write": lambda: service.kv.Put(Put(key=key, value=b"w")),
    }
    node = cluster.nodes["n2"]
    node.pause()
    try:
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            service.kv.Get(Get(key=key), timeout=0.3)
        assert time.monotonic() - began < 0.6
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        threads = [
            threading.Thread(
                target=lambda name=name, call=call: outcomes.update({name: timed_failure(call)})
            )
            for name, call in calls.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes["read"][0].reason is Reason.NODE_UNREACHABLE
        assert outcomes["write"][0].reason is Reason.OUTCOME_UNKNOWN
        for failed, took_s in outcomes.values():
            assert took_s < HUNG_S
            assert failed.metadata["node"] == "n2"
        for call in calls.values():
            failed, took_s = timed_failure(call)
            assert failed.reason is Reason.NODE_UNREACHABLE
            assert took_s < DEAD_S
    finally:
        node.resume()
    wait_answers(calls["read"], "the node answers again")


def test_what_breaks_a_bound_is_refused_without_a_node(cluster: Cluster, service: Service) -> None:
    """With every node dead a bad request still is an INVALID_ARGUMENT: nothing was forwarded."""
    for node in cluster.nodes.values():
        node.kill()
    kv = service.kv
    long_key, long_value = bytes(KEY_BYTES_MAX + 1), bytes(VALUE_BYTES_MAX + 1)
    bad_put = kv_pb2.WriteOperation(put=kv_pb2.WriteOperation.Put(key=b"k", value=long_value))
    channel: Any = service.channel
    for call in (
        lambda: kv.Get(Get()),
        lambda: kv.Get(Get(key=long_key)),
        lambda: kv.Put(Put(key=b"k", value=long_value)),
        lambda: kv.Delete(kv_pb2.DeleteRequest()),
        lambda: kv.Increment(kv_pb2.IncrementRequest()),
        lambda: kv.BatchGet(kv_pb2.BatchGetRequest(keys=[b"k", b""])),
        lambda: kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=[bad_put])),
        lambda: list(kv.Scan(kv_pb2.ScanRequest(cursor=b"short"))),
        lambda: channel.unary_unary("/deodar.v1.KV/Get")(b"\xff\xff"),
        lambda: channel.unary_unary("/deodar.v1.KV/Put")(b"\x0a\x05ab"),
    ):
        assert failure(call).reason is Reason.INVALID_FIELD


def test_a_router_goes_on_without_its_registry(cluster: Cluster, service: Service) -> None:
    """etcd killed: data calls go on with the last map, changes of the cluster are refused as
    unavailable; and all is well once it is back."""
    assert cluster.etcd is not None
    keys = keys_on(cluster, "n1", 5) + keys_on(cluster, "n2", 5)
    cluster.etcd.kill()
    for key in keys * 3:
        service.kv.Put(Put(key=key, value=b"v"), timeout=5)
        assert service.kv.Get(Get(key=key), timeout=5).found
        time.sleep(0.1)
    assert len(list(service.kv.Scan(kv_pb2.ScanRequest(keys_only=True), timeout=5))) > 0
    cluster.etcd.start()
    cluster.wait_serving()
    cluster.nodes["n2"].kill()
    cluster.start_node("n2")
    cluster.wait_serving()
    assert service.kv.Get(Get(key=keys[-1])).found


def test_a_node_at_another_address_is_followed(cluster: Cluster, service: Service) -> None:
    """The same directory on another port: calls follow its record, the old address is given up."""
    (key,) = keys_on(cluster, "n2", 1)
    service.kv.Put(Put(key=key, value=b"v"))
    node = cluster.nodes["n2"]
    assert node.stop() == 0
    cluster.move_node("n2")
    cluster.start_node("n2")
    cluster.wait_serving()
    assert service.kv.Get(Get(key=key)).record.value == b"v"


def test_a_node_that_stops_in_order_leaves_nothing_in_doubt(
    cluster: Cluster, service: Service
) -> None:
    """SIGTERM under writers: what is not done says so, and every acknowledged write is there."""
    keys = keys_on(cluster, "n2", 4)
    counts = dict.fromkeys(keys, 0)
    endings: list[Failure] = []

    def write(key: bytes) -> None:
        request = kv_pb2.IncrementRequest(key=key, delta=1)
        while True:
            try:
                service.kv.Increment(request, timeout=20)
                counts[key] += 1
            except grpc.RpcError as error:
                ended = error_from_rpc(error)
                endings.append(Failure(error.code(), ended.reason, ended.message, ended.metadata))
                return

    writers = [threading.Thread(target=write, args=[key]) for key in keys]
    for writer in writers:
        writer.start()
    time.sleep(0.5)
    assert cluster.nodes["n2"].stop() == 0
    for writer in writers:
        writer.join()
    assert {ending.code for ending in endings} == {grpc.StatusCode.UNAVAILABLE}, endings
    cluster.start_node("n2")
    cluster.wait_serving()
    values = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=keys)).results
    assert [int(result.record.value) for result in values] == [counts[key] for key in keys]


def test_a_stopped_router_lets_calls_finish(cluster: Cluster, service: Service) -> None:
    """SIGTERM while calls run: each either answers or is refused, none is lost in silence."""
    (key,) = keys_on(cluster, "n1", 1)
    total = 0
    endings: list[grpc.StatusCode] = []

    def write() -> None:
        nonlocal total
        while not endings:
            try:
                service.kv.Increment(kv_pb2.IncrementRequest(key=key, delta=1), timeout=5)
                total += 1
            except grpc.RpcError as error:
                endings.append(error.code())

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.5)
    assert cluster.routers[0].stop() == 0
    writer.join()
    assert endings == [grpc.StatusCode.UNAVAILABLE]
    cluster.routers[0].start()
    cluster.wait_serving()
    value = int(service.kv.Get(Get(key=key), wait_for_ready=True).record.value)
    assert value in (total, total + 1)
