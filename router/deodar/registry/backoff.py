"""Waiting between attempts, longer each time and never in step with others."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Delays double from `first_s` to `longest_s`; each is drawn from its upper half."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 2.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The next delay, in seconds."""
        delay = self._next_s
        self._next_s = min(delay * 2, self._longest_s)
        return delay * random.uniform(0.5, 1.0)

    async def wait(self, *, at_most_s: float | None = None) -> None:
        delay = self.next_s()
        await asyncio.sleep(delay if at_most_s is None else max(0.0, min(delay, at_most_s)))
