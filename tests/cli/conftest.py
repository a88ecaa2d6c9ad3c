"""The command against a cluster of real processes: called in this process, which is quick, or as a
process of its own, as a user runs it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deodar.client.cli import main
from tests.cluster_harness import Cluster

COMMAND = [sys.executable, "-m", "deodar.client.cli"]
WAIT_S = 90


class Done:
    """What a command did."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out
        self.err = err.decode()

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    def ok(self) -> Done:
        assert self.code == 0, self.err
        return self


Run = Callable[..., Done]


def run_process(
    *arguments: str | bytes, endpoint: str = "", stdin: bytes = b"", cwd: Path | None = None
) -> Done:
    result = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, "DEODAR_ENDPOINT": endpoint},
        input=stdin,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
        cwd=cwd,
    )
    assert b"Traceback" not in result.stderr, result.stderr.decode()
    return Done(result.returncode, result.stdout, result.stderr)


@pytest.fixture
def call(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process; what it raises but SystemExit fails the test."""

    def call(*arguments: str | bytes, endpoint: str = "", stdin: bytes = b"") -> Done:
        monkeypatch.setenv("DEODAR_ENDPOINT", endpoint)
        monkeypatch.setattr(sys, "argv", ["deodar", *map(os.fsdecode, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))  # type: ignore[arg-type]
        with pytest.raises(SystemExit) as ended:
            main.run()
        code = ended.value.code
        assert isinstance(code, int)
        return Done(code, *capfdbinary.readouterr())

    return call


@pytest.fixture
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """Kills, after the test, what still runs with the test's directory in its command."""
    yield
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has just ended, or is not ours
            if os.fsencode(tmp_path) in command:
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=2, shard_bits=3) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: Cluster, call: Run) -> Run:
    """Runs a command against the cluster."""

    def run(*arguments: str | bytes, stdin: bytes = b"") -> Done:
        return call(*arguments, endpoint=cluster.endpoint, stdin=stdin)

    return run
