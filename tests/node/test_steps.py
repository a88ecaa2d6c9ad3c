"""The next step of a shard, for every pair of record and hosted state."""

from __future__ import annotations

from pathlib import Path

import pytest

from deodar.contract.keypath import Prefix
from deodar.engine import Store
from deodar.node.shard import HostedShard, ShardState
from deodar.node.steps import Step, decide
from deodar.node.workers import Workers
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    SHARD_STATE_SERVING,
    ShardRecord,
)

CREATING, SERVING, MOVING = SHARD_STATE_CREATING, SHARD_STATE_SERVING, SHARD_STATE_MOVING


def record(state: int, primary: str, term: int = 2, target: str = "") -> ShardRecord:
    store_id = 0 if state == CREATING else 7
    return ShardRecord(
        table="t", state=state, primary=primary, term=term, target=target, store_id=store_id
    )


@pytest.mark.parametrize(
    ("kept", "step"),
    [
        (record(CREATING, "me"), Step.CREATE),
        (record(CREATING, "other"), Step.NONE),
        (record(SERVING, "me"), Step.OPEN),
        (record(MOVING, "me", target="other"), Step.OPEN),
        (record(SERVING, "other"), Step.NONE),
        (record(MOVING, "other", target="me"), Step.COPY),
        (record(MOVING, "other", target="third"), Step.NONE),
    ],
)
def test_a_shard_that_is_not_here(kept: ShardRecord, step: Step):
    assert decide(kept, None, "me") is step


@pytest.mark.parametrize("state", list(ShardState))
async def test_a_shard_that_is_here(tmp_path: Path, state: ShardState):
    workers = Workers(1, 1)
    with Store.open(tmp_path / "store") as store:
        shard = HostedShard("t", Prefix(0, 0), 2, workers, store, state)
        # Named, at this term or in old news: nothing to do.
        for kept in (
            record(SERVING, "me"),
            record(MOVING, "me", target="other"),
            record(SERVING, "other", term=1),
            record(MOVING, "other", term=1, target="me"),
        ):
            assert decide(kept, shard, "me") is Step.NONE
        later = record(SERVING, "other", term=3)
        copying = state is ShardState.COPYING
        assert decide(later, shard, "me") is (Step.NONE if copying else Step.DROP)
        # The same term never takes a store away.
        assert decide(record(SERVING, "other"), shard, "me") is Step.NONE
        later.store_id = store.store_id
        assert decide(later, shard, "me") is Step.NONE
    workers.close()
