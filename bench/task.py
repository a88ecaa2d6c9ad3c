"""What the runner asks of a worker."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """`workloads` are names of `WORKLOADS`; the load always runs, its row is kept if asked for."""

    system: str
    directory: str
    keys: int
    operations: int
    value_bytes: int
    threads: int
    workloads: list[str]

    def to_json(self) -> str:
        return json.dumps(asdict(self))
