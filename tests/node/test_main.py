"""A node as a process: start, stop, refusals, what survives a kill, life without the registry."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deodar.contract.keypath import path_of
from deodar.contract.reasons import Reason
from deodar.v1 import kv_pb2
from tests.etcd_server import EtcdServer

from .harness import Cluster, eventually, refused
from .load import Load

DURABLE = kv_pb2.DURABILITY_DURABLE


async def test_a_node_serves_and_stops(cluster: Cluster):
    names = await cluster.make_shards(2, "n1")
    node = cluster.add("n1")
    await cluster.up("n1")
    await cluster.serving(*names)
    assert await cluster.get(b"k") is None
    version = await cluster.put(b"k", b"v")
    assert version > 0
    assert await cluster.get(b"k") == b"v"
    health = health_pb2_grpc.HealthStub(cluster.channel("n1"))
    for service in ("", "deodar.v1.KV"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert node.stop() == 0, node.text()
    await eventually(lambda: "n1" not in cluster.view.state.nodes, "the node has left", 1.0)
    for line in node.text().splitlines():
        json.loads(line)


async def test_restart_keeps_buffered_writes_and_counts_incarnations(any_cluster: Cluster):
    names = await any_cluster.make_shards(1, "n1")
    node = any_cluster.add("n1")
    await any_cluster.up("n1")
    await any_cluster.serving(*names)
    await any_cluster.put(b"k", b"v")
    before = any_cluster.view.state.nodes["n1"].incarnation
    assert node.stop() == 0
    any_cluster.add("n1")
    await any_cluster.up("n1")
    assert any_cluster.view.state.nodes["n1"].incarnation == before + 1
    assert await any_cluster.get(b"k") == b"v"


async def test_a_stop_under_load_is_clean(cluster: Cluster):
    """Every write is answered or refused as not done, and every acknowledged one is kept,
    buffered though it was."""
    names = await cluster.make_shards(2, "n1")
    node = cluster.add("n1")
    await cluster.up("n1")
    await cluster.serving(*names)
    load = Load(cluster, workers=8)
    load.start()
    for _ in range(2):
        await asyncio.sleep(0.5)
        code = await asyncio.to_thread(node.stop)
        assert code == 0, node.text()
        cluster.add("n1")
        await cluster.up("n1")
        await load.verify()
    await load.stop()
    await load.verify()
    assert load.count > 100
    assert load.in_doubt == 0
    assert "Traceback" not in node.text()


async def test_kill_keeps_durable_writes(cluster: Cluster):
    """Rounds of SIGKILL under durable writes: none that was acknowledged is gone."""
    names = await cluster.make_shards(2, "n1")
    acknowledged: dict[bytes, bytes] = {}
    for turn in range(3):
        node = cluster.add("n1")
        await cluster.up("n1")
        await cluster.serving(*names)
        for key, value in acknowledged.items():
            assert await cluster.get(key) == value, f"lost in round {turn}"

        async def write(worker: int, turn: int = turn) -> None:
            for count in range(1_000):
                key = b"%d-%d" % (worker, count % 20)
                value = b"%d-%d" % (turn, count)
                await cluster.put(key, value, durability=DURABLE)
                acknowledged[key] = value

        writers = [asyncio.create_task(write(worker)) for worker in range(4)]
        await asyncio.sleep(0.4)
        in_doubt = dict(acknowledged)
        node.kill()
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        assert acknowledged, "nothing was written"
        # The one write of each worker that was under way may have happened.
        cluster.add("n1")
        await cluster.up("n1")
        for key, value in in_doubt.items():
            found = await cluster.get(key)
            assert found is not None
            assert int(found.split(b"-")[1]) >= int(value.split(b"-")[1]) or found[:1] > value[:1]
            acknowledged[key] = found
        cluster.nodes["n1"].kill()


async def test_two_processes_with_one_directory(cluster: Cluster):
    cluster.add("n1")
    await cluster.up("n1")
    second = cluster.process("n1")
    second.log = cluster.directory / "second.log"
    second.start()
    assert second.wait() == 1
    assert "in use by another process" in second.text()


async def test_an_id_in_use_by_another_directory(cluster: Cluster, tmp_path: Path):
    cluster.add("n1")
    await cluster.up("n1")
    incarnation = cluster.view.state.nodes["n1"].incarnation
    (tmp_path / "elsewhere").mkdir()
    impostor = cluster.process("n1", tmp_path / "elsewhere")
    impostor.start()
    assert impostor.wait() == 1
    assert "in use by another data directory" in impostor.text()
    state = await cluster.view.refresh()
    assert state.nodes["n1"].incarnation == incarnation
    assert state.members["n1"].incarnation == incarnation


async def test_a_directory_of_another_node(cluster: Cluster):
    node = cluster.add("n1")
    await cluster.up("n1")
    assert node.stop() == 0
    other = cluster.process("n2")
    other.data = node.data
    other.start()
    assert other.wait() == 1
    assert "belongs to id 'n1'" in other.text()


async def test_a_wiped_directory_is_unavailable_not_empty(cluster: Cluster):
    names = await cluster.make_shards(1, "n1")
    node = cluster.add("n1")
    await cluster.up("n1")
    await cluster.serving(*names)
    await cluster.put(b"k", b"v", durability=DURABLE)
    assert node.stop() == 0
    shutil.rmtree(node.data)
    cluster.add("n1")
    await cluster.up("n1")
    for call in (
        cluster.kv("n1").Get(kv_pb2.GetRequest(key=b"k")),
        cluster.kv("n1").Put(kv_pb2.PutRequest(key=b"k", value=b"w")),
        cluster.kv("n1").Sync(kv_pb2.SyncRequest()),
    ):
        error = await refused(call)
        assert error.reason is Reason.SHARD_UNAVAILABLE
        assert "data missing" in error.message
    assert {shard.state for shard in (await cluster.states("n1")).values()} == {"missing"}
    assert not list((node.data / "shards").iterdir())


async def test_one_damaged_store_fails_alone(cluster: Cluster):
    names = await cluster.make_shards(1, "n1")
    node = cluster.add("n1")
    await cluster.up("n1")
    await cluster.serving(*names)
    keys = [b"%d" % number for number in range(20)]
    for key in keys:
        await cluster.put(key, b"v")
    assert node.stop() == 0
    victim = next(path for path in sorted((node.data / "shards").iterdir()) if path.is_dir())
    store = victim / "STORE"
    content = bytearray(store.read_bytes())
    content[8:] = bytes(byte ^ 0xFF for byte in content[8:])  # all but its magic number
    store.write_bytes(content)
    cluster.add("n1")
    await cluster.up("n1")
    assert sorted(shard.state for shard in (await cluster.states("n1")).values()) == [
        "failed",
        "serving",
    ]
    for key in keys:
        if path_of(key) >> 127 == 0:
            error = await refused(cluster.kv("n1").Get(kv_pb2.GetRequest(key=key)))
            assert error.reason is Reason.CORRUPTION
            assert "STORE" in error.metadata["file"]
        else:
            assert await cluster.get(key) == b"v"


async def test_life_without_the_registry(lone_cluster: Cluster, etcd: EtcdServer):
    """Longer than the lease: the node serves on, and is back by itself under a new lease."""
    names = await lone_cluster.make_shards(1, "n1")
    lone_cluster.add("n1")
    await lone_cluster.up("n1")
    await lone_cluster.serving(*names)
    stub = lone_cluster.kv("n1")
    etcd.kill()
    for count in range(30):
        await stub.Put(kv_pb2.PutRequest(key=b"k", value=b"%d" % count))
        assert (await stub.Get(kv_pb2.GetRequest(key=b"k"))).record.value == b"%d" % count
        await asyncio.sleep(0.1)
    etcd.start()

    async def registered() -> bool:
        state = await lone_cluster.view.refresh()
        return "n1" in state.nodes

    await asyncio.sleep(2.5)
    await eventually(registered, "the node is registered again", 15.0)
    assert (await stub.Get(kv_pb2.GetRequest(key=b"k"))).record.value == b"29"


async def test_a_port_in_use(cluster: Cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        node = cluster.add("n1", "--listen", f"127.0.0.1:{port}")
        assert node.wait() == 1
    assert f"cannot listen on 127.0.0.1:{port}" in node.text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "nowhere"], "not an address"),
        (["--lease-ttl-ms", "1"], "greater than or equal to 2000"),
        (["--registry", "http://x"], "registry URL"),
        (["--cluster", "a/b"], "cluster"),
    ],
)
async def test_misuse(cluster: Cluster, arguments: list[str], message: str):
    node = cluster.add("n1", *arguments)
    assert node.wait() == 2
    assert message in node.text()
    assert "Traceback" not in node.text()


async def test_no_registry(lone_cluster: Cluster, etcd: EtcdServer):
    etcd.kill()
    node = lone_cluster.add("n1", "--registry-start-timeout-s", "1")
    assert node.wait() == 1
    assert "no answer for 1 s" in node.text()
    assert "Traceback" not in node.text()


async def test_a_stop_during_the_start(lone_cluster: Cluster, etcd: EtcdServer):
    etcd.kill()
    node = lone_cluster.add("n1")
    await eventually(lambda: "registry not reached" in node.text(), "it waits", 10.0)
    assert node.stop() == 0
    assert "Traceback" not in node.text()
