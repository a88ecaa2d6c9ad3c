"""The commands for single keys: any bytes, JSON, and exit codes that scripts can use."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

import pytest

from tests.cli.conftest import Run, run_process
from tests.cluster_harness import Cluster


def fresh() -> str:
    return uuid.uuid4().hex


def test_put_get_del(run: Run) -> None:
    key = fresh()
    version = int(run("put", key, "hello, cedar").ok().out)
    assert run("get", key).ok().out == b"hello, cedar"
    document = run("get", key, "--json").ok().json()
    assert document == {"key": key, "value": "hello, cedar", "version": version, "ttl_ms": None}
    assert run("del", key).ok().out == b"deleted\n"
    assert run("del", key, "--json").ok().json() == {"key": key, "found": False}
    gone = run("get", key)
    assert (gone.code, gone.out, gone.err) == (1, b"", f"deodar: no key {key}\n")
    gone = run("get", key, "--json")
    assert (gone.code, gone.json()["error"]["reason"]) == (1, "ABSENT")


def test_values_are_any_bytes(run: Run, tmp_path: Path) -> None:
    key, value = fresh(), bytes(range(256)) * 3
    run("put", key, "-", stdin=value).ok()
    assert run("get", key).ok().out == value
    assert run("get", key, "--raw").ok().out == value
    assert run("get", key, "--encoding", "hex").ok().out == value.hex().encode() + b"\n"
    assert base64.b64decode(run("get", key, "--encoding", "base64").ok().out) == value
    assert base64.b64decode(run("get", key, "--json").ok().json()["value_base64"]) == value
    file = tmp_path / "value"
    file.write_bytes(value[::-1])
    run("put", key, "--file", str(file)).ok()
    assert run("get", key).ok().out == value[::-1]
    run("put", key, stdin=b"").ok()
    assert run("get", key).ok().out == b""
    run("put", key, "--", "-5").ok()
    assert run("get", key).ok().out == b"-5"


def test_keys_are_any_bytes(run: Run) -> None:
    key = b"\x00\xff\n" + fresh().encode()
    encoded = base64.b64encode(key).decode()
    run("put", key.hex(), "one", "--key-encoding", "hex").ok()
    document = run("get", encoded, "--key-encoding", "base64", "--json").ok().json()
    assert document["key_base64"] == encoded
    latin = b"caf\xe9-" + fresh().encode()
    run("put", latin, "two").ok()
    assert run("get", latin.hex(), "--key-encoding", "hex").ok().out == b"two"
    bad = run("get", "xyz", "--key-encoding", "hex")
    assert bad.code == 2
    assert "KEY is not hex" in bad.err


def test_incr_takes_a_sign(run: Run) -> None:
    key = fresh()
    assert run("incr", key).ok().out == b"1\n"
    assert run("incr", key, "-7").ok().out == b"-6\n"
    assert run("incr", key, "10", "--json").ok().json() == {"key": key, "value": 4}
    run("put", key, "text").ok()
    refused = run("incr", key, "--json")
    assert (refused.code, refused.json()["error"]["reason"]) == (1, "NOT_A_NUMBER")


def test_conditions_and_ttl(run: Run) -> None:
    key = fresh()
    version = run("put", key, "1", "--ttl-ms", "60000", "--if-absent", "--json").ok().json()
    assert 0 < run("get", key, "--json").ok().json()["ttl_ms"] <= 60_000
    refused = run("put", key, "2", "--if-absent", "--json")
    assert refused.code == 1
    error = refused.json()["error"]
    assert error["reason"] == "CONDITION_FAILED"
    assert error["metadata"]["current_version"] == str(version["version"])
    run("put", key, "3", "--if-version", str(version["version"]), "--durability", "durable").ok()
    refused = run("put", key, "4", "--durability", "replicated")
    assert refused.code == 1
    assert refused.err.startswith("deodar: ")
    assert refused.err.count("\n") == 1
    assert run("get", key).ok().out == b"3"


def test_scan(run: Run) -> None:
    prefix = fresh()
    for number in range(3):
        run("put", f"{prefix}\t{number}", f"a\\b\n{number}").ok()
    lines = run("scan", "--prefix", prefix).ok().out.decode().splitlines()
    assert sorted(lines) == [f"{prefix}\\t{n}\ta\\\\b\\n{n}" for n in range(3)]
    documents = [
        json.loads(line) for line in run("scan", "--prefix", prefix, "--json").ok().out.splitlines()
    ]
    assert sorted(document["value"] for document in documents) == [f"a\\b\n{n}" for n in range(3)]
    first = run("scan", "--prefix", prefix, "--json", "--limit", "2").ok().out.splitlines()
    cursor = json.loads(first[-1])["cursor"]
    rest = run("scan", "--prefix", prefix, "--json", "--cursor", cursor).ok().out.splitlines()
    assert [json.loads(line) for line in [*first[:-1], *rest]] == documents
    keys = run("scan", "--prefix", prefix, "--keys-only", "--encoding", "hex").ok()
    assert len(keys.out.split()) == 3


def test_limits_are_named(run: Run) -> None:
    refused = run("put", "k" * 65_537, "v")
    assert refused.code == 2
    assert "65537" in refused.err
    assert "65536" in refused.err
    assert run("get", "").code == 2


@pytest.mark.parametrize("ttl_ms", ["0", "-1", "3155760000001"])
def test_a_value_outside_its_bounds_is_misuse(run: Run, ttl_ms: str) -> None:
    """Exit code 2 whoever finds it, the command or the cluster; refused and failed are 1."""
    done = run("put", "k", "v", f"--ttl-ms={ttl_ms}")
    assert (done.code, done.out) == (2, b"")
    done = run("put", "k" * 65_537, "v", "--json")
    assert (done.code, done.json()["error"]["reason"]) == (2, "INVALID_FIELD")
    assert run("get", fresh()).code == 1
    assert run("get", "k", "--table", "none").code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["get"],
        ["get", "k", "--nonsense"],
        ["put", "k", "v", "--file", "x"],
        ["put", "k", "v", "--ttl-ms", "0"],
        ["put", "k", "v", "--durability", "extra"],
        ["scan", "--limit", "0"],
        ["scan", "--cursor", "xyz"],
        ["import", "nameless"],
        ["cluster", "move", "zz", "n1"],
        ["dev", "--replicas", "2"],
    ],
    ids=" ".join,
)
def test_misuse_exits_with_2(call: Run, arguments: list[str]) -> None:
    done = call(*arguments)
    assert (done.code, done.out) == (2, b"")
    assert done.err


def test_nobody_there(call: Run) -> None:
    done = call("get", "k", endpoint="127.0.0.1:1")
    assert done.code == 1
    assert "127.0.0.1:1" in done.err
    assert done.err.count("\n") == 1
    done = call("get", "k", "--endpoint", "127.0.0.1:1", "--json")
    assert (done.code, done.json()["error"]["reason"]) == (1, "NODE_UNREACHABLE")
    assert call("get", "k", "--endpoint", "nowhere").code == 2


COMMANDS = ["get", "put", "del", "incr", "scan", "import", "export", "bench", "check", "dev"]
CLUSTER_COMMANDS = ["cluster status", "cluster add", "cluster drain", "cluster move"]


@pytest.mark.parametrize("command", [*COMMANDS, *CLUSTER_COMMANDS])
def test_every_command_has_help_and_json(call: Run, command: str) -> None:
    done = call(*command.split(), "--help").ok()
    assert b"Usage" in done.out
    assert b"--json" in done.out


@pytest.mark.parametrize("group", ["", "cluster"])
def test_groups_have_help(call: Run, group: str) -> None:
    assert b"Commands" in call(*group.split(), "--help").ok().out


@pytest.mark.parametrize("server", ["node", "router"])
def test_servers_are_passed_all_options(server: str) -> None:
    done = run_process(server, "--help").ok()
    assert b"--registry" in done.out


def test_as_a_process(cluster: Cluster) -> None:
    """Raw bytes in arguments, stdin and stdout, and the exit code, through a real shell's eyes."""
    key = b"caf\xe9-" + fresh().encode()
    run_process("put", key, "-", endpoint=cluster.endpoint, stdin=b"\0\xff\n").ok()
    assert run_process("get", key, endpoint=cluster.endpoint).ok().out == b"\0\xff\n"
    assert run_process("get", b"\xff", endpoint=cluster.endpoint).code == 1
    assert run_process("get", endpoint=cluster.endpoint).code == 2


def test_version(call: Run) -> None:
    assert call("--version").ok().out.startswith(b"deodar ")
