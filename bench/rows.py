"""What a run hands back, and the figures of this process that go into it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict


class Row(TypedDict):
    """One system under one workload.

    Latencies are those of sampled operations (of whole batches in batched workloads).  `cpu_us` is
    processor time an operation, of all threads of the process: with one thread, `ops_per_s` far
    below 1e6 / `cpu_us` means that the store waited or that the machine was busy with others.
    `bytes_written` is what the process gave the kernel to write to devices while the workload ran,
    `rss_bytes` its resident memory and `disk_bytes` the blocks of its files, both at the end.
    """

    system: str
    build: str
    workload: str
    threads: int
    keys: int
    operations: int
    value_bytes: int
    ops_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    cpu_us: float
    bytes_written: int
    rss_bytes: int
    disk_bytes: int


def bytes_written() -> int:
    """Bytes this process has caused to be written to devices, dirtied pages included."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, figure = line.partition(":")
        if name == "write_bytes":
            return int(figure)
    raise RuntimeError("/proc/self/io has no write_bytes")


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(directory: Path) -> int:
    """Blocks allocated to the files below `directory`."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:  # a store removes files of its own while we look
                continue
    return total


def quantile(ordered: list[int], share: float) -> float:
    """The value below which `share` of `ordered` lies."""
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0
