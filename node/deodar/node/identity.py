"""The data directory of a node: who it is (node.json) and that only one process has it (LOCK)."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from .files import read_json, write_json

FORMAT_VERSION = 1


class DataDirectoryRefused(Exception):  # noqa: N818
    """The directory cannot be used by this node; the message says why."""


class DataDirectory:
    """An open and locked data directory.

    `identity` is random and made with the directory: two directories never share it, so that a
    wiped or foreign disk cannot pass for the node that its id names.
    """

    def __init__(self, path: Path, identity: str, lock: int) -> None:
        self.path = path
        self.identity = identity
        self._lock = lock

    @classmethod
    def open(cls, path: Path, node_id: str, cluster: str) -> DataDirectory:
        """Lock the directory, made if absent.  Raises DataDirectoryRefused, OSError."""
        path = path.absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataDirectoryRefused(f"{path} is in use by another process") from None
            identity = _load(path, node_id, cluster)
        except BaseException:  # an interrupt too must not leave the directory locked
            os.close(lock)
            raise
        return cls(path, identity, lock)

    @property
    def shards(self) -> Path:
        return self.path / "shards"

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _load(path: Path, node_id: str, cluster: str) -> str:
    """The identity in node.json, made if there is none yet."""
    file = path / "node.json"
    try:
        known = read_json(file)
    except ValueError as error:
        raise DataDirectoryRefused(f"{file} is damaged: {error}") from error
    if known is None:
        if (path / "shards").exists():
            raise DataDirectoryRefused(f"{path} holds shards but no node.json")
        identity = secrets.token_hex(16)
        write_json(
            file,
            {
                "format_version": FORMAT_VERSION,
                "id": node_id,
                "cluster": cluster,
                "identity": identity,
            },
        )
        (path / "shards").mkdir(mode=0o700)
        return identity
    if known.get("format_version") != FORMAT_VERSION:
        raise DataDirectoryRefused(
            f"{file} has format version {known.get('format_version')}, "
            f"this program reads version {FORMAT_VERSION}"
        )
    for field, wanted in (("id", node_id), ("cluster", cluster)):
        if known.get(field) != wanted:
            raise DataDirectoryRefused(
                f"{path} belongs to {field} {known.get(field)!r}, not {wanted!r}"
            )
    kept = known.get("identity")
    if not isinstance(kept, str) or not kept:
        raise DataDirectoryRefused(f"{file} is damaged: no identity")
    (path / "shards").mkdir(mode=0o700, exist_ok=True)
    return kept
