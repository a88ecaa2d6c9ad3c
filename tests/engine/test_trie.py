"""The trie against a dict: every key found, none made up, every invariant after every step."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deodar.engine import errors

from . import probe_trie as probe

ROOT_BYTES = 2048
LOWEST = bytes(16)


def forged(path: bytes, suffix: bytes = b"") -> bytes:
    """A key whose path in a forged index is `path`."""
    assert len(path) == probe.PATH_BYTES
    return path + suffix


def walk_all(index: probe.Index, start: bytes = LOWEST, capacity: int = 512) -> list[bytes]:
    """All keys from `start` on, in the order of the walk."""
    keys: list[bytes] = []
    place: bytes | None = start
    while place is not None:
        found, place = index.walk(place, capacity)
        assert found or place is None, "a walk with room for any leaf gets on"
        keys += [index.records.key_at(address) for _, address in found]
    return keys


@pytest.fixture
def index(tmp_path: Path) -> probe.Index:
    return probe.Index(str(tmp_path), forged=True)


# --- Against a model ---


def paths() -> st.SearchStrategy[bytes]:
    """Paths that share 0 to 16 bytes with few others, and often their last two: the tag."""
    return st.builds(
        lambda shared, differing, tag: (bytes(shared) + bytes([differing]) + bytes(16))[:14] + tag,
        st.sampled_from([0, 0, 1, 2, 5, 13]),
        st.integers(0, 255),
        st.sampled_from([b"\0\0", b"\0\1", b"\1\0"]),
    )


KEYS = st.builds(forged, paths(), st.sampled_from([b"", b"a", b"ab", b"b" * 300]))


class TrieMachine(RuleBasedStateMachine):
    """One index and one dict; `check` after every rule."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.model: dict[bytes, int] = {}

    @initialize(sluggishness=st.sampled_from([1, 2, 3, 16]))
    def create(self, sluggishness: int) -> None:
        self.index = probe.Index(
            self.directory.name,
            forged=True,
            sluggishness=sluggishness,
            records=probe.Records(1 << 22),
        )

    def teardown(self) -> None:
        self.index.close()
        self.directory.cleanup()

    @rule(key=KEYS)
    def upsert(self, key: bytes) -> None:
        address, old_address = self.index.upsert(key)
        assert old_address == self.model.get(key, 0)
        self.model[key] = address

    @rule(path=paths(), count=st.integers(2, 40), position=st.integers(0, 15))
    def upsert_many(self, path: bytes, count: int, position: int) -> None:
        """Keys that part at one position."""
        for byte in range(count):
            self.upsert(forged(path[:position] + bytes([byte]) + path[position + 1 :]))

    @rule(key=KEYS)
    def remove(self, key: bytes) -> None:
        assert self.index.remove(key) == self.model.pop(key, 0)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_present(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(sorted(self.model))))

    @rule(keep=st.integers(0, 3), seed=st.integers(0, 1 << 16))
    def remove_nearly_all(self, keep: int, seed: int) -> None:
        doomed = sorted(self.model)
        random.Random(seed).shuffle(doomed)
        for key in doomed[keep:]:
            self.remove(key)

    @rule(key=KEYS)
    def find(self, key: bytes) -> None:
        assert self.index.find(key) == self.model.get(key, 0)

    @rule(keys=st.lists(KEYS, max_size=70))
    def find_batch(self, keys: list[bytes]) -> None:
        asked = keys + list(self.model)
        assert self.index.find_batch(asked) == [self.model.get(key, 0) for key in asked]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        address = self.index.records.append(key)
        assert not self.index.replace(key, address, address)
        assert self.index.replace(key, self.model[key], address)
        self.model[key] = address

    @rule(start=paths())
    def walk(self, start: bytes) -> None:
        expected = sorted(key for key in self.model if key[:16] >= start)
        assert walk_all(self.index, start) == expected

    @invariant()
    def sound(self) -> None:
        stats = self.index.check()
        assert stats["keys"] == len(self.model)
        if not self.model:
            assert stats["branches"] == 1
            assert stats["leaves"] == 0
            assert self.index.space_stats()["used_bytes"] == ROOT_BYTES


TestTrieMachine = TrieMachine.TestCase
TestTrieMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_real_hashes_load_and_empty(tmp_path: Path) -> None:
    """60,000 keys by their own hash: waves of splits up, merges down to the root."""
    index = probe.Index(str(tmp_path))
    keys = [b"key-%d" % number for number in range(60_000)]
    addresses = [index.upsert(key)[0] for key in keys]
    stats = index.check()
    assert stats["keys"] == len(keys)
    assert stats["depth_max"] == 2
    assert index.find_batch(keys) == addresses
    assert [index.find(key) for key in keys[:1000]] == addresses[:1000]
    assert index.find_batch([b"absent-%d" % number for number in range(1000)]) == [0] * 1000
    found = walk_all(index)
    assert sorted(found) == sorted(keys)
    random.Random(1).shuffle(keys)
    for number, key in enumerate(keys):
        assert index.remove(key) != 0
        if number % 10_000 == 0:
            index.check()
    index.check()
    assert index.space_stats()["used_bytes"] == ROOT_BYTES


# --- Shapes ---


def test_a_split_makes_branches_only_as_far_as_paths_part(index: probe.Index) -> None:
    """17 keys that share nine bytes: a chain of branches, gone again after deletions."""
    keys = [forged(bytes(9) + bytes([byte]) + bytes(6)) for byte in range(17)]
    for key in keys[:16]:
        index.upsert(key)
    assert index.check()["branches"] == 1
    index.upsert(keys[16])
    assert index.check()["branches"] == 10
    for key in keys[:8]:
        index.remove(key)
    assert index.check()["branches"] == 10, "nine entries are more than half of 16"
    index.remove(keys[8])
    stats = index.check()
    assert (stats["branches"], stats["leaves"], stats["leaf_slots"]) == (1, 1, 8)


def test_merge_stops_where_the_path_forks(index: probe.Index) -> None:
    """Two chains that part at byte 4: removing one leaves the other's branches alone."""
    left = [forged(bytes(8) + bytes([byte]) + bytes(7)) for byte in range(17)]
    right = [forged(bytes(4) + b"\1" + bytes(3) + bytes([byte]) + bytes(7)) for byte in range(17)]
    for key in left + right:
        index.upsert(key)
    assert index.check()["branches"] == 13
    for key in left:
        index.remove(key)
    stats = index.check()
    assert (stats["keys"], stats["branches"]) == (17, 9)
    assert walk_all(index) == right


def test_equal_paths_fill_one_leaf_and_are_then_refused(index: probe.Index) -> None:
    """A full collision of 128 bits: 256 keys fit, the next one changes nothing."""
    keys = [forged(b"\7" * 16, b"%03d" % number) for number in range(256)]
    addresses = [index.upsert(key)[0] for key in keys]
    before = index.check()
    assert (before["depth_max"], before["leaf_slots"]) == (16, 256)
    with pytest.raises(errors.LimitExceeded):
        index.upsert(forged(b"\7" * 16, b"more"))
    assert index.check() == before
    assert index.find(forged(b"\7" * 16, b"more")) == 0
    assert index.find_batch(keys) == addresses
    assert [index.find(key) for key in keys] == addresses
    assert walk_all(index) == keys
    assert index.upsert(keys[100])[1] == addresses[100]
    for key in keys[:255]:
        index.remove(key)
        index.check()
    assert walk_all(index) == keys[255:]
    assert index.check()["branches"] == 1


def test_equal_tags_are_told_apart_by_the_key(index: probe.Index) -> None:
    keys = [forged(bytes([3, byte]) + bytes(14)) for byte in range(16)]
    addresses = [index.upsert(key)[0] for key in keys]
    assert [index.find(key) for key in keys] == addresses
    assert index.find_batch(keys) == addresses
    assert index.find(forged(bytes([3, 77]) + bytes(14))) == 0
    assert index.find_batch([forged(bytes([3, 77]) + bytes(14))]) == [0]


def test_a_walk_that_does_not_fit_stops_before_a_leaf(index: probe.Index) -> None:
    for top in range(100):
        for low in range(16):
            index.upsert(forged(bytes([top]) + bytes(13) + bytes([low, 0])))
    found, place = index.walk(LOWEST, 512)
    assert len(found) == 512
    assert place == bytes([32]) + bytes(15)
    assert len(walk_all(index)) == 1600
    assert len(walk_all(index, bytes([99]) + bytes(13) + b"\5\0")) == 11


# --- Refusals change nothing ---


def test_no_memory_changes_nothing_and_room_comes_back(tmp_path: Path) -> None:
    """A space of four chunks: an insertion that needs a block is refused, a removal never is."""
    index = probe.Index(str(tmp_path), forged=True, reserved_bytes=4 << 16)
    chooser = random.Random(5)
    kept: list[bytes] = []
    refused = 0
    while refused < 200:
        key = forged((bytes(chooser.randrange(12)) + chooser.randbytes(4) + bytes(16))[:16])
        before = index.check() if refused < 20 else None
        try:
            index.upsert(key)
            kept.append(key)
        except errors.OutOfMemory:
            refused += 1
            assert index.find(key) == 0
            if before is not None:
                assert index.check() == before
    kept = sorted(set(kept))
    assert walk_all(index) == kept
    for key in kept:
        assert index.remove(key) != 0
    assert index.check()["keys"] == 0
    for key in kept[:1000]:
        index.upsert(key)
    index.check()


def test_no_memory_half_way_through_a_split_gives_back_what_was_made(tmp_path: Path) -> None:
    """Three free branches where a chain of ten is needed: none is lost, and the key may come when
    there are ten."""
    index = probe.Index(str(tmp_path), forged=True, reserved_bytes=4 << 16)
    keys = [forged(bytes(9) + bytes([byte]) + bytes(6)) for byte in range(17)]
    for key in keys[:16]:
        index.upsert(key)
    hoard = []
    while (block := index.allocate(2048)) != 0:
        hoard.append(block)
    for _ in range(3):
        index.retire(hoard.pop(), 2048)
    before = (index.roots, index.space_stats()["used_bytes"])
    for _ in range(5):
        with pytest.raises(errors.OutOfMemory):
            index.upsert(keys[16])
        assert (index.roots, index.space_stats()["used_bytes"]) == before
        index.check_space()
    for block in hoard:
        index.retire(block, 2048)
    index.upsert(keys[16])
    assert index.check()["branches"] == 10


def test_a_refused_record_stops_what_needs_its_key(index: probe.Index) -> None:
    """`verify` comes before a record's bytes are trusted, in every operation."""
    keys = [forged(bytes([1, byte]) + bytes(14)) for byte in range(16)]
    addresses = [index.upsert(key)[0] for key in keys]
    before = index.check()
    index.refuse(addresses[5])
    blocked: list[Callable[[], object]] = [
        lambda: index.find(keys[5]),
        lambda: index.find_batch(keys),
        lambda: index.upsert(keys[5]),
        lambda: index.remove(keys[5]),
        lambda: index.upsert(forged(bytes([1, 99]) + bytes(14))),
        lambda: index.walk(LOWEST, 512),
        index.check,
    ]
    for call in blocked:
        with pytest.raises(errors.Corruption) as raised:
            call()
        assert (raised.value.file, raised.value.offset) == ("records", addresses[5])
    index.refuse(0)
    assert index.check() == before
    assert index.find_batch(keys) == addresses


def test_check_sees_a_wrong_tag(index: probe.Index) -> None:
    index.upsert(forged(b"\5" * 16))
    index.check()
    index.damage(forged(b"\5" * 16), 1)
    with pytest.raises(errors.Corruption, match="tag of an entry"):
        index.check()


def test_check_sees_a_wrong_count(index: probe.Index) -> None:
    for byte in range(20):
        index.upsert(forged(b"\5" + bytes([byte]) + bytes(14)))
    index.damage(forged(b"\5" * 16), 1)
    with pytest.raises(errors.Corruption, match="filled slots"):
        index.check()


def test_a_key_seen_twice_in_a_leaf_is_walked_once(index: probe.Index) -> None:
    """W1; and `check`, which has no writer beside it, calls it what it is."""
    keys = [forged(b"\5" * 16, b"%d" % number) for number in range(5)]
    for key in keys:
        index.upsert(key)
    index.double(keys[2])
    assert walk_all(index) == keys
    with pytest.raises(errors.Corruption, match="two entries"):
        index.check()


# --- Readers beside a writer ---


def racing_keys() -> tuple[list[bytes], list[bytes]]:
    """(keys that stay, keys that come and go): the second make the first's slots split and merge,
    at the top, in the middle and at depth 16."""
    stay, move = [], []
    for top in range(40):
        prefix = bytes([top]) * (1 + top % 14)
        for low in range(6):
            stay.append(forged((prefix + bytes([low]) + bytes(16))[:16]))
            move += [
                forged((prefix + bytes([low, 1 + extra]) + bytes(16))[:16]) for extra in (1, 2)
            ]
        move += [forged((prefix + bytes([100 + low]) + bytes(16))[:16]) for low in range(14)]
    for number in range(20):
        stay.append(forged(b"\xee" * 16, b"stay%d" % number))
        move.append(forged(b"\xee" * 16, b"move%d" % number))
    return stay, move


def run_beside_churn(
    index: probe.Index, move: list[bytes], work: Callable[[], None], seconds: float
) -> None:
    """Calls `work` again and again while a thread puts and removes `move`."""
    failed: list[BaseException] = []

    def churn() -> None:
        try:
            index.churn(move, 1 << 40)
        except errors.EngineError as error:
            failed.append(error)

    writer = threading.Thread(target=churn)
    stopper = threading.Timer(seconds, index.stop)
    writer.start()
    stopper.start()
    try:
        while stopper.is_alive():
            work()
    finally:
        index.stop()
        writer.join()
        stopper.cancel()
    assert not failed, failed


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("sluggishness", [1, 16])
def test_readers_never_miss_a_key_that_stays(
    tmp_path: Path, batched: bool, sluggishness: int
) -> None:
    """T3: lookups of keys that exist throughout, beside splits and merges of their leaves."""
    stay, move = racing_keys()
    index = probe.Index(str(tmp_path), forged=True, sluggishness=sluggishness)
    addresses = [index.upsert(key)[0] for key in stay]
    before = index.check()
    seen: list[tuple[int, int]] = []
    run_beside_churn(index, move, lambda: seen.append(index.watch(addresses, batched)), 1.5)
    lookups, missed = (sum(column) for column in zip(*seen, strict=True))
    assert lookups > 10_000
    assert missed == 0
    after = index.check()
    assert after["keys"] == before["keys"]
    assert sorted(walk_all(index)) == sorted(stay)


def test_walks_beside_a_writer_see_each_key_once_and_in_order(tmp_path: Path) -> None:
    """W1: no misses of keys that stay, no key twice."""
    stay, move = racing_keys()
    index = probe.Index(str(tmp_path), forged=True)
    for key in stay:
        index.upsert(key)
    wanted = set(stay)
    walks = 0

    def walk() -> None:
        nonlocal walks
        found = walk_all(index)
        assert found == sorted(set(found))
        assert wanted <= set(found) <= wanted | set(move)
        walks += 1

    run_beside_churn(index, move, walk, 1.5)
    assert walks > 5


def test_a_paused_reader_keeps_retired_blocks_from_being_used_again(index: probe.Index) -> None:
    """G1: memory grows instead while the reader is inside, and is reused after it has left."""
    keys = [forged(bytes([9, byte]) + bytes(14)) for byte in range(17)]

    def cycle() -> None:
        for key in keys:
            index.upsert(key)
        for key in keys:
            index.remove(key)

    slot = index.enter()
    for _ in range(100):
        cycle()
    grown = index.space_stats()["chunks"]
    assert grown > 4, "31 branches fill a chunk"
    index.exit(slot)
    for _ in range(1000):
        cycle()
    assert index.space_stats()["chunks"] <= grown + 1
    index.check()
