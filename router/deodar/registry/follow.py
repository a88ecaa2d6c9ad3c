"""The loop of every watch: list, follow from there, resume, and start over after a compaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import structlog

from .backoff import Backoff
from .interface import Changes, Compacted, OutcomeUnknown, RegistryUnavailable, Snapshot

_log = structlog.get_logger(__name__)


async def follow(
    read: Callable[[], Awaitable[Snapshot]],
    changes_after: Callable[[int], AsyncGenerator[Changes, None]],
    *,
    prefix: str,
) -> AsyncIterator[Snapshot | Changes]:
    """Snapshots and changes as `Registry.watch` promises them.

    `changes_after(revision)` opens one stream of what lies behind a revision; it ends with
    RegistryUnavailable when the stream is lost and with Compacted when the revision is too old, or
    is one that the registry has never reached (it was restored from a backup).
    """
    backoff = Backoff()
    revision: int | None = None
    while True:
        try:
            if revision is None:
                snapshot = await read()
                revision = snapshot.revision
                yield snapshot
            async with aclosing(changes_after(revision)) as stream:
                async for changes in stream:
                    if changes.events and changes.revision <= revision:
                        raise Compacted(f"changes of {changes.revision} came after {revision}")
                    backoff.reset()
                    revision = max(revision, changes.revision)
                    yield changes
        except Compacted as error:
            _log.warning("watch starts over", prefix=prefix, revision=revision, error=str(error))
            revision = None
        except (RegistryUnavailable, OutcomeUnknown) as error:
            _log.warning("watch lost", prefix=prefix, revision=revision, error=str(error))
        await backoff.wait()
