"""One store in one process: runs the workloads it is told to and prints a JSON row for each.

``python -m bench.worker`` reads a `Task` as JSON from standard input.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.drivers.driver import Driver, Gate, Slice
from bench.drivers.streams import Stream
from bench.rows import Row, bytes_written, disk_bytes, quantile, rss_bytes
from bench.task import Task
from bench.workloads import WORKLOADS, Workload

VERIFIED_KEYS: Final = 100_000
SEED: Final = 20201


def run_threads(
    driver: Driver, stream: Stream, task: Task, *, generation: int, batched: bool
) -> list[Slice]:
    """Cut `stream` among the threads and run all parts at the same time."""
    slices: list[Slice] = []
    failures: list[BaseException] = []
    gate = Gate(task.threads)

    def work(number: int) -> None:
        try:
            slices.append(
                driver.run(
                    gate,
                    stream,
                    stream.count * number // task.threads,
                    stream.count * (number + 1) // task.threads,
                    generation=generation,
                    value_bytes=task.value_bytes,
                    batched=batched,
                )
            )
        except (RuntimeError, ValueError, MemoryError, OSError) as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(task.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return slices


def measure(driver: Driver, build: str, workload: Workload, task: Task, generation: int) -> Row:
    """Run one workload, check what it left behind, and say how it went."""
    stream = workload.stream(task.keys, task.operations, SEED + generation)
    written_before = bytes_written()
    cpu_before = time.process_time()
    slices = run_threads(driver, stream, task, generation=generation, batched=workload.batched)
    cpu_seconds = time.process_time() - cpu_before
    written = bytes_written() - written_before
    seconds = (max(s.ended_ns for s in slices) - min(s.started_ns for s in slices)) / 1e9
    latencies = sorted(latency for s in slices for latency in s.latencies_ns)
    row = Row(
        system=task.system,
        build=build,
        workload=workload.name,
        threads=task.threads,
        keys=task.keys,
        operations=stream.count,
        value_bytes=task.value_bytes,
        ops_per_s=round(stream.count / seconds, 1),
        p50_us=quantile(latencies, 0.5) / 1000,
        p99_us=quantile(latencies, 0.99) / 1000,
        p999_us=quantile(latencies, 0.999) / 1000,
        cpu_us=round(cpu_seconds * 1e6 / stream.count, 4),
        bytes_written=written,
        rss_bytes=rss_bytes(),
        disk_bytes=disk_bytes(Path(task.directory)),
    )
    if workload.writes:
        driver.verify(
            stream, generation=generation, value_bytes=task.value_bytes, count=VERIFIED_KEYS
        )
    return row


def assertions_in_library(system: str) -> str:
    """A note when the shared library that `system` was linked with checks its own assertions."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if f"/lib{system}." in path:
            return " (built with assertions)" if b"__assert_fail" in Path(path).read_bytes() else ""
    return ""


def run(task: Task) -> None:
    """Open the store, run the workloads in their order, print a row after each.

    Workloads that write are left out where the store bears fewer writers than were asked for.
    """
    module = importlib.import_module(f"bench.drivers.{task.system}")
    driver: Driver = module.open_driver(os.fsencode(task.directory), task.keys, task.value_bytes)
    build = driver.describe() + assertions_in_library(task.system)
    gc.freeze()
    for generation, workload in enumerate(WORKLOADS.values()):
        threads = min(task.threads, driver.writers_max) if workload.writes else task.threads
        kept = workload.name in task.workloads and threads == task.threads
        if kept or workload.name == "load":
            row = measure(driver, build, workload, replace(task, threads=threads), generation)
            if kept:
                print(json.dumps(row), flush=True)
    driver.close()


if __name__ == "__main__":
    run(Task(**json.load(sys.stdin)))
