"""`deodar dev` as a user runs it: up, used, stopped, started again; and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import deodar
from tests.cli.conftest import COMMAND, Run, run_process
from tests.etcd_server import EtcdServer
from tests.processes import free_port, wait_until

pytestmark = pytest.mark.usefixtures("no_process_left")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running(
    directory: Path, port: int, *arguments: str, stop: signal.Signals = signal.SIGINT
) -> Iterator[tuple[dict[str, Any], subprocess.Popen[bytes]]]:
    """dev on DIRECTORY/data; what it announced.  Ends it by a signal, and all must end well."""
    process = subprocess.Popen(
        [*COMMAND, "dev", "--data", "data", "--port", str(port), "--json", *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    pids: dict[str, int] = {}
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1].decode()
        announced = json.loads(line)
        pids = announced["pids"]
        yield announced, process
        process.send_signal(stop)
        assert process.wait(40) == 0
        wait_until(lambda: not any(alive(pid) for pid in pids.values()), 5, "no server is left")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for pid in pids.values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(180)
def test_up_used_stopped_and_started_again(tmp_path: Path) -> None:
    port = free_port()
    keys = [f"key-{number}".encode() for number in range(200)]
    options = ("--nodes", "2", "--shard-bits", "2")
    with running(tmp_path, port, *options) as (announced, _):
        assert announced["endpoint"] == f"127.0.0.1:{port}"
        assert set(announced["pids"]) == {"router", "node-1", "node-2"}
        with deodar.connect(announced["endpoint"]) as client:
            client.batch_write([deodar.Put(key, key) for key in keys])
        again = run_process("dev", "--port", str(port), "--data", "other", cwd=tmp_path)
        assert again.code == 1
        assert f"port {port}" in again.err
        added = run_process(
            "cluster", "add", "--data", "data/node-3", "--json",
            endpoint=announced["endpoint"], cwd=tmp_path,
        ).ok().json()  # fmt: skip
        assert added["id"] == "node-3"
    wait_until(lambda: not alive(added["pid"]), 5, "the added node ends with the rest")

    with running(tmp_path, port, stop=signal.SIGTERM) as (announced, process):
        assert set(announced["pids"]) == {"router", "node-1", "node-2", "node-3"}
        with deodar.connect(announced["endpoint"]) as client:
            assert client.batch_get(keys) == keys
        os.kill(announced["pids"]["node-2"], signal.SIGKILL)
        with deodar.connect(announced["endpoint"]) as client, pytest.raises(deodar.BatchError):
            client.batch_get(keys)
        assert process.poll() is None


def test_what_is_said_and_how_a_dead_router_ends_it(tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        [*COMMAND, "dev", "--nodes", "1", "--shard-bits", "0", "--port", str(port)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline().decode() for _ in range(6)]
        assert f"127.0.0.1:{port}" in said[0]
        assert sum("deodar " in line for line in said) == 3
        endpoint = f"127.0.0.1:{port}"
        status = run_process("cluster", "status", "--json", endpoint=endpoint).ok().json()
        router = int(status["controller"].split(":")[1])
        os.kill(router, signal.SIGKILL)
        assert process.wait(40) == 1
        assert b"router ended" in process.communicate()[1]
        assert not alive(status["nodes"][0]["pid"])
    finally:
        if process.poll() is None:
            process.kill()


def test_with_etcd(tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path / "etcd")
    etcd.start()
    try:
        options = ("--nodes", "1", "--shard-bits", "1", "--etcd", etcd.address)
        with running(tmp_path, free_port(), *options) as (announced, _):
            status = run_process("cluster", "status", "--json", endpoint=announced["endpoint"])
            assert status.ok().json()["registry"] == "etcd"
            assert status.json()["registry_endpoints"] == [etcd.address]
    finally:
        etcd.stop()


def test_a_foreign_directory_is_refused(call: Run, tmp_path: Path) -> None:
    (tmp_path / "something").write_text("else")
    done = call("dev", "--data", str(tmp_path))
    assert done.code == 1
    assert "not made by deodar dev" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_a_second_run_in_one_directory_is_refused(tmp_path: Path) -> None:
    """It says so, and touches neither the servers nor the logs of the first."""
    with running(tmp_path, free_port(), "--nodes", "1") as (announced, _):
        second = run_process("dev", "--data", "data", "--port", str(free_port()), cwd=tmp_path)
        assert second.code == 1
        assert "in use by another deodar dev" in second.err
        for log in Path(announced["logs"]).iterdir():
            assert b"another" not in log.read_bytes()


def test_servers_end_with_a_killed_dev(tmp_path: Path) -> None:
    """In order, by themselves: what was written last is there afterwards."""
    port = free_port()
    with running(tmp_path, port, "--nodes", "1", "--shard-bits", "1") as (announced, process):
        with deodar.connect(announced["endpoint"]) as client:
            client.put(b"k", b"v")
        process.kill()
        pids = announced["pids"].values()
        wait_until(lambda: not any(alive(pid) for pid in pids), 30, "the servers end")
        for name in ("router", "node-1"):
            assert b"stop" in (Path(announced["logs"]) / f"{name}.log").read_bytes()
        assert process.wait(10) == -signal.SIGKILL
        process.returncode = 0  # as expected; what follows looks for an orderly end
    with running(tmp_path, port) as (announced, _), deodar.connect(announced["endpoint"]) as client:
        assert client.get(b"k") == b"v"


@pytest.mark.parametrize("there", [False, True])
def test_a_start_that_fails_leaves_nothing_behind(call: Run, tmp_path: Path, there: bool) -> None:
    """A port in use is found before any server ran: the next start may choose anew."""
    data = tmp_path / "data"
    if there:
        data.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert call("dev", "--data", str(data), "--port", port).code == 1
    assert data.exists() == there
    assert not there or list(data.iterdir()) == []


@pytest.mark.parametrize("marker", ["", "{}", '{"format_version": 99, "registry": "embedded"}'])
def test_a_damaged_or_newer_marker_is_refused(call: Run, tmp_path: Path, marker: str) -> None:
    (tmp_path / "deodar-dev.json").write_text(marker)
    done = call("dev", "--data", str(tmp_path))
    assert done.code == 1
    assert "deodar-dev.json" in done.err


def test_the_registry_stays_what_it_was(call: Run, tmp_path: Path) -> None:
    made = {"format_version": 1, "registry": "embedded", "shard_bits": 2}
    (tmp_path / "deodar-dev.json").write_text(json.dumps(made))
    done = call("dev", "--data", str(tmp_path), "--etcd", "127.0.0.1:2379")
    assert done.code == 1
    assert "embedded registry" in done.err
