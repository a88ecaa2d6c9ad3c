"""Registries under test: etcd, the embedded one in its process, and the embedded one served."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from deodar.contract.rpc_status import ErrorInterceptor, server_options
from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import Changes, Event, Registry, Snapshot
from deodar.registry.servicer import RegistryServicer
from deodar.v1.registry_pb2_grpc import add_RegistryServicer_to_server
from tests.etcd_server import EtcdServer, etcd, shared_etcd

__all__ = ["etcd", "shared_etcd"]

_numbers = itertools.count()


@asynccontextmanager
async def served(registry: EmbeddedRegistry, port: int = 0) -> AsyncIterator[int]:
    """Serve a registry; yields the port."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
    add_RegistryServicer_to_server(RegistryServicer(registry), server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)


async def next_events(stream: AsyncIterator[Snapshot | Changes], count: int) -> list[Event]:
    """The next `count` events, across signs of life."""
    events: list[Event] = []
    async with asyncio.timeout(10):
        while len(events) < count:
            step = await anext(stream)
            assert isinstance(step, Changes)
            events += step.events
    return events


async def first_snapshot(stream: AsyncIterator[Snapshot | Changes]) -> Snapshot:
    async with asyncio.timeout(10):
        step = await anext(stream)
    assert isinstance(step, Snapshot)
    return step


def watching(registry: Registry, prefix: str) -> Any:
    return aclosing(cast(Any, registry.watch(prefix)))


@pytest.fixture
def root() -> str:
    """A prefix of this test's own."""
    return f"/deodar/test-{next(_numbers)}/"


@pytest.fixture(params=["etcd", "embedded", "remote"])
async def registry(
    request: pytest.FixtureRequest, tmp_path: Path, shared_etcd: EtcdServer
) -> AsyncIterator[Registry]:
    if request.param == "etcd":
        opened = await open_registry(RegistryConfig(url=shared_etcd.url, timeout_ms=2_000))
        yield opened
        await opened.close()
        return
    embedded = await EmbeddedRegistry.open(tmp_path / "registry")
    if request.param == "embedded":
        yield embedded
    else:
        async with served(embedded) as port:
            config = RegistryConfig(url=f"embedded://127.0.0.1:{port}", timeout_ms=2_000)
            remote = await open_registry(config)
            yield remote
            await remote.close()
    await embedded.close()
