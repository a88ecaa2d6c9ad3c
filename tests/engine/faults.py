"""Observers for `probe_env.Door` that make calls fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .probe_env import Operation


class FailNth:
    """Fails the `at`-th call (from 1) of the given kinds, once or for good.

    `answer` is an errno, or -n to let only n bytes of a read or write through.  Without `kinds`,
    every call but "synced" counts.
    """

    def __init__(
        self, at: int, answer: int, *, kinds: Iterable[str] = (), for_good: bool = False
    ) -> None:
        self.at = at
        self.answer = answer
        self.kinds = frozenset(kinds)
        self.for_good = for_good
        self.seen = 0
        self.counts: Counter[str] = Counter()

    def __call__(self, operation: Operation) -> int:
        if operation.kind == "synced":
            return 0
        self.counts[operation.kind] += 1
        if self.kinds and operation.kind not in self.kinds:
            return 0
        self.seen += 1
        if self.seen == self.at or (self.for_good and self.seen > self.at):
            return self.answer
        return 0
