"""Group commit: all calls that wait for one store share one waiting thread and one flush."""

from __future__ import annotations

import asyncio

from deodar.contract.reasons import Reason, ServiceError
from deodar.engine import EngineError, Store

from .workers import Workers


class DurabilityWaiter:
    """Wakes calls when their epoch is on disk.  Belongs to the event loop."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self._store = store
        self._workers = workers
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def wait(self, epoch: int) -> None:
        """Return when `epoch` is durable.

        Raises OUTCOME_UNKNOWN when the flush failed: the write is in memory, and what of its epoch
        reached the disk is known only after a restart.
        """
        if self._store.durable_epoch >= epoch:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((epoch, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await future

    async def close(self) -> None:
        """Return when nobody waits any more; call before the store is closed."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        """A round flushes for all who waited when it began; who comes later is in the next."""
        try:
            while self._waiting:
                epoch = max(epoch for epoch, _ in self._waiting)
                try:
                    await self._workers.run_flush(self._store.wait_durable, epoch)
                except EngineError as error:
                    self._fail(error)
                else:
                    self._wake(epoch)
        finally:
            self._task = None

    def _wake(self, durable_epoch: int) -> None:
        later = []
        for epoch, future in self._waiting:
            if epoch > durable_epoch:
                later.append((epoch, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = later

    def _fail(self, cause: EngineError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(
                    ServiceError(
                        Reason.OUTCOME_UNKNOWN, f"written, but not known to be on disk: {cause}"
                    )
                )
