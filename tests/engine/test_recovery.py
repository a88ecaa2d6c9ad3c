"""Recovery: whatever a power cut leaves on disk reopens to a prefix of what was written."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deodar.engine import Delete, Put, Store

from . import probe_env as env
from .crash_images import Choice, Crash, KeepAll, KeepNone, KeepSome, Recorder, crashes

REGION_BYTES = 262_144
State = dict[bytes, bytes]


class Workload:
    """Writes at random, and keeps every state that a prefix of its writes leads to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.states: list[State] = [{}]

    def step(self, store: Store) -> None:
        state = dict(self.states[-1])
        key = b"key %d" % self.random.randrange(30)
        match self.random.randrange(10):
            case 0 | 1:
                store.delete(key)
                state.pop(key, None)
            case 2:
                other = b"key %d" % self.random.randrange(30)
                store.write([Put(key, b"batch"), Delete(other), Put(b"batched", key)])
                state[key] = b"batch"
                state.pop(other, None)
                state[b"batched"] = key
            case 3:
                store.increment(b"count")
                state[b"count"] = b"%d" % (int(state.get(b"count", b"0")) + 1)
            case 4:
                value = self.random.randbytes(self.random.choice([0, 5000, 90_000]))
                store.put(key, value)
                state[key] = value
            case _:
                value = self.random.randbytes(self.random.randrange(1000))
                store.put(key, value)
                state[key] = value
        if state != self.states[-1]:
            self.states.append(state)


def contents(store: Store) -> State:
    return {item.key: item.value for item in store.scan()}


def slow_sync(operation: env.Operation) -> int:
    """Lets a checkpoint overtake the flush of its epoch, if it can."""
    if operation.kind == "sync" and "data-" in operation.path:
        time.sleep(0.004)
    return 0


def record(root: Path, seed: int, backend: str) -> tuple[Recorder, Workload]:
    """A short life of a store, with syncs, checkpoints, compaction and a close between."""
    recorder = Recorder(root, slow_sync)
    workload = Workload(seed)
    with env.Door(recorder).installed():
        for _ in range(2):
            store = Store.open(
                root,
                region_bytes=REGION_BYTES,
                epoch_ms=1,
                disk_backend=backend,  # type: ignore[arg-type]
                direct_io=False,
            )
            store.checkpoint()
            for turn in range(40):
                workload.step(store)
                if turn % 7 == 3:
                    store.sync()
                    recorder.mark(len(workload.states) - 1)
                if turn % 20 == 10:
                    store.checkpoint()
                    recorder.mark(len(workload.states) - 1)
                if turn % 20 == 19:
                    store.compact()
            store.close()
            recorder.mark(len(workload.states) - 1)
    return recorder, workload


def reopen(crash: Crash, choice: Choice, target: Path) -> State:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    crash.write(target, choice)
    with Store.open(target, region_bytes=REGION_BYTES, direct_io=False) as store:
        assert store.check() == []
        return contents(store)


def sampled(recorder: Recorder, chance: random.Random, share: float) -> Iterator[Crash]:
    for crash in crashes(recorder):
        if chance.random() < share:
            yield crash


@pytest.mark.parametrize("backend", ["aio", "io_uring", "pwrite"])
def test_every_crash_image_is_a_prefix(tmp_path: Path, backend: str) -> None:
    """Promise "Prefix": all of what `sync` answered for, and nothing out of order.

    Seen to fail without the sync of segment files, and with records applied before their SEAL.
    """
    root, target = tmp_path / "root", tmp_path / "image"
    root.mkdir()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    recorder, workload = record(root, seed, backend)
    for crash in sampled(recorder, chance, 0.08):
        known = max((mark for mark in crash.marks if isinstance(mark, int)), default=0)
        for choice in (KeepAll(), KeepNone(), KeepSome(random.Random(chance.random()))):
            state = reopen(crash, choice, target)
            assert state in workload.states[known:], (seed, crash.event, choice)


def test_crash_during_recovery(tmp_path: Path) -> None:
    """E11: openings that are cut short, one after the other, change nothing that had survived."""
    root, target = tmp_path / "root", tmp_path / "image"
    root.mkdir()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    recorder, workload = record(root, seed, "pwrite")
    for crash in sampled(recorder, chance, 0.012):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        crash.write(target, KeepSome(random.Random(chance.random())))
        allowed = workload.states
        for _ in range(3):
            opening = Recorder(target)
            with env.Door(opening).installed():
                store = Store.open(
                    target, region_bytes=REGION_BYTES, disk_backend="pwrite", direct_io=False
                )
                state = contents(store)
                store.close()
            assert state in allowed, (seed, crash.event)
            allowed = [state]
            again = chance.choice(list(crashes_of(opening)))
            shutil.rmtree(target)
            target.mkdir()
            for name, content in again.items():
                (target / name).write_bytes(content)


def crashes_of(recorder: Recorder) -> Iterator[dict[str, bytes]]:
    for crash in crashes(recorder):
        yield crash.model.image(KeepSome(random.Random(crash.event)))
