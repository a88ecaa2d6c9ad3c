"""Threads for engine calls that may block; the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Two pools, so that calls which wait for a flush never keep the others from running."""

    def __init__(self, work_threads: int = 4, flush_threads: int = 16) -> None:
        self._work = ThreadPoolExecutor(work_threads, thread_name_prefix="work")
        self._flush = ThreadPoolExecutor(flush_threads, thread_name_prefix="flush")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that computes or reads; its exceptions are raised here.

        When the waiting task is cancelled the call itself runs on to its end.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._work, partial(function, *args, **kwargs))

    async def run_flush(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for calls that wait until something is on disk."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._flush, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Wait for the running calls and end the threads."""
        self._work.shutdown()
        self._flush.shutdown()
