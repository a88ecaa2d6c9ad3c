"""What a disk may hold after a power cut: records calls and rebuilds every legal state.

The model is the weakest one that POSIX and Linux file systems promise:
- bytes written, and a length given, are certain only once an fsync of the file that began after
  them has returned; until then each 512-byte sector of each write may or may not be there, in any
  order;
- names (create, rename, unlink) are certain only once an fsync of the directory has returned;
  until then they survive in order, up to some point, as journaling file systems keep them.

Use: run a workload against stores opened inside `Door(Recorder(root)).installed()`, then walk
`crashes(recorder)` and reopen what each image holds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .probe_env import Operation

SECTOR_BYTES = 512


class Recorder:
    """An observer that keeps every call under `root`, and marks that the test sets between them.

    `inner` may fail calls: a call it refuses leaves no trace, as on a real disk.
    """

    def __init__(self, root: Path, inner: Callable[[Operation], int] = lambda _: 0) -> None:
        self.root = root
        self.inner = inner
        self.before = {
            path.name: path.read_bytes() for path in sorted(root.iterdir()) if path.is_file()
        }
        self.events: list[Operation | Mark] = []

    def __call__(self, operation: Operation) -> int:
        answer = self.inner(operation)
        if answer < 0 and operation.data is not None:
            operation = operation._replace(bytes=-answer, data=operation.data[:-answer])
        if answer <= 0:
            self.events.append(operation)
        return answer

    def mark(self, value: object) -> None:
        """Notes what the workload knows by now, such as the epoch that `sync` answered for."""
        self.events.append(Mark(value))


@dataclass(frozen=True)
class Mark:
    value: object


class Choice(Protocol):
    """Decides what of the uncertain survives."""

    def many(self, count: int) -> int:
        """How many of `count` changes of names survive, from the first on."""

    def sectors(self, count: int) -> list[bool]:
        """Which of `count` sectors of one write survive."""


class KeepAll:
    def many(self, count: int) -> int:
        return count

    def sectors(self, count: int) -> list[bool]:
        return [True] * count


class KeepNone:
    def many(self, count: int) -> int:  # noqa: ARG002
        return 0

    def sectors(self, count: int) -> list[bool]:
        return [False] * count


class KeepSome:
    """Each write is lost, kept, cut or torn by chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def many(self, count: int) -> int:
        return self.chance.randint(0, count)

    def sectors(self, count: int) -> list[bool]:
        match self.chance.randrange(4):
            case 0:
                return [False] * count
            case 1:
                return [True] * count
            case 2:
                cut = self.chance.randint(0, count)
                return [index < cut for index in range(count)]
            case _:
                return [self.chance.random() < 0.5 for _ in range(count)]


@dataclass
class File:
    """One inode: what is certain, and the changes that are not."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)
    syncing: int = 0  # how many of `pending` the fsync that runs now covers

    def image(self, choice: Choice) -> bytes:
        content = bytearray(self.durable)
        for change in self.pending:
            if change.data is None:
                apply(content, change, [bool(choice.many(1))])
            else:
                apply(content, change, choice.sectors(sector_count(change)))
        return bytes(content)

    def synced(self) -> None:
        for change in self.pending[: self.syncing]:
            apply(self.durable, change, [True] * sector_count(change))
        del self.pending[: self.syncing]
        self.syncing = 0


def sector_count(change: Operation) -> int:
    """Sectors that a write touches, the partial ones at both ends included."""
    first = change.offset // SECTOR_BYTES
    return max(1, -(-(change.offset + change.bytes) // SECTOR_BYTES) - first)


def apply(content: bytearray, change: Operation, kept: list[bool]) -> None:
    """Apply the kept sectors of a write, or a change of length, to `content`."""
    if not any(kept):
        return
    if change.kind == "truncate":
        length = change.offset
        del content[length:]
        content.extend(bytes(length - len(content)))
        return
    end = change.offset + change.bytes
    if change.kind == "allocate":
        content.extend(bytes(max(0, end - len(content))))
        return
    assert change.data is not None
    first = change.offset // SECTOR_BYTES
    for index, keep in enumerate(kept):
        if keep:
            start = max(change.offset, (first + index) * SECTOR_BYTES)
            stop = min(end, (first + index + 1) * SECTOR_BYTES)
            content.extend(bytes(max(0, stop - len(content))))
            content[start:stop] = change.data[start - change.offset : stop - change.offset]


class Model:
    """The disk at one moment of a recording; one flat directory."""

    def __init__(self, recorder: Recorder) -> None:
        self.root = recorder.root
        self.names = {
            name: File(durable=bytearray(content)) for name, content in recorder.before.items()
        }
        self.durable_names = dict(self.names)
        self.name_changes: list[Callable[[dict[str, File]], object]] = []
        self.syncing_names = 0

    def step(self, operation: Operation) -> None:
        """Take one call into account."""
        path = Path(operation.path)
        if path == self.root:
            self.step_directory(operation.kind)
        elif path.parent == self.root:
            self.step_file(path.name, operation)

    def step_directory(self, kind: str) -> None:
        if kind == "sync_directory":
            self.syncing_names = len(self.name_changes)
        elif kind == "synced":
            for change in self.name_changes[: self.syncing_names]:
                change(self.durable_names)
            del self.name_changes[: self.syncing_names]
            self.syncing_names = 0

    def step_file(self, name: str, operation: Operation) -> None:
        match operation.kind:
            case "open":
                self.open(name, operation.offset)
            case "write" | "queued" | "allocate" | "truncate":
                self.names[name].pending.append(operation)
            case "sync":
                self.names[name].syncing = len(self.names[name].pending)
            case "synced":
                self.names[name].synced()
            case "rename":
                assert operation.target is not None
                target = Path(operation.target).name
                self.change_names(lambda names: names.__setitem__(target, names.pop(name)))
            case "unlink":
                self.change_names(lambda names: names.pop(name))

    def open(self, name: str, flags: int) -> None:
        if flags & os.O_CREAT and name not in self.names:
            file = File()
            self.change_names(lambda names: names.__setitem__(name, file))
        if flags & os.O_TRUNC and name in self.names:
            self.names[name].pending.append(Operation("truncate", name, 0, 0, None, None))

    def change_names(self, change: Callable[[dict[str, File]], object]) -> None:
        change(self.names)
        self.name_changes.append(change)

    def image(self, choice: Choice) -> dict[str, bytes]:
        """Name -> content after a power cut now."""
        names = dict(self.durable_names)
        for change in self.name_changes[: choice.many(len(self.name_changes))]:
            change(names)
        return {name: file.image(choice) for name, file in names.items()}


@dataclass(frozen=True)
class Crash:
    """A power cut after `event` calls, and what the workload had marked before it."""

    event: int
    marks: tuple[object, ...]
    model: Model

    def write(self, target: Path, choice: Choice) -> None:
        """Lay the image out in `target`, an empty directory."""
        for name, content in self.model.image(choice).items():
            (target / name).write_bytes(content)


def crashes(recorder: Recorder) -> Iterator[Crash]:
    """A power cut after each recorded call, the first one before all of them.

    The model is stepped between two values: take the images of one before asking for the next.
    """
    model = Model(recorder)
    marks: tuple[object, ...] = ()
    yield Crash(0, marks, model)
    for number, event in enumerate(recorder.events, 1):
        if isinstance(event, Mark):
            marks = (*marks, event.value)
            continue
        model.step(event)
        yield Crash(number, marks, model)
