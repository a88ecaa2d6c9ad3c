"""deodar watch"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import deodar
from tests.cluster_harness import Cluster

from .conftest import COMMAND, Run

WAIT_S = 30


@contextmanager
def watching(cluster: Cluster, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `deodar watch` that stands."""
    process = subprocess.Popen(
        [*COMMAND, "watch", *arguments],
        env={**os.environ, "DEODAR_ENDPOINT": cluster.endpoint},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == b"watching\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_changes_are_printed_and_it_goes_on(cluster: Cluster, run: Run) -> None:
    with (
        deodar.connect(cluster.endpoint) as db,
        watching(cluster, "--prefix", "cli-watch/", "--count", "3") as process,
    ):
        db.put(b"cli-watch/a", b"tab\there")
        db.put(b"elsewhere", b"")
        db.put(b"cli-watch/a", b"\xff")
        db.delete(b"cli-watch/a")
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    assert out.decode().splitlines() == [
        "put\tcli-watch/a\ttab\\there",
        "put\tcli-watch/a\t\\xff",
        "delete\tcli-watch/a",
    ]
    position = err.decode().rpartition("--from ")[2].strip()
    with deodar.connect(cluster.endpoint) as db:
        version = db.put(b"cli-watch/b", b"\xff")
    arguments = ("--prefix", "cli-watch/", "--count", "1", "--from", position, "--json")
    document = run("watch", *arguments).ok().json()
    assert document.pop("position")
    assert document == {
        "event": "put",
        "key": "cli-watch/b",
        "value_base64": "/w==",
        "version": version,
        "deadline_ms": None,
    }


def test_ctrl_c_ends_it_well(cluster: Cluster) -> None:
    with watching(cluster, "some key") as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert b"--from" in err
        assert b"Traceback" not in err


def test_what_is_refused(run: Run) -> None:
    for arguments in ((), ("k", "--prefix", "k"), ("k", "--from", "xyz")):
        assert run("watch", *arguments).code == 2
    refused = run("watch", "k", "--from", "ff", "--json")
    assert refused.code == 2
    assert json.loads(refused.out)["error"]["reason"] == "INVALID_FIELD"
    assert run("watch", "k", "--table", "none").code == 1
    assert run("watch", "").code == 2
