"""A cluster of real nodes on a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.etcd_server import EtcdServer, etcd

from .harness import Cluster, running_cluster

__all__ = ["etcd"]


@pytest.fixture
async def cluster(etcd: EtcdServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    """No nodes yet."""
    async with running_cluster(etcd.url, tmp_path) as running:
        yield running
