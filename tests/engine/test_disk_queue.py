"""Both kernel queues over a scripted kernel: the answers that a healthy one hardly ever gives."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import probe_disk_queue as queue
from . import probe_env as env

Run = Callable[..., tuple[int, int]]
BUSY = pytest.mark.parametrize("busy", [-errno.EAGAIN, -errno.EBUSY], ids=["EAGAIN", "EBUSY"])


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture(params=[False, True], ids=["aio", "io_uring"])
def run(request: pytest.FixtureRequest) -> Run:
    return partial(queue.run, uring=request.param)


def writes_of(fd: int, count: int, size: int = 100) -> tuple[list[tuple[int, bytes, int]], bytes]:
    """`count` writes side by side, and what they make together."""
    data = os.urandom(count * size)
    pieces = [(fd, data[start : start + size], start) for start in range(0, count * size, size)]
    return pieces, data


def content(fd: int) -> bytes:
    return os.pread(fd, 1 << 20, 0)


def test_short_submits_are_gone_on_with(run: Run, file: int) -> None:
    pieces, data = writes_of(file, 9)
    kernel = queue.Kernel(submits=[1, 2, 1, 1])
    assert run(kernel, pieces) == (0, -1)
    assert content(file) == data


@BUSY
def test_busy_kernel_is_relieved_before_it_is_asked_again(run: Run, file: int, busy: int) -> None:
    pieces, data = writes_of(file, 8)
    kernel = queue.Kernel(submits=[2, busy, busy], reaps=[1, 1, 1])
    door = env.Door(lambda _: errno.EIO)
    assert run(kernel, pieces, door=door)[0] == errno.EIO
    assert [name for name, _ in kernel.calls[:5]] == ["submit", "reap", "submit", "reap", "submit"]
    kernel = queue.Kernel(submits=[2, busy], reaps=[1, 1])
    assert run(kernel, pieces, door=env.Door(lambda _: errno.EIO)) == (0, -1)
    assert content(file) == data


@BUSY
def test_busy_kernel_with_nothing_in_flight_is_passed_by(run: Run, file: int, busy: int) -> None:
    """It would never pass otherwise: another program may hold all of the kernel's requests."""
    pieces, data = writes_of(file, 6)
    kernel = queue.Kernel(submits=[busy] * 100)
    assert run(kernel, pieces) == (0, -1)
    assert content(file) == data
    assert not any(name == "reap" for name, _ in kernel.calls)


def test_submit_that_takes_nothing_does_not_spin(run: Run, file: int) -> None:
    pieces, data = writes_of(file, 3)
    assert run(queue.Kernel(submits=[0] * 100), pieces) == (0, -1)
    assert content(file) == data


def test_eintr_is_repeated(run: Run, file: int) -> None:
    pieces, data = writes_of(file, 5)
    kernel = queue.Kernel(
        submits=[-errno.EINTR, -errno.EINTR, 3, -errno.EINTR], reaps=[-errno.EINTR, 2, -errno.EINTR]
    )
    assert run(kernel, pieces) == (0, -1)
    assert content(file) == data


def test_short_completion_is_finished(run: Run, file: int) -> None:
    pieces, data = writes_of(file, 5)
    assert run(queue.Kernel(results=[1, 99, 0, 50]), pieces) == (0, -1)
    assert content(file) == data


def test_rest_of_a_short_completion_may_fail(run: Run, tmp_path: Path, file: int) -> None:
    door = env.Door(lambda operation: errno.ENOSPC if operation.kind == "write" else 0)
    assert run(queue.Kernel(results=[40]), [(file, b"a" * 100, 0)], door=door) == (
        errno.ENOSPC,
        file,
    )
    assert content(file) == b"a" * 40
    assert (tmp_path / "file").stat().st_size == 40


def test_failed_completion_stops_what_is_prepared_and_waits_for_the_rest(
    run: Run, file: int
) -> None:
    pieces, data = writes_of(file, 8)
    kernel = queue.Kernel(submits=[3, 1], results=[100, -errno.EIO, 100], reaps=[2])
    assert run(kernel, pieces) == (errno.EIO, file)
    assert kernel.in_flight == []
    found = content(file)
    assert found[:100] == data[:100]
    assert found[200:300] == data[200:300]
    assert len(found) == 300


def test_first_of_two_failures_counts(run: Run, tmp_path: Path, file: int) -> None:
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    kernel = queue.Kernel(results=[-errno.EIO, -errno.ENOSPC])
    assert run(kernel, [(other, b"a", 0), (file, b"b", 0)]) == (errno.EIO, other)
    os.close(other)


def test_refused_submit_is_a_failure_of_its_first_write(run: Run, file: int) -> None:
    pieces, _ = writes_of(file, 4)
    kernel = queue.Kernel(submits=[2, -errno.EINVAL])
    assert run(kernel, pieces) == (errno.EINVAL, file)
    assert kernel.in_flight == []


ANSWERS = st.lists(
    st.sampled_from([1, 2, 3, -errno.EINTR, -errno.EAGAIN, -errno.EBUSY, 0]), max_size=30
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    count=st.integers(0, 20),
    depth=st.integers(1, 6),
    submits=ANSWERS,
    reaps=st.lists(st.sampled_from([1, 2, -errno.EINTR]), max_size=30),
    results=st.lists(st.integers(0, 100), max_size=20),
)
def test_any_mood_of_a_kernel_that_works(
    run: Run,
    file: int,
    count: int,
    depth: int,
    submits: list[int],
    reaps: list[int],
    results: list[int],
) -> None:
    """D1: whatever it answers, short of an error, all bytes arrive."""
    os.ftruncate(file, 0)
    pieces, data = writes_of(file, count)
    kernel = queue.Kernel(submits=submits, reaps=reaps, results=results)
    assert run(kernel, pieces, depth=depth) == (0, -1)
    assert content(file) == data


@pytest.mark.parametrize(
    ("abilities", "error"),
    [
        ({}, 0),
        ({"single_map": False}, errno.ENOSYS),
        ({"probe_error": errno.EINVAL}, errno.ENOSYS),
        ({"operations": 23}, errno.ENOSYS),
        ({"operations": 24}, 0),
        ({"maps": 0}, errno.ENOMEM),
        ({"maps": 1}, errno.ENOMEM),
    ],
)
def test_io_uring_that_lacks_something_is_given_back(abilities: dict[str, int], error: int) -> None:
    """IORING_OP_WRITE is operation 23: a kernel that knows 0..22 cannot be used."""
    assert queue.open_ring(**abilities) == (error, True)
