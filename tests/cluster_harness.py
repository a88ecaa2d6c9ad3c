"""A whole cluster of real processes for tests: registry, nodes and routers.

    with Cluster(tmp_path, nodes=3) as cluster:          # registry="etcd" for a real etcd
        channel = grpc.insecure_channel(cluster.endpoint)
        cluster.nodes["n1"].kill()
        cluster.start_node("n1")
        cluster.wait_serving()

Blocking; from an async test use `asyncio.to_thread` for the waits (never for the starts: a process
ends with the thread that started it).  Every process ends with the `with` block, and the ends of
their logs are printed then, which pytest shows for a test that failed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import grpc

from deodar.v1 import admin_pb2, admin_pb2_grpc
from tests.etcd_server import EtcdServer
from tests.processes import POLL_S, Process, free_port

SERVING_WAIT_S = 40.0
STATUS_TIMEOUT_S = 3.0

Status = admin_pb2.ClusterStatusResponse


class ServerProcess(Process):
    """A node or a router: a process that listens on `address`."""

    def __init__(self, name: str, address: str, arguments: Sequence[str], directory: Path) -> None:
        super().__init__(name, [sys.executable, "-m", *arguments], directory)
        self.address = address


class NodeProcess(ServerProcess):
    """A node; `data` is its directory, which outlives the process."""

    def __init__(self, name: str, registry: str, directory: Path, arguments: Sequence[str]) -> None:
        self.data = directory / name
        address = f"127.0.0.1:{free_port()}"
        command = ["deodar.node", "--id", name, "--data", str(self.data), "--listen", address]
        super().__init__(name, address, [*command, "--registry", registry, *arguments], directory)


class Cluster:
    """`nodes` nodes named n1, n2, ..., `routers` routers and a registry, under `directory`.

    The first shards are made when all of the first nodes are there, so that each has its part.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        routers: int = 1,
        registry: Literal["embedded", "etcd"] = "embedded",
        shard_bits: int = 4,
        node_arguments: Sequence[str] = (),
        router_arguments: Sequence[str] = (),
    ) -> None:
        assert routers == 1 or registry == "etcd", "one router serves the embedded registry"
        self.directory = directory
        self.shard_count = 1 << shard_bits
        self.etcd = EtcdServer(directory / "etcd") if registry == "etcd" else None
        self.nodes: dict[str, NodeProcess] = {}
        self._node_arguments = list(node_arguments)
        self._nodes_first = nodes
        self.routers = [
            self._router(number, ["--shard-bits", str(shard_bits), *router_arguments])
            for number in range(1, routers + 1)
        ]

    @property
    def endpoint(self) -> str:
        """host:port of the first router."""
        return self.routers[0].address

    @property
    def registry_url(self) -> str:
        if self.etcd is not None:
            return self.etcd.url
        return f"embedded://{self.routers[0].address}"

    def __enter__(self) -> Self:
        try:
            if self.etcd is not None:
                self.etcd.start()
            for router in self.routers:
                router.start()
            for _ in range(self._nodes_first):
                self.add_node(wait=False)
            self.wait_serving()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process and prints the ends of their logs.  Idempotent."""
        processes: list[Process] = [*self.nodes.values(), *self.routers]
        for process in processes:
            process.close()
        if self.etcd is not None:
            self.etcd.stop()
        for process in processes:
            print(process.log_tail())

    def add_node(self, *, wait: bool = True, arguments: Sequence[str] = ()) -> str:
        """Starts one more node and returns its id."""
        name = f"n{len(self.nodes) + 1}"
        self.nodes[name] = NodeProcess(
            name, self.registry_url, self.directory, [*self._node_arguments, *arguments]
        )
        self.start_node(name, wait=wait)
        return name

    def move_node(self, name: str) -> None:
        """Gives a node that was stopped another port, for its next start."""
        old = self.nodes[name]
        assert not old.alive, f"{name} runs"
        self.nodes[name] = NodeProcess(
            name, self.registry_url, self.directory, self._node_arguments
        )

    def start_node(self, name: str, *, wait: bool = True) -> None:
        """Starts a node that was stopped or killed, on its old directory and port."""
        self.nodes[name].start()
        if wait:
            self.wait(lambda status: self.node_state(status, name) == "up", f"{name} is up")

    def status(self) -> Status:
        """ClusterStatus of the first router; raises grpc.RpcError."""
        with grpc.insecure_channel(self.endpoint) as channel:
            request = admin_pb2.ClusterStatusRequest()
            stub = admin_pb2_grpc.AdminStub(channel)
            return stub.ClusterStatus(request, timeout=STATUS_TIMEOUT_S, wait_for_ready=True)

    @staticmethod
    def node_state(status: Status, name: str) -> str:
        return next((node.state for node in status.nodes if node.id == name), "absent")

    def wait(
        self, condition: Callable[[Status], bool], what: str, timeout_s: float = SERVING_WAIT_S
    ) -> Status:
        """Polls the status until `condition` holds; raises TimeoutError with the last status."""
        deadline = time.monotonic() + timeout_s
        last = "no answer"
        while time.monotonic() < deadline:
            for process in (*self.routers, *self.nodes.values()):
                process.check_alive()
            try:
                status = self.status()
            except grpc.RpcError as error:
                last = str(error)
            else:
                if condition(status):
                    return status
                last = str(status)
            time.sleep(POLL_S)
        raise TimeoutError(f"{what}: not within {timeout_s} s; last seen: {last}")

    def wait_serving(self, timeout_s: float = SERVING_WAIT_S) -> Status:
        """Waits until every shard is served and every running node is up."""

        def serving(status: Status) -> bool:
            states = [shard.state for shard in status.shards]
            running = [name for name, node in self.nodes.items() if node.alive]
            return (
                len(states) == self.shard_count
                and all(state == "serving" for state in states)
                and all(self.node_state(status, name) == "up" for name in running)
            )

        return self.wait(serving, "every shard serves", timeout_s)

    def _router(self, number: int, arguments: Sequence[str]) -> ServerProcess:
        name = f"router{number}"
        address = f"127.0.0.1:{free_port()}"
        if self.etcd is not None:
            registry = ["--registry", self.etcd.url]
        else:
            registry = ["--embedded-registry", str(self.directory / "registry")]
        first = ["--bootstrap-nodes", str(max(self._nodes_first, 1))]
        command = ["deodar.router", "--listen", address, *registry, *first, *arguments]
        return ServerProcess(name, address, command, self.directory)
