"""Runs a router: registry, view, gRPC server and controller; ends them in reverse."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Final

import grpc.aio
import structlog
from grpc_health.v1 import (  # type: ignore[import-untyped]
    health,
    health_pb2,
    health_pb2_grpc,
)
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from deodar.contract.rpc_status import ErrorInterceptor, server_options
from deodar.registry.cluster_view import ClusterView
from deodar.registry.connect import open_registry
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import Registry
from deodar.registry.servicer import RegistryServicer
from deodar.v1.registry_pb2_grpc import add_RegistryServicer_to_server

from . import proxy, servicer_admin
from .channels import ChannelPool
from .config import RouterConfig
from .controller import Controller
from .forward import Forwarder
from .routing import Routing
from .servicer_admin import AdminServicer
from .watch import Watches

HEALTH_NAMES: Final = ("", proxy.SERVICE, servicer_admin.SERVICE)
REFLECTED: Final = (
    proxy.SERVICE,
    servicer_admin.SERVICE,
    health.SERVICE_NAME,
    reflection.SERVICE_NAME,
)
# How long calls are refused by name before the server stops: gRPC cancels without a word what
# arrives while it stops.
REFUSE_S: Final = 0.25

_log = structlog.get_logger(__name__)


class CannotListen(Exception):  # noqa: N818
    """The address to listen on is in use or not ours."""


async def run(config: RouterConfig) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises CannotListen, or RegistryUnavailable when the registry does not answer at the start.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as parts:
        await _start(config, parts)
        await stopping.wait()
        _log.info("stopping", grace_s=config.stop_grace_s)


async def _start(config: RouterConfig, parts: AsyncExitStack) -> None:
    """Starts all parts; `parts` ends them in reverse order.

    The server outlives the registry at the end: calls in flight need the last map only, and the
    watches of an embedded registry end with it.
    """
    pool = ChannelPool()
    parts.push_async_callback(pool.close)
    server = grpc.aio.server(options=server_options(), interceptors=[ErrorInterceptor()])
    address = _bind(server, config)
    parts.push_async_callback(server.stop, config.stop_grace_s)
    parts.push_async_callback(asyncio.sleep, REFUSE_S)

    registry = await _open_registry(config, address)
    parts.push_async_callback(registry.close)
    view = ClusterView(registry, config.cluster)
    await view.start()
    parts.push_async_callback(view.close)
    routing = Routing(view, pool)
    routing.start()
    parts.push_async_callback(routing.close)
    controller = Controller(registry, view, config)
    await controller.start()
    parts.push_async_callback(controller.close)

    admin = AdminServicer(view.keys, registry, routing, pool)
    parts.callback(admin.stop)
    admission = proxy.Admission()
    parts.callback(admission.stop)
    watches = Watches()
    parts.callback(watches.stop)
    server.add_generic_rpc_handlers(
        (proxy.kv_handlers(Forwarder(routing, pool), admission, watches), admin.handlers())
    )
    if isinstance(registry, EmbeddedRegistry):
        add_RegistryServicer_to_server(RegistryServicer(registry), server)
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    reflection.enable_server_reflection(REFLECTED, server)
    await server.start()
    for name in HEALTH_NAMES:
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    parts.push_async_callback(status.enter_graceful_shutdown)
    _log.info(
        "serving",
        address=address,
        pid=os.getpid(),
        registry=registry.kind,
        endpoints=registry.endpoints,
        map_revision=routing.revision,
    )


def _bind(server: grpc.aio.Server, config: RouterConfig) -> str:
    """The address that the server will listen on."""
    try:
        port = server.add_insecure_port(config.listen)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {config.listen}: {error}") from error
    return f"{config.host}:{port}"


async def _open_registry(config: RouterConfig, address: str) -> Registry:
    if config.embedded_registry is not None:
        return await EmbeddedRegistry.open(config.embedded_registry, [address])
    return await open_registry(config.registry_config())
