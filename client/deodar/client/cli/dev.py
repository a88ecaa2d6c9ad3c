"""deodar dev"""

from __future__ import annotations

import fcntl
import json as jsonlib
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from deodar.client.admin import AdminClient
from deodar.client.errors import Error
from deodar.contract.limits import ROUTER_PORT

from .options import Json
from .output import CommandError, json_mode, misused, note, print_json, stderr
from .processes import STOP_S, Server, check_port_free

HOST: Final = "127.0.0.1"
MARKER: Final = "deodar-dev.json"
FORMAT_VERSION: Final = 1
# Of a node's directory and of the whole; locked by flock while they are in use.
LOCK_FILE: Final = "LOCK"
START_S: Final = 60.0
STATUS_S: Final = 2.0
POLL_S: Final = 0.1
_NODE: Final = re.compile(r"node-([1-9]\d{0,4})")


class _Ended(Exception):  # noqa: N818
    """It was asked to stop."""


def dev(
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Nodes, at the first start.")] = 3,
    replicas: Annotated[int, typer.Option(min=1, help="Copies of each shard.")] = 1,
    data: Annotated[Path, typer.Option(help="Directory for all of it.")] = Path("deodar-data"),
    port: Annotated[
        int, typer.Option(min=1, max=65_000, help="Of the router; nodes have those behind it.")
    ] = ROUTER_PORT,
    etcd: Annotated[
        str, typer.Option(help="HOST:PORT[,...] of an etcd, in place of the embedded registry.")
    ] = "",
    shard_bits: Annotated[
        int, typer.Option(min=0, max=12, help="2 to the power of it shards, at the first start.")
    ] = 4,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Run a whole cluster on this machine: a router and nodes, each a process of its own.

    It waits until all shards are served and then until Ctrl-C or SIGTERM, which stop everything in
    order.  A second run with the same --data starts every node that has a directory there, those
    of cluster add as well.  Logs are in DATA/logs.  A server that ends is reported, not restarted.
    Should this command be killed, its servers stop by themselves; those of cluster add go on.
    """
    if replicas > 1:
        raise misused("--replicas above 1 is not possible yet: shards have one copy")
    directory = data.absolute()
    is_new = not directory.exists()
    known, is_claimed = _claim(directory, etcd, shard_bits)
    with _sole_use(directory), _signals():
        cluster = _DevCluster(directory, port, etcd.removeprefix("etcd://"), nodes, known)
        try:
            cluster.start()
            cluster.announce()
            cluster.watch()
        except _Ended:
            note("stopping")
        finally:
            clean = cluster.stop()
            if is_claimed and not cluster.has_started:
                _give_back(directory, remove=is_new)
    if not clean:
        raise CommandError("not every server stopped in order; see the logs")


class _DevCluster:
    """The servers of one run."""

    def __init__(self, data: Path, port: int, etcd: str, nodes: int, known: dict[str, Any]) -> None:
        self.endpoint = f"{HOST}:{port}"
        self._port = port
        self._data = data
        self._logs = data / "logs"
        self._started: list[Server] = []  # the router first
        found = [path.name for path in data.iterdir() if _NODE.fullmatch(path.name)]
        names = found or [f"node-{number}" for number in range(1, nodes + 1)]
        self.nodes = sorted(names, key=lambda name: int(name.removeprefix("node-")))
        registry = f"etcd://{etcd}" if etcd else f"embedded://{self.endpoint}"
        own = ["--registry", registry] if etcd else ["--embedded-registry", str(data / "registry")]
        self._router = Server(
            "router",
            "deodar.router",
            [
                "--listen",
                self.endpoint,
                *own,
                "--shard-bits",
                str(known["shard_bits"]),
                "--bootstrap-nodes",
                str(len(self.nodes)),
            ],
            self._logs / "router.log",
            attached=True,
        )
        self._node_servers = [
            Server(
                name,
                "deodar.node",
                [
                    "--id",
                    name,
                    "--data",
                    str(data / name),
                    "--registry",
                    registry,
                    "--listen",
                    f"{HOST}:{self._node_port(name)}",
                ],
                self._logs / f"{name}.log",
                attached=True,
            )
            for name in self.nodes
        ]

    def start(self) -> None:
        """Starts all and waits until every shard is served; raises CommandError."""
        check_port_free(HOST, self._port)
        for name in self.nodes:
            check_port_free(HOST, self._node_port(name))
        for server in [self._router, *self._node_servers]:
            server.start()
            self._started.append(server)
        deadline = time.monotonic() + START_S
        with (
            AdminClient(self.endpoint, timeout=STATUS_S) as client,
            stderr().status("starting") if not json_mode() else _silent(),
        ):
            while not self._serves(client):
                for server in self._started:
                    if server.exit_code is not None:
                        raise server.failure()
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"not all shards are served after {START_S:.0f} s; logs: {self._logs}"
                    )
                time.sleep(POLL_S)

    @property
    def has_started(self) -> bool:
        """Whether any server has run: then there may be data."""
        return bool(self._started)

    def announce(self) -> None:
        if json_mode():
            servers = {server.name: server.pid for server in self._started}
            print_json({"endpoint": self.endpoint, "pids": servers, "logs": str(self._logs)})
            return
        at = "" if self._port == ROUTER_PORT else f"DEODAR_ENDPOINT={self.endpoint} "
        print(
            f"Deodar is up: {len(self.nodes)} nodes, router at {self.endpoint}, logs in "
            f"{self._logs}.\nTry, from another terminal:\n"
            f"  {at}deodar put greeting 'hello, cedar'\n"
            f"  {at}deodar get greeting\n"
            f"  {at}deodar cluster status\n"
            "Ctrl-C stops it.",
            flush=True,
        )

    def watch(self) -> None:
        """Waits for ever; tells of servers that end, and raises when the router does."""
        running = list(self._started)
        while True:
            for server in list(running):
                if server.exit_code is None:
                    continue
                if server is self._router:
                    raise server.failure()
                running.remove(server)
                note(f"{server.failure().message}; its shards are unavailable")
            time.sleep(POLL_S)

    def stop(self) -> bool:
        """Stops the nodes, then the router, which may be their registry; whether all ended well.

        Nodes that were added into the data directory meanwhile are stopped as well.
        """
        deadline = time.monotonic() + STOP_S
        added = self._added()
        for pid in added.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        clean = True
        routers = [server for server in self._started if server is self._router]
        nodes = [server for server in self._started if server is not self._router]
        for group in (nodes, routers):
            running = [server for server in group if server.exit_code is None]
            for server in running:
                server.terminate()
            for server in running:
                clean &= server.wait(deadline)
            if group is nodes:
                clean &= all(_wait_unlocked(self._data / name, deadline) for name in added)
        return clean

    def _added(self) -> dict[str, int]:
        """Pids of running nodes in the data directory that others have started."""
        found = [path.name for path in self._data.iterdir() if _NODE.fullmatch(path.name)]
        names = {name for name in found if name not in self.nodes and _locked(self._data / name)}
        if not names:
            return {}
        try:
            with AdminClient(self.endpoint, timeout=STATUS_S) as client:
                status = client.status()
        except Error as error:
            note(f"{', '.join(sorted(names))} cannot be stopped: {error.message}")
            return {}
        return {node.id: node.pid for node in status.nodes if node.id in names and node.pid}

    def _node_port(self, name: str) -> int:
        return self._port + int(name.removeprefix("node-"))

    def _serves(self, client: AdminClient) -> bool:
        try:
            status = client.status()
        except Error:
            return False
        up = {node.id for node in status.nodes if node.state != "down"}
        states = {shard.state for shard in status.shards}
        return up.issuperset(self.nodes) and states == {"serving"}


def _claim(data: Path, etcd: str, shard_bits: int) -> tuple[dict[str, Any], bool]:
    """What the directory was made with, and whether that was just now.

    Raises CommandError for a directory of something else.
    """
    marker = data / MARKER
    if marker.exists():
        try:
            known: dict[str, Any] = jsonlib.loads(marker.read_text())
            version, kind = known["format_version"], known["registry"]
            known["shard_bits"] = int(known["shard_bits"])
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{marker} is damaged: {error!r}") from error
        if version != FORMAT_VERSION:
            raise CommandError(f"{marker} has format version {version}, not {FORMAT_VERSION}")
        if kind != _registry_kind(etcd):
            raise CommandError(f"{data} was made with the {kind} registry: give the same again")
        return known, False
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise CommandError(
            f"{data} is not empty and was not made by deodar dev: give another --data"
        )
    data.mkdir(parents=True, exist_ok=True)
    made = {
        "format_version": FORMAT_VERSION,
        "registry": _registry_kind(etcd),
        "shard_bits": shard_bits,
    }
    marker.write_text(jsonlib.dumps(made) + "\n")
    return made, True


def _give_back(data: Path, *, remove: bool) -> None:
    """Undoes `_claim`: nothing has run here, and the next run may choose anew."""
    (data / MARKER).unlink()
    (data / LOCK_FILE).unlink()
    if remove:
        data.rmdir()


def _registry_kind(etcd: str) -> str:
    return "etcd" if etcd else "embedded"


def _locked(directory: Path) -> bool:
    """Whether a node runs in the directory."""
    try:
        with (directory / LOCK_FILE).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def _sole_use(directory: Path) -> Iterator[None]:
    """Holds the directory; raises CommandError when another run has it."""
    with (directory / LOCK_FILE).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(f"{directory} is in use by another deodar dev") from error
        yield


def _wait_unlocked(directory: Path, deadline: float) -> bool:
    while _locked(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the wait once; a second one does not cut the stop short."""

    def end(_number: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise _Ended

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    yield


@contextmanager
def _silent() -> Iterator[None]:
    yield
