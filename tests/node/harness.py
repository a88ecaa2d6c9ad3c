"""Real node processes on a real registry; the test itself is the controller and the client."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from deodar.contract.keypath import even_prefixes, path_of
from deodar.contract.reasons import Reason, Retry, ServiceError
from deodar.contract.rpc_status import channel_options, error_from_rpc
from deodar.registry.cluster_view import ClusterView
from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.interface import Compare, Put, Registry
from deodar.registry.records import Keys, encode
from deodar.v1 import kv_pb2, kv_pb2_grpc, replication_pb2, replication_pb2_grpc
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    TABLE_KIND_HASH,
    ShardRecord,
    TableRecord,
)

START_TIMEOUT_S = 30.0
T = TypeVar("T")
_numbers = itertools.count()


class NodeProcess:
    """One node; `start` after `kill` or `stop` goes on with the same data."""

    def __init__(self, node: str, directory: Path, registry: str, cluster: str) -> None:
        self.node = node
        self.cluster = cluster
        self.data = directory / node
        self.log = directory / f"{node}.log"
        self.registry = registry
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *extra: str) -> subprocess.Popen[bytes]:
        assert self.process is None, "already started"
        command = [
            *(sys.executable, "-m", "deodar.node"),
            *("--id", self.node),
            *("--data", str(self.data)),
            *("--listen", "127.0.0.1:0"),
            *("--registry", self.registry),
            *("--cluster", self.cluster),
            *("--lease-ttl-ms", "2000"),
            *extra,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self.process

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Its exit code, once it has ended."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        self.process = None
        return code

    def stop(self) -> int:
        """End it in order; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Cluster:
    """Nodes, the registry as the test sees it, and channels to the nodes."""

    def __init__(self, registry: Registry, url: str, directory: Path, name: str) -> None:
        self.registry = registry
        self.name = name
        self.url = url
        self.directory = directory
        self.keys = Keys(name)
        self.view = ClusterView(registry, name)
        self.nodes: dict[str, NodeProcess] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    def process(self, node: str, directory: Path | None = None) -> NodeProcess:
        """A node's process, not started."""
        return NodeProcess(node, directory or self.directory, self.url, self.name)

    def add(self, node: str, *extra: str) -> NodeProcess:
        process = self.nodes.setdefault(node, self.process(node))
        process.start(*extra)
        return process

    async def up(self, *nodes: str) -> None:
        """Return when these nodes are registered by their processes of now and answer."""

        def registered() -> bool:
            for node in nodes:
                process = self.nodes[node].process
                assert process is not None
                assert process.poll() is None, self.nodes[node].text()[-4000:]
                record = self.view.state.nodes.get(node)
                if record is None or record.pid != process.pid:
                    return False
            return True

        await eventually(registered, "nodes are up", START_TIMEOUT_S)
        for node in nodes:
            await asyncio.wait_for(self.channel(node).channel_ready(), START_TIMEOUT_S)

    async def make_shards(self, bits: int, *owners: str, table: str = "default") -> list[str]:
        """What the controller does at first: the table and its shards, given out in turn."""
        record = TableRecord(name=table, kind=TABLE_KIND_HASH, initial_prefix_bits=bits)
        await self._put(self.keys.table(table), encode(record))
        names = []
        for index, prefix in enumerate(even_prefixes(bits)):
            shard = ShardRecord(
                table=table,
                prefix=prefix.to_bytes(),
                prefix_bits=bits,
                state=SHARD_STATE_CREATING,
                primary=owners[index % len(owners)],
                term=1,
            )
            await self._put(self.keys.shard(table, prefix), encode(shard))
            names.append(f"{table}/{prefix}")
        return names

    async def serving(self, *names: str) -> None:
        """Return when the shards' records say SERVING."""

        def serve() -> bool:
            shards = self.view.state.shards
            return all(
                name in shards
                and shards[name].record.state not in (SHARD_STATE_CREATING, SHARD_STATE_MOVING)
                for name in names
            )

        await eventually(serve, "shards are serving", START_TIMEOUT_S)

    async def _put(self, key: str, value: bytes) -> None:
        assert await self.registry.commit([Compare(key, 0)], [Put(key, value)])

    def record(self, name: str) -> ShardRecord:
        return self.view.state.shards[name].record

    async def start_move(self, name: str, target: str) -> int:
        """What the controller does to begin a move; returns its move_id."""
        await self.view.refresh()
        record, revision = self.view.state.shards[name]
        moving = ShardRecord()
        moving.CopyFrom(record)
        moving.state = SHARD_STATE_MOVING
        moving.target = target
        moving.move_id += 1
        key = self.keys.of(record)
        assert await self.registry.commit([Compare(key, revision)], [Put(key, encode(moving))]), (
            "the record changed meanwhile"
        )
        await self.view.refresh()
        return moving.move_id

    async def move(self, name: str, target: str) -> None:
        """A whole move."""
        await self.start_move(name, target)
        await self.serving(name)
        assert self.record(name).primary == target, self.nodes[target].text()[-3000:]

    def address(self, node: str) -> str:
        return self.view.state.nodes[node].address

    def channel(self, node: str) -> grpc.aio.Channel:
        address = self.address(node)
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=channel_options())
        return self._channels[address]

    def kv(self, node: str) -> kv_pb2_grpc.KVAsyncStub:
        return kv_pb2_grpc.KVStub(self.channel(node))

    def replication(self, node: str) -> replication_pb2_grpc.ReplicationAsyncStub:
        return replication_pb2_grpc.ReplicationStub(self.channel(node))

    async def states(self, node: str) -> dict[str, replication_pb2.NodeShard]:
        """The node's shards by name."""
        response = await self.replication(node).NodeShards(replication_pb2.NodeShardsRequest())
        return {
            f"{shard.shard.table}/{shard.shard.prefix.hex()}-{shard.shard.prefix_bits}": shard
            for shard in response.shards
        }

    async def call(
        self,
        key: bytes,
        method: Callable[[kv_pb2_grpc.KVAsyncStub], Any],
        request: Any,
        *,
        write: bool = True,
        timeout_s: float = 20.0,
    ) -> Any:
        """One call on the node that serves the key, sent again only where nothing was done."""
        give_up = time.monotonic() + timeout_s
        while True:
            shard = self.view.state.map.find("default", path_of(key))
            try:
                if shard is None or shard.primary not in self.view.state.nodes:
                    raise ServiceError(Reason.NODE_UNREACHABLE, "no node")
                channel = self.channel(shard.primary)
                await asyncio.wait_for(channel.channel_ready(), 0.5)
                return await method(kv_pb2_grpc.KVStub(channel))(request, timeout=10)
            except TimeoutError:
                error = ServiceError(Reason.NODE_UNREACHABLE, "not connected")
            except grpc.aio.AioRpcError as failed:
                error = error_from_rpc(failed, may_have_run=write)
            except ServiceError as refused:
                error = refused
            if error.rule.retry is Retry.NEVER or time.monotonic() > give_up:
                raise error
            await asyncio.sleep(0.01)

    async def put(self, key: bytes, value: bytes, **fields: Any) -> int:
        request = kv_pb2.PutRequest(key=key, value=value, **fields)
        return (await self.call(key, lambda stub: stub.Put, request)).version

    async def get(self, key: bytes) -> bytes | None:
        request = kv_pb2.GetRequest(key=key)
        response = await self.call(key, lambda stub: stub.Get, request, write=False)
        return response.record.value if response.found else None

    async def scan(self, limit: int = 0, **fields: Any) -> list[kv_pb2.Record]:
        """All records of the table, shard by shard."""
        records: list[kv_pb2.Record] = []
        cursor = b""
        while True:
            path = int.from_bytes(cursor[:16], "big")
            shard = self.view.state.map.find("default", path)
            assert shard is not None
            request = kv_pb2.ScanRequest(cursor=cursor, limit=limit, **fields)
            async for page in self.kv(shard.primary).Scan(request):
                records.extend(page.records)
                cursor = page.cursor
            if not cursor:
                return records

    async def close(self) -> None:
        for process in self.nodes.values():
            process.kill()
        for channel in self._channels.values():
            await channel.close()
        await self.view.close()
        await self.registry.close()


@asynccontextmanager
async def running_cluster(url: str, directory: Path) -> AsyncIterator[Cluster]:
    """A cluster under a name of its own, without nodes yet."""
    registry = await open_registry(RegistryConfig(url=url, timeout_ms=2_000))
    cluster = Cluster(registry, url, directory, f"test-{next(_numbers)}")
    try:
        await cluster.view.start()
        yield cluster
    finally:
        await cluster.close()


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]], what: str, timeout_s: float = 10.0
) -> None:
    """Return when it holds; fail the test when it does not in time."""
    give_up = time.monotonic() + timeout_s
    while True:
        answer = holds()
        if not isinstance(answer, bool):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < give_up, f"not in {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


async def refused(call: Awaitable[T]) -> ServiceError:
    """The error of a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error)
    except ServiceError as error:
        return error
    raise AssertionError("the call succeeded")
