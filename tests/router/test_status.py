"""States of nodes and shards, from the registry's records and the nodes' own words."""

from __future__ import annotations

import pytest

from deodar.contract.keypath import Prefix
from deodar.registry.cluster_view import ClusterState, KeptShard
from deodar.router.status import Reports, node_statuses, shard_statuses
from deodar.v1 import cluster_pb2, replication_pb2

PREFIX = Prefix(0xA, 4)
NAME = "default/a0-4"
CREATING = cluster_pb2.SHARD_STATE_CREATING
SERVING = cluster_pb2.SHARD_STATE_SERVING
MOVING = cluster_pb2.SHARD_STATE_MOVING


def record(
    shard_state: cluster_pb2.ShardState.ValueType, primary: str = "n1", target: str = ""
) -> cluster_pb2.ShardRecord:
    return cluster_pb2.ShardRecord(
        table="default",
        prefix=PREFIX.to_bytes(),
        prefix_bits=PREFIX.bits,
        state=shard_state,
        primary=primary,
        target=target,
    )


def state(
    *shards: cluster_pb2.ShardRecord, up: tuple[str, ...] = ("n1",), draining: tuple[str, ...] = ()
) -> ClusterState:
    return ClusterState.build(
        1,
        nodes=[cluster_pb2.NodeRecord(id=name, address="a:1", pid=7) for name in up],
        members=[
            cluster_pb2.MemberRecord(id=name, draining=name in draining)
            for name in ("n1", "n2", "n3")
        ],
        shards=[KeptShard(shard, 1) for shard in shards],
    )


def says(
    word: str, keys: int = 0, size: int = 0, moved_keys: int = 0
) -> dict[str, replication_pb2.NodeShard]:
    shard = replication_pb2.NodeShard(state=word, reason=f"why {word}")
    shard.keys, shard.bytes, shard.moved_keys = keys, size, moved_keys
    return {NAME: shard}


@pytest.mark.parametrize(
    ("shard", "reports", "expected", "reason"),
    [
        (record(CREATING), {"n1": {}}, "creating", ""),
        (record(CREATING), {"n1": says("failed")}, "creating", "why failed"),
        (record(SERVING), {"n1": says("serving")}, "serving", ""),
        (record(SERVING), {"n1": says("fenced")}, "moving", ""),
        (record(MOVING, target="n2"), {"n1": says("serving")}, "moving", ""),
        (
            record(MOVING, target="n2"),
            {"n1": says("serving"), "n2": says("failed")},
            "moving",
            "node n2: why failed",
        ),
        (record(SERVING), {"n1": None}, "unavailable", "node n1 does not answer"),
        (record(SERVING, "n2"), {"n2": None}, "unavailable", "node n2 is down"),
        (record(SERVING), {"n1": {}}, "unavailable", "node n1 does not have it"),
        (record(SERVING), {"n1": says("missing")}, "unavailable", "why missing"),
        (record(SERVING), {"n1": says("failed")}, "unavailable", "why failed"),
    ],
)
def test_shard_states(
    shard: cluster_pb2.ShardRecord, reports: Reports, expected: str, reason: str
) -> None:
    (status,) = shard_statuses(state(shard), reports)
    assert (status.state, status.reason) == (expected, reason)


def test_sizes_come_from_the_primary_and_progress_from_the_target() -> None:
    reports: Reports = {
        "n1": says("serving", keys=30, size=900),
        "n2": says("copying", keys=12, moved_keys=12),
    }
    (status,) = shard_statuses(state(record(MOVING, target="n2")), reports)
    assert (status.keys, status.bytes, status.moved_keys) == (30, 900, 12)


def test_sizes_are_absent_when_the_primary_is_silent() -> None:
    (status,) = shard_statuses(state(record(SERVING)), {"n1": None})
    assert not status.HasField("keys")
    assert not status.HasField("bytes")


def states(cluster: ClusterState) -> dict[str, str]:
    return {node.id: node.state for node in node_statuses(cluster)}


def test_node_states() -> None:
    cluster = state(record(SERVING, "n2"), up=("n1", "n2"), draining=("n2",))
    assert states(cluster) == {"n1": "up", "n2": "draining", "n3": "down"}


def test_a_node_is_drained_when_nothing_is_on_it_or_coming() -> None:
    assert states(state(draining=("n1",)))["n1"] == "drained"
    coming = state(record(MOVING, "n2", "n1"), up=("n1", "n2"), draining=("n1",))
    assert states(coming)["n1"] == "draining"


def test_a_drained_node_that_left_is_no_failure() -> None:
    assert states(state(up=(), draining=("n1",)))["n1"] == "drained"


def test_a_node_that_dies_while_it_drains_is_down() -> None:
    assert states(state(record(SERVING), up=(), draining=("n1",)))["n1"] == "down"


def test_counts_of_shards() -> None:
    (node, *_) = node_statuses(state(record(SERVING)))
    assert (node.id, node.shards, node.address, node.pid) == ("n1", 1, "a:1", 7)
