"""What a host does with stores that the records do not explain."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deodar.contract.reasons import Reason
from deodar.registry.interface import Compare, Delete
from deodar.v1 import kv_pb2
from deodar.v1.cluster_pb2 import SHARD_STATE_MOVING

from .harness import Cluster, eventually, refused


async def forget(cluster: Cluster) -> None:
    """The registry loses its tables and shards."""
    state = await cluster.view.refresh()
    for key, revision in state.mod_revisions.items():
        if key.startswith((cluster.keys.shards, cluster.keys.tables)):
            assert await cluster.registry.commit([Compare(key, revision)], [Delete(key)])


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "LOCK"}


async def test_a_registry_that_lost_its_records_costs_no_data(cluster: Cluster):
    """The store is kept, not served as something else, and not written over by a move."""
    names = await cluster.make_shards(0, "n1")
    node = cluster.add("n1")
    await cluster.up("n1")
    await cluster.serving(*names)
    await cluster.put(b"k", b"precious", durability=kv_pb2.DURABILITY_DURABLE)
    assert node.stop() == 0
    store = node.data / "shards" / "default--0"
    before = content(store)
    await forget(cluster)
    (name,) = await cluster.make_shards(0, "n2")
    cluster.add("n1")
    cluster.add("n2")
    await cluster.up("n1", "n2")
    await cluster.serving(name)
    assert "store that no record asks for is kept" in node.text()
    await cluster.put(b"k", b"new")
    await cluster.start_move(name, "n1")
    await cluster.serving(name)
    assert cluster.record(name).primary == "n2"
    assert cluster.record(name).failed_moves == 1
    assert "in the way" in cluster.record(name).move_failure
    assert await cluster.get(b"k") == b"new"
    assert content(store) == before
    assert "in the way" in node.text()


async def test_a_new_shard_is_not_made_over_an_older_store(cluster: Cluster):
    names = await cluster.make_shards(0, "n1")
    node = cluster.add("n1")
    await cluster.up("n1")
    await cluster.serving(*names)
    await cluster.put(b"k", b"precious", durability=kv_pb2.DURABILITY_DURABLE)
    assert node.stop() == 0
    await forget(cluster)
    await cluster.make_shards(0, "n1")
    cluster.add("n1")
    await cluster.up("n1")
    error = await refused(cluster.kv("n1").Get(kv_pb2.GetRequest(key=b"k")))
    assert error.reason is Reason.SHARD_UNAVAILABLE
    assert "older store" in error.message
    assert (await cluster.states("n1"))["default/-0"].state == "failed"


async def test_a_step_that_fails_shows_until_it_succeeds(cluster: Cluster):
    """A store that cannot be made, since a file has its name: failed, why, and then no more."""
    node = cluster.add("n1")
    await cluster.up("n1")
    in_the_way = node.data / "shards" / "default--0"
    in_the_way.write_bytes(b"")
    (name,) = await cluster.make_shards(0, "n1")

    async def failed() -> bool:
        shown = (await cluster.states("n1")).get(name)
        return shown is not None and shown.state == "failed" and str(in_the_way) in shown.reason

    await eventually(failed, "the node tells of the step")
    in_the_way.unlink()
    await cluster.serving(name)
    shown = (await cluster.states("n1"))[name]
    assert (shown.state, shown.reason) == ("serving", "")


async def test_a_kill_while_shards_are_made(cluster: Cluster):
    """Whatever was half made is made again; one store a shard, and all serve."""
    names = await cluster.make_shards(3, "n1")
    node = cluster.add("n1")
    await eventually((node.data / "shards").is_dir, "the node has begun", 20.0)
    for pause_s in (0.0, 0.01, 0.03):
        shards = node.data / "shards"
        await eventually(lambda shards=shards: any(shards.iterdir()), "a shard is begun", 20.0)
        await asyncio.sleep(pause_s)
        node.kill()
        cluster.add("n1")
    await cluster.up("n1")
    await cluster.serving(*names)
    for number in range(50):
        assert await cluster.put(b"%d" % number, b"v")
    stores = [path.name for path in (node.data / "shards").iterdir() if path.is_dir()]
    assert len(stores) == 8
    assert {shard.state for shard in (await cluster.states("n1")).values()} == {"serving"}


async def test_a_stop_takes_an_interrupted_move_out(cluster: Cluster):
    """The target stops in order in the middle of a copy: the source serves on, unmoved."""
    (name,) = await cluster.make_shards(0, "n1")
    for node in ("n1", "n2"):
        cluster.add(node)
    await cluster.up("n1", "n2")
    await cluster.serving(name)
    for number in range(20):
        await cluster.put(b"%d" % number, bytes(4 << 20))
    await cluster.start_move(name, "n2")

    async def copying() -> bool:
        return "copying" in {shard.state for shard in (await cluster.states("n2")).values()}

    await eventually(copying, "the copy has begun")
    assert cluster.nodes["n2"].stop() == 0
    await cluster.view.refresh()
    record = cluster.record(name)
    assert record.state != SHARD_STATE_MOVING, cluster.nodes["n2"].text()
    if record.primary == "n1":
        assert len(await cluster.get(b"7") or b"") == 4 << 20
