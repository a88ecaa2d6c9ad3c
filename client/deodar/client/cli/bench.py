"""deodar bench"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer
from rich.table import Table as RichTable

import deodar
from deodar.client.client import Client
from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .options import Durability, Endpoint, Json, Table, connect, durability_of
from .output import CommandError, note, print_json, stdout

BATCH: Final = 500
KEY_PREFIX: Final = "deodar-bench:"


@dataclass(slots=True)
class Samples:
    """What one thread saw of one kind of call."""

    latencies_us: list[float] = field(default_factory=list)
    errors: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def note_error(self, error: deodar.Error) -> None:
        self.errors += 1
        self.kinds[error.reason.value] = self.kinds.get(error.reason.value, 0) + 1

    def add(self, other: Samples) -> None:
        self.latencies_us += other.latencies_us
        self.errors += other.errors
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count

    def document(self, seconds: float) -> dict[str, Any]:
        ordered = sorted(self.latencies_us)
        return {
            "ops": len(ordered),
            "ops_per_s": round(len(ordered) / seconds, 1),
            "p50_us": _percentile(ordered, 0.50),
            "p99_us": _percentile(ordered, 0.99),
            "errors": self.errors,
            "error_kinds": self.kinds,
        }


@dataclass(frozen=True, slots=True)
class Load:
    """What to do."""

    keys: list[bytes]
    value_bytes: int
    read_share: float
    table: str
    durability: deodar.Durability | None
    seconds: float


def bench(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 5.0,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Threads with a call each.")] = 8,
    keys: Annotated[int, typer.Option(min=1, help="Keys to spread the calls over.")] = 10_000,
    value_bytes: Annotated[int, typer.Option(min=0, help="Size of a value.")] = 100,
    reads: Annotated[int, typer.Option(min=0, max=100, help="Percent of calls that get.")] = 50,
    by_router: Annotated[
        bool, typer.Option("--by-router", help="Never go straight to a node.")
    ] = False,
    durability: Durability = None,
    table: Table = DEFAULT_TABLE,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,
) -> None:
    """Measure gets and puts: each client makes its next call when the last is answered.

    The keys begin with "deodar-bench:" and are deleted at the end.  The figures are those of one
    Python process; exits with 1 when no call succeeded.
    """
    names = [f"{KEY_PREFIX}{number}".encode() for number in range(keys)]
    load = Load(names, value_bytes, reads / 100, table, durability_of(durability), seconds)
    with connect(endpoint) if not by_router else deodar.connect(endpoint, smart=False) as client:
        note(f"writing {keys:,} keys")
        value = random.randbytes(value_bytes)
        _each_batch(
            names,
            lambda part: client.batch_write(
                [deodar.Put(name, value) for name in part], table=table
            ),
        )
        try:
            gets, puts, elapsed = _measure(client, load, clients)
        finally:
            _each_batch(
                names,
                lambda part: client.batch_write(
                    [deodar.Delete(name) for name in part], table=table
                ),
            )
    document = {
        "seconds": round(elapsed, 3),
        "clients": clients,
        "keys": keys,
        "value_bytes": value_bytes,
        "get": gets.document(elapsed),
        "put": puts.document(elapsed),
    }
    if json:
        print_json(document)
    else:
        _print_table(document)
    if not gets.latencies_us and not puts.latencies_us:
        raise CommandError("no call succeeded", metadata=gets.kinds | puts.kinds)


def _measure(client: Client, load: Load, clients: int) -> tuple[Samples, Samples, float]:
    """Runs the load; samples of gets and puts, and the seconds it took."""
    results: list[tuple[Samples, Samples]] = [(Samples(), Samples()) for _ in range(clients)]
    begun = time.perf_counter()
    threads = [
        threading.Thread(target=_run, args=(client, load, begun + load.seconds, *result))
        for result in results
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begun
    gets, puts = Samples(), Samples()
    for get_samples, put_samples in results:
        gets.add(get_samples)
        puts.add(put_samples)
    return gets, puts, elapsed


def _run(client: Client, load: Load, until: float, gets: Samples, puts: Samples) -> None:
    source = random.Random()
    value = source.randbytes(load.value_bytes)
    clock = time.perf_counter
    while (begun := clock()) < until:
        key = source.choice(load.keys)
        reading = source.random() < load.read_share
        samples = gets if reading else puts
        try:
            if reading:
                client.get(key, table=load.table)
            else:
                client.put(key, value, table=load.table, durability=load.durability)
        except deodar.Error as error:
            samples.note_error(error)
        else:
            samples.latencies_us.append((clock() - begun) * 1e6)


def _each_batch(names: list[bytes], do: Callable[[list[bytes]], object]) -> None:
    for start in range(0, len(names), BATCH):
        do(names[start : start + BATCH])


def _percentile(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 1)


def _print_table(document: dict[str, Any]) -> None:
    table = RichTable("", "ops/s", "p50 ms", "p99 ms", "ops", "errors")
    for name in ("get", "put"):
        row = document[name]
        errors = ", ".join(f"{count} {kind}" for kind, count in row["error_kinds"].items())
        table.add_row(
            name,
            f"{row['ops_per_s']:,.0f}",
            _ms(row["p50_us"]),
            _ms(row["p99_us"]),
            f"{row['ops']:,}",
            errors or "0",
        )
    stdout().print(table)


def _ms(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds / 1000:.2f}"
