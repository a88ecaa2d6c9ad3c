"""Order, bounds and patience of the loader, with a client that fails on request."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from deodar.client.cli import loader as module
from deodar.client.cli.loader import GaveUp, Loader
from deodar.client.cli.readers import Bad, Parsed
from deodar.client.client import Client
from deodar.client.errors import BatchError, error_of
from deodar.client.records import Put, Written
from deodar.contract.reasons import Reason, ServiceError


class Cluster:
    """Takes batches in memory; `fail(put)` may give the reason for which a put is refused."""

    def __init__(self) -> None:
        self.data: dict[bytes, list[bytes]] = {}
        self.batches: list[int] = []
        self.running = 0
        self.running_most = 0
        self._lock = threading.Lock()
        self._source = random.Random(1)

    def fail(self, _put: Put) -> Reason | None:
        return None

    def batch_write(self, puts: Sequence[Put], **_options: Any) -> list[Written]:
        with self._lock:
            self.running += 1
            self.running_most = max(self.running_most, self.running)
            self.batches.append(len(puts))
        threading.Event().wait(self._source.random() * 0.003)
        results: list[object] = []
        with self._lock:
            self.running -= 1
            for put in puts:
                reason = self.fail(put)
                if reason is not None:
                    results.append(error_of(ServiceError(reason, "why")))
                else:
                    self.data.setdefault(put.key, []).append(put.value)
                    results.append(Written(1, False))
        if any(not isinstance(result, Written) for result in results):
            raise BatchError(results)
        return cast(list[Written], results)


def load(cluster: Cluster, puts: Sequence[Put]) -> tuple[int, list[Bad]]:
    refused: list[Bad] = []
    with Loader(cast(Client, cluster), "default", None, refused.append, 60.0) as loader:
        for line, put in enumerate(puts, 1):
            loader.add(Parsed(line, put))
        loader.finish()
        return loader.written, refused


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)


def test_the_last_write_of_a_key_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_OPERATIONS", 7)
    cluster = Cluster()
    puts = [Put(b"k%d" % (n % 40), b"%d" % n) for n in range(2000)]
    assert load(cluster, puts) == (2000, [])
    for key in range(40):
        assert cluster.data[b"k%d" % key] == [b"%d" % n for n in range(key, 2000, 40)]
    assert max(cluster.batches) == 7
    assert 1 < cluster.running_most <= 1 << module.LANE_BITS


def test_batches_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    cluster = Cluster()
    assert load(cluster, [Put(b"k%d" % n, bytes(400)) for n in range(50)])[0] == 50
    assert max(cluster.batches) <= 2
    assert load(cluster, [Put(b"large", bytes(5000))])[0] == 1


def test_what_may_pass_is_tried_again() -> None:
    class Flaky(Cluster):
        def fail(self, _put: Put) -> Reason | None:
            if source.random() < 0.3:
                return source.choice(
                    [Reason.OVERLOADED, Reason.SHARD_UNAVAILABLE, Reason.OUTCOME_UNKNOWN]
                )
            return None

    source = random.Random(5)
    cluster = Flaky()
    assert load(cluster, [Put(b"k%d" % n, b"v") for n in range(300)]) == (300, [])
    assert len(cluster.data) == 300


def test_one_bad_record_does_not_take_others_with_it() -> None:
    class Strict(Cluster):
        def batch_write(self, puts: Sequence[Put], **options: Any) -> list[Written]:
            if any(put.key == b"bad" for put in puts):
                failed = error_of(ServiceError(Reason.LIMIT_EXCEEDED, "why"))
                raise BatchError([failed] * len(puts))
            return super().batch_write(puts, **options)

    cluster = Strict()
    puts = [Put(b"k%d" % n, b"v") for n in range(50)]
    puts.insert(20, Put(b"bad", b"v"))
    assert load(cluster, puts) == (50, [Bad(21, "why")])
    assert len(cluster.data) == 50


def test_patience_ends_and_every_record_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written, refused, in doubt and left: the loader gives up in its time and tells which."""

    class Half(Cluster):
        def fail(self, put: Put) -> Reason | None:
            return reasons.get(put.key[:1])

    reasons = {
        b"d": Reason.DISK_FULL,
        b"u": Reason.OUTCOME_UNKNOWN,
        b"r": Reason.LIMIT_EXCEEDED,
    }
    monkeypatch.setattr(module, "BATCH_OPERATIONS", 1000)
    refused: list[Bad] = []
    begun = time.monotonic()
    with Loader(cast(Client, Half()), "default", None, refused.append, 0.2) as loader:
        for line in range(1, 401):
            loader.add(Parsed(line, Put(b"wdur"[line % 4 : line % 4 + 1] + b"%d" % line, b"v")))
        with pytest.raises(GaveUp, match="gave up at line"):
            loader.finish()
        loader.give_up()
    assert (loader.written, len(refused), loader.unknown) == (100, 100, 100)
    assert time.monotonic() - begun < 5


def test_leaving_early_does_not_wait_out_the_patience() -> None:
    class Dead(Cluster):
        def fail(self, _put: Put) -> Reason | None:
            return Reason.DISK_FULL

    def load_and_leave() -> None:
        with Loader(cast(Client, Dead()), "default", None, lambda _bad: None, 60.0) as loader:
            for line in range(module.BATCH_OPERATIONS + 1):
                loader.add(Parsed(line, Put(b"{x}%d" % line, b"v")))
            raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        load_and_leave()
    assert time.monotonic() - begun < 5
