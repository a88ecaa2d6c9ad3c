"""Which node should have which shard: pure functions from a cluster's state to changes of records.

P1: in the end, shard counts of nodes that are up and not draining differ by at most one, and nodes
    that drain have none.
P2: no plan moves more shards than P1 needs: what drains, and what stands above an even share.
P3: a plan begins no more moves than a node may take part in at once; later plans begin the rest.
P4: a shard whose primary is away stays as it is: its records are there and nowhere else.
P5: a shard that rests, since moves of it failed, is not moved; one that an operator has placed is
    moved by draining alone.  P1 waits for both.

Nodes come in three kinds: up, dead (away for so long that it counts), and away for the moment, of
which nothing is taken and to which nothing is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from deodar.contract.keypath import Prefix
from deodar.registry.cluster_view import ClusterState
from deodar.registry.records import record_shard_name, shard_name
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    SHARD_STATE_SERVING,
    ShardRecord,
)


class Change(NamedTuple):
    """A shard's record to be, if it is still at `mod_revision` (0 = absent)."""

    what: str  # "create", "reassign", "move" or "cancel"
    record: ShardRecord
    mod_revision: int

    @property
    def name(self) -> str:
        return record_shard_name(self.record)


def eligible_nodes(state: ClusterState) -> list[str]:
    """Ids of nodes that may be given shards: up and not draining."""
    return sorted(set(state.nodes) - _draining(state))


def plan_creation(state: ClusterState, table: str, prefixes: Iterable[Prefix]) -> list[Change]:
    """Records of the shards of a table that do not exist yet, spread evenly."""
    counts = _counts(state, eligible_nodes(state))
    changes = []
    for prefix in prefixes:
        if shard_name(table, prefix) in state.shards or not counts:
            continue
        node = _emptiest(counts)
        counts[node] += 1
        record = ShardRecord(
            table=table,
            prefix=prefix.to_bytes(),
            prefix_bits=prefix.bits,
            state=SHARD_STATE_CREATING,
            primary=node,
            term=1,
        )
        changes.append(Change("create", record, 0))
    return changes


def plan_changes(
    state: ClusterState,
    dead: Set[str],
    moves_per_node_max: int,
    *,
    resting: Set[str] = frozenset(),
    now_ms: int = 0,
) -> list[Change]:
    """What to change now: moves to take back, shards to give to another node, moves to begin.

    `resting` names shards; `now_ms` is in milliseconds since 1970.
    """
    plan = _Plan(state, dead, moves_per_node_max, resting, now_ms)
    plan.cancel()
    plan.reassign()
    plan.drain()
    plan.balance()
    return plan.changes


def _draining(state: ClusterState) -> set[str]:
    return {member.id for member in state.members.values() if member.draining}


def _owner(record: ShardRecord) -> str:
    """Who will have the shard when its move, if any, is done."""
    return record.target if record.state == SHARD_STATE_MOVING else record.primary


def _counts(state: ClusterState, nodes: Iterable[str]) -> Counter[str]:
    """Shards by node, those of nodes without any included."""
    counts = Counter(dict.fromkeys(nodes, 0))
    for kept in state.shards.values():
        owner = _owner(kept.record)
        if owner in counts:
            counts[owner] += 1
    return counts


def _emptiest(counts: Counter[str]) -> str:
    return min(counts, key=lambda node: (counts[node], node))


def _altered(record: ShardRecord) -> ShardRecord:
    copy = ShardRecord()
    copy.CopyFrom(record)
    return copy


@dataclass
class _Shard:
    """A shard as the plan has it so far."""

    record: ShardRecord
    mod_revision: int
    changed: bool = False


class _Plan:
    def __init__(
        self,
        state: ClusterState,
        dead: Set[str],
        moves_per_node_max: int,
        resting: Set[str],
        now_ms: int,
    ) -> None:
        self.changes: list[Change] = []
        self._up = set(state.nodes)
        self._dead = dead
        self._draining = _draining(state)
        self._moves_max = moves_per_node_max
        self._resting = resting
        self._now_ms = now_ms
        self._shards = [_Shard(*kept) for _, kept in sorted(state.shards.items())]
        self._counts = _counts(state, eligible_nodes(state))
        self._moves: Counter[str] = Counter()  # moves under way, by node that takes part
        for shard in self._shards:
            if shard.record.state == SHARD_STATE_MOVING and shard.record.primary in self._up:
                self._moves.update((shard.record.primary, shard.record.target))

    def cancel(self) -> None:
        """Take back moves to nodes that are dead or shall become empty.

        A move whose source is away stays: only the target can tell how far it is, and should the
        source never come back, its copy is all there is.
        """
        for shard in self._shards:
            record = shard.record
            if record.state != SHARD_STATE_MOVING:
                continue
            if record.target in self._dead or record.target in self._draining:
                self._moves.subtract((record.primary, record.target))
                settled = _altered(record)
                settled.state = SHARD_STATE_SERVING
                settled.target = ""
                self._change("cancel", shard, settled)
                if record.primary in self._counts:
                    self._counts[record.primary] += 1

    def reassign(self) -> None:
        """Give shards that nobody has made yet to another node than one that will not make them."""
        for shard in self._shards:
            record = shard.record
            if record.state != SHARD_STATE_CREATING or not self._counts:
                continue
            if record.primary in self._dead or record.primary in self._draining:
                given = _altered(record)
                given.primary = _emptiest(self._counts)
                given.term += 1
                self._counts[given.primary] += 1
                self._change("reassign", shard, given)

    def drain(self) -> None:
        for shard in self._movable(self._up & self._draining):
            if self._counts:
                self._move(shard, _emptiest(self._counts))

    def balance(self) -> None:
        """Move from nodes above their even share to nodes below it."""
        if not self._counts:
            return
        share, rest = divmod(self._counts.total(), len(self._counts))
        fullest_first = sorted(self._counts, key=lambda node: (-self._counts[node], node))
        excess = {
            node: self._counts[node] - share - (index < rest)
            for index, node in enumerate(fullest_first)
        }
        shards = [
            shard
            for shard in self._movable(excess.keys())
            if shard.record.pinned_until_ms <= self._now_ms
        ]
        # The one that has moved least goes first.
        for shard in sorted(shards, key=lambda shard: shard.record.move_id):
            source = shard.record.primary
            if excess[source] > 0:
                target = min(excess, key=lambda node: (excess[node], node))
                excess[source] -= 1
                excess[target] += 1
                self._counts[source] -= 1
                self._move(shard, target)

    def _movable(self, primaries: Set[str]) -> Iterator[_Shard]:
        return (
            shard
            for shard in self._shards
            if shard.record.state == SHARD_STATE_SERVING
            and not shard.changed
            and shard.record.primary in primaries
            and record_shard_name(shard.record) not in self._resting
        )

    def _move(self, shard: _Shard, target: str) -> None:
        """Plan a move; it begins now if both nodes have room for it."""
        source = shard.record.primary
        self._counts[target] += 1
        if max(self._moves[source], self._moves[target]) >= self._moves_max:
            return
        self._moves.update((source, target))
        moving = _altered(shard.record)
        moving.state = SHARD_STATE_MOVING
        moving.target = target
        moving.pinned_until_ms = 0
        moving.move_id += 1
        self._change("move", shard, moving)

    def _change(self, what: str, shard: _Shard, record: ShardRecord) -> None:
        self.changes.append(Change(what, record, shard.mod_revision))
        shard.record = record
        shard.changed = True
