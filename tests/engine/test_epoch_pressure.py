"""A store whose disk is slow, or whose process has no descriptor left."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deodar.engine import Overloaded, Store

from . import probe_env as env

REGION_BYTES = 262_144
VALUE_BYTES = 10_000
BUFFER_BYTES = 200_000
BACKENDS = ["aio", "io_uring", "pwrite"]


class Slow:
    """Each write to the log takes `delay` seconds more."""

    def __init__(self) -> None:
        self.delay = 0.0

    def __call__(self, operation: env.Operation) -> int:
        if operation.kind in ("queued", "write") and "data-" in operation.path:
            time.sleep(self.delay)
        return 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_writers_wait_for_a_slow_disk_and_nothing_is_lost(tmp_path: Path, backend: str) -> None:
    """Unflushed bytes stay at their bound plus one record a writer; who is refused after
    `stall_ms` has changed nothing, and all that was taken is there after a reopening."""
    slow = Slow()
    taken: list[bytes] = []
    refused: list[bytes] = []
    with env.Door(slow).installed():
        store = Store.open(
            tmp_path,
            region_bytes=REGION_BYTES,
            epoch_ms=1,
            write_buffer_bytes=BUFFER_BYTES,
            stall_ms=100,
            disk_backend=backend,  # type: ignore[arg-type]
        )
        slow.delay = 0.15
        stop = time.monotonic() + 2.0

        def write(name: bytes) -> None:
            index = 0
            while time.monotonic() < stop:
                key = b"%s %d" % (name, index)
                index += 1
                started = time.monotonic()
                try:
                    store.put(key, key * (VALUE_BYTES // len(key)))
                except Overloaded:
                    assert time.monotonic() - started >= 0.1
                    refused.append(key)
                else:
                    taken.append(key)

        threads = [threading.Thread(target=write, args=(b"writer %d" % n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, int(store.stats()["unflushed_bytes"]))
            time.sleep(0.002)
        assert BUFFER_BYTES < most < BUFFER_BYTES + 4 * (VALUE_BYTES + 200)
        slow.delay = 0.0
        store.sync()
        store.put(b"fast", b"again", durability="durable")
        store.close()
    assert refused
    assert len(taken) > BUFFER_BYTES // VALUE_BYTES
    with Store.open(tmp_path) as store:
        for key in taken:
            assert store.get(key) == key * (VALUE_BYTES // len(key))
        assert all(store.get(key) is None for key in refused)
        assert len(store) == len(taken) + 1
        assert store.check() == []


DESCRIPTORS = """
import os, resource, sys, time
from deodar.engine import IOFailure, LimitExceeded, Store
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
path = sys.argv[1]
store = Store.open(path, region_bytes=262144, epoch_ms=1)
for index in range(100):
    store.put(b"%d" % index, b"%d" % index * 1000)
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
for _ in range(3):
    try:
        store.checkpoint()
    except LimitExceeded:
        pass
    else:
        raise AssertionError("a checkpoint needs a descriptor")
    try:
        Store.open(path + " other")
    except (IOFailure, LimitExceeded, OSError):
        pass
    else:
        raise AssertionError("a store needs descriptors")
for index in range(100, 400):
    store.put(b"%d" % index, b"%d" % index * 1000)
store.sync()
assert store.get(b"399") == b"399" * 1000
before = store.stats()["checkpoints"]
for fd in held:
    os.close(fd)
deadline = time.monotonic() + 20
while store.stats()["checkpoints"] == before:
    assert time.monotonic() < deadline, "the checkpoint is not tried again"
    time.sleep(0.02)
store.put(b"goes", b"on", durability="durable")
store.checkpoint()
assert store.check() == []
store.close()
with Store.open(path) as store:
    assert len(store) == 401
    assert all(store.get(b"%d" % index) == b"%d" % index * 1000 for index in range(400))
    assert store.check() == []
with Store.open(path + " other") as store:
    assert store.check() == []
"""


def test_no_descriptor_left_is_refused_and_mends_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DESCRIPTORS, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
