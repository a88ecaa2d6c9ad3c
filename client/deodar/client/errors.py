"""What a call may raise: one exception for each thing a caller can do about it.

Three kinds of failure are told apart.  *Refused*: nothing was done, and the caller has to change
something.  *Unavailable*: nothing was done, and the same call may succeed later.  *Outcome
unknown*: a write was sent and its answer was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deodar.contract.reasons import RULES, Reason, ServiceError


class Error(Exception):
    """Base of all; `reason` is one of `deodar.contract.reasons.Reason`, `metadata` its facts."""

    def __init__(
        self, message: str, reason: Reason, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})

    @property
    def retry_after_ms(self) -> int | None:
        """Milliseconds after which the same call is worth repeating; None where waiting is vain."""
        return RULES[self.reason].retry_after_ms


class InvalidArgument(Error):  # noqa: N818
    """Something in the call is not allowed; `field` names it."""

    @property
    def field(self) -> str:
        return self.metadata.get("field", "")


class NotFound(Error):  # noqa: N818
    """The table, node or shard named does not exist.  An absent key is not an error."""


class ConditionFailed(Error):  # noqa: N818
    """`if_version` or `if_absent` did not hold; nothing was written."""

    @property
    def current_version(self) -> int | None:
        """Version of the record that is there; None when there is none."""
        text = self.metadata.get("current_version")
        return None if text is None else int(text)


class NotANumber(Error):  # noqa: N818
    """The value to increment is not a signed 64-bit decimal number; it stays as it is."""


class OutOfRange(Error):  # noqa: N818
    """The sum does not fit in 64 bits (the value stays), or a position is no longer kept."""


class WatchPositionLost(OutOfRange):
    """The changes behind the position are not all there any more: scan, and watch from now on."""


class LimitExceeded(Error):  # noqa: N818
    """The request or its answer is larger than the service allows."""


class Overloaded(Error):  # noqa: N818
    """The server has too much to do; nothing was done, try again after `retry_after_ms`."""


class DiskFull(Error):  # noqa: N818
    """No space for the write; reads and deletes go on."""


class Corruption(Error):  # noqa: N818
    """Damage was detected; `metadata` names the file, the offset and the rule that is broken."""


class Unavailable(Error):  # noqa: N818
    """Nobody could do it now.  Nothing was done, so the same call may be repeated."""


class ShardUnavailable(Unavailable):
    """No node serves the key's shard at present."""


class NodeUnreachable(Unavailable):
    """No connection to the server could be made."""


class NotEnoughReplicas(Unavailable):
    """The durability asked for cannot be met."""


class ReadOnly(Unavailable):
    """The store takes no writes any more, after a failed write to disk."""


class DeadlineExceeded(Error):  # noqa: N818
    """The time was up and nothing was changed: the call was a read, or never left."""


class OutcomeUnknown(Error):  # noqa: N818
    """A write was sent and its answer was lost: it may have been done or not.  Read to find out."""


class Refused(Error):  # noqa: N818
    """The cluster will not do this now, such as a move of a shard that is moving."""


class Internal(Error):  # noqa: N818
    """A fault of the server, with its trace in the server's log."""


class BatchError(Error):
    """Some keys or operations of a batch failed; `results` tells about each.

    `results` is aligned with what was asked: what would have been returned, or the `Error`.  The
    message and the reason are those of the first failure.
    """

    def __init__(self, results: Sequence[object]) -> None:
        failures = {i: item for i, item in enumerate(results) if isinstance(item, Error)}
        index, first = next(iter(failures.items()))
        super().__init__(
            f"{len(failures)} of {len(results)} failed; number {index}: {first.message}",
            first.reason,
            first.metadata,
        )
        self.results = list(results)
        self.failures = failures


class Closed(Error):  # noqa: N818
    """The client was closed, or belongs to the process that this one was forked from."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Reason.SHUTTING_DOWN)


ERRORS: Final[dict[Reason, type[Error]]] = {
    Reason.INVALID_FIELD: InvalidArgument,
    Reason.UNKNOWN_TABLE: NotFound,
    Reason.UNKNOWN_NODE: NotFound,
    Reason.UNKNOWN_SHARD: NotFound,
    Reason.CONDITION_FAILED: ConditionFailed,
    Reason.NOT_A_NUMBER: NotANumber,
    Reason.OUT_OF_RANGE: OutOfRange,
    Reason.DISK_FULL: DiskFull,
    Reason.LIMIT_EXCEEDED: LimitExceeded,
    Reason.OVERLOADED: Overloaded,
    Reason.STORE_READ_ONLY: ReadOnly,
    Reason.CORRUPTION: Corruption,
    Reason.MOVED: Unavailable,
    Reason.SHARD_MOVING: Unavailable,
    Reason.SHARD_UNAVAILABLE: ShardUnavailable,
    Reason.NODE_UNREACHABLE: NodeUnreachable,
    Reason.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    Reason.OUTCOME_UNKNOWN: OutcomeUnknown,
    Reason.DEADLINE_EXCEEDED: DeadlineExceeded,
    Reason.REGISTRY_UNAVAILABLE: Unavailable,
    Reason.COMPACTED: OutOfRange,
    Reason.WATCH_POSITION_LOST: WatchPositionLost,
    Reason.SHUTTING_DOWN: Unavailable,
    Reason.LEASE_LOST: Refused,
    Reason.STALE_MOVE: Refused,
    Reason.MOVE_REFUSED: Refused,
    Reason.INTERNAL: Internal,
}


def error_of(failure: ServiceError) -> Error:
    """The exception for a failure as the wire has it."""
    return ERRORS[failure.reason](failure.message, failure.reason, failure.metadata)
