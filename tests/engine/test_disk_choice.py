"""Which way a store takes to the disk: what the kernel refuses, what the file system refuses, and
that what is written one way is read back another."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deodar.engine import IOFailure, Store

from . import probe_disk as disk
from . import probe_env as env

PAGE = 4096
REGION_BYTES = 262_144
BACKENDS = ["aio", "io_uring", "pwrite"]
WAYS = pytest.mark.parametrize("backend", BACKENDS)


def works(path: Path, expected: str, backend: str = "auto") -> None:
    with Store.open(path, region_bytes=REGION_BYTES, disk_backend=backend) as store:  # type: ignore[arg-type]
        for index in range(100):
            store.put(b"%d" % index, b"%d" % index * 1000)
        store.sync()
        store.checkpoint()
        stats = store.stats()
        assert stats["disk_backend"] == expected
        assert stats["disk_queue_depth"] == 32
        assert int(stats["disk_writes"]) > 0
        assert int(stats["disk_bytes_written"]) > 200_000
        assert int(stats["syncs"]) > 0
    with Store.open(path, disk_backend=backend) as store:  # type: ignore[arg-type]
        assert all(store.get(b"%d" % index) == b"%d" % index * 1000 for index in range(100))
        assert store.check() == []


@WAYS
def test_any_way_can_be_demanded(tmp_path: Path, backend: str) -> None:
    works(tmp_path, backend, backend)


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_store_takes_what_the_kernel_allows(tmp_path: Path, error: int) -> None:
    with disk.refusing(aio=error):
        works(tmp_path / "a", "io_uring")
        with pytest.raises(IOFailure) as raised:
            Store.open(tmp_path / "b", disk_backend="aio")
        assert raised.value.errno == error
    with disk.refusing(uring=error):
        works(tmp_path / "c", "aio")
        with pytest.raises(IOFailure) as raised:
            Store.open(tmp_path / "d", disk_backend="io_uring")
        assert raised.value.errno == error
    with disk.refusing(aio=error, uring=error):
        works(tmp_path / "e", "pwrite")


# Answers EPERM to the system calls named, as the sandbox of a container does.
SECCOMP = """
import ctypes, pathlib, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = [int(number) for number in sys.argv[2].split(",")]
code = [(0x20, 0, 0, 0)]  # load the number
for left, number in zip(range(len(numbers), 0, -1), numbers):
    code.append((0x15, left, 0, number))  # equal: jump to the last
code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]  # allow; EPERM
text = b"".join(struct.pack("HBBI", *step) for step in code)
buffer = ctypes.create_string_buffer(text, len(text))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(len(code), ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:
    sys.exit(77)
from tests.engine.test_disk_choice import works
works(pathlib.Path(sys.argv[1]), sys.argv[3])
"""
IO_SETUP, IO_URING_SETUP = (206, 425) if os.uname().machine == "x86_64" else (0, 425)


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ([IO_URING_SETUP], "aio"),
        ([IO_SETUP], "io_uring"),
        ([IO_SETUP, IO_URING_SETUP], "pwrite"),
    ],
)
def test_sandbox_that_refuses_queues(tmp_path: Path, refused: list[int], expected: str) -> None:
    numbers = ",".join(map(str, refused))
    done = subprocess.run(
        [sys.executable, "-c", SECCOMP, str(tmp_path / "store"), numbers, expected],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("seccomp filters are not allowed here")
    assert done.returncode == 0, done.stderr


MEMLOCK = """
import pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
from tests.engine.test_disk_choice import works
works(pathlib.Path(sys.argv[1]) / "auto", "aio")
works(pathlib.Path(sys.argv[1]) / "io_uring", "io_uring", "io_uring")
"""


def test_no_memory_may_be_locked(tmp_path: Path) -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 12):
        pytest.skip("the rings of older kernels count as locked memory")
    done = subprocess.run(
        [sys.executable, "-c", MEMLOCK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=["disk", "tmpfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    target = Path("/dev/shm") / f"deodar-test-{os.getpid()}"
    try:
        target.mkdir()
    except OSError:
        pytest.skip("no tmpfs at /dev/shm")
    yield target
    subprocess.run(["rm", "-rf", str(target)], check=True)


def refuse_direct(operation: env.Operation) -> int:
    return errno.EINVAL if operation.kind == "open" and operation.offset & os.O_DIRECT else 0


@WAYS
@pytest.mark.parametrize("refused", [False, True], ids=["allowed", "refused"])
def test_direct_files_where_they_are_allowed(place: Path, backend: str, refused: bool) -> None:
    """tmpfs refused O_DIRECT before Linux 6.6; a door refuses it everywhere.  With no memory for
    flushed regions every read goes through the files."""
    door = env.Door(refuse_direct if refused else lambda _: 0)
    model: dict[bytes, bytes] = {}
    chance = random.Random(7)
    with door.installed():
        for _ in range(2):
            with Store.open(
                place / "store",
                region_bytes=REGION_BYTES,
                epoch_ms=1,
                memory_bytes=0,
                disk_backend=backend,  # type: ignore[arg-type]
            ) as store:
                if refused:
                    assert store.stats()["direct_io"] == 0
                for _ in range(300):
                    key = b"%d" % chance.randrange(60)
                    model[key] = chance.randbytes(chance.randrange(9000))
                    store.put(key, model[key])
                    if chance.random() < 0.1:
                        store.sync()
                        some = b"%d" % chance.randrange(60)
                        assert store.get(some) == model.get(some)
                assert {item.key: item.value for item in store.scan()} == model
                assert store.check() == []


@WAYS
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "buffered"])
def test_new_mapping_shows_what_was_written(place: Path, backend: str, direct: bool) -> None:
    """E7: a page in the cache from an earlier read or mapping is not served after a direct write;
    what a later read, or a later private mapping, shows is what was written."""
    file = place / "file"
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        pytest.skip("this file system refuses O_DIRECT")
    os.posix_fallocate(fd, 0, 64 * PAGE)
    reader = os.open(file, os.O_RDONLY)
    number = {"aio": disk.AIO, "io_uring": disk.URING, "pwrite": disk.PWRITE}[backend]
    writer = disk.Writer(number, 8)
    buffer = mmap.mmap(-1, 8 * PAGE)
    chance = random.Random(3)
    for turn in range(200):
        pages = chance.sample(range(64), 8)
        for page in pages:  # brings the old content into the cache
            os.pread(reader, PAGE, page * PAGE)
        with mmap.mmap(reader, 64 * PAGE, mmap.MAP_PRIVATE, mmap.PROT_READ) as before:
            assert len(before[:]) == 64 * PAGE
        buffer[:] = chance.randbytes(8 * PAGE)
        pieces = [
            (fd, memoryview(buffer)[at * PAGE : (at + 1) * PAGE], page * PAGE)
            for at, page in enumerate(pages)
        ]
        writer.write(pieces)
        if turn % 4 == 0:
            writer.sync(fd)
        with mmap.mmap(reader, 64 * PAGE, mmap.MAP_PRIVATE, mmap.PROT_READ) as after:
            for at, page in enumerate(pages):
                written = buffer[at * PAGE : (at + 1) * PAGE]
                assert os.pread(reader, PAGE, page * PAGE) == written
                assert after[page * PAGE : (page + 1) * PAGE] == written
    os.close(fd)
    os.close(reader)
