"""Writes to disk: complete or failed, never half; the first failure stays."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deodar.engine import errors

from . import probe_disk as disk
from . import probe_env as env
from .faults import FailNth

BACKENDS = pytest.mark.parametrize(
    "backend", [disk.AIO, disk.URING, disk.PWRITE], ids=["aio", "io_uring", "pwrite"]
)
MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def door_file(door: env.Door, path: Path, flags: int = 0) -> int:
    fd: int = env.open_file(str(path), os.O_RDWR | os.O_CREAT | flags, door=door)
    return fd


def aligned(data: bytes) -> mmap.mmap:
    """The same bytes at a page boundary, as direct I/O wants them."""
    buffer = mmap.mmap(-1, len(data))
    buffer[:] = data
    return buffer


def test_auto_is_aio_here() -> None:
    assert disk.Writer().backend == disk.AIO


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM, errno.EAGAIN, errno.ENOMEM])
def test_refused_queues_are_passed_by_unless_demanded(file: int, error: int) -> None:
    with disk.refusing(aio=error):
        assert disk.Writer().backend == disk.URING
        with pytest.raises(errors.IOFailure) as raised:
            disk.Writer(disk.AIO)
        assert (raised.value.errno, raised.value.call) == (error, "io_setup")
    with disk.refusing(uring=error):
        assert disk.Writer().backend == disk.AIO
        with pytest.raises(errors.IOFailure) as raised:
            disk.Writer(disk.URING)
        assert (raised.value.errno, raised.value.call) == (error, "io_uring_setup")
    with disk.refusing(aio=error, uring=error):
        writer = disk.Writer()
        assert writer.backend == disk.PWRITE
        writer.write([(file, b"written", 0)])
    assert os.pread(file, 100, 0) == b"written"


@pytest.mark.parametrize("depth", [0, 1025])
def test_depth_outside_its_bounds_is_refused(depth: int) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        disk.Writer(depth=depth)
    assert raised.value.field == "depth"


@BACKENDS
@pytest.mark.parametrize("depth", [1, 3, 64])
def test_many_writes_arrive_where_they_belong(file: int, backend: int, depth: int) -> None:
    writer = disk.Writer(backend, depth)
    pieces = [os.urandom(1 + (index * 997) % 5000) for index in range(200)]
    offsets = [index * 5000 for index in range(200)]
    order = sorted(range(200), key=lambda index: hash((index, depth)))
    writer.write([(file, pieces[index], offsets[index]) for index in order])
    for piece, offset in zip(pieces, offsets, strict=True):
        assert os.pread(file, len(piece), offset) == piece
    assert writer.counters == (sum(map(len, pieces)), 200, 0)
    writer.sync(file)
    assert writer.counters[2] == 1


@BACKENDS
def test_long_writes_are_cut_and_empty_ones_skipped(file: int, backend: int) -> None:
    writer = disk.Writer(backend, 4)
    data = os.urandom(5 * MIB + 123)
    writer.write([(file, b"", 0), (file, data, 11), (file, b"", 99)])
    assert os.pread(file, len(data), 11) == data
    assert writer.counters == (len(data), 6, 0)
    writer.write([])


@BACKENDS
def test_direct_writes(tmp_path: Path, backend: int) -> None:
    fd = os.open(tmp_path / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    data = aligned(os.urandom(4 * MIB))
    writer = disk.Writer(backend, 8)
    writer.write([(fd, memoryview(data), 4096), (fd, memoryview(data)[:4096], 0)])
    writer.sync(fd)
    os.close(fd)
    assert (tmp_path / "direct").read_bytes() == data[:4096] + data[:]


@BACKENDS
def test_misaligned_direct_write_is_an_error(tmp_path: Path, backend: int) -> None:
    fd = os.open(tmp_path / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    writer = disk.Writer(backend)
    with pytest.raises(errors.IOFailure) as raised:
        writer.write([(fd, memoryview(aligned(bytes(8192)))[1:4097], 0)])
    assert (raised.value.errno, raised.value.filename) == (errno.EINVAL, "direct")
    os.close(fd)


@BACKENDS
def test_first_failure_stays(file: int, tmp_path: Path, backend: int) -> None:
    """D2: every later call answers with the first cause."""
    writer = disk.Writer(backend)
    reading = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(errors.IOFailure) as raised:
        writer.write([(file, b"before", 0), (reading, b"refused", 10), (file, b"after", 20)])
    os.close(reading)
    assert (raised.value.errno, raised.value.filename) == (errno.EBADF, "file")
    assert writer.first_failure == errno.EBADF
    size = os.fstat(file).st_size
    for call in (lambda: writer.write([(file, b"x", 100)]), lambda: writer.sync(file)):
        with pytest.raises(errors.ReadOnly, match=os.strerror(errno.EBADF)):
            call()
    assert os.fstat(file).st_size == size


def test_full_device_is_a_failure() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(errors.IOFailure) as raised:
        disk.Writer(disk.PWRITE).write([(fd, b"x" * 4096, 0)])
    assert raised.value.errno == errno.ENOSPC
    os.close(fd)


@BACKENDS
@pytest.mark.parametrize("at", [1, 2, 50, 99, 100])
def test_any_write_may_fail_and_the_rest_is_waited_for(
    tmp_path: Path, backend: int, at: int
) -> None:
    door = env.Door(FailNth(at, errno.EIO, kinds=["write", "queued"]))
    writer = disk.Writer(backend, 8, door)
    fd = door_file(door, tmp_path / "file")
    with pytest.raises(errors.IOFailure) as raised:
        writer.write([(fd, b"%04d" % index, 4 * index) for index in range(100)])
    assert raised.value.errno == errno.EIO
    written = (tmp_path / "file").read_bytes()
    assert written == b"".join(b"%04d" % index for index in range(at - 1))
    with pytest.raises(errors.ReadOnly):
        writer.sync(fd)
    env.close_file(fd, door=door)
    assert door.raised is None


@BACKENDS
def test_failed_sync_is_never_retried(tmp_path: Path, backend: int) -> None:
    faults = FailNth(1, errno.EIO, kinds=["sync"])
    door = env.Door(faults)
    writer = disk.Writer(backend, 8, door)
    fd = door_file(door, tmp_path / "file")
    writer.write([(fd, b"data", 0)])
    with pytest.raises(errors.IOFailure) as raised:
        writer.sync(fd)
    assert raised.value.errno == errno.EIO
    assert raised.value.call == "fdatasync"
    for _ in range(2):
        with pytest.raises(errors.ReadOnly):
            writer.sync(fd)
    assert faults.counts["sync"] == 1
    assert writer.counters[2] == 0
    env.close_file(fd, door=door)


def test_short_pwrites_are_gone_on_with(tmp_path: Path) -> None:
    door = env.Door(lambda operation: -1000 if operation.kind == "write" else 0)
    writer = disk.Writer(disk.PWRITE, 8, door)
    fd = door_file(door, tmp_path / "file")
    data = os.urandom(10_500)
    writer.write([(fd, data, 0)])
    assert (tmp_path / "file").read_bytes() == data
    env.close_file(fd, door=door)


@pytest.mark.parametrize("backend", ["AIO", "URING"])
def test_short_completion_is_finished_and_its_cause_found(tmp_path: Path, backend: str) -> None:
    """A file size limit cuts one queued write short; the rest fails with the true cause."""
    script = f"""
import errno, os, resource, signal
from deodar.engine import errors
from tests.engine import probe_disk as disk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
fd = os.open({str(tmp_path / "file")!r}, os.O_RDWR | os.O_CREAT)
writer = disk.Writer(disk.{backend})
try:
    writer.write([(fd, b"a" * 10_000, 0)])
except errors.IOFailure as raised:
    assert raised.errno == errno.EFBIG, raised
    assert os.fstat(fd).st_size == 6000
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "refused\n"


def aio_contexts(free: int) -> tuple[ctypes.CDLL, list[ctypes.c_ulong]]:
    """Takes AIO events of the whole system until fewer than `free` are left."""
    libc = ctypes.CDLL(None, use_errno=True)
    held: list[ctypes.c_ulong] = []
    events = 16384
    while events >= free:
        context = ctypes.c_ulong(0)
        if libc.syscall(206, events, ctypes.byref(context)) == 0:
            held.append(context)
        else:
            assert ctypes.get_errno() == errno.EAGAIN
            events //= 2
    return libc, held


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="uses the call number of x86-64")
def test_exhausted_aio_is_passed_by(file: int) -> None:
    libc, held = aio_contexts(free=1)
    try:
        writer = disk.Writer(disk.AUTO, 64)
        assert writer.backend == disk.URING
        writer.write([(file, b"still written", 0)])
        with pytest.raises(errors.IOFailure) as raised:
            disk.Writer(disk.AIO, 64)
        assert (raised.value.errno, raised.value.call) == (errno.EAGAIN, "io_setup")
    finally:
        for context in held:
            assert libc.syscall(207, context) == 0
    assert os.pread(file, 100, 0) == b"still written"
    assert disk.Writer(disk.AUTO, 64).backend == disk.AIO


def test_closed_disk_gives_its_queue_back() -> None:
    events = Path("/proc/sys/fs/aio-nr")
    before = int(events.read_text())
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        disk.Writer(disk.AIO, 1024).close()
        disk.Writer(disk.URING, 1024).close()
    assert int(events.read_text()) < before + 8 * 1024
    assert len(os.listdir("/proc/self/fd")) == descriptors
