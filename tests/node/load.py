"""Writers and a reader that can tell a lost write."""

from __future__ import annotations

import asyncio
import random

from deodar.contract.reasons import Reason, ServiceError
from deodar.v1 import kv_pb2

from .harness import Cluster


class Load:
    """Writers that remember, per key, the last acknowledged value and those in doubt since.

    Each writer owns its keys and writes rising numbers, so that any read can be judged.
    """

    def __init__(self, cluster: Cluster, workers: int = 3, keys: int = 30) -> None:
        self.cluster = cluster
        self.workers = workers
        self.keys = keys
        self.acknowledged: dict[bytes, int] = {}
        self.attempted: dict[bytes, int] = {}
        self.deleted: set[bytes] = set()
        self.count = 0
        self.in_doubt = 0
        self.durability = kv_pb2.DURABILITY_BUFFERED
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False

    def start(self) -> None:
        self._running = True
        self._tasks = [
            *(asyncio.create_task(self._write(worker)) for worker in range(self.workers)),
            asyncio.create_task(self._read()),
        ]

    async def stop(self) -> None:
        self._running = False
        await asyncio.gather(*self._tasks)

    async def _write(self, worker: int) -> None:
        dice = random.Random(worker)
        while self._running:
            key = b"w%d-%d" % (worker, dice.randrange(self.keys))
            number = self.attempted.get(key, 0) + 1
            self.attempted[key] = number
            try:
                await self.cluster.put(key, b"%d" % number, durability=self.durability)
            except ServiceError as error:
                if error.reason is not Reason.OUTCOME_UNKNOWN:
                    raise
                self.in_doubt += 1
            else:
                self.acknowledged[key] = number
            self.count += 1
            await asyncio.sleep(0.001)

    async def _read(self) -> None:
        dice = random.Random(99)
        while self._running:
            known = dict(self.acknowledged)
            if known:
                key = dice.choice(list(known))
                self._judge(key, known[key], await self.cluster.get(key))
            await asyncio.sleep(0.002)

    def _judge(self, key: bytes, at_least: int, found: bytes | None) -> None:
        assert found is not None, f"{key!r} is gone, was {at_least}"
        assert at_least <= int(found) <= self.attempted[key], (key, at_least, found)

    async def verify(self) -> None:
        """Every key holds its last acknowledged value or a later one that was in doubt."""
        for key, number in list(self.acknowledged.items()):
            self._judge(key, number, await self.cluster.get(key))
