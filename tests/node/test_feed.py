"""Following the log of one shard: only what is on disk, nothing twice, nothing kept for nobody."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import pytest

from deodar.contract.keypath import Prefix
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.watchpos import Mark, WatchPosition
from deodar.engine import Change, Delete, Put, Store
from deodar.node import feed as feed_module
from deodar.node import watch as watch_module
from deodar.node.shard import HostedShard
from deodar.node.watch import Wanted, WatchLimit, watch_shard
from deodar.node.workers import Workers

ROOT = Prefix(0, 0)
Watched = AsyncGenerator[tuple[list[Change], Mark], None]


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    made = Workers()
    yield made
    made.close()


@pytest.fixture
async def shard(tmp_path: Path, workers: Workers) -> AsyncIterator[HostedShard]:
    store = Store.open(
        tmp_path / "store", region_bytes=262_144, epoch_ms=100, compaction=False, stall_ms=0
    )
    hosted = HostedShard("default", ROOT, 1, workers, store)
    yield hosted
    await hosted.close()


def watch(
    shard: HostedShard,
    mark: Mark | None = None,
    selects: Callable[[bytes], bool] = lambda _: True,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Watched:
    position = None if mark is None else WatchPosition("default", {ROOT: mark})
    return watch_shard(shard, Wanted("default", 0, selects, position), is_stopping)


async def changes_of(watched: Watched, count: int) -> list[Change]:
    """The next changes, at least so many."""
    found: list[Change] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            changes, mark = await anext(watched)
            found += changes
            if changes:
                assert mark.version >= changes[-1].version
    return found


async def to_its_end(watched: Watched) -> tuple[list[Change], Mark | None, Reason]:
    """All that comes, the last mark, and why it ended."""
    seen: list[Change] = []
    last = None
    async with asyncio.timeout(20):
        try:
            async for changes, mark in watched:
                seen += changes
                last = mark
        except ServiceError as error:
            return seen, last, error.reason
    raise AssertionError("a watch ends with a reason")


async def reason_of(watched: Watched) -> Reason:
    _, _, reason = await to_its_end(watched)
    return reason


async def overwrite(shard: HostedShard, rounds: int = 10) -> None:
    for turn in range(rounds):
        for index in range(300):
            await shard.write([Put(b"key %d" % index, b"%d" % turn * 1000)], 1000)


async def test_what_is_told_survives_a_crash(shard: HostedShard, tmp_path: Path) -> None:
    """Seen to fail with the look-out not waiting for the flush."""
    watched = watch(shard)
    assert await anext(watched) == ([], Mark(shard.history, 0))
    for number in range(5):
        await shard.write([Put(b"k%d" % number, b"v")], 1)
        [change] = await changes_of(watched, 1)
        image = tmp_path / f"crashed-{number}"
        shutil.copytree(tmp_path / "store", image)
        with Store.open(image) as crashed:
            item = crashed.get_item(b"k%d" % number)
            assert item is not None
            assert item.version == change.version
    await watched.aclose()


async def test_order_deletes_and_deadlines(shard: HostedShard) -> None:
    watched = watch(shard)
    await anext(watched)
    await shard.write([Put(b"a", b"1", ttl_ms=60_000), Put(b"b", b"2"), Delete(b"a")], 2)
    await shard.increment(b"n", 3)
    changes = await changes_of(watched, 4)
    assert [(change.key, change.value) for change in changes] == [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"a", None),
        (b"n", b"3"),
    ]
    assert [change.version for change in changes] == [1, 2, 3, 4]
    assert changes[0].deadline_ms is not None
    assert changes[1].deadline_ms is None
    await watched.aclose()


async def test_only_what_is_selected_and_progress(
    shard: HostedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark moves on over what is not wanted, so that a resumed watch need not read it again."""
    monkeypatch.setattr(watch_module, "PROGRESS_S", 0.05)
    watched = watch(shard, selects=b"b".__eq__)
    await anext(watched)
    await shard.write([Put(b"a", b"1")], 1)
    async with asyncio.timeout(10):
        while (await anext(watched)) != ([], Mark(shard.history, 1)):
            pass
    await shard.write([Put(b"b", b"1"), Put(b"c", b"1")], 1)
    [change] = await changes_of(watched, 1)
    assert change.key == b"b"
    await watched.aclose()


async def test_resuming_gives_everything_behind_the_mark(shard: HostedShard) -> None:
    for number in range(2_500):
        await shard.write([Put(b"%d" % number, bytes(2000))], 2000)
    for after in (0, 1, 1_234, 2_499):
        watched = watch(shard, Mark(shard.history, after))
        changes = await changes_of(watched, 2_500 - after)
        assert [change.version for change in changes] == list(range(after + 1, 2_501))
        await watched.aclose()


async def test_positions_that_are_lost(shard: HostedShard) -> None:
    history = shard.history
    await overwrite(shard)
    store = shard.gate()
    store.sync()
    newest = store.last_version
    store.compact()
    for lost in (Mark(history, 0), Mark(history, newest + 1), Mark(history ^ 1, newest)):
        assert await reason_of(watch(shard, lost)) is Reason.WATCH_POSITION_LOST
        assert shard.feed.pinned is None
    other = WatchPosition("default", {Prefix(0, 1): Mark(history, newest)})
    wanted = Wanted("default", 0, lambda _: True, other)
    assert await reason_of(watch_shard(shard, wanted, lambda: False)) is Reason.WATCH_POSITION_LOST
    watched = watch(shard, Mark(history, newest))
    assert (await anext(watched))[1].version == newest
    await watched.aclose()


async def test_the_log_is_kept_for_a_reader_and_no_longer(shard: HostedShard) -> None:
    """Seen to fail without the pin, and with a pin that is not taken back."""
    watched = watch(shard)
    await anext(watched)
    task = asyncio.ensure_future(anext(watched))
    await asyncio.sleep(0.05)
    assert shard.feed.pinned == 0
    second = watch(shard)
    await anext(second)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await watched.aclose()
    assert len(shard.feed) == 1
    await overwrite(shard)
    store = shard.gate()
    store.sync()
    store.compact()
    versions = [change.version for change in await changes_of(second, 3_000)]
    assert versions == list(range(1, 3_001))
    await second.aclose()
    assert shard.feed.pinned is None
    assert store.compact() > 0
    assert await reason_of(watch(shard, Mark(shard.history, 0))) is Reason.WATCH_POSITION_LOST


@pytest.mark.parametrize(("bound", "value"), [("STILL_S_MAX", 0.2), ("BEHIND_BYTES_MAX", 500_000)])
async def test_one_who_stands_still_does_not_keep_the_log(
    shard: HostedShard, monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    """It is told that its position is lost, and one who keeps up sees nothing of it."""
    monkeypatch.setattr(feed_module, bound, value)
    monkeypatch.setattr(feed_module, "TICK_S", 0.05)
    slow, quick = watch(shard), watch(shard)
    await anext(slow)
    await anext(quick)
    reading = asyncio.create_task(changes_of(quick, 3_000))
    await overwrite(shard)
    await reading
    await asyncio.sleep(0.4)
    pinned = shard.feed.pinned
    assert pinned is None or pinned > 0
    store = shard.gate()
    store.sync()
    store.compact()
    assert await reason_of(slow) is Reason.WATCH_POSITION_LOST
    await shard.write([Put(b"on", b"it goes")], 7)
    assert (await changes_of(quick, 1))[0].key == b"on"
    await quick.aclose()


async def test_a_fenced_shard_is_read_to_its_end(
    shard: HostedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail with the watch ended by the fence itself."""
    monkeypatch.setattr(feed_module, "TICK_S", 0.001)
    watched = watch(shard)
    await anext(watched)
    await shard.write([Put(b"last", b"1")], 1)
    shard.fence(1)
    seen, last, reason = await to_its_end(watched)
    assert reason is Reason.SHARD_MOVING
    assert [change.key for change in seen] == [b"last"]
    assert last == Mark(shard.history, 1)
    with pytest.raises(ServiceError) as raised:
        await anext(watch(shard))
    assert raised.value.reason is Reason.SHARD_MOVING


async def test_a_shard_that_goes_waits_for_readers_but_not_for_ever(
    shard: HostedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "DRAIN_S", 0.3)
    quick, stuck = watch(shard), watch(shard)
    await anext(quick)
    await anext(stuck)
    await shard.write([Put(b"last", b"1")], 1)

    reading = asyncio.create_task(to_its_end(quick))
    async with asyncio.timeout(5):
        await shard.close()
    seen, _, _ = await reading
    assert [change.key for change in seen] == [b"last"]
    assert await reason_of(stuck) is Reason.SHARD_MOVING


async def test_a_stopping_node_says_so(shard: HostedShard) -> None:
    stopping = False
    watched = watch(shard, is_stopping=lambda: stopping)
    await anext(watched)
    stopping = True
    shard.feed.wake()
    async with asyncio.timeout(5):
        assert await reason_of(watched) is Reason.SHUTTING_DOWN


def test_a_node_serves_so_many_watches() -> None:
    limit = WatchLimit(1)
    with limit.admit():
        with pytest.raises(ServiceError) as raised, limit.admit():
            pass
        assert raised.value.reason is Reason.OVERLOADED
    with limit.admit():
        assert limit.open == 1
    assert limit.open == 0
