"""A fenced source follows the record: when it serves again, and when it never does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deodar.contract.keypath import Prefix
from deodar.engine import Store
from deodar.node import fence as fence_module
from deodar.node.fence import follow_fence
from deodar.node.record import ShardRecords, without_move
from deodar.node.shard import HostedShard, ShardState
from deodar.node.workers import Workers
from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.interface import Compare, Put
from deodar.registry.records import Keys, encode
from deodar.v1.cluster_pb2 import SHARD_STATE_MOVING, SHARD_STATE_SERVING, ShardRecord
from tests.etcd_server import EtcdServer

_numbers = itertools.count()


class Fenced:
    """A fenced shard of node "a" whose record is in move 4 to node "b"."""

    def __init__(self, shard: HostedShard, records: ShardRecords) -> None:
        self.shard = shard
        self.records = records
        self.task: asyncio.Task[None] | None = None

    def follow(self, *, target_lives: bool = True, abort: bool = False) -> asyncio.Task[None]:
        self.task = asyncio.create_task(
            follow_fence(self.shard, self.records, lambda _node: target_lives, abort=abort)
        )
        return self.task

    async def read(self) -> tuple[ShardRecord, int]:
        found = await self.records.read("t", Prefix(0, 0))
        assert found is not None
        return found


@pytest.fixture
async def fenced(shared_etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[Fenced]:
    registry = await open_registry(RegistryConfig(url=shared_etcd.url))
    cluster = f"fence-{next(_numbers)}"
    workers = Workers()
    shard = HostedShard("t", Prefix(0, 0), 1, workers, Store.open(tmp_path / "store"))
    shard.fence(4)
    record = ShardRecord(
        table="t",
        state=SHARD_STATE_MOVING,
        primary="a",
        term=1,
        store_id=shard.store_id,
        target="b",
        move_id=4,
    )
    assert await registry.commit(
        [Compare(Keys(cluster).of(record), 0)], [Put(Keys(cluster).of(record), encode(record))]
    )
    made = Fenced(shard, ShardRecords(registry, cluster))
    yield made
    if made.task is not None:
        made.task.cancel()
        await asyncio.wait([made.task])
    await shard.close()
    workers.close()
    await registry.close()


async def test_it_stays_shut_while_the_move_goes_on(fenced: Fenced):
    task = fenced.follow()
    await asyncio.sleep(0.5)
    assert not task.done()
    assert fenced.shard.state is ShardState.FENCED


async def test_it_serves_again_when_the_move_is_gone(fenced: Fenced):
    task = fenced.follow()
    record, revision = await fenced.read()
    assert await fenced.records.change(without_move(record), revision)
    await asyncio.wait_for(task, 5)
    assert fenced.shard.state is ShardState.SERVING


async def test_it_serves_again_in_a_later_move(fenced: Fenced):
    """The next target fences anew; the fence of the earlier move holds nothing."""
    record, revision = await fenced.read()
    record.move_id = 5
    assert await fenced.records.change(record, revision)
    await asyncio.wait_for(fenced.follow(), 5)
    assert fenced.shard.state is ShardState.SERVING


async def test_it_never_serves_again_once_another_is_primary(fenced: Fenced):
    record, revision = await fenced.read()
    taken = without_move(record)
    taken.primary, taken.term, taken.store_id = "b", 2, 99
    assert await fenced.records.change(taken, revision)
    await asyncio.wait_for(fenced.follow(target_lives=False), 5)
    assert fenced.shard.state is ShardState.FENCED


@pytest.mark.parametrize("cause", ["target dead", "restart", "too long"])
async def test_it_takes_the_move_out_before_it_serves(
    fenced: Fenced, cause: str, monkeypatch: pytest.MonkeyPatch
):
    if cause == "too long":
        monkeypatch.setattr(fence_module, "FENCE_S_MAX", 0.2)
    record, revision = await fenced.read()
    task = fenced.follow(target_lives=cause != "target dead", abort=cause == "restart")
    await asyncio.wait_for(task, 5)
    assert fenced.shard.state is ShardState.SERVING
    settled, changed = await fenced.read()
    assert (settled.state, settled.primary, settled.target) == (SHARD_STATE_SERVING, "a", "")
    assert changed > revision
    # The target comes too late: what it compares is gone.
    taken = without_move(record)
    taken.primary, taken.term, taken.store_id = "b", 2, 99
    assert not await fenced.records.change(taken, revision)
