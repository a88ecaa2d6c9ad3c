"""``python -m bench engine``: Deodar's engine beside embedded stores, each in its own process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.build import BUILD, ROOT, SYSTEMS, build_drivers
from bench.report import print_report
from bench.rows import Row
from bench.task import Task
from bench.workloads import WORKLOADS

BUSY_LOAD: Final = 0.7  # average over a minute before the run
REPORT_COLUMNS: Final = 140  # where the report goes to a file
PROGRESS: Final = Console(stderr=True)
PEERS: Final = [name for name in SYSTEMS if name != "deodar"]


def split_names(text: str, known: list[str], option: str) -> list[str]:
    """The names of a comma-separated list, in the order in which they run."""
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}: known are {', '.join(known)}", param_hint=option
        )
    return [name for name in known if name in names]


def run_system(task: Task) -> list[Row]:
    """Run `task` in a child process and return its rows; ends the run when it fails."""
    rows: list[Row] = []
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.worker"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        child.stdin.write(task.to_json())
        child.stdin.close()
        for line in child.stdout:
            row: Row = json.loads(line)
            rows.append(row)
            PROGRESS.print(f"{row['system']} {row['workload']} {row['ops_per_s']:,.0f}/s")
    if child.returncode != 0:
        PROGRESS.print(f"[red]{task.system} ended with status {child.returncode}[/red]")
        raise typer.Exit(1)
    return rows


def run_round(systems: list[str], make: Callable[[str, str], Task], place: Path) -> list[Row]:
    """Run every system once, each in a fresh directory below `place`; raises when one fails."""
    rows: list[Row] = []
    for system in systems:
        store = tempfile.mkdtemp(prefix=f"{system}-", dir=place)
        try:
            rows += run_system(make(system, store))
        finally:
            shutil.rmtree(store)
        # Dirty pages of one store must not be written back on the next one's time.
        os.sync()
    return rows


def medians(rows: list[Row]) -> list[Row]:
    """Of each system's runs of one workload, the row with the median throughput."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["system"], row["workload"]), []).append(row)
    return [
        sorted(group, key=lambda row: row["ops_per_s"])[(len(group) - 1) // 2]
        for group in groups.values()
    ]


def main(
    peers: Annotated[str, typer.Option(help="Comma-separated stores to run beside Deodar.")] = (
        ",".join(PEERS)
    ),
    keys: Annotated[int, typer.Option(min=1, max=2**30 - 1, help="Keys to load.")] = 1_000_000,
    ops: Annotated[int, typer.Option(min=1, help="Operations of each other workload.")] = 1_000_000,
    value_bytes: Annotated[int, typer.Option(min=8, help="Bytes of a value.")] = 128,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Threads of a workload.")] = 1,
    workloads: Annotated[str, typer.Option(help="Comma-separated workloads.")] = (
        ",".join(WORKLOADS)
    ),
    rounds: Annotated[
        int, typer.Option(min=1, help="Runs of everything; the median of each figure is kept.")
    ] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for the rows, a JSON array.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--data", help="Where stores are made and removed again.")
    ] = None,
) -> None:
    """Measure the engine beside its peers, one after the other."""
    systems = ["deodar", *split_names(peers, PEERS, "--peers")]
    chosen = split_names(workloads, list(WORKLOADS), "--workloads")
    missing = build_drivers(systems)
    for name, reason in missing.items():
        PROGRESS.print(f"[yellow]without {name}: {reason}[/yellow]")
    if os.getloadavg()[0] > BUSY_LOAD:
        PROGRESS.print(
            "[yellow]the machine is busy with something else: figures are rough[/yellow]"
        )
    place = directory or BUILD / "data"
    place.mkdir(parents=True, exist_ok=True)

    def make(system: str, store: str) -> Task:
        return Task(system, store, keys, ops, value_bytes, threads, chosen)

    present = [system for system in systems if system not in missing]
    rows = medians([row for _ in range(rounds) for row in run_round(present, make, place)])
    terminal = Console()
    print_report(rows, terminal if terminal.is_terminal else Console(width=REPORT_COLUMNS))
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
