"""The Admin service of a running cluster: moves, drains and the map for clients, under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Literal

import grpc
import pytest

from deodar.contract.keypath import Prefix, path_of
from deodar.contract.reasons import Reason
from deodar.v1 import admin_pb2, kv_pb2
from tests.cluster_harness import Cluster
from tests.wire import Service, connected, failure, keys_of_shard, shard_name

Move = admin_pb2.MoveShardRequest
KEYS = [b"key-%d" % number for number in range(300)]


@pytest.fixture(scope="module", params=["embedded", "etcd"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    registry: Literal["embedded", "etcd"] = request.param
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=2, registry=registry) as running:
        yield running


@pytest.fixture
def service(cluster: Cluster) -> Iterator[Service]:
    with connected(cluster.endpoint) as stubs:
        yield stubs


def shard_on(cluster: Cluster, node: str) -> admin_pb2.ShardStatus:
    shards = [shard for shard in cluster.status().shards if shard.shard.primary == node]
    return shards[0]


def move(shard: admin_pb2.ShardStatus, target: str) -> Move:
    record = shard.shard
    return Move(
        table=record.table, prefix=record.prefix, prefix_bits=record.prefix_bits, target=target
    )


def same_shard(
    status: admin_pb2.ClusterStatusResponse, shard: admin_pb2.ShardStatus
) -> admin_pb2.ShardStatus:
    """The shard as it is now."""
    return next(now for now in status.shards if shard_name(now) == shard_name(shard))


def wait_moved(cluster: Cluster, shard: admin_pb2.ShardStatus) -> None:
    """Until the shard has another primary than it had; the term tells."""

    def moved(status: admin_pb2.ClusterStatusResponse) -> bool:
        now = same_shard(status, shard)
        return now.shard.term > shard.shard.term and now.state == "serving"

    cluster.wait(moved, f"{shard_name(shard)} has moved")


@contextmanager
def counting(service: Service, keys: list[bytes]) -> Iterator[dict[bytes, int]]:
    """A writer for each key increments it again and again; holds how often each was.

    One error of one call fails the test.
    """
    counts = dict.fromkeys(keys, 0)
    failures: list[Exception] = []
    stop = threading.Event()

    def run(key: bytes) -> None:
        while not stop.is_set():
            try:
                service.kv.Increment(kv_pb2.IncrementRequest(key=key, delta=1), timeout=10)
            except grpc.RpcError as error:
                failures.append(error)
                return
            counts[key] += 1

    writers = [threading.Thread(target=run, args=[key]) for key in keys]
    for writer in writers:
        writer.start()
    try:
        yield counts
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not failures, failures[0]


def test_a_move_under_load_loses_nothing(cluster: Cluster, service: Service) -> None:
    """Counters written, and scans begun, while their shard moves there and back: no error is seen,
    every count is exact, every scan finds every key once."""
    shard = shard_on(cluster, "n1")
    counters = list(islice(keys_of_shard(shard), 4))
    puts = [kv_pb2.WriteOperation.Put(key=key, value=key) for key in KEYS]
    operations = [kv_pb2.WriteOperation(put=put) for put in puts]
    service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations))
    with counting(service, counters) as counts:
        for target in ("n2", "n1", "n2", "n1"):
            shard = same_shard(cluster.status(), shard)
            scan = service.kv.Scan(kv_pb2.ScanRequest(key_prefix=b"key-"))
            found = [record.key for record in next(scan).records]
            answer = service.admin.MoveShard(move(shard, target))
            assert answer.move_id == shard.shard.move_id + 1
            for page in scan:
                found += [record.key for record in page.records]
            assert sorted(found) == sorted(KEYS)
            wait_moved(cluster, shard)
    values = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=counters)).results
    assert {
        key: int(result.record.value) for key, result in zip(counters, values, strict=True)
    } == (counts)
    assert min(counts.values()) > 0


def test_a_cursor_survives_a_move(cluster: Cluster, service: Service) -> None:
    """Page by page with the shard under the cursor moved between two pages."""
    puts = [kv_pb2.WriteOperation.Put(key=key, value=key) for key in KEYS]
    operations = [kv_pb2.WriteOperation(put=put) for put in puts]
    service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations))
    first = list(service.kv.Scan(kv_pb2.ScanRequest(key_prefix=b"key-", limit=10)))
    found = [record.key for page in first for record in page.records]
    cursor = first[-1].cursor
    path = int.from_bytes(cursor[:16], "big")
    shard = next(
        shard
        for shard in cluster.status().shards
        if Prefix.from_bytes(shard.shard.prefix, shard.shard.prefix_bits).contains(path)
    )
    target = "n2" if shard.shard.primary == "n1" else "n1"
    service.admin.MoveShard(move(shard, target))
    wait_moved(cluster, shard)
    for page in service.kv.Scan(kv_pb2.ScanRequest(key_prefix=b"key-", cursor=cursor)):
        found += [record.key for record in page.records]
    assert sorted(found) == sorted(KEYS)
    assert found == sorted(found, key=lambda key: (path_of(key), key))


def test_a_shard_stays_where_it_was_moved(cluster: Cluster, service: Service) -> None:
    """Evening out takes others, and when all of a node were moved there, none."""
    puts = [kv_pb2.WriteOperation.Put(key=key, value=key) for key in KEYS]
    operations = [kv_pb2.WriteOperation(put=put) for put in puts]
    service.kv.BatchWrite(kv_pb2.BatchWriteRequest(operations=operations))
    moved = [shard for shard in cluster.status().shards if shard.shard.primary == "n1"]
    for shard in moved:
        service.admin.MoveShard(move(same_shard(cluster.status(), shard), "n2"))
        wait_moved(cluster, shard)
    time.sleep(2.5)  # rounds of the controller
    cluster.wait_serving()
    status = cluster.status()
    undone = [
        now for now in (same_shard(status, shard) for shard in moved) if now.shard.primary != "n2"
    ]
    assert undone == []


def test_a_move_that_cannot_be_is_refused(cluster: Cluster, service: Service) -> None:
    shard = shard_on(cluster, "n1")
    refusals = [
        (move(shard, "n1"), Reason.MOVE_REFUSED),
        (move(shard, "nobody"), Reason.UNKNOWN_NODE),
        (move(shard, ""), Reason.INVALID_FIELD),
        (Move(prefix=b"\xff", prefix_bits=4, target="n2"), Reason.INVALID_FIELD),
        (Move(prefix=b"\xa0\x00", prefix_bits=9, target="n2"), Reason.UNKNOWN_SHARD),
        (Move(table="none", prefix=b"\xa0", prefix_bits=4, target="n2"), Reason.UNKNOWN_TABLE),
    ]
    for request, reason in refusals:
        assert failure(partial(service.admin.MoveShard, request)).reason is reason
    assert shard_on(cluster, "n1").shard == shard.shard


def test_draining_names_known_nodes_only(service: Service) -> None:
    request = admin_pb2.SetDrainingRequest
    refused = failure(lambda: service.admin.SetDraining(request(node="nobody", draining=True)))
    assert refused.code is grpc.StatusCode.NOT_FOUND
    assert refused.metadata == {"node": "nobody"}
    bad = failure(lambda: service.admin.SetDraining(request(node="a/b", draining=True)))
    assert bad.reason is Reason.INVALID_FIELD


def test_a_watch_of_the_map_follows_a_move(cluster: Cluster, service: Service) -> None:
    watch = service.admin.WatchShardMap(admin_pb2.WatchShardMapRequest(), timeout=30)
    first = next(watch)
    assert first.full
    assert len(first.shards) == cluster.shard_count
    addresses = {node.id: node.address for node in first.nodes}
    assert addresses == {name: node.address for name, node in cluster.nodes.items()}
    shard = shard_on(cluster, "n1")
    service.admin.MoveShard(move(shard, "n2"))
    for message in watch:
        assert not message.full
        assert message.map_revision > first.map_revision
        terms = {record.prefix: record.term for record in message.shards}
        if terms.get(shard.shard.prefix, 0) > shard.shard.term:
            break
    watch.cancel()
    cluster.wait_serving()


def test_status_counts_keys(cluster: Cluster, service: Service) -> None:
    before = sum(shard.keys for shard in cluster.status().shards)
    for number in range(10):
        service.kv.Put(kv_pb2.PutRequest(key=b"counted-%d" % number))
    status = cluster.status()
    assert sum(shard.keys for shard in status.shards) == before + 10
    assert status.cluster == "deodar"
    assert status.registry in ("embedded", "etcd")
    assert status.registry_endpoints
    assert [node.id for node in status.nodes] == ["n1", "n2"]
    pids = {node.id: node.pid for node in status.nodes}
    assert pids == {name: node.pid for name, node in cluster.nodes.items()}


def test_a_node_drains_and_comes_back(cluster: Cluster, service: Service) -> None:
    """All of its shards go, under load and without an error; then it may have shards again."""
    keys = [b"drain-%d" % number for number in range(4)]
    with counting(service, keys) as counts:
        service.admin.SetDraining(admin_pb2.SetDrainingRequest(node="n2", draining=True))
        status = cluster.wait(
            lambda status: cluster.node_state(status, "n2") == "drained", "n2 is drained"
        )
    assert all(shard.shard.primary == "n1" for shard in status.shards)
    values = service.kv.BatchGet(kv_pb2.BatchGetRequest(keys=keys)).results
    assert [int(result.record.value) for result in values] == [counts[key] for key in keys]
    service.admin.SetDraining(admin_pb2.SetDrainingRequest(node="n2", draining=False))
    cluster.wait(
        lambda status: [node.shards for node in status.nodes] == [8, 8], "both have their part"
    )
    cluster.wait_serving()
