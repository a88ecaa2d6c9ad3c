"""Clusters of real nodes on a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.etcd_server import EtcdServer, etcd, running_etcd

from .harness import Cluster, running_cluster

__all__ = ["etcd"]


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for all tests that do not disturb it."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


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
