"""The face of the engine: what `store.pyi` promises, call by call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deodar.engine import (
    Change,
    Closed,
    ConditionFailed,
    Corruption,
    Delete,
    FormatVersion,
    InvalidArgument,
    LimitExceeded,
    Locked,
    NotANumber,
    NotAStore,
    OutOfRange,
    Put,
    ReadOnly,
    Store,
    TimedOut,
    check_directory,
)

MIB = 1 << 20
KEYS = [
    b"\0",
    b"\0\1\0\0",
    b"a",
    b"a\0b",
    b"\xff\xfe not UTF-8",
    b"k" * 65_536,
    b"{tag}one",
    b"{tag}two",
    b"{}",
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store that is sound when the test ends."""
    with Store.open(tmp_path / "store", epoch_ms=1, region_bytes=262_144) as opened:
        yield opened
        assert opened.check() == []


def reopened(store: Store) -> Store:
    store.close()
    return Store.open(store.path, epoch_ms=1)


def test_put_get_delete(store: Store) -> None:
    assert store.get(b"key") is None
    assert store.put(b"key", b"one") == 1
    assert store.put(b"key", b"two") == 2
    assert store.get(b"key") == b"two"
    assert b"key" in store
    assert len(store) == 1
    assert store.delete(b"key")
    assert not store.delete(b"key")
    assert store.get(b"key") is None
    assert store.last_version == 3
    assert store.put(b"key", b"three") == 4


def test_bytes_are_exact(tmp_path: Path) -> None:
    """Keys that other systems cut, merge or lose; empty is not absent.  Also after a reopening."""
    values = [b"", b"\0", b"\0\0", b"x", b"a\0b", b"\xff" * 1000]
    with Store.open(tmp_path) as store:
        for index, key in enumerate(KEYS):
            store.put(key, values[index % len(values)])
        expected = {key: values[index % len(values)] for index, key in enumerate(KEYS)}
        assert {item.key: item.value for item in store.scan()} == expected
        again = reopened(store)
        assert {item.key: item.value for item in again.scan()} == expected
        assert again.get_many(KEYS) == list(expected.values())
        assert {change.key: change.value for change in again.read_log(0)} == expected
        again.close()


@pytest.mark.parametrize("size", [0, 1, 4096, 262_143, 262_144, 262_145, 3 * MIB, 16 * MIB])
def test_values_of_any_size(tmp_path: Path, size: int) -> None:
    value = bytes(range(251)) * (size // 251 + 1)
    value = value[:size]
    with Store.open(tmp_path, region_bytes=262_144) as store:
        store.put(b"before", b"1")
        store.put(b"large", value)
        store.put(b"after", b"2")
        store.sync()
        assert store.get(b"large") == value
        assert store.check() == []
    with Store.open(tmp_path) as store:
        assert store.get(b"large") == value
        assert store.get_many([b"before", b"after"]) == [b"1", b"2"]
        assert store.check() == []


def test_limits_are_exact(store: Store) -> None:
    """At the limit works, one more is refused before anything is changed."""
    store.put(b"k" * 65_536, b"")
    largest = bytes(64 * MIB)
    store.put(b"largest", largest)
    assert store.get(b"largest") == largest
    for key in (b"", b"k" * 65_537):
        for call in (store.get, store.get_item, store.delete, store.increment):
            with pytest.raises(InvalidArgument) as caught:
                call(key)
            assert caught.value.field == "key"
        with pytest.raises(InvalidArgument):
            store.put(key, b"")
        with pytest.raises(InvalidArgument):
            store.write([Put(b"fine", b""), Delete(key)])
        with pytest.raises(InvalidArgument):
            store.get_many([b"fine", key])
    with pytest.raises(InvalidArgument, match="67108865"):
        store.put(b"k", bytes(64 * MIB + 1))
    assert store.last_version == 2
    store.delete(b"largest")


def test_batch_limit(store: Store) -> None:
    batch = [Put(b"%d" % index, b"v") for index in range(10_000)]
    assert [written.version for written in store.write(batch)] == list(range(1, 10_001))
    with pytest.raises(LimitExceeded):
        store.write([*batch, Put(b"one more", b"")])
    assert len(store) == 10_000
    assert store.write([]) == []


def test_conditions(store: Store) -> None:
    """Truth table: absent and present, against if_absent, the version, another version."""
    with pytest.raises(ConditionFailed) as caught:
        store.put(b"key", b"", if_version=0)
    assert caught.value.current_version is None
    with pytest.raises(ConditionFailed):
        store.delete(b"key", if_version=1)
    version = store.put(b"key", b"one", if_absent=True)
    with pytest.raises(ConditionFailed) as caught:
        store.put(b"key", b"", if_absent=True)
    assert caught.value.current_version == version
    with pytest.raises(ConditionFailed) as caught:
        store.put(b"key", b"", if_version=version + 1)
    assert caught.value.current_version == version
    assert store.get(b"key") == b"one"
    version = store.put(b"key", b"two", if_version=version)
    with pytest.raises(ConditionFailed):
        store.delete(b"key", if_version=version - 1)
    assert store.delete(b"key", if_version=version)
    with pytest.raises(InvalidArgument):
        store.put(b"key", b"", if_version=1, if_absent=True)
    assert store.last_version == 3


def test_batch_is_all_or_nothing(store: Store) -> None:
    store.put(b"there", b"1")
    with pytest.raises(ConditionFailed) as caught:
        store.write([Put(b"new", b""), Delete(b"there"), Put(b"there", b"2", if_version=1)])
    assert caught.value.index == 2
    assert caught.value.current_version is None
    assert store.last_version == 1
    assert store.get_many([b"there", b"new"]) == [b"1", None]


def test_batch_sees_its_own_writes(store: Store) -> None:
    written = store.write(
        [
            Put(b"a", b"1"),
            Put(b"a", b"2", if_version=1),
            Delete(b"a", if_version=2),
            Delete(b"a"),
            Put(b"a", b"3", if_absent=True),
            Delete(b"never"),
        ]
    )
    assert [(one.version, one.existed) for one in written] == [
        (1, False),
        (2, True),
        (3, True),
        (0, False),
        (4, False),
        (0, False),
    ]
    assert store.get(b"a") == b"3"
    assert [change.value for change in store.read_log(0)] == [b"1", b"2", None, b"3"]


def test_batch_with_empty_key_changes_nothing(store: Store) -> None:
    with pytest.raises(InvalidArgument):
        store.write([Put(b"a", b""), Put(b"", b"")])
    with pytest.raises(TypeError):
        store.write([("a", b"")])  # type: ignore[list-item]
    assert len(store) == 0


def test_increment(store: Store) -> None:
    assert store.increment(b"n")[0] == 1
    assert store.increment(b"n", -11)[0] == -10
    assert store.get(b"n") == b"-10"
    store.put(b"n", b"9223372036854775807")
    with pytest.raises(OutOfRange):
        store.increment(b"n")
    assert store.increment(b"n", -(1 << 63))[0] == -1
    store.put(b"n", b"-9223372036854775808")
    with pytest.raises(OutOfRange):
        store.increment(b"n", -1)
    assert store.get(b"n") == b"-9223372036854775808"
    number, written = store.increment(b"n", 1)
    assert number == -9223372036854775807
    assert written.existed
    for text in (b"", b"-", b"+1", b" 1", b"01", b"-0", b"1x", b"9223372036854775808", b"1" * 40):
        store.put(b"n", text)
        with pytest.raises(NotANumber):
            store.increment(b"n")
        assert store.get(b"n") == text
    with pytest.raises(InvalidArgument):
        store.increment(b"n", 1 << 63)


def test_expiry(store: Store) -> None:
    """Expired is absent: for reads, conditions, increments, deletions, scans and lists."""
    store.put(b"key", b"ttt", ttl_ms=30)
    deadline = store.get_items([b"key"])[0]
    assert deadline is not None
    assert deadline.deadline_ms is not None
    time.sleep(0.04)
    assert store.get(b"key") is None
    assert store.get_item(b"key") is None
    assert store.get_many([b"key"]) == [None]
    assert list(store.scan()) == []
    assert not store.delete(b"key")
    with pytest.raises(ConditionFailed):
        store.put(b"key", b"", if_version=1)
    assert store.increment(b"key", 0)[0] == 0
    item = store.get_item(b"key")
    assert item is not None
    assert item.deadline_ms is None


def test_expiry_stays_where_it_was_not_asked_for(store: Store) -> None:
    store.put(b"key", b"1", ttl_ms=60_000)
    first = store.get_item(b"key")
    store.increment(b"key")
    second = store.get_item(b"key")
    assert first is not None
    assert second is not None
    assert first.deadline_ms == second.deadline_ms
    store.put(b"key", b"1")
    third = store.get_item(b"key")
    assert third is not None
    assert third.deadline_ms is None


@pytest.mark.parametrize("ttl", [0, -1, 3_155_760_000_001, 2**63 - 1, 2**64])
def test_ttl_out_of_bounds(store: Store, ttl: int) -> None:
    store.put(b"key", b"old")
    with pytest.raises(InvalidArgument):
        store.put(b"key", b"new", ttl_ms=ttl)
    assert store.get(b"key") == b"old"
    store.put(b"key", b"new", ttl_ms=3_155_760_000_000)


def test_deadlines_survive_reopening(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.put(b"key", b"1", ttl_ms=60_000)
        store.put(b"soon", b"1", ttl_ms=1)
        item = store.get_item(b"key")
    time.sleep(0.005)
    with Store.open(tmp_path) as store:
        assert store.get_item(b"key") == item
        assert store.get(b"soon") is None


def test_get_many_is_aligned(store: Store) -> None:
    store.write([Put(b"a", b"1"), Put(b"b", b"2"), Put(b"c", b"")])
    asked = [b"a", b"b", b"a", b"missing", b"c"]
    assert store.get_many(asked) == [b"1", b"2", b"1", None, b""]
    items = store.get_items(asked)
    assert items[3] is None
    assert items[0] is not None
    assert items[0].version == 1
    assert store.get_many([]) == []
    many = [b"%d" % (index % 300) for index in range(1000)]
    store.write([Put(b"%d" % index, b"v%d" % index) for index in range(300)])
    assert store.get_many(many) == [b"v" + key for key in many]


def test_durability(store: Store) -> None:
    store.put(b"key", b"", durability="durable")
    assert store.durable_epoch >= 1
    written = store.write([Put(b"key", b"")], durability="durable")
    assert store.durable_epoch >= written[0].epoch
    assert store.delete(b"key", durability="durable")
    _, increment = store.increment(b"n", durability="durable")
    assert store.durable_epoch >= increment.epoch
    with pytest.raises(InvalidArgument):
        store.put(b"key", b"", durability="sometimes")  # type: ignore[arg-type]


def test_sync_and_wait(tmp_path: Path) -> None:
    with Store.open(tmp_path, epoch_ms=1000) as store:
        began = time.monotonic()
        assert store.sync() == 0
        epoch = store.write([Put(b"key", b"")])[0].epoch
        assert store.durable_epoch < epoch
        assert store.wait_durable(epoch)
        assert store.durable_epoch == epoch
        store.put(b"key", b"2")
        assert store.sync() == epoch + 1
        assert store.wait_durable(epoch + 1, timeout=0)
        assert time.monotonic() - began < 0.9
        store.put(b"key", b"3")
        assert not store.wait_durable(epoch + 2, timeout=0)
        store.put(b"key", b"4")
        with pytest.raises(TimedOut):
            store.sync(timeout=0)


def test_epochs_close_by_themselves(store: Store) -> None:
    epoch = store.write([Put(b"key", b"")])[0].epoch
    limit = time.monotonic() + 5
    while store.durable_epoch < epoch and time.monotonic() < limit:
        time.sleep(0.001)
    assert store.durable_epoch >= epoch


def test_clean_reopening_replays_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        identity = store.store_id
        epoch = store.write([Put(b"key", b"value")])[0].epoch
    with Store.open(tmp_path) as store:
        assert store.store_id == identity
        assert store.recovered_epoch == epoch
        assert store.last_version == 1
        assert store.put(b"key", b"") == 2
        assert store.write([Put(b"key", b"")])[0].epoch == epoch + 1


def test_two_openers(tmp_path: Path) -> None:
    with Store.open(tmp_path):
        with pytest.raises(Locked):
            Store.open(tmp_path)
        with pytest.raises(Locked):
            Store.open(tmp_path, read_only=True)
    one, other = (Store.open(tmp_path, read_only=True) for _ in range(2))
    with pytest.raises(Locked):
        Store.open(tmp_path)
    one.close()
    other.close()


def test_closed(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.close()
    store.close()
    for call in (
        lambda: store.get(b"k"),
        lambda: store.put(b"k", b""),
        store.sync,
        store.stats,
        store.check,
        lambda: store.scan_page(),
        lambda: store.read_log(0),
        lambda: store.last_version,
        lambda: len(store),
        lambda: list(store.scan()),
    ):
        with pytest.raises(Closed):
            call()
    with pytest.raises(TypeError):
        Store()


def test_read_only(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        Store.open(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()
    with Store.open(tmp_path) as store:
        store.put(b"key", b"value")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with Store.open(tmp_path, read_only=True) as store:
        assert store.get(b"key") == b"value"
        for call in (
            lambda: store.put(b"k", b""),
            lambda: store.delete(b"key"),
            store.checkpoint,
        ):
            with pytest.raises(ReadOnly):
                call()
        assert store.sync() == 1
    assert check_directory(tmp_path) == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        Store.open(tmp_path / "absent", create=False)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NotAStore):
        Store.open(tmp_path)
    with pytest.raises(NotAStore):
        Store.open(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_damaged_identity(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.put(b"key", b"value")
    path = tmp_path / "STORE"
    good = path.read_bytes()
    path.write_bytes(b"X" + good[1:])
    with pytest.raises(NotAStore):
        Store.open(tmp_path)
    path.write_bytes(good[:8] + b"\x02" + good[9:])
    with pytest.raises(FormatVersion) as version:
        Store.open(tmp_path)
    assert version.value.found == 2
    for offset in (12, 16, 24, 4096, 4104, 8192):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        with pytest.raises(Corruption) as damage:
            Store.open(tmp_path)
        assert damage.value.file == "STORE"
    path.write_bytes(good[:5000])
    with pytest.raises(Corruption):
        Store.open(tmp_path)
    path.unlink()
    with pytest.raises(NotAStore):
        Store.open(tmp_path)
    path.write_bytes(good)
    with Store.open(tmp_path) as store:
        assert store.get(b"key") == b"value"


@pytest.mark.parametrize(
    "options",
    [
        {"region_bytes": 100_000},
        {"region_bytes": 1 << 17},
        {"region_bytes": 1 << 25},
        {"sluggishness": 0},
        {"sluggishness": 17},
        {"epoch_ms": 0},
        {"epoch_ms": 1001},
        {"write_buffer_bytes": 0},
        {"checkpoint_log_bytes": 0},
        {"stall_ms": -1},
        {"disk_backend": "magic"},
    ],
)
def test_options_out_of_bounds(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Store.open(tmp_path / "store", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "store").exists()


def test_apply_follows_another_store(tmp_path: Path) -> None:
    """A copy that follows the log has the same records, digest and stream."""
    with Store.open(tmp_path / "source") as source, Store.open(tmp_path / "copy") as copy:
        for index in range(300):
            source.put(b"key %d" % (index % 40), b"v%d" % index, ttl_ms=60_000)
            if index % 7 == 0:
                source.delete(b"key %d" % (index % 11))
        while changes := source.read_log(copy.last_version, limit=50):
            assert copy.apply(changes) == len(changes)
        assert copy.digest() == source.digest()
        assert copy.last_version == source.last_version
        assert copy.read_log(0) == source.read_log(0)
        assert copy.apply(source.read_log(copy.last_version - 5)) == 0
        assert copy.check() == []
    with Store.open(tmp_path / "copy") as copy:
        assert copy.last_version > 300


def test_apply_out_of_order(tmp_path: Path) -> None:
    """A copy made in hash order, then brought up to date from the log."""
    with Store.open(tmp_path / "source") as source, Store.open(tmp_path / "copy") as copy:
        for index in range(500):
            source.put(b"key %d" % (index % 100), b"v%d" % index)
        version = source.last_version
        source.pin_log(version)
        cursor: bytes | None = b""
        while cursor is not None:
            items, cursor = source.scan_page(cursor, limit=30)
            copy.apply([Change(i.key, i.value, i.version, i.deadline_ms) for i in items])
            source.put(b"key 7", b"meanwhile")
            source.delete(b"key 8")
        copy.apply(source.read_log(version))
        assert copy.digest() == source.digest()
        assert copy.last_version == source.last_version
        stale = Change(b"key 7", b"stale", 3, None)
        assert copy.apply([stale]) == 0
        before = copy.digest()
        again = reopened(copy)
        assert again.digest() == before
        assert again.check() == []
        again.close()


def test_threads(tmp_path: Path) -> None:
    """Readers without locks beside writers: every value seen is one that was written, and rises."""
    with Store.open(tmp_path, region_bytes=262_144, checkpoint_log_bytes=300_000) as store:
        keys = [b"key %d" % index for index in range(50)]
        for key in keys:
            store.put(key, b"%020d" % 0 * 20)
        stop = threading.Event()
        faults: list[str] = []

        def read() -> None:
            seen = dict.fromkeys(keys, -1)
            while not stop.is_set():
                for key in keys:
                    value = store.get(key)
                    if value is None or value != value[:20] * 20 or int(value[:20]) < seen[key]:
                        faults.append(f"{key!r}: {value!r}")
                        return
                    seen[key] = int(value[:20])
                if len(list(store.scan())) != len(keys):
                    faults.append("scan")

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for turn in range(1, 200):
            for key in keys:
                store.put(key, b"%020d" % turn * 20)
            if turn % 50 == 0:
                store.compact()
        stop.set()
        for reader in readers:
            reader.join()
        assert faults == []
        assert int(store.stats()["checkpoints"]) > 1
        assert store.check() == []


def test_writers_in_threads(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:

        def count() -> None:
            for _ in range(300):
                store.increment(b"n")

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.get(b"n") == b"1200"


def test_close_waits_for_calls(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    stopped: list[str] = []

    def write() -> None:
        try:
            while True:
                store.put(b"key", b"value", durability="durable")
        except Closed:
            stopped.append("closed")

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    store.close()
    for thread in threads:
        thread.join()
    assert stopped == ["closed"] * 3
    with Store.open(tmp_path) as again:
        assert again.get(b"key") == b"value"


def test_stats(store: Store) -> None:
    store.put(b"key", b"value")
    store.sync()
    stats = store.stats()
    assert stats["keys"] == 1
    assert stats["live_bytes"] == 32
    assert stats["logical_bytes_written"] == 8
    assert stats["durable_epoch"] == 1
    assert stats["regions_active"] == 1
    assert stats["disk_backend"] in ("aio", "io_uring", "pwrite")
