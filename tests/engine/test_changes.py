"""The stream of changes: what it promises to those who follow it, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deodar.engine import Change, InvalidArgument, LogTrimmed, Store


def opened(path: Path) -> Store:
    return Store.open(path, region_bytes=262_144, epoch_ms=1000)


def crashed(store: Store, path: Path) -> Store:
    """The store as a crash after a sync leaves it."""
    store.sync()
    shutil.copytree(store.path, path)
    store.close()
    return opened(path)


def closed(store: Store, _: Path) -> Store:
    store.close()
    return opened(Path(store.path))


def same(store: Store, _: Path) -> Store:
    return store


@pytest.mark.parametrize("after", [same, closed, crashed])
def test_stream_starts_anew_behind_a_gap(
    tmp_path: Path, after: Callable[[Store, Path], Store]
) -> None:
    """A copy that has not seen every version cannot tell anybody what it has not seen (L6)."""
    store = opened(tmp_path / "store")
    assert store.apply([Change(b"a", b"1", 5, None), Change(b"b", b"2", 6, None)]) == 2
    with pytest.raises(LogTrimmed):
        store.read_log(4)
    assert [change.version for change in store.read_log(5)] == [6]
    assert store.apply([Change(b"c", b"3", 9, None), Change(b"d", b"old", 3, None)]) == 2
    assert store.apply([Change(b"e", b"4", 10, None), Change(b"a", None, 11, None)]) == 2
    store = after(store, tmp_path / "crashed")
    for version in (0, 4, 5, 8):
        with pytest.raises(LogTrimmed):
            store.read_log(version)
    assert [change.version for change in store.read_log(9)] == [10, 11]
    assert store.last_version == 11
    assert store.get_many([b"a", b"b", b"c", b"d", b"e"]) == [None, b"2", b"3", b"old", b"4"]
    assert store.put(b"f", b"5") > 11
    assert [change.key for change in store.read_log(10)] == [b"a", b"f"]
    assert store.check() == []
    store.close()


def test_deletion_of_what_is_not_there_is_passed_on(tmp_path: Path) -> None:
    """A follower of the follower has to see it."""
    with opened(tmp_path) as store:
        changes = [Change(b"a", b"1", 1, None), Change(b"never", None, 2, None)]
        assert store.apply(changes) == 2
        assert store.read_log(0) == changes
        assert store.check() == []


def test_older_changes_are_skipped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put(b"a", b"1")
        store.put(b"a", b"2")
        assert store.apply([Change(b"a", b"old", 1, None), Change(b"a", None, 2, None)]) == 0
        assert store.get(b"a") == b"2"
        assert [change.value for change in store.read_log(0)] == [b"1", b"2"]


def test_deadlines_are_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        change = Change(b"a", b"1", 1, 4_000_000_000_000)
        assert store.apply([change]) == 1
        assert store.read_log(0) == [change]
        item = store.get_item(b"a")
        assert item is not None
        assert item.deadline_ms == 4_000_000_000_000
        assert store.apply([Change(b"gone", b"", 2, 1)]) == 1
        assert store.get(b"gone") is None


@pytest.mark.parametrize(
    "change",
    [
        Change(b"", b"", 1, None),
        Change(b"a", b"", 0, None),
        Change(b"a", b"", 1 << 64, None),
        Change(b"a", b"", 1, 0),
        Change(b"a", None, 1, 5),
    ],
)
def test_impossible_changes(tmp_path: Path, change: Change) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(InvalidArgument):
            store.apply([Change(b"fine", b"", 1, None), change])
        with pytest.raises(TypeError):
            store.apply([(b"a", b"", 1, None)])  # type: ignore[list-item]
        assert len(store) == 0


def test_limits_of_reading(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for index in range(2000):
            store.put(b"key %d" % index, bytes(500))
        assert len(store.read_log(0, limit=7)) == 7
        assert len(store.read_log(0, bytes_max=1)) == 1
        assert 90 < len(store.read_log(0, bytes_max=50_000)) < 110
        versions: list[int] = []
        while changes := store.read_log(versions[-1] if versions else 0, limit=333):
            versions += [change.version for change in changes]
        assert versions == list(range(1, 2001))
        for wrong in ({"limit": 0}, {"limit": 100_001}, {"bytes_max": -1}):
            with pytest.raises(InvalidArgument):
                store.read_log(0, **wrong)
