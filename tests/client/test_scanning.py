"""A scan is the same however it is cut: by limits, failures, deadlines, shards and resumption."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deodar
from deodar.client.core import Core
from deodar.client.plan import Failure
from deodar.client.routing import Routing
from deodar.client.scanning import ScanState, Stream, cursor_behind
from deodar.contract.keypath import cursor_path, path_bytes, path_of
from deodar.contract.reasons import Reason, ServiceError
from deodar.v1 import kv_pb2
from tests.client.test_routing import FIRST, full_map

KEYS = sorted((f"key-{number}".encode() for number in range(60)), key=lambda k: (path_of(k), k))
HALF = 1 << 127


def place(cursor: bytes) -> tuple[int, bytes]:
    return cursor_path(cursor), cursor[16:]


def serve(stream: Stream, source: random.Random) -> Iterator[kv_pb2.ScanResponse | Failure]:
    """What a node or a router answers, in pages of random size, broken off at random."""
    request = stream.request
    end = HALF if stream.target.is_node and cursor_path(request.cursor) < HALF else 1 << 128
    left = request.limit or len(KEYS)
    cursor = request.cursor
    while True:
        if source.random() < 0.3:
            reason = source.choice([Reason.NODE_UNREACHABLE, Reason.DEADLINE_EXCEEDED])
            if reason is Reason.NODE_UNREACHABLE or cursor != request.cursor:
                yield Failure(ServiceError(reason, "why"), by_server=False)
                return
        ready = [
            key
            for key in KEYS
            if (path_of(key), key) > place(cursor)
            and path_of(key) < end
            and key.startswith(request.key_prefix)
        ]
        page = ready[: min(source.randint(1, 7), left)]
        left -= len(page)
        last = len(page) == len(ready)
        cursor = (b"" if end > HALF else path_bytes(HALF)) if last else cursor_behind(page[-1])
        yield kv_pb2.ScanResponse(
            records=[kv_pb2.Record(key=key, version=1) for key in page], cursor=cursor
        )
        if last or not left:
            return


def run(state: ScanState, source: random.Random) -> list[bytes]:
    keys: list[bytes] = []
    while not state.done:
        stream = state.open()
        failure = None
        for answer in serve(stream, source):
            if isinstance(answer, Failure):
                failure = answer
            else:
                keys += [item.key for item in state.page(answer)]
        if failure is None:
            state.ended(stream)
        else:
            state.failed(failure, stream)
    return keys


def scan(*, smart: bool = True, **arguments: Any) -> ScanState:
    routing = Routing([FIRST], smart=smart)
    routing.update(full_map())
    given_too = {
        "table": "",
        "cursor": None,
        "limit": None,
        "key_prefix": b"",
        "keys_only": False,
        "timeout": 60.0,
    }
    return Core(routing).scan(**(given_too | arguments))


@given(st.integers(0, 10_000), st.booleans())
def test_every_key_comes_once(seed: int, smart: bool) -> None:
    assert run(scan(smart=smart), random.Random(seed)) == KEYS


@given(st.integers(0, 10_000), st.integers(1, 70))
def test_a_limit_is_exact_and_a_scan_goes_on_behind_it(seed: int, limit: int) -> None:
    first = scan(limit=limit)
    keys = run(first, random.Random(seed))
    assert keys == KEYS[:limit]
    if first.cursor is not None:
        keys += run(scan(cursor=first.cursor), random.Random(seed))
    assert keys == KEYS


@given(st.integers(0, 10_000), st.integers(0, 59))
def test_a_scan_goes_on_behind_any_record(seed: int, index: int) -> None:
    rest = run(scan(cursor=cursor_behind(KEYS[index])), random.Random(seed))
    assert rest == KEYS[index + 1 :]


@given(st.integers(0, 10_000))
def test_a_prefix_keeps_every_match(seed: int) -> None:
    wanted = [key for key in KEYS if key.startswith(b"key-5")]
    assert run(scan(key_prefix=b"key-5"), random.Random(seed)) == wanted


def test_a_stream_without_progress_is_a_fault_not_a_loop() -> None:
    state = scan()
    with pytest.raises(deodar.Internal, match="without progress"):
        state.ended(state.open())


def test_a_deadline_without_progress_ends_the_scan() -> None:
    state = scan()
    failure = Failure(ServiceError(Reason.DEADLINE_EXCEEDED, "why"), by_server=False)
    with pytest.raises(deodar.DeadlineExceeded):
        state.failed(failure, state.open())
