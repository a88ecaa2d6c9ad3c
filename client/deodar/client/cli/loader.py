"""Writes many records through a client: in batches, several in flight, in bounded memory.

Records are spread over lanes by the place of their key in the hash space, and a lane has one batch
in flight, so two writes of one key never overtake each other: the last one wins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from deodar.client.client import Client
from deodar.client.errors import BatchError, Error
from deodar.client.records import Durability
from deodar.contract.keypath import PATH_BITS, path_of
from deodar.contract.reasons import RULES, Reason, Retry

from .output import CommandError
from .readers import Bad, Parsed

LANE_BITS: Final = 2
BATCH_OPERATIONS: Final = 500
BATCH_BYTES: Final = 1_048_576
# How long a batch is tried when the cluster cannot take it now.
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.25

# A put of the same bytes may be repeated, so that an unknown outcome is no end.
_UNSETTLED: Final = (Reason.OUTCOME_UNKNOWN, Reason.DEADLINE_EXCEEDED)


class Loader:
    """`refused` is called, from the thread that uses the loader, for each record refused."""

    def __init__(
        self,
        client: Client,
        table: str,
        durability: Durability | None,
        refused: Callable[[Bad], None],
    ) -> None:
        self._client = client
        self._table = table
        self._durability = durability
        self._refused = refused
        self._pool = ThreadPoolExecutor(1 << LANE_BITS, thread_name_prefix="deodar-load")
        self._lanes = [_Lane() for _ in range(1 << LANE_BITS)]
        self._stopping = threading.Event()  # the loader is left early: waits end
        self.written = 0

    def add(self, record: Parsed) -> None:
        """Takes a record; waits while its lane is full.  Raises as `finish` does."""
        lane = self._lanes[path_of(record.put.key) >> (PATH_BITS - LANE_BITS)]
        size = len(record.put.key) + len(record.put.value)
        if lane.batch and (len(lane.batch) == BATCH_OPERATIONS or lane.size + size > BATCH_BYTES):
            self._flush(lane)
        lane.batch.append(record)
        lane.size += size

    def finish(self) -> None:
        """Waits until all is written.

        Raises CommandError when the cluster did not take a batch for `PATIENCE_S`.
        """
        for lane in self._lanes:
            self._flush(lane)
        for lane in self._lanes:
            self._settle(lane)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stopping.set()
        self._pool.shutdown(cancel_futures=True)

    def _flush(self, lane: _Lane) -> None:
        self._settle(lane)
        if lane.batch:
            lane.count = len(lane.batch)
            lane.sent = self._pool.submit(self._write, lane.batch)
            lane.batch, lane.size = [], 0

    def _settle(self, lane: _Lane) -> None:
        if lane.sent is None:
            return
        sent, lane.sent = lane.sent, None
        refused = sent.result()
        self.written += lane.count - len(refused)
        for bad in refused:
            self._refused(bad)

    def _write(self, batch: list[Parsed]) -> list[Bad]:
        """Writes one batch; the records that were refused."""
        refused: list[Bad] = []
        deadline = time.monotonic() + PATIENCE_S
        pending = batch
        while True:
            failures = self._attempt(pending)
            waiting = [record for record, error in failures if _may_pass(error)]
            final = [(record, error) for record, error in failures if not _may_pass(error)]
            if len(batch) == 1:
                refused += [Bad(record.line, str(error)) for record, error in final]
            else:
                # One bad operation may have taken its whole shard's part with it.
                for record, _ in final:
                    refused += self._write([record])
            if not waiting or self._stopping.is_set():
                return refused
            if time.monotonic() > deadline:
                error = next(error for _, error in failures if _may_pass(error))
                line = waiting[0].line
                message = f"gave up at line {line} after {PATIENCE_S:.0f} s: {error.message}"
                raise CommandError(message, reason=error.reason.value)
            self._stopping.wait(PAUSE_S)
            pending = waiting

    def _attempt(self, batch: list[Parsed]) -> list[tuple[Parsed, Error]]:
        try:
            self._client.batch_write(
                [record.put for record in batch], table=self._table, durability=self._durability
            )
        except BatchError as error:
            return [(batch[index], failure) for index, failure in error.failures.items()]
        except Error as error:
            return [(record, error) for record in batch]
        return []


class _Lane:
    """A share of the hash space: one batch being filled, one in flight."""

    def __init__(self) -> None:
        self.batch: list[Parsed] = []
        self.size = 0  # bytes of keys and values in `batch`
        self.sent: Future[list[Bad]] | None = None
        self.count = 0  # records in `sent`


def _may_pass(error: Error) -> bool:
    return RULES[error.reason].retry is not Retry.NEVER or error.reason in _UNSETTLED
