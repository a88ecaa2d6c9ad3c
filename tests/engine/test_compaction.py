"""Space comes back, nothing else changes."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from deodar.engine import InvalidArgument, LimitExceeded, LogTrimmed, Put, Store

REGION_BYTES = 262_144


def opened(path: Path, **options: object) -> Store:
    return Store.open(path, region_bytes=REGION_BYTES, epoch_ms=1, **options)  # type: ignore[arg-type]


def state_of(store: Store) -> dict[bytes, tuple[bytes, int]]:
    return {item.key: (item.value, item.version) for item in store.scan()}


def fill(store: Store, keys: int, rounds: int, size: int = 1000) -> None:
    for turn in range(rounds):
        for index in range(keys):
            store.put(b"key %d" % index, b"%d" % (turn % 10) * size)


def test_dead_regions_come_back(tmp_path: Path) -> None:
    with opened(tmp_path, compaction=False) as store:
        fill(store, 300, 10)
        before = store.stats()
        state = state_of(store)
        assert store.compact() > 5 * REGION_BYTES
        after = store.stats()
        assert int(after["regions_free"]) > int(before["regions_free"]) + 5
        assert int(after["regions"]) <= int(before["regions"]) + 2
        assert state_of(store) == state
        assert store.check() == []
        fill(store, 300, 10)
        assert int(store.stats()["regions"]) <= int(before["regions"]) + 4


def test_sparse_regions_are_copied(tmp_path: Path) -> None:
    """Live records keep their versions and deadlines, also over a crash and a reopening."""
    with opened(tmp_path / "store", compaction=False) as store:
        for index in range(2000):
            store.put(b"key %d" % index, b"v" * 1000, ttl_ms=60_000 if index % 7 == 0 else None)
        for index in range(2000):
            if index % 5:
                store.delete(b"key %d" % index)
        digest = store.digest()
        assert store.compact() > 0
        stats = store.stats()
        assert int(stats["relocated_bytes"]) > 300_000
        assert int(stats["live_bytes"]) < 2 * 400 * 1048
        assert store.digest() == digest
        assert store.check() == []
        store.sync()
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    for path in (tmp_path / "store", tmp_path / "crashed"):
        with opened(path) as store:
            assert store.digest() == digest
            assert store.check() == []


def test_store_does_not_grow_by_overwriting(tmp_path: Path) -> None:
    """Background compaction alone keeps the disk in proportion to the live data."""
    with opened(tmp_path, checkpoint_log_bytes=1_000_000) as store:
        for _ in range(12):
            fill(store, 500, 4)
            time.sleep(0.05)
        stats = store.stats()
        assert int(stats["log_bytes_appended"]) > 20_000_000
        assert int(stats["disk_bytes"]) < 16_000_000, stats
        assert store.check() == []


def test_expired_records_come_back(tmp_path: Path) -> None:
    """Row 11: the disk falls after compaction, and the keys are gone."""
    with opened(tmp_path, compaction=False) as store:
        for index in range(1500):
            store.put(b"key %d" % index, bytes(1000), ttl_ms=20)
        store.put(b"stays", b"")
        store.sync()
        time.sleep(0.03)
        assert len(store) == 1501
        assert store.compact() > 4 * REGION_BYTES
        assert int(store.stats()["expired_reclaimed"]) > 1000
        assert len(store) < 500
        assert next(store.scan()).key == b"stays"
        assert store.check() == []
        store.put(b"key 3", b"again")
    with opened(tmp_path) as store:
        assert [item.key for item in store.scan() if item.value] == [b"key 3"]
        assert store.check() == []


def test_large_values_come_back(tmp_path: Path) -> None:
    with opened(tmp_path, compaction=False) as store:
        for turn in range(5):
            store.put(b"large", bytes([turn]) * 3_000_000)
            store.put(b"small", b"%d" % turn)
        assert store.compact() > 10_000_000
        regions = int(store.stats()["regions"])
        for turn in range(3):
            store.put(b"large", bytes([turn]) * 3_000_000)
        assert int(store.stats()["regions"]) <= regions + 2
        assert store.check() == []
    with opened(tmp_path) as store:
        assert store.get(b"large") == bytes([2]) * 3_000_000


def test_trimmed_log_is_reported(tmp_path: Path) -> None:
    with opened(tmp_path, compaction=False) as store:
        fill(store, 300, 5)
        middle = store.last_version
        fill(store, 300, 5)
        assert len(store.read_log(0, limit=10_000, bytes_max=1 << 40)) == 3000
        store.compact()
        with pytest.raises(LogTrimmed):
            store.read_log(0)
        with pytest.raises(LogTrimmed):
            store.pin_log(middle)
        assert store.read_log(store.last_version) == []
        last = store.read_log(store.last_version - 1)
        assert [change.version for change in last] == [store.last_version]
    with opened(tmp_path) as store, pytest.raises(LogTrimmed):
        store.read_log(0)


def test_pinned_log_stays(tmp_path: Path) -> None:
    with opened(tmp_path, compaction=False) as store:
        fill(store, 300, 5)
        token = store.pin_log(0)
        later = store.pin_log(store.last_version)
        fill(store, 300, 5)
        store.compact()
        changes = store.read_log(0, limit=10_000, bytes_max=1 << 40)
        assert [change.version for change in changes] == list(range(1, 3001))
        store.unpin_log(token)
        store.compact()
        with pytest.raises(LogTrimmed):
            store.read_log(0)
        store.unpin_log(later)
        for wrong in (token, 0, 99):
            with pytest.raises(InvalidArgument):
                store.unpin_log(wrong)


def test_pins_are_bounded(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        tokens = [store.pin_log(0) for _ in range(256)]
        with pytest.raises(LimitExceeded):
            store.pin_log(0)
        for token in tokens:
            store.unpin_log(token)
        store.pin_log(0)


def test_compaction_beside_writes(tmp_path: Path) -> None:
    """Random writes with small checkpoints; what is there is what was written."""
    chance = random.Random(5)
    expected: dict[bytes, bytes] = {}
    with opened(tmp_path, checkpoint_log_bytes=300_000) as store:
        for turn in range(6000):
            key = b"key %d" % chance.randrange(400)
            if chance.random() < 0.3:
                store.delete(key)
                expected.pop(key, None)
            else:
                value = chance.randbytes(chance.randrange(2000))
                store.put(key, value)
                expected[key] = value
            if turn % 1500 == 0:
                store.write([Put(b"large", chance.randbytes(400_000))])
        expected[b"large"] = store.get(b"large") or b""
        assert int(store.stats()["checkpoints"]) > 0
        assert {item.key: item.value for item in store.scan()} == expected
        assert store.check() == []
    with opened(tmp_path) as store:
        assert {item.key: item.value for item in store.scan()} == expected
