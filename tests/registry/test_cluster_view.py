"""The view of a cluster against both registries, and through an outage of etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deodar.contract.keypath import Prefix
from deodar.registry.cluster_view import ClusterState, ClusterView
from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import Changes, Delete, Event, Put, Registry, Snapshot
from deodar.registry.records import Keys, encode
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_MOVING,
    SHARD_STATE_SERVING,
    MemberRecord,
    NodeRecord,
    ShardRecord,
    TableRecord,
)
from tests.etcd_server import EtcdServer


def shard(prefix: Prefix, primary: str, **fields: object) -> ShardRecord:
    return ShardRecord(
        table="default",
        prefix=prefix.to_bytes(),
        prefix_bits=prefix.bits,
        primary=primary,
        **{"state": SHARD_STATE_SERVING, "term": 1, **fields},  # type: ignore[arg-type]
    )


async def fill(registry: Registry, keys: Keys) -> int:
    """Two nodes, a table with two shards, a controller."""
    records = [
        Put(keys.node("n1"), encode(NodeRecord(id="n1", address="h:1"))),
        Put(keys.node("n2"), encode(NodeRecord(id="n2", address="h:2"))),
        Put(keys.member("n1"), encode(MemberRecord(id="n1", incarnation=3))),
        Put(keys.table("default"), encode(TableRecord(name="default", initial_prefix_bits=1))),
        Put(keys.shard("default", Prefix(0, 1)), encode(shard(Prefix(0, 1), "n1", store_id=5))),
        Put(keys.shard("default", Prefix(1, 1)), encode(shard(Prefix(1, 1), "n2"))),
        Put(keys.controller, b"router-1"),
    ]
    revision = await registry.commit([], records)
    assert revision is not None
    return revision


async def until(view: ClusterView, revision: int) -> ClusterState:
    async with asyncio.timeout(15):
        state = await view.wait_change(revision - 1)
    assert state.revision >= revision
    return state


async def test_records_become_a_state_and_changes_move_it(registry: Registry, root: str) -> None:
    cluster = root.split("/")[2]
    keys = Keys(cluster)
    other = Keys(cluster + "0")
    first = await fill(registry, keys)
    await registry.commit([], [Put(other.node("n9"), encode(NodeRecord(id="n9")))])
    view = ClusterView(registry, cluster)
    await view.start()
    state = view.state
    assert state.revision >= first
    assert set(state.nodes) == {"n1", "n2"}
    assert state.members["n1"].incarnation == 3
    assert state.tables["default"].initial_prefix_bits == 1
    assert state.controller == "router-1"
    kept = state.shards["default/00-1"]
    assert (kept.record.primary, kept.mod_revision) == ("n1", first)
    assert state.mod_revisions[keys.member("n1")] == first
    found = state.map.find("default", 0)
    assert found is not None
    assert (found.primary, found.store_id, found.serving, found.target) == ("n1", 5, True, "")
    assert state.map.addresses == {"n1": "h:1", "n2": "h:2"}

    moving = shard(Prefix(0, 1), "n1", state=SHARD_STATE_MOVING, target="n2", move_id=4)
    second = await registry.commit(
        [], [Put(keys.of(moving), encode(moving)), Delete(keys.node("n2"))]
    )
    assert second is not None
    later = await until(view, second)
    assert set(later.nodes) == {"n1"}
    moved = later.map.find("default", 0)
    assert moved is not None
    assert (moved.target, moved.move_id) == ("n2", 4)
    assert set(state.nodes) == {"n1", "n2"}, "a state never changes"
    await view.close()


async def test_waiting_ends_by_change_or_by_time(registry: Registry, root: str) -> None:
    keys = Keys(root.split("/")[2])
    view = ClusterView(registry, keys.cluster)
    await view.start()
    before = view.state
    assert (await view.wait_change(before.revision, 0.2)).controller == ""
    waiting = asyncio.create_task(view.wait_change(view.revision))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    revision = await registry.commit([], [Put(keys.controller, b"me")])
    state = await asyncio.wait_for(waiting, 5)
    assert (state.revision, state.controller) == (revision, "me")
    await view.close()


async def test_refresh_reads_what_was_committed_before_it(registry: Registry, root: str) -> None:
    """Without waiting for the watch, every time."""
    keys = Keys(root.split("/")[2])
    view = ClusterView(registry, keys.cluster)
    await view.start()
    for number in range(20):
        await registry.commit([], [Put(keys.controller, b"%d" % number)])
        assert (await view.refresh()).controller == str(number)
    await view.close()


async def test_a_bad_record_is_left_out(
    registry: Registry, root: str, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = Keys(root.split("/")[2])
    await fill(registry, keys)
    view = ClusterView(registry, keys.cluster)
    await view.start()
    revision = await registry.commit(
        [],
        [
            Put(keys.node("n2"), b"{"),
            Put(keys.shard("default", Prefix(1, 1)), b'{"table": "default", "prefix_bits": 9}'),
            Put(keys.node("n3"), encode(NodeRecord(id="n3", address="h:3"))),
        ],
    )
    state = await until(view, revision or 0)
    assert set(state.nodes) == {"n1", "n3"}
    assert set(state.shards) == {"default/00-1"}
    assert state.mod_revisions.keys() >= {keys.node("n3")}
    assert "bad record" in capfd.readouterr().out
    await view.close()


async def test_the_last_state_outlives_an_outage(etcd: EtcdServer) -> None:
    registry = await open_registry(RegistryConfig(url=etcd.url, timeout_ms=1_000))
    keys = Keys("test")
    await fill(registry, keys)
    view = ClusterView(registry, keys.cluster)
    await view.start()
    before = view.state
    await asyncio.to_thread(etcd.kill)
    await asyncio.sleep(1.0)
    assert view.state is before
    await asyncio.to_thread(etcd.start)
    revision = await registry.commit([], [Put(keys.controller, b"router-2")])
    assert (await until(view, revision or 0)).controller == "router-2"
    await view.close()
    await registry.close()


class Scripted:
    """A registry whose range and watch answer what the test says."""

    def __init__(self, real: EmbeddedRegistry) -> None:
        self.real = real
        self.steps: asyncio.Queue[Snapshot | Changes] = asyncio.Queue()

    async def range(self, prefix: str) -> Snapshot:
        return await self.real.range(prefix)

    async def watch(self, _prefix: str) -> AsyncIterator[Snapshot | Changes]:
        while True:
            yield await self.steps.get()


async def test_old_steps_of_the_watch_never_undo_a_refresh(tmp_path: Path) -> None:
    """The watch lags behind a refresh: its older snapshot and changes are passed over.  A registry
    that itself went back is followed."""
    real = await EmbeddedRegistry.open(tmp_path / "r")
    keys = Keys("test")
    first = await real.commit([], [Put(keys.controller, b"1")])
    old = await real.range(keys.root)
    second = await real.commit([], [Put(keys.controller, b"2")])
    scripted = Scripted(real)
    view = ClusterView(scripted, keys.cluster)  # type: ignore[arg-type]
    await view.start()
    assert view.state.controller == "2"
    scripted.steps.put_nowait(old)
    scripted.steps.put_nowait(Changes(first or 0, (Event(keys.controller, b"1", first or 0),)))
    await asyncio.sleep(0.1)
    assert (view.state.controller, view.state.revision) == ("2", second)

    restored = await EmbeddedRegistry.open(tmp_path / "restored")
    await restored.commit([], [Put(keys.controller, b"restored")])
    scripted.real = restored
    scripted.steps.put_nowait(await restored.range(keys.root))
    await asyncio.sleep(0.1)
    assert view.state.controller == "restored"
    assert view.state.revision < (second or 0)
    await view.close()
    await real.close()
    await restored.close()
