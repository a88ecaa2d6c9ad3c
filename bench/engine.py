"""``python -m bench engine``: Deodar's engine beside embedded stores, each in its own process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.build import BUILD, ROOT, SYSTEMS, build_drivers
from bench.report import print_report
from bench.rows import Row
from bench.worker import Task
from bench.workloads import WORKLOADS

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


def run_system(task: Task, console: Console) -> tuple[list[Row], bool]:
    """Run `task` in a child process: its rows, and whether it came to its end."""
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
            console.print(f"{row['system']} {row['workload']} {row['ops_per_s']:,.0f}/s")
    if child.returncode != 0:
        console.print(f"[red]{task.system} ended with status {child.returncode}[/red]")
    return rows, child.returncode == 0


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
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for the rows, a JSON array.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--data", help="Where stores are made and removed again.")
    ] = None,
) -> None:
    """Measure the engine beside its peers, one after the other."""
    console = Console(stderr=True)
    systems = ["deodar", *split_names(peers, PEERS, "--peers")]
    chosen = split_names(workloads, list(WORKLOADS), "--workloads")
    missing = build_drivers(systems)
    for name, reason in missing.items():
        console.print(f"[yellow]without {name}: {reason}[/yellow]")
    place = directory or BUILD / "data"
    place.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    failed = False
    for system in systems:
        if system in missing:
            continue
        store = tempfile.mkdtemp(prefix=f"{system}-", dir=place)
        try:
            found, finished = run_system(
                Task(system, store, keys, ops, value_bytes, threads, chosen), console
            )
        finally:
            shutil.rmtree(store)
        rows += found
        # Dirty pages of one store must not be written back on the next one's time.
        os.sync()
        failed = failed or not finished
    print_report(rows, Console())
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
    if failed:
        raise typer.Exit(1)
