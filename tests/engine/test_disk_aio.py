"""Linux AIO over a scripted kernel: the answers that a healthy machine hardly ever gives."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import probe_disk_aio as aio
from . import probe_env as env


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def writes_of(fd: int, count: int, size: int = 100) -> tuple[list[tuple[int, bytes, int]], bytes]:
    """`count` writes side by side, and what they make together."""
    data = os.urandom(count * size)
    pieces = [(fd, data[start : start + size], start) for start in range(0, count * size, size)]
    return pieces, data


def content(fd: int) -> bytes:
    return os.pread(fd, 1 << 20, 0)


def test_short_submits_are_gone_on_with(file: int) -> None:
    pieces, data = writes_of(file, 9)
    kernel = aio.Kernel(submits=[1, 2, 1, 1])
    assert aio.run(kernel, pieces) == (0, -1)
    assert content(file) == data


def test_eagain_takes_completions_back_before_it_submits_again(file: int) -> None:
    pieces, data = writes_of(file, 8)
    kernel = aio.Kernel(submits=[2, -errno.EAGAIN, -errno.EAGAIN], reaps=[1, 1, 1])
    door = env.Door(lambda _: errno.EIO)
    assert aio.run(kernel, pieces, door=door)[0] == errno.EIO
    assert [name for name, _ in kernel.calls[:5]] == ["submit", "reap", "submit", "reap", "submit"]
    kernel = aio.Kernel(submits=[2, -errno.EAGAIN], reaps=[1, 1])
    assert aio.run(kernel, pieces, door=env.Door(lambda _: errno.EIO)) == (0, -1)
    assert content(file) == data


def test_eagain_with_nothing_in_flight_writes_here_and_now(file: int) -> None:
    """It would never pass otherwise: another program may hold all of the kernel's requests."""
    pieces, data = writes_of(file, 6)
    kernel = aio.Kernel(submits=[-errno.EAGAIN] * 100)
    assert aio.run(kernel, pieces) == (0, -1)
    assert content(file) == data
    assert not any(name == "reap" for name, _ in kernel.calls)


def test_submit_that_takes_nothing_does_not_spin(file: int) -> None:
    pieces, data = writes_of(file, 3)
    assert aio.run(aio.Kernel(submits=[0] * 100), pieces) == (0, -1)
    assert content(file) == data


def test_eintr_is_repeated(file: int) -> None:
    pieces, data = writes_of(file, 5)
    kernel = aio.Kernel(
        submits=[-errno.EINTR, -errno.EINTR, 3, -errno.EINTR], reaps=[-errno.EINTR, 2, -errno.EINTR]
    )
    assert aio.run(kernel, pieces) == (0, -1)
    assert content(file) == data


def test_short_completion_is_finished(file: int) -> None:
    pieces, data = writes_of(file, 5)
    assert aio.run(aio.Kernel(results=[1, 99, 0, 50]), pieces) == (0, -1)
    assert content(file) == data


def test_rest_of_a_short_completion_may_fail(tmp_path: Path, file: int) -> None:
    door = env.Door(lambda operation: errno.ENOSPC if operation.kind == "write" else 0)
    assert aio.run(aio.Kernel(results=[40]), [(file, b"a" * 100, 0)], door=door) == (
        errno.ENOSPC,
        file,
    )
    assert content(file) == b"a" * 40
    assert (tmp_path / "file").stat().st_size == 40


def test_failed_completion_stops_what_is_prepared_and_waits_for_the_rest(file: int) -> None:
    pieces, data = writes_of(file, 8)
    kernel = aio.Kernel(submits=[3, 1], results=[100, -errno.EIO, 100], reaps=[2])
    assert aio.run(kernel, pieces) == (errno.EIO, file)
    assert kernel.in_flight == []
    found = content(file)
    assert found[:100] == data[:100]
    assert found[200:300] == data[200:300]
    assert len(found) == 300


def test_first_of_two_failures_counts(tmp_path: Path, file: int) -> None:
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    kernel = aio.Kernel(results=[-errno.EIO, -errno.ENOSPC])
    assert aio.run(kernel, [(other, b"a", 0), (file, b"b", 0)]) == (errno.EIO, other)
    os.close(other)


def test_refused_submit_is_a_failure_of_its_first_write(file: int) -> None:
    pieces, _ = writes_of(file, 4)
    kernel = aio.Kernel(submits=[2, -errno.EINVAL])
    assert aio.run(kernel, pieces) == (errno.EINVAL, file)
    assert kernel.in_flight == []


ANSWERS = st.lists(st.sampled_from([1, 2, 3, -errno.EINTR, -errno.EAGAIN, 0]), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    count=st.integers(0, 20),
    depth=st.integers(1, 6),
    submits=ANSWERS,
    reaps=st.lists(st.sampled_from([1, 2, -errno.EINTR]), max_size=30),
    results=st.lists(st.integers(0, 100), max_size=20),
)
def test_any_mood_of_a_kernel_that_works(
    file: int, count: int, depth: int, submits: list[int], reaps: list[int], results: list[int]
) -> None:
    """D1: whatever it answers, short of an error, all bytes arrive."""
    os.ftruncate(file, 0)
    pieces, data = writes_of(file, count)
    kernel = aio.Kernel(submits=submits, reaps=reaps, results=results)
    assert aio.run(kernel, pieces, depth=depth) == (0, -1)
    assert content(file) == data
