"""Grace periods: what is retired stays until every reader that could hold it has left."""

from __future__ import annotations

import threading
import time

from . import probe_reclaim as reclaim


def test_nothing_is_held_back_without_readers() -> None:
    periods = reclaim.Periods()
    assert periods.safe() == 0
    stamp = periods.retire()
    assert stamp == 1
    assert periods.safe() == stamp


def test_reader_holds_back_what_is_retired_while_it_is_inside() -> None:
    periods = reclaim.Periods()
    slot = periods.enter()
    first = periods.retire()
    second = periods.retire()
    assert periods.safe() < first
    periods.exit(slot)
    assert periods.safe() == second


def test_late_reader_does_not_hold_back_the_past() -> None:
    periods = reclaim.Periods()
    first = periods.retire()
    slot = periods.enter()
    second = periods.retire()
    assert first <= periods.safe() < second
    periods.exit(slot)


def test_oldest_reader_decides() -> None:
    periods = reclaim.Periods()
    old = periods.enter()
    first = periods.retire()
    young = periods.enter()
    second = periods.retire()
    assert young != old
    periods.exit(old)
    assert first <= periods.safe() < second
    periods.exit(young)
    assert periods.safe() == second


def test_reader_waits_when_all_slots_are_taken() -> None:
    periods = reclaim.Periods()
    slots = [periods.enter() for _ in range(reclaim.SLOTS)]
    assert sorted(slots) == list(range(reclaim.SLOTS))
    entered: list[int] = []
    waiting = threading.Thread(target=lambda: entered.append(periods.enter()))
    waiting.start()
    time.sleep(0.05)
    assert entered == []
    periods.exit(slots[77])
    waiting.join(10)
    assert entered == [slots[77]]


def run_race(seconds: float, *, wait: bool) -> tuple[int, int]:
    """Reads and torn reads of two readers against one writer."""
    race = reclaim.Race()
    results: list[tuple[int, int]] = []
    readers = [threading.Thread(target=lambda: results.append(race.read())) for _ in range(2)]
    writer = threading.Thread(target=lambda: race.write(2**40, wait))
    for thread in [*readers, writer]:
        thread.start()
    time.sleep(seconds)
    race.stop()
    for thread in [*readers, writer]:
        thread.join(10)
    return sum(reads for reads, _ in results), sum(torn for _, torn in results)


def test_no_block_is_reused_under_a_reader() -> None:
    reads, torn = run_race(2.0, wait=True)
    assert reads > 1000
    assert torn == 0


def test_race_notices_reuse_without_a_grace_period() -> None:
    """The counterpart: the same race with the rule broken is seen."""
    _, torn = run_race(1.0, wait=False)
    assert torn > 0
