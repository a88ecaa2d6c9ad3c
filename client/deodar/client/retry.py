"""Whether a failed attempt is made again, and when: the same rules as a router's.

- A server's word that means "elsewhere" or "in a moment" (Retry.REROUTE) is repeated with a newer
  map until the deadline; nothing was done, so what the caller sees then is SHARD_UNAVAILABLE.
- A server that cannot be reached is passed by: a node by way of a router, a router by the next one.
  When no router can be reached for `CONNECT_S`, the call ends.
- A repeatable call whose answer was lost is made again.  A write is not: its outcome is unknown.
- Everything else is the answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from deodar.contract.reasons import Reason, Retry, ServiceError

from .errors import error_of
from .plan import Failure, Pause
from .routing import Routing, Target

CONNECT_S: Final = 2.0
PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5


class Attempts:
    """The attempts of one call."""

    def __init__(
        self,
        routing: Routing,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        connect_s: float | None = None,
    ) -> None:
        self._connect_s = CONNECT_S if connect_s is None else connect_s
        self._routing = routing
        self._clock = clock
        self._deadline = clock() + timeout_s
        self._pause_s = PAUSE_FIRST_S
        self._unreached_since: float | None = None
        # Nodes are chosen by a map newer than this only; an older one led to a failure.
        self.newer_than = -1

    @property
    def remaining_s(self) -> float:
        return self._deadline - self._clock()

    def after(self, failure: Failure, target: Target) -> Pause:
        """The pause before the next attempt; raises the call's error when there is none."""
        error = failure.error
        self.newer_than = max(self.newer_than, target.revision)
        if failure.by_server and error.rule.retry is Retry.REROUTE:
            least_s = (error.rule.retry_after_ms or 0) / 1000
            return self._pause(max(self._next_pause_s(), least_s), error)
        if failure.by_server or error.reason is not Reason.NODE_UNREACHABLE:
            raise error_of(error)
        self._routing.avoid(target)
        if target.is_node:
            return self._pause(0.0, error)
        now = self._clock()
        if self._unreached_since is None:
            self._unreached_since = now
        if now - self._unreached_since >= self._connect_s:
            raise error_of(error)
        return self._pause(self._next_pause_s(), error)

    def again(self, error: ServiceError, target: Target) -> Pause:
        """The pause before the same is tried once more, whatever the error; raises it when the time
        is up."""
        self.newer_than = max(self.newer_than, target.revision)
        return self._pause(
            max(self._next_pause_s(), (error.rule.retry_after_ms or 0) / 1000), error
        )

    def _next_pause_s(self) -> float:
        """Doubles up to a bound, with jitter so that many clients do not come at once."""
        pause = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        return pause

    def _pause(self, seconds: float, error: ServiceError) -> Pause:
        if self.remaining_s > seconds:
            return Pause(seconds, self.newer_than)
        if error.rule.retry is not Retry.REROUTE:
            raise error_of(error)
        cause = error.metadata | {"cause": error.reason.value}
        raise error_of(
            ServiceError(Reason.SHARD_UNAVAILABLE, f"not served in time: {error.message}", cause)
        )
