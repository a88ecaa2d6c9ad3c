"""A writer killed at random moments, again and again on one directory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from deodar.engine import Store, check_directory

from . import writer

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 25


def killed_after(path: Path, seed: int, start: int, delay: float, stop_every: int) -> int:
    """Runs the writer and kills it; answers how many operations it knew to be durable."""
    arguments = [str(path), str(seed), str(start), str(stop_every)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.writer", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    lines = [first, *process.stdout]
    assert process.wait(timeout=30) == -signal.SIGKILL
    durable = start
    for line in lines:
        if line.startswith("d ") and line.endswith("\n"):
            durable = int(line[2:])
    return durable


def state_of(store: Store) -> dict[bytes, bytes]:
    return {item.key: item.value for item in store.scan()}


def test_killed_writer(tmp_path: Path) -> None:
    """Promise "Prefix": the state is that of the first n operations, and n is not below what the
    writer was told to be durable.  Seen to fail with `sync` answering before the flush.
    """
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    model: writer.State = {}
    done = 0
    for turn in range(ROUNDS):
        stop_every = chance.choice([3, 50, 1000])
        durable = killed_after(tmp_path, seed, done, chance.random() * 0.25, stop_every)
        if turn % 5 == 0:
            assert check_directory(tmp_path) == []
        with Store.open(tmp_path, **writer.OPTIONS) as store:  # type: ignore[arg-type]
            found = state_of(store)
            reached = int(found.get(b"index", b"-1")) + 1
            assert reached >= durable, (seed, turn)
            while done < reached:
                writer.apply(model, seed, done)
                done += 1
            assert found == model, (seed, turn)
            assert store.check() == []
