"""The directory of a store: who has it open, and which files are in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from dataclasses import dataclass

from .errors import IOFailure, Locked, NotAStore

IDENTITY = "STORE"
LOCK = "LOCK"
RESERVE = "RESERVE"
CHECKPOINT = re.compile(r"checkpoint-([0-9a-f]{16})")
SEGMENT = re.compile(r"(data|trie)-[0-9]{6}\.segment")
# What may lie in a directory in which a store is made.
HARMLESS = {LOCK, RESERVE, f"{IDENTITY}.tmp", "lost+found"}


@dataclass(frozen=True)
class Contents:
    """Names in a store's directory, by what they are."""

    has_identity: bool
    checkpoints: list[int]  # numbers, rising
    segments: list[str]
    unfinished: list[str]  # "*.tmp": what a crash left
    others: list[str]

    @property
    def newest_checkpoint(self) -> int:
        return self.checkpoints[-1]

    @property
    def older_checkpoints(self) -> list[int]:
        return self.checkpoints[:-1]


def lock(path: str, *, create: bool, shared: bool) -> int:
    """Take the lock of a directory, made if `create`; closing the descriptor gives it back.

    `shared` locks stand beside each other.  Raises `Locked`, `NotAStore`, `IOFailure`.
    """
    try:
        if create:
            os.makedirs(path, exist_ok=True)
        descriptor = open_lock(path, create or os.path.exists(os.path.join(path, IDENTITY)))
    except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
        raise NotAStore(f"{path}: {os.strerror(error.errno or errno.ENOENT)}") from error
    except OSError as error:
        raise IOFailure(error.errno or errno.EIO, LOCK, "open") from error
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EWOULDBLOCK:
            raise Locked(f"{path} is open in another Store or process") from error
        raise IOFailure(error.errno or errno.EIO, LOCK, "flock") from error
    return descriptor


def open_lock(path: str, create: bool) -> int:
    """A copy of a store may lack the file; nobody writes where it cannot be made."""
    name = os.path.join(path, LOCK)
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(name, flags)
    except FileNotFoundError:
        if not create:
            raise
    try:
        return os.open(name, flags | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
    return os.open(path, flags | os.O_DIRECTORY)


def look(path: str) -> Contents:
    """What is in the directory.  Raises `IOFailure`."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise IOFailure(error.errno or errno.EIO, path, "listdir") from error
    checkpoints = [int(match[1], 16) for name in names if (match := CHECKPOINT.fullmatch(name))]
    segments = [name for name in names if SEGMENT.fullmatch(name)]
    unfinished = [name for name in names if name.endswith(".tmp")]
    known = {IDENTITY, LOCK, RESERVE, *segments, *unfinished}
    others = [name for name in names if name not in known and not CHECKPOINT.fullmatch(name)]
    return Contents(IDENTITY in names, sorted(checkpoints), segments, unfinished, others)


def refuse_foreign(path: str, contents: Contents) -> None:
    """Raise `NotAStore` where making a store would mix with other files."""
    present = {*contents.segments, *contents.unfinished, *contents.others}
    foreign = sorted(present - HARMLESS)
    if contents.checkpoints or foreign:
        raise NotAStore(f"{path} holds other files and no store: {', '.join(foreign[:3])}")


def remove(path: str, names: list[str]) -> None:
    """Remove files that no longer count; those that are gone already are no matter."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))


def checkpoint_names(numbers: list[int]) -> list[str]:
    return [f"checkpoint-{number:016x}" for number in numbers]
