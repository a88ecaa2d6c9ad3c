"""Scans across shards.

A node streams one shard and ends with the cursor of the next, so a scan of a table is the scans of
its shards one after the other.  A cursor is a position in hash space, so whatever interrupts a
scan - a move, a restart, a lost connection - it goes on behind the last page that was passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from deodar.contract.reasons import Reason, ServiceError
from deodar.v1 import kv_pb2

from .forward import Forwarder
from .messages import parse, scan_path
from .retry import AnswerLost, Attempts, Deadline
from .routing import Target

# How long a scan without a deadline waits for one page.
PAGE_S: Final = 30.0


class _Position:
    """Where a scan stands."""

    def __init__(self, request: kv_pb2.ScanRequest) -> None:
        self._request = request
        self._limited = request.limit > 0
        self.path = scan_path(request)
        self.done = False

    def request(self) -> bytes:
        return self._request.SerializeToString()

    def advance(self, page: kv_pb2.ScanResponse) -> None:
        """Raises INTERNAL when a node breaks the rules of a page."""
        if self._limited:
            if len(page.records) > self._request.limit:
                raise ServiceError(Reason.INTERNAL, "a node sent more records than asked for")
            self._request.limit -= len(page.records)
        if page.cursor == self._request.cursor and page.cursor:
            raise ServiceError(Reason.INTERNAL, "a node sent a cursor that does not move")
        self._request.cursor = page.cursor
        self.path = scan_path(self._request)
        self.done = not page.cursor or (self._limited and self._request.limit == 0)


async def scan(
    forwarder: Forwarder, data: bytes, deadline: Deadline | None
) -> AsyncIterator[bytes]:
    """The pages of a scan as the nodes sent them; without a deadline it may take for ever, but
    never more than `PAGE_S` for a page."""
    request = parse(kv_pb2.ScanRequest, data)
    position = _Position(request)
    attempts: Attempts | None = None
    while not position.done:
        revision = forwarder.routing.revision
        try:
            table = forwarder.routing.table(request.table)
            target = forwarder.routing.locate(table, position.path)
            pages = _pages(forwarder, target, position.request(), deadline)
            moved = False
            async with aclosing(pages):
                async for page, answer in pages:
                    position.advance(page)
                    attempts, moved = None, True
                    yield answer
                    if position.done:
                        break
            if not moved:
                message = f"node {target.node} ended a scan without a page"
                raise ServiceError(Reason.INTERNAL, message, target.facts())
        except ServiceError as error:
            attempts = attempts or Attempts(deadline or Deadline())
            await forwarder.pause(error, attempts, revision, write=False)


async def _pages(
    forwarder: Forwarder, target: Target, request: bytes, deadline: Deadline | None
) -> AsyncGenerator[tuple[kv_pb2.ScanResponse, bytes], None]:
    """The pages of one shard from the cursor of the request; ends where its node ends."""
    async with forwarder.stream(target, "Scan", request, deadline) as answers:
        while True:
            try:
                async with asyncio.timeout(PAGE_S):
                    answer = await answers.read()
            except TimeoutError as error:
                message = f"node {target.node} sent no page for {PAGE_S:.0f} s"
                raise AnswerLost(Reason.DEADLINE_EXCEEDED, message, target.facts()) from error
            if not isinstance(answer, bytes):
                return  # the end of the stream
            yield kv_pb2.ScanResponse.FromString(answer), answer
