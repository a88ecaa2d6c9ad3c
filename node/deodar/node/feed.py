"""The end of a shard's log, for all who follow it.

What a follower is told is on disk: a crash takes none of it back.  All followers of a shard share
one look-out for what has become durable, the page of the log that was read last, and one pin, at
the slowest follower that still counts.  A follower that stands still, or is too far behind, does
not count: it goes on for as long as the log happens to be there.  Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from deodar.contract.limits import SCAN_PAGE_BYTES, SCAN_PAGE_RECORDS_MAX
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.watchpos import position_lost
from deodar.engine import Change, LogTrimmed, Store

if TYPE_CHECKING:
    from .shard import HostedShard

# Between two looks whether an epoch, which closes by itself, is on disk; then it is hurried.
EPOCH_POLL_S = 0.003
EPOCH_POLLS_MAX = 10
# How often the pin is moved, and what a follower may keep of the log.
TICK_S = 0.5
STILL_S_MAX = 30.0
BEHIND_BYTES_MAX = 268_435_456
# How long a shard that goes away waits for its followers to read the rest.
DRAIN_S = 2.0


class Follower:
    """One who reads the changes of a shard, behind `version`."""

    def __init__(self, version: int, appended_bytes: int) -> None:
        self.version = version
        self._moved_at = monotonic()
        self._caught_up_bytes = appended_bytes

    def advance(self, version: int) -> None:
        self.version = version
        self._moved_at = monotonic()

    def counts(self, durable: int, appended_bytes: int) -> bool:
        """Whether the log is kept for it."""
        if self.version >= durable:
            self._moved_at = monotonic()
            self._caught_up_bytes = appended_bytes
        return (
            monotonic() - self._moved_at < STILL_S_MAX
            and appended_bytes - self._caught_up_bytes < BEHIND_BYTES_MAX
        )


class _Page(NamedTuple):
    """All changes with versions above `after`, up to that of the last."""

    after: int
    changes: list[Change]


_NO_PAGE = _Page(0, [])


class ShardFeed:
    """The followers of one shard."""

    def __init__(self, shard: HostedShard) -> None:
        self.durable = 0  # every version up to this one is on disk
        self._shard = shard
        self._followers: set[Follower] = set()
        self._pin: tuple[int, int] | None = None  # token and version
        self._touched = asyncio.Event()
        self._news = asyncio.Event()  # replaced by each announcement
        self._left = asyncio.Event()
        self._lookout: asyncio.Task[None] | None = None
        self._page = _NO_PAGE
        self._reading = asyncio.Lock()
        self._ended = False

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def pinned(self) -> int | None:
        """The version behind which the log is kept."""
        return None if self._pin is None else self._pin[1]

    def touch(self) -> None:
        """Something may have been written, or the shard's state has changed."""
        self._touched.set()

    def wake(self) -> None:
        """Let all followers look around."""
        self._news.set()
        self._news = asyncio.Event()

    async def close(self) -> None:
        """Let the followers read the rest for a moment, then turn them away."""
        give_up = monotonic() + DRAIN_S
        self.touch()
        while self._followers and (left := give_up - monotonic()) > 0:
            self._left.clear()
            try:
                async with asyncio.timeout(left):
                    await self._left.wait()
            except TimeoutError:
                break
        self._ended = True
        self._stop()
        self.wake()

    @contextmanager
    def follow(self, after: int | None) -> Iterator[Follower]:
        """Follow from behind a version, None = from now on.

        Raises WATCH_POSITION_LOST when the log does not reach back so far, or is not there yet, and
        as `HostedShard.gate`.
        """
        store = self._shard.gate()
        newest = store.last_version
        if after is not None and after > newest:
            raise position_lost(f"there is no version {after} yet", self._shard.name)
        follower = Follower(newest if after is None else after, _appended_bytes(store))
        self._followers.add(follower)
        try:
            try:
                self._move_pin(store)
            except LogTrimmed as error:
                raise position_lost(str(error), self._shard.name) from error
            if self._lookout is None:
                self._lookout = asyncio.create_task(self._look_out(store))
            yield follower
        finally:
            self._leave(follower)

    def _leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        self._left.set()
        store = self._shard.store
        if store is None or self._ended:
            self._pin = None  # gone with the store
        elif self._followers:
            self._try_pin(store)
        else:
            self._move_pin(store)
            self._stop()

    def _stop(self) -> None:
        self._page = _NO_PAGE
        if self._lookout is not None:
            self._lookout.cancel()
            self._lookout = None

    def _move_pin(self, store: Store) -> None:
        """Pin the log at the slowest follower that counts; raises LogTrimmed and leaves it."""
        appended = _appended_bytes(store) if self._followers else 0
        counting = (one.version for one in self._followers if one.counts(self.durable, appended))
        wanted = min(counting, default=None)
        if wanted == self.pinned:
            return
        new = None if wanted is None else (store.pin_log(wanted), wanted)
        if self._pin is not None:
            store.unpin_log(self._pin[0])
        self._pin = new

    def _try_pin(self, store: Store) -> None:
        try:
            self._move_pin(store)
        except LogTrimmed:
            # Of one that did not count for a while: it will find out when it reads.
            return

    # What is durable.

    async def beyond(self, version: int) -> int:
        """The version up to which all is on disk: once it is above `version`, or at a wake-up, or
        after a tick.

        Raises STORE_READ_ONLY, and SHARD_MOVING when the shard went away.
        """
        if self._ended:
            raise ServiceError(
                Reason.SHARD_MOVING, f"{self._shard.name} has moved", {"shard": self._shard.name}
            )
        if self._lookout is not None and self._lookout.done():
            self._lookout.result()
        if self.durable <= version:
            news = self._news
            try:
                async with asyncio.timeout(TICK_S):
                    await news.wait()
            except TimeoutError:
                pass
        return self.durable

    async def _look_out(self, store: Store) -> None:
        try:
            while True:
                self._touched.clear()
                version = store.last_version
                if version > self.durable:
                    await self._flushed(store)
                    self.durable = version
                self.wake()
                self._try_pin(store)
                try:
                    async with asyncio.timeout(TICK_S):
                        await self._touched.wait()
                except TimeoutError:
                    continue
        finally:
            self.wake()

    async def _flushed(self, store: Store) -> None:
        """Return when all that has been written is on disk.

        Raises STORE_READ_ONLY when it cannot get there.
        """
        stats = store.stats()
        epoch = int(stats["epoch"])
        for _ in range(EPOCH_POLLS_MAX):
            # The open epoch may hold nothing, and stay open.
            if int(stats["durable_epoch"]) >= epoch or stats["unflushed_bytes"] == 0:
                return
            await asyncio.sleep(EPOCH_POLL_S)
            stats = store.stats()
        try:
            await self._shard.durable(epoch)
        except ServiceError as error:
            if error.reason is not Reason.OUTCOME_UNKNOWN:
                raise
            raise ServiceError(Reason.STORE_READ_ONLY, error.message) from error

    # Reading.

    async def read(self, after: int, until: int) -> list[Change]:
        """The next changes with versions above `after` and at most `until`; empty = none is left.

        Raises WATCH_POSITION_LOST, SHARD_MOVING when the store is gone, and EngineError.
        """
        async with self._reading:
            page = self._page
            if not (page.changes and page.after <= after < page.changes[-1].version):
                try:
                    changes = await self._shard.aside(
                        Store.read_log,
                        after,
                        limit=SCAN_PAGE_RECORDS_MAX,
                        bytes_max=SCAN_PAGE_BYTES,
                    )
                except LogTrimmed as error:
                    raise position_lost(str(error), self._shard.name) from error
                page = self._page = _Page(after, changes)
        first = bisect_right(page.changes, after, key=_version_of)
        end = bisect_right(page.changes, until, key=_version_of)
        return page.changes[first:end]


def _version_of(change: Change) -> int:
    return change.version


def _appended_bytes(store: Store) -> int:
    return int(store.stats()["log_bytes_appended"])
