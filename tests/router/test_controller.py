"""The controller on real registries; nodes are played by the records they would write."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deodar.contract.keypath import Prefix
from deodar.node.record import without_move
from deodar.registry.cluster_view import ClusterState, ClusterView
from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import Compare, Delete, Put, Registry
from deodar.registry.records import Keys, encode
from deodar.router.controller import Controller
from deodar.router.election import Election
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    SHARD_STATE_SERVING,
    MemberRecord,
    NodeRecord,
    ShardRecord,
    TableRecord,
)
from tests.etcd_server import EtcdServer, shared_etcd

__all__ = ["shared_etcd"]

CLUSTER = "test"
KEYS = Keys(CLUSTER)


@dataclass
class Settings:
    shard_bits: int = 4
    bootstrap_nodes: int = 1


class Cluster:
    """A registry, a view of it, and what nodes would do with their records."""

    def __init__(self, registry: Registry, parts: AsyncExitStack) -> None:
        self.registry = registry
        self.parts = parts
        self.view = ClusterView(registry, CLUSTER)
        self.most_moves_of_a_node = 0

    async def start(self) -> Cluster:
        await self.view.start()
        self.parts.push_async_callback(self.view.close)
        return self

    async def controller(self, settings: Settings | None = None, **options: Any) -> Controller:
        """A controller with a view of its own, as in a router of its own."""
        view = ClusterView(self.registry, CLUSTER)
        await view.start()
        self.parts.push_async_callback(view.close)
        controller = Controller(
            self.registry, view, settings or Settings(), **{"dead_after_s": 0.3, **options}
        )
        await controller.start()
        self.parts.push_async_callback(controller.close)
        return controller

    async def up(self, *nodes: str) -> None:
        for node in nodes:
            record = NodeRecord(id=node, address=f"{node}:1", identity=node)
            await self.registry.commit([], [Put(KEYS.node(node), encode(record))])

    async def down(self, node: str) -> None:
        await self.registry.commit([], [Delete(KEYS.node(node))])

    async def draining(self, node: str) -> None:
        record = MemberRecord(id=node, identity=node, draining=True)
        await self.registry.commit([], [Put(KEYS.member(node), encode(record))])

    async def put_shards(self, shards: list[ShardRecord]) -> None:
        """A table that is whole, with these shards."""
        table = TableRecord(name="default", initial_prefix_bits=shards[0].prefix_bits)
        puts = [Put(KEYS.shard_of(record), encode(record)) for record in shards]
        await self.registry.commit([], [Put(KEYS.of(table), encode(table)), *puts])

    async def until(self, wanted: Callable[[ClusterState], bool]) -> ClusterState:
        async with asyncio.timeout(20):
            state = self.view.state
            while not wanted(state):
                state = await self.view.wait_change(state.revision)
            return state

    def play_nodes(self) -> None:
        """From now on, nodes that are up make their shards and finish their moves."""
        task = asyncio.create_task(self._play())

        async def stop() -> None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

        self.parts.push_async_callback(stop)

    async def _play(self) -> None:
        state = self.view.state
        while True:
            self._observe(state)
            for kept in state.shards.values():
                record = ShardRecord()
                record.CopyFrom(kept.record)
                if record.state == SHARD_STATE_CREATING and record.primary in state.nodes:
                    record.store_id = 1
                elif record.state == SHARD_STATE_MOVING and record.target in state.nodes:
                    record.primary, record.target = record.target, ""
                    record.term += 1
                else:
                    continue
                record.state = SHARD_STATE_SERVING
                key = KEYS.shard_of(record)
                await self.registry.commit(
                    [Compare(key, kept.mod_revision)], [Put(key, encode(record))]
                )
            state = await self.view.wait_change(state.revision)

    def _observe(self, state: ClusterState) -> None:
        taking_part: Counter[str] = Counter()
        for kept in state.shards.values():
            if kept.record.state == SHARD_STATE_MOVING:
                taking_part.update((kept.record.primary, kept.record.target))
        self.most_moves_of_a_node = max([self.most_moves_of_a_node, *taking_part.values()])


def serving(index: int, primary: str, **fields: Any) -> ShardRecord:
    prefix = Prefix(index, 4)
    return ShardRecord(
        table="default",
        prefix=prefix.to_bytes(),
        prefix_bits=4,
        primary=primary,
        **{"state": SHARD_STATE_SERVING, "term": 1, "store_id": 9, **fields},
    )


def spread(state: ClusterState) -> dict[str, int]:
    """Shards served, by node; empty while any is not."""
    records = [kept.record for kept in state.shards.values()]
    if any(record.state != SHARD_STATE_SERVING for record in records):
        return {}
    return dict(Counter(record.primary for record in records))


@pytest.fixture(params=["embedded", "etcd"])
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, shared_etcd: EtcdServer
) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as parts:
        registry: Registry
        if request.param == "etcd":
            await asyncio.to_thread(shared_etcd.control, "del", "--prefix", KEYS.root)
            registry = await open_registry(RegistryConfig(url=shared_etcd.url, timeout_ms=2_000))
        else:
            registry = await EmbeddedRegistry.open(tmp_path / "registry")
        parts.push_async_callback(registry.close)
        yield await Cluster(registry, parts).start()


async def test_the_first_shards_wait_for_nodes_and_are_even(cluster: Cluster) -> None:
    await cluster.controller(Settings(bootstrap_nodes=3))
    await cluster.up("a", "b")
    await asyncio.sleep(0.5)
    assert cluster.view.state.shards == {}
    assert cluster.view.state.tables == {}
    await cluster.up("c")
    state = await cluster.until(lambda state: "default" in state.tables)
    assert len(state.shards) == 16
    assert state.tables["default"].initial_prefix_bits == 4
    assert sorted(Counter(kept.record.primary for kept in state.shards.values()).values()) == [
        5,
        5,
        6,
    ]
    assert all(kept.record.state == SHARD_STATE_CREATING for kept in state.shards.values())
    assert state.map.find("default", 0) is not None


async def test_many_first_shards_come_in_several_commits(cluster: Cluster) -> None:
    """More than one transaction holds; the table comes last, when all are there."""
    await cluster.up("a", "b")
    await cluster.controller(Settings(shard_bits=9))
    state = await cluster.until(lambda state: "default" in state.tables)
    assert len(state.shards) == 512
    assert Counter(kept.record.primary for kept in state.shards.values()) == {"a": 256, "b": 256}


async def test_a_bootstrap_cut_short_is_finished(cluster: Cluster) -> None:
    """Half the shards are there, of other bits than the settings say: they decide."""
    await cluster.up("a")
    half = [serving(index, "a") for index in range(8)]
    await cluster.registry.commit(
        [], [Put(KEYS.shard_of(record), encode(record)) for record in half]
    )
    await cluster.controller(Settings(shard_bits=5))
    state = await cluster.until(lambda state: "default" in state.tables)
    assert len(state.shards) == 16
    assert state.tables["default"].initial_prefix_bits == 4


async def test_a_node_that_joins_gets_its_share(cluster: Cluster) -> None:
    await cluster.up("a", "b", "c")
    cluster.play_nodes()
    await cluster.controller(Settings(bootstrap_nodes=3))
    await cluster.until(lambda state: sorted(spread(state).values()) == [5, 5, 6])
    await cluster.up("d")
    state = await cluster.until(lambda state: sorted(spread(state).values()) == [4, 4, 4, 4])
    assert 1 <= cluster.most_moves_of_a_node <= 2
    assert sum(kept.record.term - 1 for kept in state.shards.values()) == 4, "moves made"


async def test_a_draining_node_is_emptied(cluster: Cluster) -> None:
    await cluster.up("a", "b", "c")
    cluster.play_nodes()
    await cluster.controller(Settings(bootstrap_nodes=3))
    await cluster.until(lambda state: len(spread(state)) == 3)
    await cluster.draining("b")
    await cluster.until(lambda state: spread(state) == {"a": 8, "c": 8})
    assert cluster.most_moves_of_a_node <= 2


async def test_a_move_is_taken_back_when_its_target_died(cluster: Cluster) -> None:
    """Not at once: a node that is away for a moment keeps its moves."""
    await cluster.up("a", "b")
    moving = serving(0, "a", state=SHARD_STATE_MOVING, target="b", move_id=4)
    await cluster.put_shards([moving, *(serving(index, "a") for index in range(1, 3))])
    await cluster.controller(dead_after_s=1.0)
    await cluster.until(lambda state: state.controller != "")
    await cluster.down("b")
    await asyncio.sleep(0.5)
    assert cluster.view.state.shards["default/00-4"].record == moving
    state = await cluster.until(
        lambda state: state.shards["default/00-4"].record.state == SHARD_STATE_SERVING
    )
    record = state.shards["default/00-4"].record
    assert (record.primary, record.target, record.move_id, record.term) == ("a", "", 4, 1)
    # When it comes back, the move is planned anew.
    await cluster.up("b")
    cluster.play_nodes()
    await cluster.until(lambda state: spread(state) == {"a": 2, "b": 1})


async def test_failing_moves_come_slower_and_slower(cluster: Cluster) -> None:
    """A target that gives up at once is asked a few times, not hundreds."""
    await cluster.up("a", "b")
    await cluster.put_shards([serving(0, "a"), serving(1, "a")])
    await cluster.controller()
    begun: Counter[str] = Counter()
    end = asyncio.get_running_loop().time() + 4
    while asyncio.get_running_loop().time() < end:
        state = cluster.view.state
        for name, kept in state.shards.items():
            if kept.record.state == SHARD_STATE_MOVING:
                begun[name] += 1
                record = without_move(kept.record, "no room")
                key = KEYS.shard_of(record)
                compare = Compare(key, kept.mod_revision)
                await cluster.registry.commit([compare], [Put(key, encode(record))])
        await cluster.view.wait_change(state.revision, 0.2)
    assert 1 <= min(begun.values()) <= max(begun.values()) <= 4, begun
    record = max(
        (kept.record for kept in cluster.view.state.shards.values()),
        key=lambda record: record.failed_moves,
    )
    assert (record.failed_moves, record.move_failure) == (max(begun.values()), "no room")


async def test_a_move_that_was_faster_than_its_end_stays(cluster: Cluster) -> None:
    """The target changed the record before the controller could: compare-and-set decides."""
    await cluster.up("a")
    moving = serving(0, "a", state=SHARD_STATE_MOVING, target="b", move_id=4)
    await cluster.put_shards([moving])
    await cluster.controller(dead_after_s=0.5)
    await cluster.until(lambda state: state.controller != "")
    done = serving(0, "b", term=2, store_id=5, move_id=4)
    key = KEYS.shard_of(done)
    revision = await cluster.registry.commit([], [Put(key, encode(done))])
    await asyncio.sleep(1.2)
    entry = await cluster.registry.get(key)
    assert entry is not None
    assert entry.mod_revision == revision


async def test_one_of_two_controllers_acts_and_the_other_takes_over(cluster: Cluster) -> None:
    first = await cluster.controller()
    state = await cluster.until(lambda state: state.controller != "")
    assert state.controller == first.name
    second = await cluster.controller()
    await asyncio.sleep(0.5)
    assert first.elected
    assert not second.elected
    assert cluster.view.state.controller == first.name
    await first.close()
    await cluster.until(lambda state: state.controller == second.name)
    cluster.play_nodes()
    await cluster.up("a")
    await cluster.until(lambda state: spread(state) == {"a": 16})
    assert second.elected


class Paused:
    """A registry whose caller stands still before each commit until `go`."""

    def __init__(self, real: Registry) -> None:
        self.real = real
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def commit(self, compares: Any, operations: Any) -> int | None:
        if any(operation.key.startswith(KEYS.shards) for operation in operations):
            self.reached.set()
            await self.go.wait()
        return await self.real.commit(compares, operations)


async def test_a_deposed_controller_changes_nothing(cluster: Cluster) -> None:
    """It is paused between its decision and its commit, and meanwhile another is elected: the
    commit fails at the fence and the old controller stands down."""
    real, paused = cluster.registry, Paused(cluster.registry)
    cluster.registry = paused  # type: ignore[assignment]
    controller = await cluster.controller()
    await cluster.until(lambda state: state.controller == controller.name)
    await cluster.up("a")
    await asyncio.wait_for(paused.reached.wait(), 5)
    usurper = await real.commit([], [Put(KEYS.controller, b"another")])
    assert controller.elected, "as far as it knows"
    paused.go.set()
    await asyncio.sleep(1.0)
    assert not controller.elected
    assert (await real.range(KEYS.shards)).entries == ()
    entry = await real.get(KEYS.controller)
    assert entry is not None
    assert (entry.value, entry.mod_revision) == (b"another", usurper)


async def test_a_candidate_waits_and_wins_when_a_holder_dies(cluster: Cluster) -> None:
    """The holder stops renewing, as a killed process does: its lease ends, then the other wins."""
    dead = Election(cluster.registry, cluster.view, "dead", lease_ms=2_000)
    await dead.win()
    assert dead.won
    holder: Any = dead
    waiting = Election(cluster.registry, cluster.view, "next", lease_ms=2_000)
    winning = asyncio.create_task(waiting.win())
    await asyncio.sleep(0.3)
    assert not winning.done()
    await holder._lease.stop()
    assert not dead.won
    await asyncio.wait_for(winning, 8)
    assert cluster.view.state.controller == "next" or (await cluster.view.refresh()).controller == (
        "next"
    )
    await waiting.resign()
    assert await cluster.registry.get(KEYS.controller) is None
