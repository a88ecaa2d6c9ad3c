"""Tiny runs of the engine benchmark: rows and values, never times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.build import SYSTEMS, missing_for
from bench.rows import Row
from bench.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
KEYS = 2_000
OPERATIONS = 1_000


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", "engine", *arguments],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def run_rows(tmp_path: Path, *arguments: str) -> list[Row]:
    """The rows of a run, which must succeed and remove its stores."""
    stores = tmp_path / "stores"
    finished = bench(
        *arguments,
        f"--keys={KEYS}",
        f"--ops={OPERATIONS}",
        f"--data={stores}",
        f"--json={tmp_path / 'rows.json'}",
    )
    assert finished.returncode == 0, finished.stderr
    assert list(stores.iterdir()) == []
    rows: list[Row] = json.loads((tmp_path / "rows.json").read_text())
    return rows


def test_every_installed_store_runs_every_workload(tmp_path: Path) -> None:
    """Each row is complete and plausible; the loop itself checks every value that is read."""
    installed = {name for name, source in SYSTEMS.items() if missing_for(source) is None}
    rows = run_rows(tmp_path)
    assert {(row["system"], row["workload"]) for row in rows} == {
        (system, workload) for system in installed for workload in WORKLOADS
    }
    for row in rows:
        assert set(row) == set(Row.__annotations__)
        assert row["build"]
        assert row["keys"] == KEYS
        expected = KEYS if row["workload"] == "load" else OPERATIONS
        assert row["operations"] == expected
        assert row["value_bytes"] == 128
        assert row["ops_per_s"] > 0
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"]
        assert row["rss_bytes"] > 0
        if row["system"] != "bare_hash":
            assert row["disk_bytes"] > 0


def test_two_threads_share_the_operations(tmp_path: Path) -> None:
    """Workloads that write are left out where a store bears one writer."""
    rows = run_rows(
        tmp_path, "--peers=bare_hash", "--threads=2", "--workloads=lookup_uniform,update_uniform"
    )
    assert {(row["system"], row["workload"]) for row in rows} == {
        ("deodar", "lookup_uniform"),
        ("deodar", "update_uniform"),
        ("bare_hash", "lookup_uniform"),
    }
    assert {row["threads"] for row in rows} == {2}


@pytest.mark.parametrize("option", ["--peers=lmdb,berkeley", "--workloads=load,lookup"])
def test_unknown_names_are_refused(option: str) -> None:
    finished = bench(option)
    assert finished.returncode == 2
    assert "known are" in finished.stderr
