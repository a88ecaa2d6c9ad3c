"""Scans: hash order, cursors that are places, exactly once whatever happens meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from deodar.engine import InvalidArgument, Item, Put, Store


def path_of(key: bytes) -> bytes:
    """Rule H1 for keys without a hash tag."""
    return xxhash.xxh3_128_digest(key)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, region_bytes=262_144, epoch_ms=1) as opened:
        yield opened


def fill(store: Store, count: int) -> list[bytes]:
    keys = [b"key %d" % index for index in range(count)]
    for start in range(0, count, 10_000):
        store.write([Put(key, b"v" + key) for key in keys[start : start + 10_000]])
    return sorted(keys, key=path_of)


def pages(store: Store, cursor: bytes | None = b"", **options: int) -> Iterator[list[Item]]:
    while cursor is not None:
        items, cursor = store.scan_page(cursor, **options)  # type: ignore[arg-type]
        yield items


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_hash_order(store: Store, limit: int) -> None:
    keys = fill(store, 3000 if limit > 1 else 300)
    seen = [item for page in pages(store, limit=limit) for item in page]
    assert [item.key for item in seen] == keys
    assert all(item.value == b"v" + item.key for item in seen)
    assert [item.key for item in store.scan()] == keys


def test_empty_store(store: Store) -> None:
    assert store.scan_page() == ([], None)
    assert list(store.scan()) == []


def test_cursor_is_a_path_and_a_key(store: Store) -> None:
    keys = fill(store, 500)
    items, cursor = store.scan_page(limit=10)
    assert cursor == path_of(keys[9]) + keys[9]
    assert [item.key for item in items] == keys[:10]
    assert store.scan_page(path_of(keys[9]), limit=1)[0][0].key == keys[9]
    assert store.scan_page(path_of(keys[9]) + keys[9], limit=1)[0][0].key == keys[10]
    store.delete(keys[9])
    assert store.scan_page(cursor, limit=1)[0][0].key == keys[10]


def test_end_is_a_path(store: Store) -> None:
    keys = fill(store, 500)
    half = b"\x80" + bytes(15)
    lower = [item.key for page in pages(store, limit=9, end=half) for item in page]  # type: ignore[arg-type]
    upper = [item.key for page in pages(store, half, limit=9) for item in page]
    assert lower + upper == keys
    assert lower == [key for key in keys if path_of(key) < half]
    assert store.scan_page(half, end=half) == ([], None)
    assert store.scan_page(half, end=bytes(16)) == ([], None)


def test_limits(store: Store) -> None:
    keys = fill(store, 100)
    assert [item.key for item in store.scan(limit=3)] == keys[:3]
    assert list(store.scan(limit=0)) == []
    cursor = path_of(keys[2]) + keys[2]
    assert [item.key for item in store.scan(after=cursor, limit=2)] == keys[3:5]
    items, _ = store.scan_page(bytes_max=1)
    assert len(items) == 1
    items, _ = store.scan_page(bytes_max=100)
    assert sum(len(item.key) + len(item.value) for item in items) <= 100
    items, _ = store.scan_page(keys_only=True)
    assert {item.value for item in items} == {b""}
    for wrong in ({"limit": 0}, {"limit": -1}, {"bytes_max": -1}, {"end": b"short"}):
        with pytest.raises(InvalidArgument):
            store.scan_page(**wrong)
    for cursor in (b"x", b"x" * 15, b"x" * 65_553):
        with pytest.raises(InvalidArgument):
            store.scan_page(cursor)


def test_tagged_keys_share_a_prefix(store: Store) -> None:
    """Keys with one hash tag agree in the first 16 bits of their paths, so they come together."""
    fill(store, 2000)
    tagged = {b"{user}%d" % index for index in range(50)}
    store.write([Put(key, b"") for key in tagged])
    found = [index for index, item in enumerate(store.scan()) if item.key in tagged]
    assert len(found) == 50
    assert found[-1] - found[0] < 60


def test_expired_are_passed_over(store: Store) -> None:
    keys = fill(store, 50)
    store.write([Put(b"soon %d" % index, b"", ttl_ms=1) for index in range(5000)])
    threading.Event().wait(0.01)
    assert [item.key for page in pages(store, limit=10) for item in page] == keys


def test_what_exists_throughout_is_found_once(store: Store) -> None:
    """N1: keys come and go, regions are compacted, leaves split and merge between the pages."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    keys = fill(store, 2000)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            other = [b"other %d" % chance.randrange(30_000) for _ in range(100)]
            store.write([Put(key, b"x" * 50) for key in other])
            for key in other[::2]:
                store.delete(key)
            store.put(chance.choice(keys), b"changed")
            if chance.random() < 0.02:
                store.compact()

    writer = threading.Thread(target=disturb)
    writer.start()
    try:
        for _ in range(15):
            seen = [item.key for page in pages(store, limit=50) for item in page]
            assert len(seen) == len(set(seen))
            assert [key for key in seen if not key.startswith(b"other")] == keys
            assert seen == sorted(seen, key=path_of)
    finally:
        stop.set()
        writer.join()
    assert store.check() == []


def test_cursor_survives_reopening(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        keys = fill(store, 300)
        items, cursor = store.scan_page(limit=100)
    with Store.open(tmp_path) as store:
        rest = [item.key for page in pages(store, cursor, limit=100) for item in page]
    assert [item.key for item in items] + rest == keys


def test_digest_follows_the_contents(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a") as one, Store.open(tmp_path / "b") as other:
        assert one.digest() == other.digest() == (0, 0)
        fill(one, 1000)
        fill(other, 1000)
        assert one.digest() == other.digest()
        assert one.digest()[0] == 1000
        one.put(b"key 1", b"vkey 1")
        assert one.digest() != other.digest()
        one.put(b"key 2", b"vkey 2", ttl_ms=60_000)
        other.put(b"key 1", b"vkey 1")
        other.put(b"key 2", b"vkey 2")
        assert one.digest() != other.digest()
