"""Stores found at start: what is removed, what is kept, what is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from deodar.contract.keypath import Prefix
from deodar.node.directory import Note, ShardDirectories, Verdict, judge
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    SHARD_STATE_SERVING,
    ShardRecord,
)

PREFIX = Prefix(0xA, 4)
CREATING, SERVING = SHARD_STATE_CREATING, SHARD_STATE_SERVING


@pytest.mark.parametrize(
    ("note", "state", "primary", "term", "verdict"),
    [
        (Note(unfinished=False, term=3), SERVING, "me", 3, Verdict.OURS),
        (Note(unfinished=True, term=3), SERVING, "me", 4, Verdict.OURS),
        (Note(unfinished=True, term=1), CREATING, "me", 1, Verdict.OURS),
        (None, SERVING, "me", 3, Verdict.OURS),
        (Note(unfinished=True, term=3), SHARD_STATE_MOVING, "other", 3, Verdict.REMOVE),
        (Note(unfinished=True, term=1), CREATING, "other", 1, Verdict.REMOVE),
        (Note(unfinished=False, term=3), SERVING, "other", 4, Verdict.REMOVE),
        # A registry that was made anew counts terms from 1: its records prove nothing.
        (Note(unfinished=False, term=3), SERVING, "other", 1, Verdict.KEEP),
        (Note(unfinished=False, term=3), SERVING, "other", 3, Verdict.KEEP),
        (Note(unfinished=False, term=3), CREATING, "other", 4, Verdict.KEEP),
        (None, SERVING, "other", 9, Verdict.KEEP),
    ],
)
def test_judge(note: Note | None, state: int, primary: str, term: int, verdict: Verdict):
    store_id = 0 if state == CREATING else 7
    record = ShardRecord(state=state, primary=primary, term=term, store_id=store_id)
    assert judge(note, record, "me") is verdict


def test_without_a_record_everything_is_kept():
    for note in (None, Note(unfinished=True, term=1), Note(unfinished=False, term=1)):
        assert judge(note, None, "me") is Verdict.KEEP


def test_notes_and_stores(tmp_path: Path):
    directories = ShardDirectories(tmp_path)
    assert directories.found() == []
    note = Note(unfinished=True, term=2)
    directories.write_note("my-table", PREFIX, note)
    assert directories.read_note("my-table", PREFIX) == note
    assert not directories.has_store("my-table", PREFIX)
    store = directories.path("my-table", PREFIX)
    store.mkdir()
    (store / "file").write_bytes(b"x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "a-b-c").mkdir()
    (tmp_path / "t-zz-8").mkdir()
    (tmp_path / "my-table-a0-4.json.new").write_text("{")
    assert directories.found() == [("my-table", PREFIX)]
    directories.remove_drafts()
    assert not list(tmp_path.glob("*.new"))
    directories.remove("my-table", PREFIX)
    directories.remove("my-table", PREFIX)
    assert directories.found() == []
    assert directories.read_note("my-table", PREFIX) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"unfinished": 1, "term": 1}'])
def test_a_damaged_note_proves_nothing(tmp_path: Path, content: str):
    directories = ShardDirectories(tmp_path)
    directories.path("t", PREFIX).with_name("t-a0-4.json").write_text(content)
    assert directories.read_note("t", PREFIX) is None
