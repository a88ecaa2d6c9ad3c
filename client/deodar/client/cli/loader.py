"""Writes many records through a client: in batches, several in flight, in bounded memory.

Records are spread over lanes by the place of their key in the hash space, and a lane has one batch
in flight, so two writes of one key never overtake each other: the last one wins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from deodar.client.client import Client
from deodar.client.errors import BatchError, Error
from deodar.client.records import Durability
from deodar.contract.keypath import PATH_BITS, path_of
from deodar.contract.reasons import RULES, Reason, Retry

from .readers import Bad, Parsed

LANE_BITS: Final = 2
BATCH_OPERATIONS: Final = 500
BATCH_BYTES: Final = 1_048_576
PAUSE_S: Final = 0.25

# A put of the same bytes may be repeated, so that an unknown outcome is no end.
_UNSETTLED: Final = (Reason.OUTCOME_UNKNOWN, Reason.DEADLINE_EXCEEDED)


class GaveUp(Exception):  # noqa: N818
    """The cluster did not take the record of a line for as long as the loader is patient."""

    def __init__(self, line: int, error: Error) -> None:
        super().__init__(f"gave up at line {line}: {error.message}")
        self.line = line
        self.error = error


class Loader:
    """A batch that the cluster cannot take now is tried for `patience_s` seconds.

    `refused` is called, from the thread that uses the loader, for each record refused.  `written`
    and `unknown`, records that may have been written, count what is settled: all after `finish`
    or `give_up`.
    """

    def __init__(
        self,
        client: Client,
        table: str,
        durability: Durability | None,
        refused: Callable[[Bad], None],
        patience_s: float,
    ) -> None:
        self._client = client
        self._table = table
        self._durability = durability
        self._refused = refused
        self._patience_s = patience_s
        self._pool = ThreadPoolExecutor(1 << LANE_BITS, thread_name_prefix="deodar-load")
        self._lanes = [_Lane() for _ in range(1 << LANE_BITS)]
        self._stopping = threading.Event()  # the loader is left early: waits end
        self.written = 0
        self.unknown = 0

    def add(self, record: Parsed) -> None:
        """Takes a record; waits while its lane is full.  Raises as `finish` does."""
        lane = self._lanes[path_of(record.put.key) >> (PATH_BITS - LANE_BITS)]
        size = len(record.put.key) + len(record.put.value)
        if lane.batch and (len(lane.batch) == BATCH_OPERATIONS or lane.size + size > BATCH_BYTES):
            self._flush(lane)
        lane.batch.append(record)
        lane.size += size

    def finish(self) -> None:
        """Waits until all is written; raises GaveUp."""
        for lane in self._lanes:
            self._flush(lane)
        for lane in self._lanes:
            self._settle(lane)

    def give_up(self) -> None:
        """Sends nothing more and waits for what is on its way."""
        self._stopping.set()
        for lane in self._lanes:
            lane.batch = []
            with suppress(GaveUp):
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
            deadline = time.monotonic() + self._patience_s
            lane.sent = self._pool.submit(self._write, lane.batch, deadline)
            lane.batch, lane.size = [], 0

    def _settle(self, lane: _Lane) -> None:
        if lane.sent is None:
            return
        sent, lane.sent = lane.sent, None
        outcome = sent.result()
        self.written += lane.count - len(outcome.refused) - outcome.left
        self.unknown += outcome.unknown
        for bad in outcome.refused:
            self._refused(bad)
        if outcome.gave_up is not None:
            raise outcome.gave_up

    def _write(self, batch: list[Parsed], deadline: float) -> _Outcome:
        """Writes one batch, as far as that is possible until the deadline (monotonic)."""
        outcome = _Outcome()
        in_doubt: set[int] = set()  # lines
        pending = batch
        while True:
            failures = self._attempt(pending, deadline)
            waiting = [record for record, error in failures if _may_pass(error)]
            final = [(record, error) for record, error in failures if not _may_pass(error)]
            if len(batch) == 1:
                outcome.refused += [Bad(record.line, str(error)) for record, error in final]
            else:
                # One bad operation may have taken its whole shard's part with it.
                for record, _ in final:
                    outcome.add(self._write([record], deadline))
            if not waiting:
                return outcome
            in_doubt.update(record.line for record, error in failures if error.reason in _UNSETTLED)
            if self._stopping.is_set() or time.monotonic() + PAUSE_S > deadline:
                error = next(error for _, error in failures if _may_pass(error))
                outcome.add(
                    _Outcome(
                        left=len(waiting),
                        unknown=sum(record.line in in_doubt for record in waiting),
                        gave_up=GaveUp(waiting[0].line, error),
                    )
                )
                return outcome
            self._stopping.wait(PAUSE_S)
            pending = waiting

    def _attempt(self, batch: list[Parsed], deadline: float) -> list[tuple[Parsed, Error]]:
        try:
            self._client.batch_write(
                [record.put for record in batch],
                table=self._table,
                durability=self._durability,
                timeout=max(deadline - time.monotonic(), PAUSE_S),
            )
        except BatchError as error:
            return [(batch[index], failure) for index, failure in error.failures.items()]
        except Error as error:
            return [(record, error) for record in batch]
        return []


@dataclass
class _Outcome:
    """What became of a batch; the records told of nowhere were written."""

    refused: list[Bad] = field(default_factory=list)
    left: int = 0  # records given up
    unknown: int = 0  # of those, records that may have been written
    gave_up: GaveUp | None = None

    def add(self, other: _Outcome) -> None:
        self.refused += other.refused
        self.left += other.left
        self.unknown += other.unknown
        self.gave_up = self.gave_up or other.gave_up


class _Lane:
    """A share of the hash space: one batch being filled, one in flight."""

    def __init__(self) -> None:
        self.batch: list[Parsed] = []
        self.size = 0  # bytes of keys and values in `batch`
        self.sent: Future[_Outcome] | None = None
        self.count = 0  # records in `sent`


def _may_pass(error: Error) -> bool:
    return RULES[error.reason].retry is not Retry.NEVER or error.reason in _UNSETTLED
