"""Tasks that run beside everything else and must not end unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


def start_task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task whose fault, if it ever ends by one, is logged at once."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_fault)
    return task


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended.  Idempotent."""
    task.cancel()
    await asyncio.wait({task})


def _log_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("task ended by a fault", task=task.get_name(), exc_info=task.exception())
