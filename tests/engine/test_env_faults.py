"""Every call to the system fails once, or from then on: nothing acknowledged is lost, nothing wrong
is read, and no failed write becomes a success.

`DEODAR_FAULTS=all` fails each call in turn; without it a sample is taken, whose places move with
`DEODAR_SEED`.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deodar.engine import Delete, DiskFull, EngineError, IOFailure, Put, ReadOnly, Store

from . import probe_env as env
from .faults import FailNth

ALL = os.environ.get("DEODAR_FAULTS") == "all"
SEED = int(os.environ.get("DEODAR_SEED", "1"))
SAMPLES = 8
REGION_BYTES = 262_144
BACKENDS = ["aio", "io_uring", "pwrite"]
SHORT = -3000
RESUMES_SECONDS = 5.0


class Fault(FailNth):
    """Counts calls over all stores of a workload; notes what it failed."""

    def __init__(self, at: int, answer: int, for_good: bool) -> None:
        super().__init__(at, answer, for_good=for_good)
        self.failed: list[env.Operation] = []

    def __call__(self, operation: env.Operation) -> int:
        answer = super().__call__(operation)
        if answer != 0:
            self.failed.append(operation)
        return answer

    @property
    def broken_write(self) -> bool:
        """Whether a write or sync of the data failed for a reason that space does not mend."""
        return self.answer == errno.EIO and any(
            operation.kind in ("write", "queued", "sync") for operation in self.failed
        )


class Workload:
    """Opens, writes, syncs, compacts and reopens; knows what it was promised."""

    def __init__(self, path: Path, backend: str, fault: Fault) -> None:
        self.path = path
        self.backend = backend
        self.fault = fault
        self.direct = fault.answer > 0  # a kernel cuts direct writes at whole blocks only
        self.accepted: list[list[tuple[bytes, bytes | None]]] = []  # operations, batch by batch
        self.promised = 0  # how many of them are said to be on disk
        self.errors: list[EngineError] = []
        self.latched = False
        self.sync_failed = False

    def run(self) -> None:
        for session in (self.first, self.second):
            try:
                store = Store.open(
                    self.path,
                    region_bytes=REGION_BYTES,
                    epoch_ms=1,
                    disk_backend=self.backend,  # type: ignore[arg-type]
                    direct_io=self.direct,
                )
            except (IOFailure, DiskFull, ReadOnly) as error:
                self.errors.append(error)
                return
            self.latched = self.sync_failed = False
            failed_before = len(self.fault.failed)
            session(store)
            self.end(store, failed_before)

    def first(self, store: Store) -> None:
        for index in range(40):
            self.put(store, b"%d" % index, b"%d" % index * 8000)
        self.sync(store)
        self.attempt(store.checkpoint)
        for index in range(0, 40, 2):
            self.put(store, b"%d" % index, b"new %d" % index * 2000)
        for index in range(0, 40, 3):
            self.delete(store, b"%d" % index)
        self.batch(store, [(b"a", b"1"), (b"0", b"back"), (b"39", None)])
        self.put(store, b"long", b"l" * (2 * REGION_BYTES))
        self.sync(store)
        self.attempt(store.compact)
        self.put(store, b"after", b"compaction")

    def second(self, store: Store) -> None:
        self.recovered(store)
        for index in range(20, 60):
            self.put(store, b"%d" % index, b"second %d" % index * 2000)
        self.sync(store)
        self.attempt(store.checkpoint)
        for index in range(20, 50):
            self.delete(store, b"%d" % index)
        self.attempt(store.compact)

    def end(self, store: Store, failed_before: int) -> None:
        """A failed write has stopped writes by now, with its cause; reads go on."""
        self.put(store, b"last", b"of a session")
        self.sync(store)
        if self.fault.broken_write and len(self.fault.failed) > failed_before:
            assert self.latched
        assert contents(store) == self.state(len(self.accepted))
        if self.latched:
            with pytest.raises(ReadOnly, match=os.strerror(self.fault.answer)):
                store.put(b"k", b"refused")
        try:
            store.close()
        except (ReadOnly, DiskFull, IOFailure) as error:
            self.errors.append(error)
        else:
            self.promised = len(self.accepted)

    def put(self, store: Store, key: bytes, value: bytes) -> None:
        self.batch(store, [(key, value)])

    def delete(self, store: Store, key: bytes) -> None:
        self.batch(store, [(key, None)])

    def batch(self, store: Store, operations: list[tuple[bytes, bytes | None]]) -> None:
        puts = [Delete(key) if value is None else Put(key, value) for key, value in operations]
        if self.attempt(lambda: store.write(puts), self.latched):
            self.accepted.append(operations)
        key = operations[0][0]
        assert store.get(key) == self.state(len(self.accepted)).get(key)

    def sync(self, store: Store) -> None:
        """Succeeds in a read-only store too when everything is on disk already, but never after
        it has failed."""
        if self.attempt(store.sync, self.sync_failed):
            self.promised = len(self.accepted)
        else:
            self.sync_failed = True

    def attempt(self, call: Callable[[], object], must_fail: bool = False) -> bool:
        """Whether the call succeeded.  A disk that was full for a moment is met again."""
        until = time.monotonic() + RESUMES_SECONDS
        while True:
            try:
                call()
            except DiskFull as error:
                self.errors.append(error)
                assert self.fault.answer == errno.ENOSPC
                if self.fault.for_good:
                    return False
                assert time.monotonic() < until, "writes do not resume"
                time.sleep(0.01)
            except (IOFailure, ReadOnly) as error:
                self.errors.append(error)
                self.latched = self.latched or isinstance(error, ReadOnly)
                return False
            else:
                assert not must_fail, "a failed write became a success"
                return True

    def state(self, count: int) -> dict[bytes, bytes]:
        state: dict[bytes, bytes] = {}
        for operations in self.accepted[:count]:
            for key, value in operations:
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        return state

    def recovered(self, store: Store) -> None:
        """The state after some operation, not before the last promise."""
        found = contents(store)
        counts = range(len(self.accepted), self.promised - 1, -1)
        count = next((count for count in counts if found == self.state(count)), None)
        assert count is not None, "something that was promised is lost, or was never written"
        del self.accepted[count:]

    def check(self) -> None:
        """The disk is well again."""
        with Store.open(self.path, region_bytes=REGION_BYTES) as store:
            self.recovered(store)
            store.put(b"well", b"again", durability="durable")
            assert store.check() == []


def contents(store: Store) -> dict[bytes, bytes]:
    return {item.key: item.value for item in store.scan()}


def run_with(path: Path, backend: str, fault: Fault) -> Workload:
    workload = Workload(path, backend, fault)
    descriptors = len(os.listdir("/proc/self/fd"))
    with env.Door(fault).installed():
        workload.run()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    workload.check()
    return workload


def places(path: Path, backend: str, label: str) -> list[int]:
    """Which calls to fail: all that a workload makes, or a sample of them."""
    fault = Fault(0, errno.EIO, for_good=False)
    workload = run_with(path, backend, fault)
    assert workload.errors == []
    assert fault.seen > 150
    every = range(1, fault.seen + 1)
    if ALL:
        return list(every)
    return sorted(random.Random(f"{SEED} {backend} {label}").sample(every, SAMPLES))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("answer", [errno.EIO, errno.ENOSPC, SHORT], ids=["EIO", "ENOSPC", "short"])
@pytest.mark.timeout(3600 if ALL else 120)
def test_any_call_may_fail(tmp_path: Path, backend: str, for_good: bool, answer: int) -> None:
    for at in places(tmp_path / "healthy", backend, f"{for_good} {answer}"):
        fault = Fault(at, answer, for_good)
        try:
            workload = run_with(tmp_path / str(at), backend, fault)
        except BaseException as error:
            failed = [(operation.kind, operation.path) for operation in fault.failed[:3]]
            error.add_note(f"call {at}, SEED={SEED}: {failed}")
            raise
        if answer == SHORT:
            assert workload.errors == []
