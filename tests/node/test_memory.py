"""A node's memory: what it may use, and how its stores share it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deodar.contract.keypath import Prefix, even_prefixes
from deodar.engine import EngineError, Store
from deodar.node.directory import ShardDirectories
from deodar.node.host import Host
from deodar.node.memory import (
    STORE_BYTES_MIN,
    MemoryBudget,
    cgroup_limits,
    default_budget_bytes,
)
from deodar.node.workers import Workers

MIB = 1 << 20


def limit(store: Store) -> int:
    return int(store.stats()["memory_bytes_max"])


def test_shares_follow_as_stores_come_and_go(tmp_path: Path):
    budget = MemoryBudget(64 * MIB)
    stores = []
    with ExitStack() as opened:
        for number in range(4):
            share = budget.expect()
            assert share == 64 * MIB // (number + 1)
            store = opened.enter_context(Store.open(tmp_path / str(number), memory_bytes=share))
            budget.add(store)
            stores.append(store)
            assert {limit(store) for store in stores} == {share}
        stores.pop().close()
        stores.pop().close()
        budget.divide()
        assert {limit(store) for store in stores} == {32 * MIB}
        budget.expect()
        budget.forgo()
        assert budget.share_bytes == 32 * MIB


def test_a_share_is_never_nothing():
    budget = MemoryBudget(2 * STORE_BYTES_MIN)
    for _ in range(5):
        budget.expect()
    assert budget.share_bytes == STORE_BYTES_MIN


def test_a_smaller_budget_empties_memory(tmp_path: Path):
    """What is in memory falls below the new limit while data is written on."""
    with Store.open(tmp_path / "s", region_bytes=262_144, memory_bytes=64 * MIB) as store:
        for number in range(200):
            store.put(b"%d" % number, bytes(100_000))
        store.sync()
        assert store.stats()["memory_bytes"] > 8 * MIB
        store.set_memory_bytes(2 * MIB)
        for number in range(200):
            store.put(b"%d" % number, bytes(1_000), durability="durable")
        assert store.stats()["memory_bytes"] <= 4 * MIB
        with pytest.raises(ValueError, match="memory_bytes"):
            store.set_memory_bytes(-1)


def test_limits_of_control_groups(tmp_path: Path):
    """Versions 1 and 2, every level, and what a container sees of its own."""
    for place, text in {
        "a/memory.max": "max\n",
        "a/b/memory.max": "1000\n",
        "a/b/c/memory.max": "3000\n",
        "memory/d/memory.limit_in_bytes": "2000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    assert cgroup_limits("0::/a/b/c\n", tmp_path) == [3000, 1000]
    assert min(cgroup_limits("7:cpu:/x\n4:memory,misc:/d\n", tmp_path)) == 2000
    assert cgroup_limits("0::/not/mounted/here\n", tmp_path) == []
    assert cgroup_limits("", tmp_path) == []
    assert 0 < default_budget_bytes() < 1 << 60


async def test_a_host_opens_stores_with_their_shares(tmp_path: Path):
    """Not with half of the machine's memory each."""
    workers, budget = Workers(1, 1), MemoryBudget(64 * MIB)
    unused: Any = None
    host = Host("n1", ShardDirectories(tmp_path), unused, unused, workers, budget)
    stores = [await host._open_store("default", prefix, create=True) for prefix in even_prefixes(2)]
    assert [limit(store) for store in stores] == [16 * MIB] * 4
    with pytest.raises(EngineError):
        await host._open_store("absent", Prefix(0, 0), create=False)
    assert budget.share_bytes == 16 * MIB
    for store in stores:
        store.close()
    workers.close()
