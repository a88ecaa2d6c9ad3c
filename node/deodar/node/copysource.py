"""The source's end of a move up to the fence: records in hash order, then the log, endlessly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TypeVar

from deodar.contract.limits import SCAN_PAGE_BYTES, SCAN_PAGE_RECORDS_MAX
from deodar.contract.reasons import Reason, ServiceError
from deodar.engine import Change, Item, Store
from deodar.v1.replication_pb2 import CopyShardResponse, ShardChange

from .shard import HostedShard

# Between two looks at a log that had nothing new; also how often a quiet stream shows it lives.
LOG_POLL_S = 0.01

Entry = TypeVar("Entry", Item, Change)


def chunks(entries: Iterable[Entry], bytes_max: int = SCAN_PAGE_BYTES) -> Iterator[list[Entry]]:
    """Cut a page so that each part is at most `bytes_max`, or a single larger entry: a page may
    end with a value that fills a message by itself."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        entry_bytes = len(entry.key) + len(entry.value or b"")
        if part and size + entry_bytes > bytes_max:
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry_bytes
    if part:
        yield part


def to_change(entry: Item | Change) -> ShardChange:
    return ShardChange(
        key=entry.key,
        value=entry.value,
        version=entry.version,
        deadline_ms=entry.deadline_ms,
    )


async def copy_stream(
    shard: HostedShard, is_current: Callable[[], bool]
) -> AsyncGenerator[CopyShardResponse, None]:
    """Messages of CopyShard, until the caller closes it or the move is no longer `is_current`.

    The log is pinned from before the first record is read: a change during the copy is in the
    copy, in the log, or in both, and applying it twice is harmless since versions decide.
    Raises STALE_MOVE, SHARD_MOVING (store gone), EngineError.
    """
    store = shard.store
    if store is None:
        raise ServiceError(Reason.SHARD_UNAVAILABLE, f"{shard.name} has no store here")
    version = store.last_version
    token = store.pin_log(version)
    try:
        cursor: bytes | None = b""
        while cursor is not None:
            _check(is_current, shard)
            items, cursor = await shard.aside(
                Store.scan_page, cursor, limit=SCAN_PAGE_RECORDS_MAX, bytes_max=SCAN_PAGE_BYTES
            )
            for part in chunks(items):
                yield CopyShardResponse(changes=map(to_change, part))
        yield CopyShardResponse(copied=True, version=version, behind=store.last_version - version)
        while True:
            _check(is_current, shard)
            newest = store.last_version
            changes = await shard.aside(
                Store.read_log, version, limit=SCAN_PAGE_RECORDS_MAX, bytes_max=SCAN_PAGE_BYTES
            )
            for changes_part in chunks(changes):
                version = changes_part[-1].version
                yield CopyShardResponse(
                    changes=map(to_change, changes_part),
                    version=version,
                    behind=max(store.last_version - version, 0),
                )
            if not changes:
                version = max(version, newest)
                yield CopyShardResponse(version=version, behind=store.last_version - version)
                await asyncio.sleep(LOG_POLL_S)
    finally:
        if shard.store is store:
            store.unpin_log(token)


def _check(is_current: Callable[[], bool], shard: HostedShard) -> None:
    if not is_current():
        raise ServiceError(Reason.STALE_MOVE, f"the move of {shard.name} is over")
