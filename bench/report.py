"""The tables at the end of a run."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

from bench.rows import Row

LIMIT: Final = "bare_hash"  # no store: left out where Deodar is compared with its best peer
OURS: Final = "deodar"


def best_peer(rows: list[Row]) -> Row | None:
    """The fastest store of one workload that is not ours."""
    peers = [row for row in rows if row["system"] not in (OURS, LIMIT)]
    return max(peers, key=lambda row: row["ops_per_s"], default=None)


def ratio_text(rows: list[Row]) -> str:
    """Deodar's throughput over that of the best peer in the same run."""
    ours = next((row for row in rows if row["system"] == OURS), None)
    best = best_peer(rows)
    if ours is None or best is None:
        return "-"
    return f"{ours['ops_per_s'] / best['ops_per_s']:.2f} x {best['system']}"


def throughput_table(rows: list[Row], systems: list[str], workloads: list[str]) -> Table:
    first = rows[0]
    table = Table(
        title=f"thousands of operations a second: {first['keys']:,} keys,"
        f" {first['value_bytes']}-byte values, {first['threads']} thread(s)"
    )
    table.add_column("workload")
    for system in systems:
        table.add_column(system, justify="right")
    table.add_column("deodar / best peer", justify="right")
    for workload in workloads:
        of_workload = {row["system"]: row for row in rows if row["workload"] == workload}
        figures = [
            f"{of_workload[system]['ops_per_s'] / 1000:,.0f}" if system in of_workload else "-"
            for system in systems
        ]
        table.add_row(workload, *figures, ratio_text(list(of_workload.values())))
    return table


def detail_table(rows: list[Row]) -> Table:
    table = Table(
        title="latency of a call, processor time an operation, bytes given to devices, memory, disk"
    )
    table.add_column("workload")
    table.add_column("system")
    for title in ("p50 us", "p99 us", "p99.9 us", "cpu us", "written MB", "resident MB", "disk MB"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["workload"],
            row["system"],
            f"{row['p50_us']:,.2f}",
            f"{row['p99_us']:,.2f}",
            f"{row['p999_us']:,.2f}",
            f"{row['cpu_us']:,.2f}",
            f"{row['bytes_written'] / 1e6:,.0f}",
            f"{row['rss_bytes'] / 1e6:,.0f}",
            f"{row['disk_bytes'] / 1e6:,.0f}",
        )
    return table


def print_report(rows: list[Row], console: Console) -> None:
    """Print throughput, details, and how each store was built and opened."""
    if not rows:
        console.print("no rows")
        return
    systems = list(dict.fromkeys(row["system"] for row in rows))
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    order = {workload: place for place, workload in enumerate(workloads)}
    console.print(throughput_table(rows, systems, workloads))
    console.print(detail_table(sorted(rows, key=lambda row: order[row["workload"]])))
    for system in systems:
        build = next(row["build"] for row in rows if row["system"] == system)
        console.print(f"{system}: {build}", soft_wrap=True)
