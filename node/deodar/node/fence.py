"""The source's end of a move, from the fence on (step 5 of replication.proto).

A fenced shard acts on the record alone, as read from the registry: the target may already be
serving, so no clock and no silence lets the source serve again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from .record import ShardRecords, is_move, without_move
from .shard import HostedShard, ShardState

POLL_S = 0.1
# A fence ends within the time of a last read of the log, a digest and a sync.  The source takes a
# move that lasts longer out of the record even though its target lives.
FENCE_S_MAX = 20.0

_log = structlog.get_logger(__name__)


async def follow_fence(
    shard: HostedShard,
    records: ShardRecords,
    target_lives: Callable[[str], bool],
    *,
    abort: bool = False,
) -> None:
    """Return when the fenced shard serves again, or is another node's by the record.

    `abort` takes the move out at once: of a source that restarted, because the fence that its
    earlier self may have promised is forgotten.  Dropping the store is the caller's.
    """
    give_up = monotonic() + FENCE_S_MAX
    while shard.state is ShardState.FENCED:
        found = await records.read(shard.table, shard.prefix)
        if found is None:
            _log.error("record of a fenced shard is gone", shard=shard.name)
            await asyncio.sleep(POLL_S)
            continue
        record, revision = found
        if record.term > shard.term:
            return
        if not is_move(record, shard.term, shard.move_id):
            shard.unfence()
            return
        if abort:
            failure = "the source restarted"
        elif monotonic() >= give_up:
            failure = f"it did not end within {FENCE_S_MAX:.0f} s of the fence"
        elif not target_lives(record.target):
            failure = f"node {record.target} is down"
        else:
            failure = ""
        if failure:
            changed = await records.change(without_move(record, failure), revision)
            _log.info("move taken out by its source", shard=shard.name, changed=changed)
            continue
        await asyncio.sleep(POLL_S)
