"""The trie space: blocks against a model, and checkpoint images that hold what was frozen."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.engine import errors

from . import probe_env as env
from . import probe_trie as probe
from .faults import FailNth
from .test_trie import walk_all

CHUNK_BYTES = 65536
PAGE_BYTES = 4096
GROWTH_BYTES = 1 << 20
Image = tuple[bytes, tuple[int, int, int, int, int]]


def keys_of(count: int, name: str = "key") -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(count)]


@pytest.fixture
def index(tmp_path: Path) -> probe.Index:
    return probe.Index(str(tmp_path))


def take_image(index: probe.Index) -> Image:
    """A whole checkpoint: what its file would hold."""
    index.freeze()
    roots = index.roots
    index.write_image()
    table = index.page_table()
    index.commit()
    return table, roots


def load(index: probe.Index, directory: Path, image: Image) -> probe.Index:
    loaded = probe.Index(str(directory), records=index.records, image=image)
    loaded.check()
    return loaded


def frame_at(table: bytes, page: int) -> tuple[int, int]:
    """(frame, checksum) of a page."""
    entry = table[page * 16 : page * 16 + 16]
    return int.from_bytes(entry[:8], "little"), int.from_bytes(entry[8:], "little")


def frames_of(table: bytes) -> list[int]:
    frames = [frame_at(table, page)[0] for page in range(len(table) // 16)]
    return [frame for frame in frames if frame != 0]


# --- Blocks ---


@pytest.mark.parametrize("size", [16, 17, 32, 64, 100, 512, 1024, 2048])
def test_blocks_are_zero_apart_and_inside_a_page(index: probe.Index, size: int) -> None:
    seen: set[int] = set()
    given_bytes = max(16, 1 << (size - 1).bit_length())
    for _ in range(300):
        address = index.allocate(size)
        assert address % given_bytes == 0
        assert address // PAGE_BYTES == (address + given_bytes - 1) // PAGE_BYTES
        assert index.read(address, given_bytes) == bytes(given_bytes)
        index.write(address, b"\xff" * given_bytes)
        assert index.is_used(address, size)
        seen.add(address)
    assert len(seen) == 300
    index.check_space()
    for address in seen:
        index.retire(address, size)
        assert not index.is_used(address, size)
    index.check_space()


def test_empty_chunks_serve_another_size(index: probe.Index) -> None:
    """Splits come in waves: small leaves make room for branches in the same memory."""
    small = [index.allocate(16) for _ in range(40_000)]
    grown = index.space_stats()["chunks"]
    for address in small:
        index.retire(address, 16)
    large = [index.allocate(2048) for _ in range(31 * 9)]
    assert index.space_stats()["chunks"] <= grown + 1
    index.check_space()
    for address in large:
        assert index.read(address, 2048) == bytes(2048)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_blocks_against_a_model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Random sizes come and go; no block is handed out twice, each keeps what was written."""
    chooser = random.Random(seed)
    index = probe.Index(str(tmp_path_factory.mktemp("space")))
    held: dict[int, tuple[int, bytes]] = {}
    for _ in range(1500):
        if chooser.random() < 0.6 or not held:
            size = 16 << chooser.randrange(8)
            address = index.allocate(size)
            assert index.read(address, size) == bytes(size)
            data = chooser.randbytes(16) * (size // 16)
            assert not any(
                address < other + other_size and other < address + size
                for other, (other_size, _) in held.items()
            )
            index.write(address, data)
            held[address] = (size, data)
        else:
            address = chooser.choice(list(held))
            size, data = held.pop(address)
            assert index.read(address, size) == data
            index.retire(address, size)
    index.check_space()
    used = index.space_stats()["used_bytes"]
    assert used == sum(size for size, _ in held.values()) + 2048, "the root is a block too"
    for address, (size, data) in held.items():
        assert index.read(address, size) == data


def test_addresses_are_bounded(tmp_path: Path) -> None:
    index = probe.Index(str(tmp_path), reserved_bytes=2 * CHUNK_BYTES)
    taken = 1
    while index.allocate(2048) != 0:
        taken += 1
    assert taken == 2 * 31
    assert index.allocate(16) == 0
    index.check_space()


# --- Images ---


@pytest.mark.parametrize("direct", [True, False])
def test_image_holds_the_state_and_goes_on_from_there(tmp_path: Path, direct: bool) -> None:
    index = probe.Index(str(tmp_path), direct=direct)
    keys = keys_of(20_000)
    addresses = [index.upsert(key)[0] for key in keys]
    image = take_image(index)
    index.close()
    loaded = load(index, tmp_path, image)
    assert loaded.find_batch(keys) == addresses
    for key in keys[:10_000]:
        loaded.remove(key)
    for key in keys_of(5000, "more"):
        loaded.upsert(key)
    again = load(index, tmp_path, take_image(loaded))
    assert sorted(walk_all(again)) == sorted(keys[10_000:] + keys_of(5000, "more"))


def test_image_of_an_empty_trie(index: probe.Index, tmp_path: Path) -> None:
    loaded = load(index, tmp_path, take_image(index))
    assert walk_all(loaded) == []
    loaded.upsert(b"first")
    loaded.check()


def test_unchanged_pages_are_not_written_again(index: probe.Index) -> None:
    for key in keys_of(50_000):
        index.upsert(key)
    take_image(index)
    first = index.space_stats()["image_bytes_written"]
    assert index.space_stats()["dirty_pages"] == 0
    take_image(index)
    assert index.space_stats()["image_bytes_written"] == first
    index.upsert(b"key-77")
    assert index.space_stats()["dirty_pages"] == 1
    take_image(index)
    assert index.space_stats()["image_bytes_written"] == first + PAGE_BYTES


def test_image_is_what_was_frozen_whatever_the_writer_does(tmp_path: Path) -> None:
    """P2, copies made by both sides: the writer changes every page between freeze and write."""
    index = probe.Index(str(tmp_path))
    keys = keys_of(20_000)
    addresses = [index.upsert(key)[0] for key in keys]
    index.freeze()
    roots = index.roots
    for key in keys[::2]:
        index.upsert(key)
    for key in keys[1::4]:
        index.remove(key)
    for key in keys_of(5000, "late"):
        index.upsert(key)
    index.write_image()
    table = index.page_table()
    index.commit()
    assert load(index, tmp_path, (table, roots)).find_batch(keys) == addresses
    later = load(index, tmp_path, take_image(index))
    assert sorted(walk_all(later)) == sorted(walk_all(index))
    assert later.find_batch(keys) == index.find_batch(keys)


def test_image_is_what_was_frozen_beside_a_racing_writer(tmp_path: Path) -> None:
    """P2 with threads: every page is fought over while it is written, many times over."""
    index = probe.Index(str(tmp_path), records=probe.Records(1 << 26))
    keys = keys_of(30_000)
    addresses = [index.upsert(key)[0] for key in keys]
    moving = keys_of(20_000, "moving")
    for _ in range(8):
        index.freeze()
        roots = index.roots
        writer = threading.Thread(target=index.churn, args=(moving, 2))
        writer.start()
        index.write_image()
        table = index.page_table()
        index.commit()
        writer.join()
        loaded = load(index, tmp_path, (table, roots))
        assert loaded.roots[1] == len(keys)
        assert loaded.find_batch(keys) == addresses
        loaded.close()
        index.check()


@pytest.mark.parametrize("lead", [0, 1], ids=["behind", "together"])
def test_a_page_is_copied_whole_whoever_copies_it(tmp_path: Path, lead: int) -> None:
    """P2 at its narrowest: the writer changes each page right behind the checkpoint's copy, or
    both want it at once.  Seen to fail with CLEAN stored before the copy, and ASIDE before it."""
    index = probe.Index(str(tmp_path))
    blocks = [index.allocate(2048) for _ in range(31 * 60)]
    one_a_page = list({address // PAGE_BYTES: address for address in blocks}.values())
    for turn in range(1, 9):
        for address in one_a_page:
            index.write(address, bytes([turn]) * 2048)
        index.freeze()
        roots = index.roots
        writer = threading.Thread(target=index.overwrite, args=(one_a_page, 0xFF, lead))
        writer.start()
        index.write_image()
        writer.join()
        table = index.page_table()
        index.commit()
        loaded = probe.Index(str(tmp_path), records=index.records, image=(table, roots))
        for address in one_a_page:
            assert loaded.read(address, 2048) == bytes([turn]) * 2048
        loaded.close()


def test_frames_of_the_last_image_are_not_written(index: probe.Index, tmp_path: Path) -> None:
    """P1: until its successor is committed, the last image loads, bytes unchanged."""
    keys = keys_of(20_000)
    addresses = [index.upsert(key)[0] for key in keys]
    image = take_image(index)
    for _ in range(3):
        for key in keys:
            index.upsert(key)
        index.freeze()
        index.write_image()
        assert load(index, tmp_path, image).find_batch(keys) == addresses
        index.abandon()
    index.check()


def test_frames_are_reused_so_files_stay_small(index: probe.Index, tmp_path: Path) -> None:
    """Twenty images that each write every page need two places a page, not twenty."""
    keys = keys_of(20_000)
    for _ in range(20):
        for key in keys:
            index.upsert(key)
        table, _ = take_image(index)
    pages = len(frames_of(table))
    stats = index.space_stats()
    assert stats["image_bytes_written"] > 10 * pages * PAGE_BYTES
    assert stats["frames"] * PAGE_BYTES <= 2 * pages * PAGE_BYTES + GROWTH_BYTES
    assert (tmp_path / "trie-000000.segment").stat().st_size == stats["frames"] * PAGE_BYTES


@pytest.mark.parametrize("written", [False, True])
def test_abandoned_image_leaves_its_pages_to_the_next(
    index: probe.Index, tmp_path: Path, written: bool
) -> None:
    keys = keys_of(20_000)
    for key in keys[:10_000]:
        index.upsert(key)
    take_image(index)
    for key in keys[10_000:]:
        index.upsert(key)
    dirty = index.space_stats()["dirty_pages"]
    frames = index.space_stats()["frames"]
    for _ in range(5):
        index.freeze()
        if written:
            index.write_image()
        index.abandon()
        assert index.space_stats()["dirty_pages"] == dirty
    assert index.space_stats()["frames"] <= frames + dirty + 256
    assert sorted(walk_all(load(index, tmp_path, take_image(index)))) == sorted(keys)
    index.abandon()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_leaves_the_last_image_and_the_dirty_pages(tmp_path: Path, error: int) -> None:
    """The files cannot grow: the image that needs it is refused, and comes when they can again."""
    faults = FailNth(0, error, kinds=["allocate"])
    index = probe.Index(str(tmp_path), door=env.Door(faults))
    keys = keys_of(8000)
    addresses = [index.upsert(key)[0] for key in keys]
    image = take_image(index)
    for key in keys_of(40_000, "more"):
        index.upsert(key)
    dirty = index.space_stats()["dirty_pages"]
    faults.at = faults.seen + 1
    index.freeze()
    with pytest.raises(errors.DiskFull, match=r"trie-000000\.segment"):
        index.write_image()
    assert index.space_stats()["dirty_pages"] == dirty
    assert load(index, tmp_path, image).find_batch(keys) == addresses
    assert sorted(walk_all(load(index, tmp_path, take_image(index)))) == sorted(walk_all(index))


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("kind", ["open", "allocate", "queued", "sync_directory", "sync"])
def test_any_call_of_an_image_may_fail(tmp_path: Path, kind: str, first: bool) -> None:
    """Fails each call in turn: the last image still loads, and the next one is whole."""
    at = 0
    while True:
        at += 1
        faults = FailNth(0, errno.EIO, kinds=[kind])
        directory = tmp_path / str(at)
        directory.mkdir()
        index = probe.Index(str(directory), door=env.Door(faults))
        keys = keys_of(8000)
        addresses = [index.upsert(key)[0] for key in keys]
        image = None if first else take_image(index)
        for key in keys_of(40_000, "more"):
            index.upsert(key)
        faults.at = faults.seen + at
        index.freeze()
        try:
            index.write_image()
        except errors.IOFailure:
            index.check()
            if image is not None:
                assert load(index, directory, image).find_batch(keys) == addresses
            whole = load(index, directory, take_image(index))
            assert sorted(walk_all(whole)) == sorted(walk_all(index))
            continue
        break
    assert at > 1 or (not first and kind in ("open", "sync_directory"))


def test_name_of_a_frame_file_is_durable_before_its_image(tmp_path: Path) -> None:
    """The directory is synced with the first image, and again by a process that found the file."""
    calls: list[str] = []

    def note(operation: env.Operation) -> int:
        calls.append(operation.kind)
        return 0

    index = probe.Index(str(tmp_path), door=env.Door(note))
    index.upsert(b"key")
    image = take_image(index)
    assert calls.count("sync_directory") == 1
    index.upsert(b"key")
    take_image(index)
    assert calls.count("sync_directory") == 1
    reopened = probe.Index(str(tmp_path), records=index.records, image=image, door=env.Door(note))
    reopened.upsert(b"key")
    take_image(reopened)
    assert calls.count("sync_directory") == 2


# --- Damage ---


def test_every_damaged_page_is_refused_by_name(index: probe.Index, tmp_path: Path) -> None:
    """P3: one bit in any frame of the image; file and offset are those of the frame."""
    for key in keys_of(3000):
        index.upsert(key)
    image = take_image(index)
    file = tmp_path / "trie-000000.segment"
    whole = file.read_bytes()
    chooser = random.Random(2)
    for frame in frames_of(image[0]):
        place = frame * PAGE_BYTES + chooser.randrange(PAGE_BYTES)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chooser.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(errors.Corruption, match="checksum") as raised:
            load(index, tmp_path, image)
        assert raised.value.file == file.name
        assert raised.value.offset == frame * PAGE_BYTES
    file.write_bytes(whole)
    load(index, tmp_path, image)


def swap_pages(table: bytes) -> bytes:
    """Two pages that are both where the other was: each has a good checksum, elsewhere."""
    pages = [page for page in range(len(table) // 16) if frame_at(table, page)[0] != 0][:2]
    entries = [table[page * 16 : page * 16 + 16] for page in pages]
    changed = bytearray(table)
    for page, entry in zip(pages, reversed(entries), strict=True):
        changed[page * 16 : page * 16 + 16] = entry
    return bytes(changed)


def with_entry(table: bytes, page: int, frame: int, checksum: int = 0) -> bytes:
    entry = frame.to_bytes(8, "little") + checksum.to_bytes(8, "little")
    return table[: page * 16] + entry + table[page * 16 + 16 :]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda table: table[:-16], "half a chunk"),
        (swap_pages, "checksum"),
        (lambda table: with_entry(table, 1, *frame_at(table, 0)), "twice"),
        (lambda table: with_entry(table, 0, 5 << 16), "missing"),
        (lambda table: with_entry(table, 0, 60_000), "beyond the end"),
        (lambda table: with_entry(table, 0, 1 << 63), "missing"),
    ],
)
def test_unsound_page_table_is_refused(
    index: probe.Index, tmp_path: Path, change: Callable[[bytes], bytes], rule: str
) -> None:
    for key in keys_of(3000):
        index.upsert(key)
    table, roots = take_image(index)
    with pytest.raises(errors.Corruption, match=rule):
        load(index, tmp_path, (change(table), roots))
    load(index, tmp_path, (table, roots))


def test_page_table_beyond_the_reservation_is_refused(tmp_path: Path) -> None:
    index = probe.Index(str(tmp_path))
    for key in keys_of(3000):
        index.upsert(key)
    image = take_image(index)
    with pytest.raises(errors.LimitExceeded):
        probe.Index(str(tmp_path), records=index.records, image=image, reserved_bytes=CHUNK_BYTES)


def test_missing_file_is_refused(index: probe.Index, tmp_path: Path) -> None:
    index.upsert(b"key")
    image = take_image(index)
    index.close()
    os.unlink(tmp_path / "trie-000000.segment")
    with pytest.raises(errors.Corruption, match="missing"):
        load(index, tmp_path, image)
