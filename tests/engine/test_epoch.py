"""Durability when the disk fails, fills up or is slow."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deodar.engine import DiskFull, IOFailure, Overloaded, Put, ReadOnly, Store

from . import probe_env as env
from .faults import FailNth

REGION_BYTES = 262_144
BACKENDS = ["aio", "pwrite"]


def opened(path: Path, backend: str = "auto", **options: object) -> Store:
    return Store.open(
        path, region_bytes=REGION_BYTES, epoch_ms=1, disk_backend=backend, **options  # type: ignore[arg-type]
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
@pytest.mark.parametrize(
    "kinds", [{"write", "queued"}, {"sync"}], ids=["write", "sync"]
)
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


@pytest.mark.parametrize("operation", ["put", "batch", "large"])
def test_full_disk_refuses_before_anything_changes(tmp_path: Path, operation: str) -> None:
    """Row 21: puts are refused, reads and deletes work, and writes resume alone."""
    failing = Failing({"allocate"}, "data-", errno.ENOSPC)
    with env.Door(failing).installed():
        store = opened(tmp_path, compaction=False)
        store.sync()
        failing.armed = True
        index = 0
        with pytest.raises(DiskFull):
            while index < 10_000:
                match operation:
                    case "put":
                        store.put(b"key %d" % index, bytes(1000))
                    case "batch":
                        store.write([Put(b"key %d" % index, bytes(1000)), Put(b"b", b"%d" % index)])
                    case _:
                        store.put(b"key %d" % index, bytes(200_000))
                index += 1
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
        with pytest.raises(Overloaded):
            for _ in range(1000):
                store.put(b"key", bytes(10_000))
        assert store.stats()["unflushed_bytes"] < 120_000
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
        assert store.stats()["flushes"] <= 30
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


FULL = """
import sys
from deodar.engine import DiskFull, Store, Put
path = sys.argv[1]
with Store.open(path, region_bytes=262144, epoch_ms=1) as store:
    filled = 0
    for turn in range(4):
        index = 0
        try:
            while True:
                store.put(b"%d" % index, bytes(10_000))
                index += 1
        except DiskFull:
            pass
        filled += index
        assert index > 300, (turn, index)
        assert store.get(b"0") == bytes(10_000)
        for victim in range(index):
            assert store.delete(b"%d" % victim)
        store.compact()
    assert store.check() == []
with Store.open(path) as store:
    assert len(store) == 0
    assert store.check() == []
print("filled", filled)
"""


def test_small_disk_is_filled_and_emptied_again(tmp_path: Path) -> None:
    """E9: on a real full file system, fill, delete, compact, repeat; also open while it is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        (disk / "ballast").write_bytes(bytes(4 << 20))
        run = [sys.executable, "-c", FULL, str(disk / "store")]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        with pytest.raises(OSError, match="No space"), (disk / "rest").open("wb") as rest:
            while True:
                rest.write(bytes(100_000))
                rest.flush()
        with Store.open(disk / "store") as store:
            assert len(store) == 0
            store.delete(b"none")
        (disk / "rest").unlink()
        with Store.open(disk / "store") as store:
            store.put(b"key", b"value", durability="durable")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
