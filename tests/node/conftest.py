"""Clusters of real nodes on a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from deodar.contract.rpc_status import ErrorInterceptor, server_options
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.servicer import RegistryServicer
from deodar.v1.registry_pb2_grpc import add_RegistryServicer_to_server
from tests.etcd_server import EtcdServer, etcd, shared_etcd

from .harness import Cluster, running_cluster

__all__ = ["etcd", "shared_etcd"]


@pytest.fixture
async def cluster(shared_etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """No nodes yet."""
    async with running_cluster(shared_etcd.url, tmp_path) as running:
        yield running


@pytest.fixture
async def lone_cluster(etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """The same on an etcd that the test may disturb."""
    async with running_cluster(etcd.url, tmp_path) as running:
        yield running


@pytest.fixture
async def embedded_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """The same on the embedded registry, served as a router does."""
    registry = await EmbeddedRegistry.open(tmp_path / "registry")
    server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
    add_RegistryServicer_to_server(RegistryServicer(registry), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with running_cluster(f"embedded://127.0.0.1:{port}", tmp_path) as running:
        yield running
    await server.stop(0)
    await registry.close()


@pytest.fixture(params=["etcd", "embedded"])
def any_cluster(request: pytest.FixtureRequest) -> Cluster:
    """Both registries, one after the other."""
    name = "cluster" if request.param == "etcd" else "embedded_cluster"
    found: Cluster = request.getfixturevalue(name)
    return found
