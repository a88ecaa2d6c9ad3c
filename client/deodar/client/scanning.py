"""The state of one scan: what to ask next, and where it stands.

A cursor is a place in (path, key) order, so the place behind any record follows from its key: a
scan can be taken up behind every single record, on any server and at any later time.
"""

from __future__ import annotations

from dataclasses import dataclass

from deodar.contract.keypath import cursor_path, path_bytes, path_of
from deodar.contract.reasons import Reason
from deodar.v1.kv_pb2 import ScanRequest, ScanResponse

from .errors import Internal
from .plan import Failure, Pause
from .records import Item
from .requests import invalid
from .retry import Attempts
from .routing import Routing, Target


def cursor_behind(key: bytes) -> bytes:
    """The place behind the record of `key`."""
    return path_bytes(path_of(key)) + key


@dataclass(frozen=True, slots=True)
class Stream:
    """One Scan call to make."""

    target: Target
    request: ScanRequest
    timeout_s: float


class ScanState:
    """Which stream to open next, through failures and from shard to shard.

    `timeout_s` bounds the wait for progress, not the whole scan: a stream that has brought
    something is followed by another one with a new deadline.
    """

    def __init__(self, routing: Routing, request: ScanRequest, timeout_s: float) -> None:
        try:
            cursor_path(request.cursor)
        except ValueError as error:
            raise invalid("cursor", str(error)) from error
        self._routing = routing
        self._request = request
        self._timeout_s = timeout_s
        self._attempts = Attempts(routing, timeout_s)
        self._remaining = request.limit or None
        self._progress = False  # of the open stream
        self.cursor: bytes | None = request.cursor  # place behind the last page; None = the end

    @property
    def done(self) -> bool:
        return self.cursor is None or self._remaining == 0

    def open(self) -> Stream:
        """The next stream; only while not `done`."""
        assert self.cursor is not None
        if self._progress:
            self._attempts = Attempts(self._routing, self._timeout_s)
            self._progress = False
        target = self._routing.target(
            self._request.table, cursor_path(self.cursor), newer_than=self._attempts.newer_than
        )
        request = ScanRequest()
        request.CopyFrom(self._request)
        request.cursor = self.cursor
        request.limit = self._remaining or 0
        return Stream(target, request, self._attempts.remaining_s)

    def page(self, response: ScanResponse) -> list[Item]:
        """Takes in a page of the stream and returns its items."""
        items = [
            Item(
                record.key,
                record.value,
                record.version,
                record.ttl_ms if record.HasField("ttl_ms") else None,
            )
            for record in response.records
        ]
        cursor = response.cursor or None
        self._progress |= cursor != self.cursor
        self.cursor = cursor
        if self._remaining is not None:
            self._remaining = max(self._remaining - len(items), 0)
        return items

    def ended(self, stream: Stream) -> None:
        """The stream ended well, which without progress no server's stream does."""
        if not self._progress:
            message = f"{stream.target.address} ended a scan without progress"
            raise Internal(message, Reason.INTERNAL)

    def failed(self, failure: Failure, stream: Stream) -> Pause | None:
        """The pause before the next stream; raises when there is none.

        Running into the deadline after progress is no failure: the reader was slow.
        """
        if self._progress:
            if failure.error.reason is Reason.DEADLINE_EXCEEDED:
                return None
            self._attempts = Attempts(self._routing, self._timeout_s)
        return self._attempts.after(failure, stream.target)
