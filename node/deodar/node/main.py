"""The node as a process: start, serve, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import grpc.aio
import structlog
import typer
from grpc_health.v1 import (  # type: ignore[import-untyped]
    health,
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]
from pydantic import ValidationError

from deodar.contract.rpc_status import ErrorInterceptor, server_options
from deodar.registry.cluster_view import ClusterView
from deodar.registry.connect import open_registry
from deodar.registry.interface import Registry, RegistryError
from deodar.registry.records import Keys, encode
from deodar.registry.registration import Registration
from deodar.v1 import kv_pb2, kv_pb2_grpc, replication_pb2, replication_pb2_grpc
from deodar.v1.cluster_pb2 import NodeRecord

from .config import NodeConfig
from .directory import ShardDirectories
from .errors import service_error
from .host import Host
from .identity import DataDirectory, DataDirectoryRefused
from .logs import configure_logs
from .membership import join
from .memory import MemoryBudget, default_budget_bytes
from .record import ShardRecords
from .servicer_kv import NodeKV
from .servicer_replication import NodeReplication
from .watch import WatchLimit
from .workers import Workers

KV_SERVICE = kv_pb2.DESCRIPTOR.services_by_name["KV"].full_name
REPLICATION_SERVICE = replication_pb2.DESCRIPTOR.services_by_name["Replication"].full_name

EXIT_REFUSED = 1
EXIT_MISUSED = 2

_log = structlog.get_logger(__name__)


class StartRefused(Exception):  # noqa: N818
    """The node cannot start; the message says why and what to do."""


async def run_node(config: NodeConfig, up: asyncio.Event, stop: asyncio.Event) -> None:
    """Start, set `up`, serve until `stop` is set; leaves nothing open, also when cancelled.

    Raises StartRefused, DataDirectoryRefused, RegistryError, OSError.
    """
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(DataDirectory.open(config.data, config.id, config.cluster))
        server = grpc.aio.server(
            interceptors=[ErrorInterceptor(service_error)], options=server_options()
        )
        port = _bind(server, config.listen)
        address = config.advertised(port)
        registry = await open_registry(config.registry_config())
        stack.push_async_callback(registry.close)
        keys = Keys(config.cluster)
        incarnation = await join(registry, keys, config.id, directory.identity)
        log = _log.bind(node=config.id, address=address, incarnation=incarnation)

        view = ClusterView(registry, config.cluster)
        await view.start()
        stack.push_async_callback(view.close)
        workers = Workers()
        stack.callback(workers.close)
        records = ShardRecords(registry, config.cluster)
        memory = MemoryBudget(config.memory or default_budget_bytes())
        log.info("memory for all stores", memory_bytes=memory.total_bytes)
        host = Host(config.id, ShardDirectories(directory.shards), view, records, workers, memory)
        stack.push_async_callback(host.stop)
        await host.start()

        healths = _add_services(server, host, incarnation, config.watches_max)
        await server.start()
        stack.push_async_callback(server.stop, config.stop_grace_s)
        node = NodeRecord(
            id=config.id,
            address=address,
            identity=directory.identity,
            incarnation=incarnation,
            pid=os.getpid(),
            zone=config.zone,
        )
        registration = await _register(registry, keys, node, config.lease_ttl_ms)
        stack.push_async_callback(registration.close)
        await _set_health(healths, health_pb2.HealthCheckResponse.SERVING)
        log.info("node is up", shards=len(host.shards), data=str(directory.path))
        up.set()
        await stop.wait()
        log.info("node stops")
        await _set_health(healths, health_pb2.HealthCheckResponse.NOT_SERVING)
        # Off the map first, so that nobody is sent here any more.
        await registration.close()
        await host.refuse()
    log.info("node has stopped")


def _bind(server: grpc.aio.Server, listen: str) -> int:
    try:
        return server.add_insecure_port(listen)
    except RuntimeError as error:
        raise StartRefused(f"cannot listen on {listen}: {error}") from error


def _add_services(
    server: grpc.aio.Server, host: Host, incarnation: int, watches_max: int
) -> health.aio.HealthServicer:
    kv = NodeKV(host, incarnation, WatchLimit(watches_max))
    kv_pb2_grpc.add_KVServicer_to_server(kv, server)
    replication_pb2_grpc.add_ReplicationServicer_to_server(
        NodeReplication(host, incarnation), server
    )
    healths = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healths, server)
    names = (KV_SERVICE, REPLICATION_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return healths


async def _set_health(
    healths: health.aio.HealthServicer,
    status: health_pb2.HealthCheckResponse.ServingStatus.ValueType,
) -> None:
    for service in ("", KV_SERVICE):
        await healths.set(service, status)


async def _register(registry: Registry, keys: Keys, node: NodeRecord, ttl_ms: int) -> Registration:
    registration = Registration(registry, keys.node(node.id), lambda: encode(node), ttl_ms)
    await registration.start()
    return registration


async def _until_signal(config: NodeConfig) -> None:
    """Run the node; the first SIGTERM or SIGINT stops it, also in the middle of its start."""
    up, stop = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(run_node(config, up, stop))

    def end() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
        stop.set()
        if not up.is_set():
            running.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, end)
    try:
        await running
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        _log.info("stopped during the start")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def start(
    node_id: Annotated[str | None, typer.Option("--id", help="Name of the node.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data directory, made if absent.")] = None,
    registry: Annotated[
        str | None, typer.Option(help="etcd://HOST:PORT[,HOST:PORT...] or embedded://HOST:PORT.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; port 0 picks a free one.")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT that others connect to, if not as listened.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster.")] = None,
    zone: Annotated[str | None, typer.Option(help="Failure zone.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="For the data of all shards, e.g. 4GiB; default: half of the machine's or of the "
            "control group's."
        ),
    ] = None,
    lease_ttl_ms: Annotated[int | None, typer.Option(help="Milliseconds.")] = None,
    stop_grace_s: Annotated[float | None, typer.Option(help="Seconds for a stop.")] = None,
    registry_start_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds that a start waits for the registry.")
    ] = None,
    watches_max: Annotated[int | None, typer.Option(help="Watches of shards at once.")] = None,
) -> None:
    """Run one node of a Deodar cluster.  Each option may be given as DEODAR_NODE_<NAME> as well."""
    given: dict[str, Any] = {
        "id": node_id,
        "data": data,
        "registry": registry,
        "listen": listen,
        "advertise": advertise,
        "cluster": cluster,
        "zone": zone,
        "memory": memory,
        "lease_ttl_ms": lease_ttl_ms,
        "stop_grace_s": stop_grace_s,
        "registry_start_timeout_s": registry_start_timeout_s,
        "watches_max": watches_max,
    }
    try:
        config = NodeConfig(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for fault in error.errors():
            name = "-".join(str(part) for part in fault["loc"])
            print(f"deodar node: {name}: {fault['msg']}", file=sys.stderr)
        sys.exit(EXIT_MISUSED)
    configure_logs()
    try:
        asyncio.run(_until_signal(config))
    except (StartRefused, DataDirectoryRefused, RegistryError, OSError, ValueError) as error:
        print(f"deodar node: {error}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)


def run() -> None:
    app(prog_name="deodar node")
