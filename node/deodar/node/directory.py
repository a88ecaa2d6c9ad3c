"""The shard stores in a data directory, and what each of them is worth after a crash.

Every store `shards/<table>-<prefix>/` has a note `shards/<table>-<prefix>.json` beside it, written
before the store is made.  The note alone never makes a store served (the shard's record does); it
tells which stores may be removed:

N1  `unfinished` true: made for a new shard or for a move, and not served yet.  Worthless unless
    the record names this node.
N2  `unfinished` false: was served at `term`.  Superseded when the record has a higher term and
    names another node.
N3  Anything else is kept and reported: a registry that lost its records must not cost data.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from deodar.contract.keypath import Prefix
from deodar.v1.cluster_pb2 import ShardRecord

from .files import DRAFT_SUFFIX, read_json, remove_tree, sync_directory, write_json

NOTE_SUFFIX = ".json"


class Verdict(enum.Enum):
    OURS = "ours"  # the record names this node: open it, and compare the store_id
    REMOVE = "remove"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Note:
    """What is known about a store without opening it."""

    unfinished: bool
    term: int
    history: int = 0  # of the shard, see `contract.watchpos.Mark`; 0 = begins with the store


def judge(note: Note | None, record: ShardRecord | None, node: str) -> Verdict:
    """What to do with a store found at start (N1 to N3)."""
    if record is not None and record.primary == node:
        return Verdict.OURS
    if note is None or record is None:
        return Verdict.KEEP
    if note.unfinished or (record.term > note.term and record.store_id != 0):
        return Verdict.REMOVE
    return Verdict.KEEP


class ShardDirectories:
    """Paths, notes and removal of stores.  Methods block on the disk: call them in a thread."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, table: str, prefix: Prefix) -> Path:
        return self._root / f"{table}-{prefix}"

    def _note(self, store: Path) -> Path:
        return store.with_name(store.name + NOTE_SUFFIX)

    def found(self) -> list[tuple[str, Prefix]]:
        """Every shard of which there is a store or a note."""
        shards = set()
        for path in self._root.iterdir():
            name = path.name.removesuffix(NOTE_SUFFIX)
            # A table's name may hold dashes: the prefix is the last two parts.
            match name.rsplit("-", 2):
                case [table, digits, bits] if bits.isdecimal():
                    try:
                        shards.add((table, Prefix.parse(f"{digits}-{bits}")))
                    except ValueError:
                        continue  # a foreign file
        return sorted(shards)

    def remove_drafts(self) -> None:
        """Remove notes that a crash left half written."""
        for draft in self._root.glob(f"*{NOTE_SUFFIX}{DRAFT_SUFFIX}"):
            draft.unlink()

    def has_store(self, table: str, prefix: Prefix) -> bool:
        return self.path(table, prefix).exists()

    def read_note(self, table: str, prefix: Prefix) -> Note | None:
        """The note; None when there is none or it is damaged (then N3 holds)."""
        try:
            fields = read_json(self._note(self.path(table, prefix)))
        except ValueError:
            return None
        if fields is None:
            return None
        unfinished, term = fields.get("unfinished"), fields.get("term")
        history = fields.get("history", 0)
        if not isinstance(unfinished, bool) or not isinstance(term, int):
            return None
        if not isinstance(history, int):
            return None
        return Note(unfinished, term, history)

    def write_note(self, table: str, prefix: Prefix, note: Note) -> None:
        """Replace the note; durable when this returns."""
        fields = {"unfinished": note.unfinished, "term": note.term, "history": note.history}
        write_json(self._note(self.path(table, prefix)), fields)

    def remove(self, table: str, prefix: Prefix) -> None:
        """Remove the store, then its note: a crash between leaves what can be removed again."""
        store = self.path(table, prefix)
        remove_tree(store)
        note = self._note(store)
        if note.exists():
            note.unlink()
            sync_directory(self._root)

    def sync(self) -> None:
        """Make the names of new stores durable."""
        sync_directory(self._root)
