"""A store against a dict, with reopening and crashing as ordinary steps."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from deodar.engine import (
    Change,
    ConditionFailed,
    Delete,
    LogTrimmed,
    NotANumber,
    OutOfRange,
    Put,
    Store,
    Written,
)

State = dict[bytes, tuple[bytes, int]]  # value and version

KEYS = st.one_of(
    st.sampled_from([b"\0", b"a", b"a\0b", b"{t}1", b"{t}2", b"n", b"k" * 300]),
    st.binary(min_size=1, max_size=2),
)
VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"", b"0", b"41", b"-7", b"9223372036854775807"]),
)
PUTS = st.builds(
    Put, KEYS, VALUES, st.none(), st.one_of(st.none(), st.integers(0, 40)), st.just(False)
)
FRESH = st.builds(Put, KEYS, VALUES, st.none(), st.none(), st.booleans())
DELETES = st.builds(Delete, KEYS, st.one_of(st.none(), st.integers(0, 40)))


class StoreMachine(RuleBasedStateMachine):
    """`states` holds what each prefix of the writes since the last certain one leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="deodar-model-"))
        self.path = self.folder / "store"
        self.states: list[State] = [{}]
        self.certain_from = 0
        self.changes: list[tuple[bytes, bytes | None, int]] = []

    @initialize(sluggishness=st.sampled_from([1, 2, 16]), direct=st.booleans())
    def create(self, sluggishness: int, direct: bool) -> None:
        self.direct = direct
        self.store = Store.open(
            self.path,
            region_bytes=262_144,
            sluggishness=sluggishness,
            epoch_ms=1000,
            direct_io=direct,
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.folder)

    @property
    def state(self) -> State:
        return self.states[-1]

    def became(self, state: State) -> None:
        if state != self.state:
            self.states.append(state)

    def is_certain(self) -> None:
        self.states = [self.state]

    def check_conditions(self, state: State, item: Put | Delete) -> None:
        current = state.get(item.key)
        version = current[1] if current else None
        absent_broken = isinstance(item, Put) and item.if_absent and current is not None
        version_broken = item.if_version is not None and item.if_version != version
        if absent_broken or version_broken:
            raise ConditionFailed(version)

    def predict(self, batch: list[Put | Delete]) -> State | ConditionFailed:
        """The state behind a batch, or the condition that fails first."""
        state = dict(self.state)
        version = self.store.last_version
        self.written: list[bool] = []
        for index, item in enumerate(batch):
            try:
                self.check_conditions(state, item)
            except ConditionFailed as error:
                return ConditionFailed(error.current_version, index)
            writes = isinstance(item, Put) or item.key in state
            self.written.append(writes)
            version += writes
            if isinstance(item, Put):
                state[item.key] = (item.value, version)
            else:
                state.pop(item.key, None)
        return state

    def perform(self, batch: list[Put | Delete]) -> None:
        expected = self.predict(batch)
        if isinstance(expected, ConditionFailed):
            with pytest.raises(ConditionFailed) as caught:
                self.store.write(batch)
            assert caught.value.current_version == expected.current_version
            assert caught.value.index == expected.index
            return
        self.note(batch, self.store.write(batch))
        assert self.state == expected

    def note(self, batch: list[Put | Delete], written: list[Written]) -> None:
        state = dict(self.state)
        for item, one, writes in zip(batch, written, self.written, strict=True):
            assert one.existed == (item.key in state)
            assert (one.version > 0) == writes
            if isinstance(item, Put):
                state[item.key] = (item.value, one.version)
                self.changes.append((item.key, item.value, one.version))
            elif writes:
                del state[item.key]
                self.changes.append((item.key, None, one.version))
        versions = [one.version for one in written if one.version]
        assert versions == sorted(set(versions))
        self.became(state)

    @rule(item=st.one_of(PUTS, FRESH, DELETES))
    def write_one(self, item: Put | Delete) -> None:
        self.perform([item])

    @rule(batch=st.lists(st.one_of(PUTS, FRESH, DELETES), max_size=6))
    def write_batch(self, batch: list[Put | Delete]) -> None:
        self.perform(batch)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        before = self.store.last_version
        version = self.store.put(key, value)
        assert version > before
        self.became({**self.state, key: (value, version)})
        self.changes.append((key, value, version))

    @rule(key=KEYS, size=st.sampled_from([5_000, 100_000, 262_000, 600_000]))
    def put_large(self, key: bytes, size: int) -> None:
        self.put(key, bytes([65 + size % 26]) * size)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        state = dict(self.state)
        existed = state.pop(key, None) is not None
        assert self.store.delete(key) == existed
        if existed:
            self.changes.append((key, None, self.store.last_version))
        self.became(state)

    @rule(key=KEYS, delta=st.integers(-5, 5))
    def increment(self, key: bytes, delta: int) -> None:
        value = self.state.get(key, (b"0", 0))[0]
        number = int(value) if value in (b"0", b"41", b"-7") or value.isdigit() else None
        if number is not None and b"%d" % number != value:
            number = None
        try:
            result, written = self.store.increment(key, delta)
        except NotANumber:
            assert number is None or not -(1 << 63) <= number < 1 << 63
            return
        except OutOfRange:
            assert number is not None
            assert number + delta >= 1 << 63
            return
        assert result == int(value) + delta
        after = b"%d" % result
        self.became({**self.state, key: (after, written.version)})
        self.changes.append((key, after, written.version))

    @rule(keys=st.lists(KEYS, max_size=10))
    def get(self, keys: list[bytes]) -> None:
        expected = [self.state.get(key, (None, 0))[0] for key in keys]
        assert self.store.get_many(keys) == expected
        assert [self.store.get(key) for key in keys] == expected
        for key, item in zip(keys, self.store.get_items(keys), strict=True):
            found = (item.value, item.version) if item else None
            assert found == self.state.get(key)

    @rule(limit=st.integers(1, 7))
    def scan(self, limit: int) -> None:
        found: State = {}
        cursor: bytes | None = b""
        while cursor is not None:
            items, cursor = self.store.scan_page(cursor, limit=limit)
            for item in items:
                assert item.key not in found
                found[item.key] = (item.value, item.version)
        assert found == self.state

    @rule(back=st.integers(0, 20))
    def read_log(self, back: int) -> None:
        """What was written is read back in order, or reported as trimmed."""
        after = self.changes[-back - 1][2] if len(self.changes) > back else 0
        expected = [change for change in self.changes if change[2] > after]
        try:
            changes = self.store.read_log(after, limit=100_000, bytes_max=1 << 40)
        except LogTrimmed:
            return
        assert [change[:3] for change in changes] == expected

    @rule()
    def copy(self) -> None:
        """A copy made from a scan, in an order of its own, has the same digest."""
        with Store.open(self.folder / "copy", region_bytes=262_144) as copy:
            items = sorted(self.store.scan(), key=lambda item: item.value)
            changes = [Change(i.key, i.value, i.version, i.deadline_ms) for i in items]
            assert copy.apply(changes) == len(changes)
            assert copy.apply(changes) == 0
            assert copy.digest() == self.store.digest()
        shutil.rmtree(self.folder / "copy")

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.is_certain()

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()
        self.is_certain()

    @rule()
    def compact(self) -> None:
        self.store.compact()
        self.is_certain()

    def open(self) -> None:
        self.store = Store.open(self.path, epoch_ms=1000, direct_io=self.direct)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.is_certain()
        self.open()

    @precondition(lambda self: len(self.states) > 1)
    @rule()
    def crash(self) -> None:
        """Goes on from a copy of the files; nobody writes to them while an epoch is open."""
        shutil.copytree(self.path, self.folder / "crashed")
        self.store.close()
        shutil.rmtree(self.path)
        (self.folder / "crashed").rename(self.path)
        self.open()
        found = {item.key: (item.value, item.version) for item in self.store.scan()}
        assert found in self.states
        self.states = [found]
        version = self.store.last_version
        self.changes = [change for change in self.changes if change[2] <= version]
        # Versions are left out after a crash; from this write on the next one is known again.
        self.put(b"after a crash", b"")

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "store"):
            assert len(self.store) == len(self.state)

    @rule()
    def check(self) -> None:
        assert self.store.check() == []


StoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestStore = StoreMachine.TestCase
