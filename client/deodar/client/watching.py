"""The state of one watch: where to ask next, and behind which event.

A position stays good wherever the shards are served, so whatever ends a stream, the next one goes
on behind the last answer that was taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from deodar.contract.keypath import path_of
from deodar.contract.reasons import Reason
from deodar.contract.watchpos import WatchPosition
from deodar.v1.kv_pb2 import WATCH_EVENT_KIND_DELETE, WatchRequest, WatchResponse

from .plan import Failure, Pause
from .records import Event
from .requests import invalid
from .retry import Attempts
from .routing import Routing, Target

_MAY_COME_BACK: Final = (Reason.NODE_UNREACHABLE, Reason.SHARD_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class WatchStream:
    """One Watch call to make."""

    target: Target
    request: WatchRequest
    timeout_s: float  # until it has to be connected


class WatchState:
    """Which stream to open next.

    `timeout_s` bounds how long nobody may serve the watch, at its beginning and later.
    """

    def __init__(self, routing: Routing, request: WatchRequest, timeout_s: float) -> None:
        if request.position:
            try:
                WatchPosition.decode(request.position)
            except ValueError as error:
                raise invalid("position", str(error)) from error
        self._routing = routing
        self._request = request
        self._timeout_s = timeout_s
        self._attempts = self._new_attempts()
        self._answered = False  # by the open stream
        self._events: deque[Event] = deque()  # of the last answer, not taken yet
        self._before: bytes = request.position  # behind the answer before it
        self._taken: Event | None = None

    @property
    def position(self) -> bytes:
        """Behind the last event that was taken; empty before the watch stands."""
        if not self._events:
            position: bytes = self._request.position
            return position
        return self._before if self._taken is None else self._taken.position

    def take(self) -> Event | None:
        """The next event of the answers so far."""
        self._taken = self._events.popleft() if self._events else None
        return self._taken

    def open(self) -> WatchStream:
        """The next stream, behind the last answer."""
        request = WatchRequest()
        request.CopyFrom(self._request)
        return WatchStream(self._target(), request, self._attempts.remaining_s)

    def answer(self, response: WatchResponse) -> None:
        """Takes in an answer, once all events of the one before it are taken."""
        self._answered = True
        self._before = self._request.position
        self._request.position = response.position
        self._taken = None
        self._events.extend(
            Event(
                event.key,
                None if event.kind == WATCH_EVENT_KIND_DELETE else event.value,
                event.version,
                event.deadline_ms if event.HasField("deadline_ms") else None,
                response.position,
            )
            for event in response.events
        )

    def failed(self, failure: Failure, stream: WatchStream) -> Pause:
        """The pause before the next stream; raises when there is none."""
        if self._answered:
            self._attempts = self._new_attempts()
            self._answered = False
        if failure.by_server and failure.error.reason in _MAY_COME_BACK:
            return self._attempts.again(failure.error, stream.target)
        return self._attempts.after(failure, stream.target)

    def _target(self) -> Target:
        """The node of the key; a router joins the shards of a prefix."""
        if self._request.WhichOneof("selection") != "key":
            return self._routing.router_target()
        path = path_of(self._request.key)
        return self._routing.target(self._request.table, path, newer_than=self._attempts.newer_than)

    def _new_attempts(self) -> Attempts:
        return Attempts(self._routing, self._timeout_s, connect_s=self._timeout_s)
