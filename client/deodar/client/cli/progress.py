"""Watching a cluster until it is as it should be."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from deodar.client.admin import AdminClient
from deodar.client.errors import DeadlineExceeded, Unavailable
from deodar.v1.admin_pb2 import ClusterStatusResponse

from .output import CommandError, json_mode, stderr

POLL_S: Final = 0.25

# What is done and what there is to do in all, and whether that is it.
Measure = Callable[[ClusterStatusResponse], tuple[int, int, bool]]


def wait_for(
    client: AdminClient,
    what: str,
    measure: Measure,
    wait_s: float,
    check: Callable[[], None] = lambda: None,
) -> ClusterStatusResponse:
    """Polls the status with a progress bar until `measure` says done; calls `check` each time.

    Raises CommandError after `wait_s` without progress.
    """
    console = stderr()
    last_done, progressed = -1, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=json_mode() or not console.is_terminal,
    ) as progress:
        task = progress.add_task(what, total=None, note="")
        while True:
            check()
            try:
                status = client.status()
            except (Unavailable, DeadlineExceeded) as error:
                note = error.message
            else:
                done, total, finished = measure(status)
                if finished:
                    return status
                if done != last_done:
                    last_done, progressed = done, time.monotonic()
                note = f"{done} of {total} shards" + _moving(status)
                progress.update(task, completed=done, total=total)
            progress.update(task, note=note)
            if time.monotonic() - progressed > wait_s:
                raise CommandError(f"{what}: no progress for {wait_s:.0f} s ({note})")
            time.sleep(POLL_S)


def _moving(status: ClusterStatusResponse) -> str:
    keys = [shard.moved_keys for shard in status.shards if shard.shard.target]
    return f", {len(keys)} moving, {sum(keys):,} keys copied" if keys else ""
