"""What a commit may hold; the same for every registry."""

from __future__ import annotations

from collections.abc import Sequence

from .interface import OPERATIONS_MAX, Compare, Delete, Put


def check_transaction(compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> None:
    """Raises ValueError when a commit is larger than etcd takes or writes a key twice."""
    for name, count in (("compares", len(compares)), ("operations", len(operations))):
        if count > OPERATIONS_MAX:
            raise ValueError(f"{count} {name} in one commit, at most {OPERATIONS_MAX}")
    keys = {operation.key for operation in operations}
    if len(keys) != len(operations):
        raise ValueError("a commit writes one key twice")
    if "" in keys or any(not compare.key for compare in compares):
        raise ValueError("an empty key in a commit")
