"""Bytes that changed on disk: a torn tail is cut, damage is reported, and nothing is guessed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deodar.engine import Corruption, FormatVersion, Put, Store, check_directory

REGION_BYTES = 262_144
DATA = "data-000000.segment"
State = dict[bytes, bytes]


def opened(path: Path) -> Store:
    return Store.open(path, region_bytes=REGION_BYTES, epoch_ms=1000, compaction=False)


def state_of(store: Store) -> State:
    return {item.key: item.value for item in store.scan()}


def log_end(path: Path) -> int:
    """Where the log ends: the disk is zero behind it."""
    content = (path / DATA).read_bytes()
    return (len(content.rstrip(b"\0")) + 7) & ~7


class Image:
    """A store as a crash leaves it, with the end of the log after each of three epochs."""

    def __init__(self, path: Path, *, value_bytes: int = 50) -> None:
        self.path = path / "image"
        self.ends: list[int] = []
        self.states: list[State] = []
        with opened(path / "origin") as store:
            for epoch in range(3):
                for index in range(4):
                    store.put(b"key %d" % index, b"%d" % epoch * value_bytes)
                store.put(b"only in %d" % epoch, b"")
                store.sync()
                self.ends.append(log_end(path / "origin"))
                self.states.append(state_of(store))
            shutil.copytree(path / "origin", self.path)
        self.data = (self.path / DATA).read_bytes()

    def write(self, content: bytes) -> None:
        """Puts the image back, with other bytes in the log."""
        shutil.rmtree(self.path)
        shutil.copytree(self.path.parent / "origin", self.path)
        for file in self.path.glob("checkpoint-*"):
            file.unlink()
        for name, kept in self.others.items():
            (self.path / name).write_bytes(kept)
        (self.path / DATA).write_bytes(content)

    def keep(self) -> Image:
        """Remembers every file of the image but the log."""
        self.others = {
            file.name: file.read_bytes() for file in self.path.iterdir() if file.name != DATA
        }
        return self

    def changed(self, offset: int, new: bytes) -> bytes:
        return self.data[:offset] + new + self.data[offset + len(new) :]

    def flipped(self, offset: int, bit: int = 0) -> bytes:
        return self.changed(offset, bytes([self.data[offset] ^ 1 << bit]))


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path).keep()


def outlives(path: Path, expected: State) -> None:
    """Opens, writes, and opens twice more: what was written behind the cut stays (row 18)."""
    for turn in range(3):
        with opened(path) as store:
            assert state_of(store) == expected
            assert store.check() == []
            store.put(b"after the cut", b"%d" % turn)
            expected = state_of(store)
            store.sync()
            shutil.copytree(path, path.with_name("crashed"))
        shutil.rmtree(path)
        path.with_name("crashed").rename(path)


def test_torn_tail_is_cut_anywhere(image: Image) -> None:
    """Zeros from any byte of the last epoch on: the epoch is gone, the ones before are there."""
    start, end = image.ends[1:]
    for offset in {*range(start, end, 13), start, start + 1, end - 8, end - 41, end - 40}:
        image.write(image.data[:offset] + bytes(len(image.data) - offset))
        with opened(image.path) as store:
            assert state_of(store) == image.states[1], offset


def test_bad_byte_in_the_last_epoch(image: Image) -> None:
    start, end = image.ends[1:]
    for offset in range(start, end, 11):
        image.write(image.flipped(offset, offset % 8))
        with opened(image.path) as store:
            assert state_of(store) == image.states[1], offset


@pytest.mark.parametrize(
    "stray", [b"\1", bytes(7) + b"\1", b"\xff" * 100, b"half"], ids=["1", "8th", "100", "half"]
)
def test_stray_bytes_behind_the_log(image: Image, stray: bytes) -> None:
    """They are ignored, and what is appended over them stays (row 18)."""
    end = image.ends[2]
    if stray == b"half":
        stray = image.data[image.ends[1] : image.ends[1] + 30]
    image.write(image.changed(end, stray))
    outlives(image.path, image.states[2])


def test_cut_tail_stays_cut(image: Image) -> None:
    start, end = image.ends[1:]
    image.write(image.changed((start + end) // 2 & ~7, bytes(8)))
    outlives(image.path, image.states[1])


def test_damage_in_the_middle_is_reported(image: Image) -> None:
    """A later epoch is there, so the record was once durable: never skipped, never cut."""
    first = 64
    for offset in range(first, image.ends[1], 17):
        image.write(image.flipped(offset, offset % 8))
        with pytest.raises(Corruption) as caught:
            opened(image.path)
        assert caught.value.file == DATA
        assert offset - 120 <= caught.value.offset <= offset
        assert (image.path / DATA).read_bytes() == image.flipped(offset, offset % 8)


def test_damaged_header_of_the_first_region(image: Image) -> None:
    for offset in range(0, 64, 3):
        image.write(image.flipped(offset))
        with pytest.raises(Corruption):
            opened(image.path)


def test_damage_in_the_middle_over_regions(tmp_path: Path) -> None:
    """The later SEAL may be in another region, behind the damage or behind a damaged header."""
    image = Image(tmp_path, value_bytes=60_000).keep()
    assert image.ends[2] > 2 * REGION_BYTES
    second = image.data.index(b"DEODARKV", 1)
    for offset in (100, 70_000, second + 8, second + 30, second + 500):
        image.write(image.flipped(offset))
        with pytest.raises(Corruption) as caught:
            opened(image.path)
        assert caught.value.file == DATA


def test_known_log_that_is_gone_is_damage(image: Image) -> None:
    """I2: an opening wrote down how far the log went."""
    with opened(image.path) as store:
        assert state_of(store) == image.states[2]
        shutil.copytree(image.path, image.path.with_name("crashed"))
    crashed = image.path.with_name("crashed")
    content = (crashed / DATA).read_bytes()
    (crashed / DATA).write_bytes(content[: image.ends[1]] + bytes(len(content) - image.ends[1]))
    with pytest.raises(Corruption):
        opened(crashed)


def test_numbers_are_never_given_twice(tmp_path: Path) -> None:
    """I1: epochs and versions of a lost flush are not used again."""
    origin, image = tmp_path / "origin", tmp_path / "image"
    for turn in range(3):
        new = b"new %d" % turn
        with opened(origin) as store:
            store.put(b"kept", b"")
            store.sync()
            lost = store.write([Put(b"lost", b"")])[0]
            shutil.copytree(origin, image)
        shutil.rmtree(origin)
        image.rename(origin)
        with opened(origin) as store:
            assert store.get(b"lost") is None
            assert store.recovered_epoch >= lost.epoch - 2
            written = store.write([Put(new, b"")])[0]
            assert written.version > lost.version
            assert written.epoch > lost.epoch
            lost = written
            shutil.copytree(origin, image)
        with opened(image) as store:
            assert store.get(new) is None
            assert store.recovered_epoch >= lost.epoch - 2
            written = store.write([Put(new, b"")])[0]
            assert written.version > lost.version
            assert written.epoch > lost.epoch
        shutil.rmtree(image)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A store of several regions that was closed."""
    path = tmp_path / "closed"
    with opened(path) as store:
        for index in range(1000):
            store.put(b"key %d" % index, b"%d" % (index % 10) * 1000)
    return path


def read(store: Store, key: bytes) -> tuple[bytes | None, Corruption | None]:
    try:
        return store.get(key), None
    except Corruption as error:
        return None, error


def test_flipped_bits_of_a_closed_store(closed: Path) -> None:
    """A flipped bit in a record gives Corruption, at open, read or check; never another value."""
    chance = random.Random(1)
    good = (closed / DATA).read_bytes()
    used = [
        range(start, start + len(good[start : start + REGION_BYTES].rstrip(b"\0")))
        for start in range(0, len(good), REGION_BYTES)
        if good.startswith(b"DEODARKV", start)
    ]
    for _ in range(60):
        offset = chance.choice(chance.choice(used))
        flipped = bytes([good[offset] ^ 1 << chance.randrange(8)])
        (closed / DATA).write_bytes(good[:offset] + flipped + good[offset + 1 :])
        try:
            store = Store.open(closed, read_only=True)
        except Corruption:
            continue
        with store:
            for index in range(1000):
                value, error = read(store, b"key %d" % index)
                if error is None:
                    assert value == b"%d" % (index % 10) * 1000
                else:
                    assert error.file == DATA
                    assert abs(error.offset - offset) < 1100
            assert store.check() != [], offset


def test_writes_meet_damage(closed: Path) -> None:
    """A damaged record is reported to who writes over it, and nothing is changed."""
    content = bytearray((closed / DATA).read_bytes())
    content[content.index(b"key 7")] ^= 1
    (closed / DATA).write_bytes(content)
    with opened(closed) as store:
        version = store.last_version
        for call in (
            lambda: store.put(b"key 7", b""),
            lambda: store.delete(b"key 7"),
            lambda: store.write([Put(b"fine", b""), Put(b"key 7", b"")]),
            lambda: list(store.scan()),
            store.digest,
        ):
            with pytest.raises(Corruption):
                call()
        assert store.last_version == version
        assert store.get(b"fine") is None
        assert store.put(b"fine", b"") == version + 1


def truncate(bytes_kept: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:bytes_kept])

    return change


@pytest.mark.parametrize("pattern", ["data-*", "trie-*", "checkpoint-*"])
@pytest.mark.parametrize(
    "change",
    [truncate(0), truncate(1), truncate(100), Path.unlink],
    ids=["0", "1", "100", "missing"],
)
def test_cut_or_missing_files(closed: Path, pattern: str, change: Callable[[Path], None]) -> None:
    change(next(closed.glob(pattern)))
    with pytest.raises(Corruption):
        opened(closed)
    with pytest.raises(Corruption):
        check_directory(closed)


@pytest.mark.parametrize(
    ("pattern", "change"),
    [("data-*", truncate(2 * REGION_BYTES)), ("checkpoint-*", truncate(-1))],
)
def test_files_cut_a_little(closed: Path, pattern: str, change: Callable[[Path], None]) -> None:
    change(next(closed.glob(pattern)))
    with pytest.raises(Corruption):
        opened(closed)


def test_damaged_checkpoint(closed: Path) -> None:
    path = next(closed.glob("checkpoint-*"))
    good = path.read_bytes()
    for offset in range(0, len(good), max(1, len(good) // 60)):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        with pytest.raises((Corruption, FormatVersion)):
            opened(closed)
    path.write_bytes(good)
    path.rename(path.with_name("checkpoint-00000000000000ff"))
    with pytest.raises(Corruption):
        opened(closed)


def test_damaged_page_of_the_trie(closed: Path) -> None:
    path = closed / "trie-000000.segment"
    good = path.read_bytes()
    found: list[str] = []
    for offset in range(4096, len(good), 4096 * 3):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        try:
            with Store.open(closed, read_only=True) as store:
                assert store.check() == []
        except Corruption as error:
            found.append(error.file)
    assert set(found) == {path.name}


def test_left_over_files(closed: Path) -> None:
    (closed / "checkpoint-0000000000000099.tmp").write_bytes(b"half")
    (closed / "STORE.tmp").write_bytes(b"half")
    with opened(closed) as store:
        assert len(store) == 1000
        assert sorted(path.name for path in closed.glob("*.tmp")) == []


def test_unfinished_creation(tmp_path: Path) -> None:
    """I4: a crash in the middle of making a store leaves a directory that can be made a store."""
    with opened(tmp_path) as store:
        store.put(b"key", b"")
    identity = (tmp_path / "STORE").read_bytes()
    (tmp_path / "STORE").write_bytes(identity[:4096] + bytes(8192))
    with opened(tmp_path) as store:
        assert len(store) == 0
        store.put(b"key", b"")
    with opened(tmp_path) as store:
        assert len(store) == 1
