"""How long shards rest after moves that failed, before the controller plans the next.

The records tell how many failed in a row; the rest begins when this controller first sees the last
of them, by its own clock, so that a new controller waits once more and never less.
"""

from __future__ import annotations

import random
from typing import Final

from deodar.registry.cluster_view import ClusterState

REST_FIRST_S: Final = 1.0
REST_LONGEST_S: Final = 60.0


def rest_s(failed_moves: int) -> float:
    """Doubles with each failure up to a bound; drawn from its upper half."""
    longest = REST_FIRST_S * 2.0 ** min(failed_moves - 1, 30)
    return min(longest, REST_LONGEST_S) * random.uniform(0.5, 1.0)


class Rests:
    """The rests of the shards of one cluster."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, float]] = {}  # name -> its failed moves, end of the rest

    def resting(self, state: ClusterState, now_s: float) -> set[str]:
        """Names of the shards that rest at `now_s` (monotonic seconds)."""
        until: dict[str, tuple[int, float]] = {}
        for name, (record, _) in state.shards.items():
            failed = record.failed_moves
            if not failed:
                continue
            known = self._until.get(name)
            if known is None or known[0] != failed:
                known = failed, now_s + rest_s(failed)
            until[name] = known
        self._until = until
        return {name for name, (_, end_s) in until.items() if now_s < end_s}
