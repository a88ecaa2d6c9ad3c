"""When a call to a node is tried again, and after which pause.

What a node refused with Retry.REROUTE was not done: the map is out of date or the shard is on its
way, so the call is tried again until its own deadline or `REROUTE_S`.  An answer that was lost
after the call was sent says nothing: reads are tried again, writes never.  Everything else belongs
to the caller.
"""

from __future__ import annotations

import random
import time
from typing import Final

from deodar.contract.reasons import Reason, Retry, ServiceError

CALL_S: Final = 30.0  # deadline of a call that came without one
REROUTE_S: Final = 5.0  # how long one call is tried again
CREATING_S: Final = 1.0  # how long one call waits for a shard that is being made
PAUSE_MS: Final = 10  # first pause where the reason names none
PAUSE_MS_MAX: Final = 200


class AnswerLost(ServiceError):  # noqa: N818
    """The call was sent and the transport failed: NODE_UNREACHABLE for a read, OUTCOME_UNKNOWN for
    a write."""


class NotServedYet(ServiceError):  # noqa: N818
    """The map has no store for the shard yet: SHARD_UNAVAILABLE if it stays so."""


class Deadline:
    """A moment of the monotonic clock."""

    __slots__ = ("at",)

    def __init__(self, remaining_s: float | None = None) -> None:
        """None = the caller set no deadline: `CALL_S` from now."""
        self.at = time.monotonic() + (CALL_S if remaining_s is None else remaining_s)

    @property
    def remaining_s(self) -> float:
        return max(self.at - time.monotonic(), 0.0)


def may_retry(error: ServiceError, *, write: bool) -> bool:
    """Whether the same call may be sent again by the router itself."""
    if isinstance(error, AnswerLost):
        return not write and error.reason is Reason.NODE_UNREACHABLE
    return isinstance(error, NotServedYet) or error.rule.retry is Retry.REROUTE


class Attempts:
    """The attempts of one call."""

    def __init__(self, deadline: Deadline, patience_s: float | None = None) -> None:
        """`patience_s`: how long to try again, instead of what the error asks for."""
        self._patience_s = patience_s
        self._deadline = deadline
        self._began = time.monotonic()
        self._failures = 0

    def pause_s(self, error: ServiceError) -> float | None:
        """The pause before the next attempt, doubled each time and jittered; None = give up."""
        limit_s = CREATING_S if isinstance(error, NotServedYet) else REROUTE_S
        if self._patience_s is not None:
            limit_s = self._patience_s
        left_s = min(self._began + limit_s - time.monotonic(), self._deadline.remaining_s)
        first_ms = error.rule.retry_after_ms or PAUSE_MS
        full_ms = min(first_ms << min(self._failures, 8), max(PAUSE_MS_MAX, first_ms))
        self._failures += 1
        pause_s = full_ms * random.uniform(0.5, 1.0) / 1000
        return pause_s if pause_s < left_s else None

    def given_up(self, error: ServiceError) -> ServiceError:
        """What the caller gets for the last error: REROUTE is between servers only."""
        if error.rule.retry is not Retry.REROUTE:
            return error
        message = f"not served within {time.monotonic() - self._began:.1f} s: {error.message}"
        cause = error.metadata | {"cause": error.reason.value}
        return ServiceError(Reason.SHARD_UNAVAILABLE, message, cause)
