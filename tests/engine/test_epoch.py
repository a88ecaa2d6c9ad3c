"""Durability when the disk fails, fills up or is slow."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deodar.engine import DiskFull, IOFailure, Overloaded, Put, ReadOnly, Store

from . import probe_env as env
from .faults import FailNth

REGION_BYTES = 262_144
BACKENDS = ["aio", "io_uring", "pwrite"]


def opened(path: Path, backend: str = "auto", **options: object) -> Store:
    return Store.open(
        path,
        region_bytes=REGION_BYTES,
        epoch_ms=1,
        disk_backend=backend,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


class Failing:
    """Fails calls of some kinds on some files while `error` is set."""

    def __init__(self, kinds: set[str], name: str, error: int) -> None:
        self.kinds = kinds
        self.name = name
        self.error = error
        self.armed = False
        self.delay = 0.0
        self.failed = 0

    def __call__(self, operation: env.Operation) -> int:
        if operation.kind not in self.kinds or self.name not in operation.path:
            return 0
        if self.delay:
            time.sleep(self.delay)
        if not self.armed:
            return 0
        self.failed += 1
        return self.error


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kinds", [{"write", "queued"}, {"sync"}], ids=["write", "sync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_first_failure_is_latched(
    tmp_path: Path, backend: str, kinds: set[str], error: int
) -> None:
    """E3: after one failed write or sync nothing is acknowledged any more, though the disk is well
    again; readers go on; a reopening has what was durable."""
    failing = Failing(kinds, "data-", error)
    with env.Door(failing).installed():
        store = opened(tmp_path, backend)
        store.put(b"kept", b"1", durability="durable")
        failing.armed = True
        with pytest.raises(ReadOnly):
            store.put(b"lost", b"2", durability="durable")
        failing.armed = False
        for call in writes(store):
            with pytest.raises(ReadOnly) as caught:
                call()
            assert os.strerror(error) in str(caught.value)
        assert failing.failed == 1
        assert store.get(b"kept") == b"1"
        assert len(list(store.scan())) == 2
        assert store.stats()["read_only"] == 1
        with pytest.raises(ReadOnly):
            store.close()
        store = opened(tmp_path, backend)
        assert store.get(b"kept") == b"1"
        store.put(b"again", b"3", durability="durable")
        assert store.check() == []
        store.close()


def writes(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.put(b"k", b""),
        lambda: store.delete(b"kept"),
        lambda: store.increment(b"n"),
        lambda: store.write([Put(b"k", b"")]),
        lambda: store.apply(store.read_log(0)[:1]) or store.put(b"k", b""),
        store.sync,
        store.checkpoint,
        store.compact,
    ]


def test_waiters_are_told(tmp_path: Path) -> None:
    """Whoever waits when the disk fails gets the error; nobody hangs."""
    failing = Failing({"sync"}, "data-", errno.EIO)
    told: list[str] = []
    with env.Door(failing).installed():
        store = opened(tmp_path)

        def write(name: bytes) -> None:
            try:
                while True:
                    store.put(name, b"", durability="durable")
            except ReadOnly:
                told.append("read-only")

        threads = [threading.Thread(target=write, args=(b"%d" % n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        failing.armed = True
        for thread in threads:
            thread.join(timeout=10)
        assert told == ["read-only"] * 4
        failing.armed = False
        with pytest.raises(ReadOnly):
            store.close()


def test_failed_checkpoint_file_makes_read_only(tmp_path: Path) -> None:
    failing = Failing({"sync"}, "checkpoint-", errno.EIO)
    with env.Door(failing).installed():
        store = opened(tmp_path)
        store.put(b"key", b"value")
        failing.armed = True
        with pytest.raises(IOFailure):
            store.checkpoint()
        failing.armed = False
        with pytest.raises(ReadOnly):
            store.put(b"key", b"")
        store.close()
        with opened(tmp_path) as again:
            assert again.get(b"key") == b"value"


class FullAfterRename:
    """Answers ENOSPC to the directory's fsync behind a rename of a checkpoint."""

    def __init__(self) -> None:
        self.renamed = False
        self.failed = 0

    def __call__(self, operation: env.Operation) -> int:
        if operation.kind == "rename" and "checkpoint-" in operation.path:
            self.renamed = True
        if operation.kind != "sync_directory" or not self.renamed:
            return 0
        self.renamed = False
        self.failed += 1
        return errno.ENOSPC


def test_checkpoint_of_unknown_fate_makes_read_only(tmp_path: Path) -> None:
    """The rename may be durable: the image is not given up as on a full disk, since its frames
    would be written again."""
    with opened(tmp_path):
        pass
    full = FullAfterRename()
    with env.Door(full).installed():
        store = opened(tmp_path)
        full.failed = 0
        store.put(b"key", b"value")
        with pytest.raises(IOFailure):
            store.checkpoint()
        assert full.failed == 1
        with pytest.raises(ReadOnly):
            store.put(b"key", b"")
        store.close()
    with opened(tmp_path) as again:
        assert again.get(b"key") == b"value"


@pytest.mark.parametrize("name", ["checkpoint-", "trie-"])
def test_checkpoint_on_a_full_disk_is_tried_again(tmp_path: Path, name: str) -> None:
    failing = Failing({"write", "allocate", "open"}, name, errno.ENOSPC)
    with env.Door(failing).installed():
        store = opened(tmp_path)
        for start in range(0, 200_000, 10_000):
            store.write([Put(b"key %d" % index, b"") for index in range(start, start + 10_000)])
        failing.armed = True
        with pytest.raises(DiskFull):
            store.checkpoint()
        store.put(b"key", b"goes on", durability="durable")
        failing.armed = False
        store.checkpoint()
        assert store.check() == []
        store.close()
        with opened(tmp_path) as again:
            assert again.get(b"key") == b"goes on"


def fill(store: Store, operation: str) -> int:
    """Writes until the disk is full; answers how often it was not."""
    for index in range(10_000):
        key = b"key %d" % index
        try:
            match operation:
                case "put":
                    store.put(key, bytes(1000))
                case "batch":
                    store.write([Put(key, bytes(1000)), Put(b"b", b"%d" % index)])
                case _:
                    store.put(key, bytes(200_000))
        except DiskFull:
            return index
    raise AssertionError("the disk was never full")


@pytest.mark.parametrize("operation", ["put", "batch", "large"])
def test_full_disk_refuses_before_anything_changes(tmp_path: Path, operation: str) -> None:
    """Row 21: puts are refused, reads and deletes work, and writes resume alone."""
    failing = Failing({"allocate"}, "data-", errno.ENOSPC)
    with env.Door(failing).installed():
        store = opened(tmp_path, compaction=False)
        store.sync()
        failing.armed = True
        index = fill(store, operation)
        version = store.last_version
        assert store.get(b"key %d" % (index - 1)) is not None
        assert store.get(b"key %d" % index) is None
        assert store.delete(b"key 0")
        for victim in range(1, index):
            assert store.delete(b"key %d" % victim)
        assert store.last_version == version + index
        store.sync()
        assert store.check() == []
        failing.armed = False
        store.put(b"key", bytes(100_000))
        store.close()
        with opened(tmp_path) as again:
            assert again.get(b"key") == bytes(100_000)
            assert again.get(b"key 0") is None


def test_back_pressure(tmp_path: Path) -> None:
    """A slow disk makes writers wait, then answers Overloaded; memory stays bounded."""
    failing = Failing({"sync"}, "data-", errno.EIO)
    with env.Door(failing).installed():
        store = opened(tmp_path, write_buffer_bytes=100_000, stall_ms=100)
        store.put(b"key", bytes(1000))
        store.sync()
        failing.delay = 0.5
        for _ in range(10):
            store.put(b"key", bytes(10_000))
        with pytest.raises(Overloaded):
            store.put(b"key", bytes(10_000))
        assert int(store.stats()["unflushed_bytes"]) < 120_000
        failing.delay = 0
        store.sync()
        for _ in range(100):
            store.put(b"key", bytes(10_000))
        store.close()


def test_group_commit(tmp_path: Path) -> None:
    """Writers that wait together share a flush."""
    failing = Failing({"sync"}, "data-", errno.EIO)
    failing.delay = 0.01
    with env.Door(failing).installed():
        store = opened(tmp_path)

        def write() -> None:
            for _ in range(10):
                store.put(b"key", b"", durability="durable")

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert int(store.stats()["flushes"]) <= 30
        store.close()


@pytest.mark.parametrize("nth", range(1, 60, 3))
def test_opening_survives_any_failed_call(tmp_path: Path, nth: int) -> None:
    """The N-th call fails while a store is made and opened: a typed error, nothing left open, and
    the next opening works."""
    with env.Door(FailNth(nth, errno.EIO)).installed():
        try:
            store = opened(tmp_path / "store")
            store.put(b"key", b"value")
            store.close()
        except (IOFailure, ReadOnly):
            pass
    with opened(tmp_path / "store") as store:
        assert store.get(b"key") in (None, b"value")
        assert store.check() == []


def test_idle_store_costs_no_cpu(tmp_path: Path) -> None:
    with Store.open(tmp_path, epoch_ms=1) as store:
        store.put(b"key", b"value")
        store.sync()
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.5)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.05


FILL = """
import sys, time
from deodar.engine import DiskFull, Store
path = sys.argv[1]
with Store.open(path, region_bytes=262144, epoch_ms=1) as store:
    for turn in range(4):
        index = 0
        deadline = time.monotonic() + 20
        while True:
            try:
                store.put(b"%d" % index, bytes(10_000))
                index += 1
            except DiskFull:
                if index > 300 or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        assert index > 300, (turn, index)
        assert store.get(b"0") == bytes(10_000)
        for victim in range(index):
            assert store.delete(b"%d" % victim)
        if turn % 2:
            store.compact()
    assert store.check() == []
with Store.open(path) as store:
    assert len(store) == 0
    assert store.check() == []
"""

RESUME = """
import pathlib, sys, time
from deodar.engine import DiskFull, Store
path, rest = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
with Store.open(path, region_bytes=262144, epoch_ms=1) as store:
    for index in range(400):
        store.put(b"%d" % index, bytes(10_000))
    store.checkpoint()
    with rest.open("wb", buffering=0) as file:
        try:
            while True:
                if file.write(bytes(4096)) == 0:
                    break
        except OSError:
            pass
    for index in range(350):
        store.delete(b"%d" % index)
    deadline = time.monotonic() + 30
    index = 0
    while index < 300 and time.monotonic() < deadline:
        try:
            store.put(b"new %d" % index, bytes(10_000))
            index += 1
        except DiskFull:
            time.sleep(0.05)
    assert index == 300, index
    assert store.check() == []
with Store.open(path) as store:
    assert len(store) == 350
    store.delete(b"new 0")
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def run_in_child(script: str, *arguments: Path) -> None:
    """A child, so that the file system can be unmounted whatever happens in it."""
    run = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


def test_small_disk_is_filled_and_emptied_again(small_disk: Path) -> None:
    """E9: fill, delete, compact or wait, repeat."""
    run_in_child(FILL, small_disk / "store")


def test_writes_resume_alone_on_a_full_disk(small_disk: Path) -> None:
    """The disk has not one free page; deletes are taken, and what they free is used again.

    Seen to fail without the ballast.
    """
    run_in_child(RESUME, small_disk / "store", small_disk / "rest")


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Flushed regions beyond the bound are mapped from the files, and read back checked."""
    with opened(tmp_path, memory_bytes=1_000_000) as store:
        for index in range(6000):
            store.put(b"key %d" % index, b"%d" % index * 200)
            if index % 100 == 0:
                store.sync()
        stats = store.stats()
        assert int(stats["memory_bytes"]) < 2_000_000
        assert int(stats["live_bytes"]) > 4_000_000
        for index in range(0, 6000, 7):
            assert store.get(b"key %d" % index) == b"%d" % index * 200
        for index in range(6000):
            store.put(b"key %d" % (index % 50), b"%d" % index)
        assert store.compact() > 0
        assert store.check() == []
    with opened(tmp_path, memory_bytes=0) as store:
        assert store.get(b"key 5999") == b"5999" * 200
        store.put(b"key", bytes(1_000_000), durability="durable")
        assert store.get(b"key") == bytes(1_000_000)
        assert store.check() == []
