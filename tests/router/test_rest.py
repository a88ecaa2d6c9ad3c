"""Rests after failed moves: longer each time, by the controller's own clock."""

from __future__ import annotations

from deodar.contract.keypath import Prefix
from deodar.registry.cluster_view import ClusterState, KeptShard
from deodar.router.rest import REST_LONGEST_S, Rests, rest_s
from deodar.v1.cluster_pb2 import SHARD_STATE_SERVING, ShardRecord

NAME = "default/00-1"


def state(failed_moves: int) -> ClusterState:
    prefix = Prefix(0, 1)
    record = ShardRecord(
        table="default",
        prefix=prefix.to_bytes(),
        prefix_bits=prefix.bits,
        state=SHARD_STATE_SERVING,
        primary="a",
        failed_moves=failed_moves,
    )
    return ClusterState.build(1, shards=[KeptShard(record, 1)])


def test_rests_double_up_to_a_bound() -> None:
    for failed, longest in ((1, 1.0), (2, 2.0), (5, 16.0), (7, REST_LONGEST_S), (4_000, 60.0)):
        drawn = [rest_s(failed) for _ in range(200)]
        assert longest / 2 <= min(drawn) < max(drawn) <= longest
        assert len(set(drawn)) > 100


def test_a_rest_begins_when_a_failure_is_seen_and_ends_once() -> None:
    rests = Rests()
    assert rests.resting(state(0), 0.0) == set()
    assert rests.resting(state(1), 100.0) == {NAME}
    assert rests.resting(state(1), 100.4) == {NAME}
    assert rests.resting(state(1), 101.1) == set()
    assert rests.resting(state(2), 101.2) == {NAME}
    assert rests.resting(state(2), 102.1) == {NAME}
    assert rests.resting(state(0), 102.2) == set()
    assert rests.resting(state(1), 200.0) == {NAME}
