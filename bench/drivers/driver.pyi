from typing import NamedTuple, final

from bench.drivers.streams import Stream

class Slice(NamedTuple):
    started_ns: int
    ended_ns: int
    latencies_ns: list[int]

@final
class Gate:
    def __init__(self, threads: int) -> None: ...

class Driver:
    writers_max: int
    def __init__(self, path: bytes, keys: int, value_bytes: int) -> None: ...
    def describe(self) -> str: ...
    def close(self) -> None: ...
    def run(
        self,
        gate: Gate,
        stream: Stream,
        first: int,
        last: int,
        *,
        generation: int,
        value_bytes: int,
        batched: bool,
    ) -> Slice: ...
    def verify(self, stream: Stream, *, generation: int, value_bytes: int, count: int) -> None: ...
