"""Small files that must be whole after a crash, and directories that must be gone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

DRAFT_SUFFIX = ".new"


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace the file: after a crash it is the old one or the new one."""
    draft = path.with_name(path.name + DRAFT_SUFFIX)
    with draft.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None when there is no file.  Raises ValueError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object")
    return value


def remove_tree(path: Path) -> None:
    """Remove a directory and all in it, if it is there."""
    if path.exists():
        shutil.rmtree(path)
        sync_directory(path.parent)
