"""The benchmark in the box: its figures are there, and it leaves nothing behind."""

from __future__ import annotations

import deodar
from deodar.client.cli.bench import KEY_PREFIX
from tests.cli.conftest import Run
from tests.cluster_harness import Cluster

OPTIONS = ("bench", "--seconds", "0.5", "--clients", "2", "--keys", "50")


def test_figures(cluster: Cluster, run: Run) -> None:
    document = run(*OPTIONS, "--json").ok().json()
    for kind in ("get", "put"):
        row = document[kind]
        assert row["ops"] > 0
        assert row["errors"] == 0
        assert 0 < row["p50_us"] <= row["p99_us"]
    with deodar.connect(cluster.endpoint) as client:
        assert not list(client.scan(key_prefix=KEY_PREFIX.encode()))


def test_reads_alone_by_the_router(run: Run) -> None:
    document = run(*OPTIONS, "--reads", "100", "--by-router", "--json").ok().json()
    assert document["put"]["ops"] == 0
    assert document["put"]["p50_us"] is None


def test_the_table_and_nobody_there(run: Run, call: Run) -> None:
    assert b"ops/s" in run(*OPTIONS).ok().out
    assert call(*OPTIONS, endpoint="127.0.0.1:1").code == 1
