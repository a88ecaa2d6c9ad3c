"""The memory of a node: one budget, divided evenly over its stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from deodar.engine import Closed, Store

# What a store gets at least, however many there are: below it nothing but its tail stays in memory.
STORE_BYTES_MIN: Final = 1_048_576

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")


class MemoryBudget:
    """Shares of `total_bytes`; belongs to the event loop.

    A store whose share shrinks lets go with its next flushes, not at once.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._stores: list[Store] = []
        self._opening = 0

    @property
    def share_bytes(self) -> int:
        """Of each store that is open or being opened."""
        count = max(len(self._stores) + self._opening, 1)
        return max(self.total_bytes // count, STORE_BYTES_MIN)

    def expect(self) -> int:
        """Count a store that is about to be opened; returns its share.  Then `add` or `forgo`."""
        self._opening += 1
        return self.share_bytes

    def add(self, store: Store) -> None:
        """The store expected is open."""
        self._opening -= 1
        self._stores.append(store)
        self.divide()

    def forgo(self) -> None:
        """The store expected could not be opened."""
        self._opening -= 1

    def divide(self) -> None:
        """Give each open store its share; stores closed meanwhile leave theirs to the others."""
        share_bytes = 0
        while share_bytes != self.share_bytes:
            share_bytes = self.share_bytes
            self._stores = [store for store in self._stores if _set(store, share_bytes)]


def _set(store: Store, memory_bytes: int) -> bool:
    """False when the store is closed."""
    try:
        store.set_memory_bytes(memory_bytes)
    except Closed:
        return False
    return True


def default_budget_bytes() -> int:
    """Half of what this process may use: of the machine's memory or its control group's limit."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = cgroup_limits(_OWN_CGROUP.read_text() if _OWN_CGROUP.exists() else "", _CGROUPS)
    return min([machine_bytes, *limits]) // 2


def cgroup_limits(own: str, root: Path) -> list[int]:
    """Memory limits, in bytes, of a process's control group and those above it.

    `own` is its /proc/self/cgroup; `root` is where control groups are mounted, of version 1 or 2.
    A group that is not to be seen from inside its container is at the root itself.
    """
    limits = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for place in [group, *group.parents]:
            if place.is_relative_to(top) and (place / name).exists():
                text = (place / name).read_text().strip()
                if text.isdecimal():  # "max" is none
                    limits.append(int(text))
    return limits
