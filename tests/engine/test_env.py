"""The door to the system, and the Doors that tests put in its place."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import probe_env as env
from .faults import FailNth


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = env.open_file(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    yield fd
    env.close_file(fd)


@contextmanager
def failed(error: int) -> Iterator[None]:
    """Expects -1 with this errno."""
    with pytest.raises(env.Failed) as raised:
        yield
    assert raised.value.error == error


def test_descriptors_are_not_inherited(file: int) -> None:
    assert not os.get_inheritable(file)


def test_read_and_write_whole_ranges(file: int) -> None:
    data = os.urandom(300_000)
    env.write_full(file, data, 7)
    assert env.file_bytes(file) == 300_007
    assert env.read_full(file, 300_007, 0) == bytes(7) + data
    env.sync_data(file)


def test_read_behind_the_end_is_short_not_an_error(file: int) -> None:
    env.write_full(file, b"abc", 0)
    with failed(0):
        env.read_full(file, 4, 0)


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_short_reads_and_writes_are_gone_on_with(tmp_path: Path, step: int) -> None:
    door = env.Door(lambda operation: -step if operation.kind in ("read", "write") else 0)
    fd = env.open_file(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT, door=door)
    data = os.urandom(9000)
    env.write_full(fd, data, 5, door=door)
    assert env.read_full(fd, 9000, 5, door=door) == data
    env.close_file(fd, door=door)
    assert door.raised is None


def test_full_device_is_an_error() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with failed(errno.ENOSPC):
        env.write_full(fd, b"abc", 0)
    os.close(fd)


def test_errors_of_the_system_come_back(tmp_path: Path, file: int) -> None:
    missing = str(tmp_path / "missing" / "file")
    with failed(errno.ENOENT):
        env.open_file(missing, os.O_RDONLY)
    with failed(errno.ENOENT):
        env.unlink(missing)
    with failed(errno.ENOENT):
        env.rename(missing, missing)
    with failed(errno.ENOENT):
        env.sync_directory(missing)
    with failed(errno.EFBIG):
        env.allocate(file, 2**62, 4096)
    for call in (
        lambda: env.close_file(999),
        lambda: env.file_bytes(999),
        lambda: env.sync_data(999),
        lambda: env.truncate(999, 0),
        lambda: env.allocate(999, 0, 1),
        lambda: env.read_full(999, 1, 0),
        lambda: env.write_full(999, b"a", 0),
    ):
        with failed(errno.EBADF):
            call()


def test_allocate_takes_blocks_and_keeps_bytes(file: int) -> None:
    env.write_full(file, b"kept", 0)
    env.allocate(file, 0, 1 << 20)
    assert env.file_bytes(file) == 1 << 20
    assert os.fstat(file).st_blocks * 512 >= 1 << 20
    assert env.read_full(file, 8, 0) == b"kept\0\0\0\0"
    env.truncate(file, 2)
    assert env.file_bytes(file) == 2


@pytest.mark.parametrize("before", [0, 4, 100_000])
def test_allocate_by_writing_fills_up_and_keeps_bytes(file: int, before: int) -> None:
    """What file systems without fallocate get."""
    data = os.urandom(before)
    env.write_full(file, data, 0)
    env.allocate_by_writing(file, 65_536, 262_144)
    assert env.file_bytes(file) == 65_536 + 262_144
    assert env.read_full(file, before, 0) == data
    env.allocate_by_writing(file, 0, 4096)
    assert env.file_bytes(file) == 65_536 + 262_144


def test_rename_unlink_and_sync_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    env.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    env.sync_directory(str(tmp_path))
    assert (tmp_path / "b").read_bytes() == b"x"
    env.unlink(str(tmp_path / "b"))
    assert list(tmp_path.iterdir()) == []


def test_clocks_run_in_milliseconds() -> None:
    boot, wall = env.clocks()
    assert abs(wall - time.time() * 1000) < 1000
    assert abs(boot - time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) < 1000


def test_fault_comes_once_or_for_good(tmp_path: Path) -> None:
    for for_good in (False, True):
        faults = FailNth(2, errno.EIO, kinds=["write"], for_good=for_good)
        door = env.Door(faults)
        fd = env.open_file(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT, door=door)
        env.write_full(fd, b"1", 0, door=door)
        with failed(errno.EIO):
            env.write_full(fd, b"2", 0, door=door)
        if for_good:
            with failed(errno.EIO):
                env.write_full(fd, b"3", 0, door=door)
        else:
            env.write_full(fd, b"3", 0, door=door)
        env.close_file(fd, door=door)
        assert faults.counts == {"open": 1, "write": 3, "close": 1}


def test_observer_that_raises_fails_the_call(tmp_path: Path) -> None:
    def refuse(_: env.Operation) -> int:
        raise KeyError("bug of the test")

    door = env.Door(refuse)
    with failed(errno.EIO):
        env.open_file(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT, door=door)
    assert isinstance(door.raised, KeyError)
