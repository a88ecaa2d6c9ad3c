"""A lease that keeps itself alive and knows by the local clock when it can no longer be sure.

L1: the end is counted from when the last good keep-alive was *sent*; the registry counts from when
    it arrived, which is later, so the holder always stops first.
L2: once lost, a lease stays lost, whatever answers arrive afterwards.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final, Protocol

import structlog

from .backoff import Backoff
from .interface import OutcomeUnknown, RegistryError, RegistryUnavailable
from .tasks import start_task, stop_task

# Keep-alives a ttl: two may be lost before the third is too late.
KEEPS_PER_TTL: Final = 3

_log = structlog.get_logger(__name__)


def now_ms() -> float:
    """Milliseconds of a clock that no one can set and that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


class LeaseKeeper(Protocol):
    """The registry's side of a lease."""

    async def keep_lease(self, lease_id: int, timeout_ms: float) -> int:
        """Renew it and return its new ttl in milliseconds; 0 = it is gone."""

    async def revoke_lease(self, lease_id: int) -> None: ...


class KeptLease:
    """A granted lease; `sent_ms` is when its grant was sent, by `now_ms`."""

    def __init__(self, keeper: LeaseKeeper, lease_id: int, ttl_ms: int, sent_ms: float) -> None:
        self._keeper = keeper
        self._id = lease_id
        self._ttl_ms = ttl_ms
        self._end_ms = sent_ms + ttl_ms
        self._lost = asyncio.Event()
        self._task = start_task(self._keep(), f"lease {lease_id:x}")

    @property
    def id(self) -> int:
        return self._id

    @property
    def ttl_ms(self) -> int:
        return self._ttl_ms

    @property
    def lost(self) -> bool:
        return self.remaining_ms == 0

    @property
    def remaining_ms(self) -> int:
        if not self._lost.is_set() and now_ms() >= self._end_ms:
            self._lost.set()
        return 0 if self._lost.is_set() else max(1, int(self._end_ms - now_ms()))

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def revoke(self) -> None:
        await self.stop()
        await self._keeper.revoke_lease(self._id)

    async def stop(self) -> None:
        self._lost.set()
        await stop_task(self._task)

    async def _keep(self) -> None:
        backoff = Backoff(first_s=0.05, longest_s=self._ttl_ms / KEEPS_PER_TTL / 1000)
        pause_ms = self._ttl_ms / KEEPS_PER_TTL
        while not self.lost:
            await self._sleep(pause_ms)
            if self.lost:
                break
            sent_ms = now_ms()
            timeout_ms = min(self._end_ms - sent_ms, self._ttl_ms / KEEPS_PER_TTL)
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    ttl_ms = await self._keeper.keep_lease(self._id, timeout_ms)
            except (RegistryUnavailable, OutcomeUnknown, TimeoutError) as error:
                _log.warning("lease not renewed", remaining_ms=self.remaining_ms, error=str(error))
                pause_ms = backoff.next_s() * 1000
                continue
            except RegistryError as error:
                _log.error("lease refused", error=str(error))
                break
            if ttl_ms == 0 or self.lost:
                break
            self._end_ms = sent_ms + ttl_ms
            self._ttl_ms = ttl_ms
            pause_ms = ttl_ms / KEEPS_PER_TTL
            backoff.reset()
        self._lost.set()
        _log.warning("lease lost", lease=f"{self._id:x}")

    async def _sleep(self, milliseconds: float) -> None:
        """Until the time is over, the lease is revoked, or its end."""
        until_end_ms = max(0.0, self._end_ms - now_ms())
        with suppress(TimeoutError):
            async with asyncio.timeout(min(milliseconds, until_end_ms) / 1000):
                await self._lost.wait()
