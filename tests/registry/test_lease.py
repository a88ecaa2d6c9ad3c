"""A lease against a registry that answers late, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import time

from deodar.registry.interface import RegistryRefused, RegistryUnavailable
from deodar.registry.lease import KEEPS_PER_TTL, KeptLease, now_ms

TTL_MS = 600


class Keeper:
    """A registry that takes `delay_s` to renew, then does as `answer` says."""

    def __init__(self, delay_s: float = 0.0, answer: int | Exception = TTL_MS) -> None:
        self.delay_s = delay_s
        self.answer = answer
        self.sent_ms: list[float] = []
        self.asked = asyncio.Event()
        self.revoked: list[int] = []

    async def keep_lease(self, lease_id: int, timeout_ms: float) -> int:
        assert lease_id == 7
        assert 0 < timeout_ms <= TTL_MS / KEEPS_PER_TTL
        self.sent_ms.append(now_ms())
        self.asked.set()
        await asyncio.sleep(self.delay_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def revoke_lease(self, lease_id: int) -> None:
        self.revoked.append(lease_id)


async def lost_after_ms(lease: KeptLease, start_ms: float) -> float:
    await asyncio.wait_for(lease.wait_lost(), 5)
    assert lease.lost
    assert lease.remaining_ms == 0
    return now_ms() - start_ms


async def test_kept_for_as_long_as_answers_come() -> None:
    keeper = Keeper()
    lease = KeptLease(keeper, 7, TTL_MS, now_ms())
    await asyncio.sleep(1.5)
    assert not lease.lost
    assert len(keeper.sent_ms) >= 5
    await lease.revoke()
    assert lease.lost
    assert keeper.revoked == [7]
    count = len(keeper.sent_ms)
    await asyncio.sleep(0.4)
    assert len(keeper.sent_ms) == count, "nothing is sent for a lease that was given up"


async def test_the_end_is_counted_from_the_send() -> None:
    """L1: renewals take 150 ms to answer; once they stop, the end is a ttl from the last send."""
    keeper = Keeper(delay_s=0.15)
    lease = KeptLease(keeper, 7, TTL_MS, now_ms())
    await asyncio.sleep(0.8)
    keeper.answer = RegistryUnavailable("gone")
    in_flight = keeper.sent_ms[-1] + 150 > now_ms()
    last_good_ms = keeper.sent_ms[-2] if in_flight else keeper.sent_ms[-1]
    assert abs(await lost_after_ms(lease, last_good_ms) - TTL_MS) < 60


async def test_counted_from_the_grants_send_too() -> None:
    keeper = Keeper(answer=RegistryUnavailable("gone"))
    start_ms = now_ms() - 400
    lease = KeptLease(keeper, 7, TTL_MS, start_ms)
    assert 150 < lease.remaining_ms <= 200
    assert abs(await lost_after_ms(lease, start_ms) - TTL_MS) < 60


async def test_one_lost_renewal_is_made_up_for() -> None:
    keeper = Keeper(answer=RegistryUnavailable("once"))
    lease = KeptLease(keeper, 7, TTL_MS, now_ms())
    await asyncio.wait_for(keeper.asked.wait(), 5)
    keeper.answer = TTL_MS
    await asyncio.sleep(1.2)
    assert not lease.lost
    await lease.stop()


async def test_a_registry_that_never_answers() -> None:
    """Calls that hang hold nothing up: the end comes on time."""
    keeper = Keeper(delay_s=60)
    start_ms = now_ms()
    lease = KeptLease(keeper, 7, TTL_MS, start_ms)
    assert abs(await lost_after_ms(lease, start_ms) - TTL_MS) < 60


async def test_a_lease_that_is_gone_or_refused_is_lost_at_once() -> None:
    for answer in (0, RegistryRefused("no")):
        keeper = Keeper(answer=answer)
        start_ms = now_ms()
        lease = KeptLease(keeper, 7, TTL_MS, start_ms)
        assert await lost_after_ms(lease, start_ms) < TTL_MS / 2
        keeper.answer = TTL_MS
        await asyncio.sleep(0.3)
        assert lease.lost, "L2"


async def test_an_answer_behind_the_end_does_not_revive() -> None:
    """The loop stood still until the lease had ended; the answer that then arrives is ignored."""
    keeper = Keeper(delay_s=0.1)
    lease = KeptLease(keeper, 7, TTL_MS, now_ms())
    await asyncio.wait_for(keeper.asked.wait(), 5)
    time.sleep(TTL_MS / 1000)  # noqa: ASYNC251
    await asyncio.sleep(0.2)
    assert lease.lost
    assert len(keeper.sent_ms) == 1
