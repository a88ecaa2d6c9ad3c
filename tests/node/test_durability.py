"""Group commit: who waits together is woken by one flush, and a failed flush is not an answer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from deodar.contract.reasons import Reason, ServiceError
from deodar.engine import Put, ReadOnly, Store
from deodar.node.durability import DurabilityWaiter
from deodar.node.workers import Workers


class CountingStore:
    """The two calls a waiter makes, counted, over a real store; raises `failure` if set."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.flushes = 0
        self.failure: Exception | None = None

    @property
    def durable_epoch(self) -> int:
        return self.store.durable_epoch

    def wait_durable(self, epoch: int) -> bool:
        self.flushes += 1
        if self.failure is not None:
            raise self.failure
        return self.store.wait_durable(epoch)


async def test_waiting_calls_share_flushes(tmp_path: Path):
    workers = Workers(1, 1)
    with Store.open(tmp_path / "store") as store:
        counting = CountingStore(store)
        waiter = DurabilityWaiter(counting, workers)

        async def write(number: int) -> int:
            (written,) = store.write([Put(b"%d" % number, b"v")])
            await waiter.wait(written.epoch)
            assert store.durable_epoch >= written.epoch
            return written.epoch

        await asyncio.gather(*(write(number) for number in range(500)))
        assert counting.flushes < 50
        # Already durable: no flush at all.
        before = counting.flushes
        await waiter.wait(store.durable_epoch)
        assert counting.flushes == before
        await waiter.close()
    workers.close()


async def test_who_arrives_during_a_flush_shares_the_next(tmp_path: Path):
    """Rounds of arrivals, not calls, count flushes: whoever comes while one is in flight waits for
    one more, however many they are and however quick the disk is."""

    class HeldStore(CountingStore):
        def wait_durable(self, epoch: int) -> bool:
            begun.release()
            assert held.acquire(timeout=10)
            return super().wait_durable(epoch)

    begun, held = threading.Semaphore(0), threading.Semaphore(0)
    workers = Workers(1, 1)
    with Store.open(tmp_path / "store") as store:
        counting = HeldStore(store)
        waiter = DurabilityWaiter(counting, workers)

        def arrive(count: int) -> list[asyncio.Task[None]]:
            store.sync()  # what comes now is of a later epoch than all before
            epochs = [store.write([Put(b"%d" % number, b"v")])[0].epoch for number in range(count)]
            return [asyncio.create_task(waiter.wait(epoch)) for epoch in epochs]

        waits = arrive(1)
        for _ in range(3):
            assert await asyncio.to_thread(begun.acquire, timeout=10), "a flush is in flight"
            waits += arrive(50)
            held.release()
        held.release()
        await asyncio.wait_for(asyncio.gather(*waits), 10)
        assert counting.flushes == 4
        await waiter.close()
    workers.close()


async def test_a_cancelled_wait_leaves_the_others(tmp_path: Path):
    workers = Workers(1, 1)
    with Store.open(tmp_path / "store") as store:
        waiter = DurabilityWaiter(store, workers)
        (written,) = store.write([Put(b"k", b"v")])
        waits = [asyncio.create_task(waiter.wait(written.epoch)) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.wait_for(asyncio.gather(*waits[1:]), 5)
        await waiter.close()
    workers.close()


async def test_a_failed_flush_is_outcome_unknown(tmp_path: Path):
    workers = Workers(1, 1)
    with Store.open(tmp_path / "store") as store:
        counting = CountingStore(store)
        waiter = DurabilityWaiter(counting, workers)
        counting.failure = ReadOnly("fsync failed")
        (written,) = store.write([Put(b"k", b"v")])
        results = await asyncio.gather(
            *(waiter.wait(written.epoch + 100) for _ in range(3)), return_exceptions=True
        )
        for result in results:
            assert isinstance(result, ServiceError)
            assert result.reason is Reason.OUTCOME_UNKNOWN
            assert "fsync failed" in result.message
        counting.failure = None
        await asyncio.wait_for(waiter.wait(written.epoch), 5)
        await waiter.close()
    workers.close()


@pytest.mark.parametrize("count", [1, 50])
async def test_a_later_epoch_is_waited_for_in_the_next_round(tmp_path: Path, count: int):
    workers = Workers(1, 1)
    with Store.open(tmp_path / "store") as store:
        waiter = DurabilityWaiter(store, workers)
        for number in range(count):
            (written,) = store.write([Put(b"%d" % number, b"v")])
            await asyncio.wait_for(waiter.wait(written.epoch), 5)
        await waiter.close()
    workers.close()
