"""The shape of a cluster changed from the command line, with keys that must all survive it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import deodar
from tests.cli.conftest import Done, Run
from tests.cluster_harness import Cluster
from tests.processes import wait_until

pytestmark = pytest.mark.usefixtures("no_process_left")

KEYS = [f"key-{number}".encode() for number in range(3000)]


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", nodes=2, shard_bits=3) as cluster:
        with deodar.connect(cluster.endpoint) as client:
            client.batch_write([deodar.Put(key, key) for key in KEYS])
        yield cluster


def shards_of(done: Done) -> Counter[str]:
    return Counter(shard["primary"] for shard in done.ok().json()["shards"])


def ended(pid: int) -> bool:
    """Whether our child has ended; waits for it, so that none is left behind."""
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def test_add_move_and_drain(grown: Cluster, call: Run, tmp_path: Path) -> None:
    def run(*arguments: str) -> Done:
        return call(*arguments, endpoint=grown.endpoint)

    before = run("cluster", "status", "--json").ok().json()
    assert {node["id"] for node in before["nodes"]} == {"n1", "n2"}
    assert {node["pid"] for node in before["nodes"]} == {n.pid for n in grown.nodes.values()}
    for shard in before["shards"]:
        assert shard["state"] == "serving"
        assert shard["prefix_bits"] == 3
        assert shard["replicas"] == shard["in_sync"] == [shard["primary"]]
    assert sum(shard["keys"] for shard in before["shards"]) == len(KEYS)

    data = tmp_path / "added"
    added = run("cluster", "add", "--id", "n3", "--data", str(data), "--json").ok().json()
    try:
        assert added["id"] == "n3"
        assert (data / "node.log").stat().st_size > 0
        counts = shards_of(run("cluster", "status", "--json"))
        assert sorted(counts.values()) == [2, 3, 3]
        assert counts["n3"] == added["shards"]
        twice = run("cluster", "add", "--id", "n3", "--data", str(data))
        assert twice.code == 1
        assert "up already" in twice.err

        status = run("cluster", "status", "--json").ok().json()
        shard = next(shard for shard in status["shards"] if shard["primary"] == "n1")
        name = f"{shard['prefix']}-{shard['prefix_bits']}"
        moved = run("cluster", "move", f"default/{name}", "n3", "--json").ok().json()
        assert moved["primary"] == "n3"
        refused = run("cluster", "move", name, "n3", "--json")
        assert (refused.code, refused.json()["error"]["reason"]) == (1, "MOVE_REFUSED")

        assert "n3 holds no shard" in run("cluster", "drain", "n3").ok().err
        counts = shards_of(run("cluster", "status", "--json"))
        assert set(counts) == {"n1", "n2"}
        table = run("cluster", "status").ok().out.decode()
        assert "drained" in table
        assert "n3" in table
        run("cluster", "drain", "n3", "--undo").ok()
        assert run("cluster", "drain", "nobody").code == 1
        with deodar.connect(grown.endpoint) as client:
            assert client.batch_get(KEYS) == KEYS
    finally:
        os.kill(added["pid"], signal.SIGTERM)
        wait_until(lambda: ended(added["pid"]), 20, "the added node's end")


def test_a_node_that_cannot_start_is_told_with_its_reason(
    grown: Cluster, call: Run, tmp_path: Path
) -> None:
    taken = grown.nodes["n1"].address
    data = str(tmp_path / "data")
    done = call("cluster", "add", "--data", data, "--listen", taken, endpoint=grown.endpoint)
    assert done.code == 1
    assert f"cannot listen on {taken}" in done.err
