"""The gate of a shard: who gets in, and that a fence waits for everyone inside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deodar.contract.keypath import Prefix
from deodar.contract.reasons import Reason, ServiceError
from deodar.engine import Overloaded, Put, Store
from deodar.node import shard as shard_module
from deodar.node.shard import HostedShard, ShardState
from deodar.node.shardtable import ShardTable
from deodar.node.workers import Workers


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    made = Workers()
    yield made
    made.close()


@pytest.fixture
async def shard(tmp_path: Path, workers: Workers) -> AsyncIterator[HostedShard]:
    hosted = HostedShard("t", Prefix(0, 0), 1, workers, Store.open(tmp_path / "store"))
    yield hosted
    await hosted.close()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (ShardState.FENCED, Reason.SHARD_MOVING),
        (ShardState.COPYING, Reason.SHARD_MOVING),
        (ShardState.DROPPED, Reason.SHARD_MOVING),
        (ShardState.MISSING, Reason.SHARD_UNAVAILABLE),
        (ShardState.FAILED, Reason.SHARD_UNAVAILABLE),
    ],
)
async def test_a_shut_gate(shard: HostedShard, state: ShardState, reason: Reason):
    shard.state = state
    calls = (
        shard.write([Put(b"k", b"v")], 1),
        shard.write([Put(b"k", b"v")], 1 << 20),
        shard.increment(b"k", 1),
        shard.in_thread(Store.get, b"k"),
        shard.sync(),
    )
    for call in calls:
        with pytest.raises(ServiceError) as refused:
            await call
        assert refused.value.reason is reason
    shard.state = ShardState.SERVING
    assert shard.gate().last_version == 0


async def test_a_failed_shard_says_why(workers: Workers):
    failure = ServiceError(Reason.CORRUPTION, "bad byte")
    shard = HostedShard(
        "t", Prefix(0, 0), 1, workers, state=ShardState.FAILED, reason="x", failure=failure
    )
    with pytest.raises(ServiceError) as refused:
        shard.gate()
    assert refused.value is failure
    await shard.close()


async def test_a_fence_waits_for_a_write_whose_caller_has_gone(shard: HostedShard):
    """A cancelled request leaves its thread behind; the fence must still see its write.

    Seen to fail with the counter lowered when the waiting task ends.
    """
    entered, leave = threading.Event(), threading.Event()

    def slow(store: Store) -> None:
        entered.set()
        leave.wait(10)
        store.put(b"late", b"v")

    caller = asyncio.create_task(shard.in_thread(slow))
    await asyncio.to_thread(entered.wait, 10)
    caller.cancel()
    await asyncio.wait([caller])
    shard.fence(1)
    emptied = asyncio.create_task(shard.emptied())
    await asyncio.sleep(0.05)
    assert not emptied.done()
    leave.set()
    await asyncio.wait_for(emptied, 5)
    assert shard.store is not None
    assert shard.store.get(b"late") == b"v"
    shard.unfence()
    assert shard.gate()


async def test_close_waits_and_shuts(shard: HostedShard):
    leave = threading.Event()
    caller = asyncio.create_task(shard.in_thread(lambda _store: leave.wait(10)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(shard.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    with pytest.raises(ServiceError):
        shard.gate()
    leave.set()
    await closing
    assert await caller
    await shard.close()


async def test_unfence_undoes_a_fence_alone(shard: HostedShard):
    shard.state = ShardState.FAILED
    shard.unfence()
    assert shard.state is ShardState.FAILED


async def test_writes_wait_for_room_and_then_say_so(
    shard: HostedShard, monkeypatch: pytest.MonkeyPatch
):
    attempts = 0

    async def full_at_first() -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise Overloaded("full")
        return "done"

    assert await shard._with_room(full_at_first) == "done"
    monkeypatch.setattr(shard_module, "ROOM_WAIT_S", 0.02)
    attempts = -1_000
    with pytest.raises(Overloaded):
        await shard._with_room(full_at_first)


async def test_the_table_finds_by_path(workers: Workers):
    table = ShardTable()
    shards = [HostedShard("t", Prefix(value, 2), 1, workers) for value in (0, 1, 3)]
    shards.append(HostedShard("t", Prefix(0b101, 3), 1, workers))
    for shard in shards:
        table.add(shard)
    assert len(table) == 4
    for path, expected in (
        (0, shards[0]),
        ((1 << 126) - 1, shards[0]),
        (1 << 126, shards[1]),
        (0b100 << 125, None),
        (0b101 << 125, shards[3]),
        ((1 << 128) - 1, shards[2]),
    ):
        assert table.find("t", path) is expected
    assert table.find("other", 0) is None
    assert table.get("t/40-2") is shards[1]
    for shard in table:
        table.remove(shard)
    assert len(table) == 0
    assert table.find("t", 0) is None
