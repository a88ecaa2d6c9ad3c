"""The workloads, in the order in which they run on one store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bench.drivers.streams import Stream

ZIPF_THETA: Final = 0.99


@dataclass(frozen=True, slots=True)
class Workload:
    """`stream` makes its operations from (keys, operations, seed)."""

    name: str
    stream: Callable[[int, int, int], Stream]
    writes: bool
    batched: bool = False


def _every_key(keys: int, seed: int) -> Stream:
    from bench.drivers import streams

    return streams.every_key(keys, keys, seed, False)


def _deletes(keys: int, operations: int, seed: int) -> Stream:
    from bench.drivers import streams

    return streams.every_key(keys, min(keys, operations), seed, True)


def _uniform(writes_percent: int) -> Callable[[int, int, int], Stream]:
    def make(keys: int, operations: int, seed: int) -> Stream:
        from bench.drivers import streams

        return streams.uniform(keys, operations, seed, writes_percent)

    return make


def _zipf(writes_percent: int) -> Callable[[int, int, int], Stream]:
    def make(keys: int, operations: int, seed: int) -> Stream:
        from bench.drivers import streams

        return streams.zipf(keys, operations, seed, writes_percent, ZIPF_THETA)

    return make


def _misses(keys: int, operations: int, seed: int) -> Stream:
    from bench.drivers import streams

    return streams.misses(keys, operations, seed)


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("load", lambda keys, _operations, seed: _every_key(keys, seed), writes=True),
        Workload("lookup_uniform", _uniform(0), writes=False),
        Workload("lookup_zipf", _zipf(0), writes=False),
        Workload("lookup_miss", _misses, writes=False),
        Workload("lookup_batch64", _uniform(0), writes=False, batched=True),
        Workload("update_uniform", _uniform(100), writes=True),
        Workload("update_zipf", _zipf(100), writes=True),
        Workload("mix50_uniform", _uniform(50), writes=True),
        Workload("mix50_zipf", _zipf(50), writes=True),
        Workload("mix90_uniform", _uniform(10), writes=True),
        Workload("delete", _deletes, writes=True),
    )
}
