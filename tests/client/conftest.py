"""One cluster of real processes for all tests here that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import deodar
from deodar.client.client import Client
from tests.cluster_harness import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=2, shard_bits=3) as cluster:
        yield cluster


@pytest.fixture(params=[True, False], ids=["smart", "by router"])
def client(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Client]:
    with deodar.connect(cluster.endpoint, smart=request.param) as client:
        yield client
