"""Placement as a pure function: examples of each rule, then its promises over random clusters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.contract.keypath import Prefix, even_prefixes
from deodar.registry.cluster_view import ClusterState, KeptShard
from deodar.router.placement import Change, eligible_nodes, plan_changes, plan_creation
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    SHARD_STATE_SERVING,
    MemberRecord,
    NodeRecord,
    ShardRecord,
)

NONE: frozenset[str] = frozenset()


def shard(index: int, primary: str, target: str = "", *, bits: int = 8) -> ShardRecord:
    return ShardRecord(
        table="default",
        prefix=Prefix(index, bits).to_bytes(),
        prefix_bits=bits,
        state=SHARD_STATE_MOVING if target else SHARD_STATE_SERVING,
        primary=primary,
        target=target,
        term=1,
        store_id=7,
    )


def cluster(
    shards: Iterable[ShardRecord], up: Iterable[str], draining: Iterable[str] = ()
) -> ClusterState:
    draining = set(draining)
    return ClusterState.build(
        9,
        nodes=[NodeRecord(id=node, address=f"{node}:1") for node in up],
        members=[MemberRecord(id=node, draining=node in draining) for node in {*up, *draining}],
        shards=[KeptShard(record, index + 1) for index, record in enumerate(shards)],
    )


def owned(primaries: Mapping[str, int]) -> list[ShardRecord]:
    """So many serving shards on each node."""
    names = [node for node, count in primaries.items() for _ in range(count)]
    return [shard(index, node) for index, node in enumerate(names)]


def counts(state: ClusterState) -> Counter[str]:
    return Counter(kept.record.target or kept.record.primary for kept in state.shards.values())


def applied(state: ClusterState, changes: Iterable[Change]) -> ClusterState:
    """The state after the changes; each must name the record's present revision."""
    shards = dict(state.shards)
    for change in changes:
        kept = shards[change.name]
        assert change.mod_revision == kept.mod_revision
        shards[change.name] = KeptShard(change.record, kept.mod_revision + 1000)
    return ClusterState.build(
        state.revision + 1,
        nodes=state.nodes.values(),
        members=state.members.values(),
        shards=shards.values(),
    )


def finished(state: ClusterState, choose: random.Random) -> ClusterState:
    """The state after some of its moves are done."""
    shards = []
    moving = [kept for kept in state.shards.values() if kept.record.state == SHARD_STATE_MOVING]
    done = {id(kept) for kept in choose.sample(moving, choose.randint(1, len(moving)))}
    for kept in state.shards.values():
        record = ShardRecord()
        record.CopyFrom(kept.record)
        if id(kept) in done:
            record.state = SHARD_STATE_SERVING
            record.primary, record.target = record.target, ""
            record.term += 1
        shards.append(KeptShard(record, kept.mod_revision + (id(kept) in done)))
    return ClusterState.build(
        state.revision + 1,
        nodes=state.nodes.values(),
        members=state.members.values(),
        shards=shards,
    )


def settle(state: ClusterState, seed: int, moves_max: int = 2) -> tuple[ClusterState, int]:
    """Plan and finish moves in a random order until nothing is left to do; moves made."""
    choose = random.Random(seed)
    moves = 0
    for _ in range(2_000):
        changes = plan_changes(state, NONE, moves_max)
        moves += len(changes)
        assert all(change.what == "move" for change in changes)
        state = applied(state, changes)
        check_bound(state, moves_max)
        if not any(kept.record.state == SHARD_STATE_MOVING for kept in state.shards.values()):
            assert not changes
            return state, moves
        state = finished(state, choose)
    raise AssertionError("does not settle")


def check_bound(state: ClusterState, moves_max: int) -> None:
    taking_part: Counter[str] = Counter()
    for kept in state.shards.values():
        if kept.record.state == SHARD_STATE_MOVING:
            taking_part.update((kept.record.primary, kept.record.target))
    assert all(count <= moves_max for count in taking_part.values())


def test_first_shards_are_spread_evenly() -> None:
    changes = plan_creation(cluster([], ["a", "b", "c"]), "default", even_prefixes(4))
    assert [change.name for change in changes] == [
        f"default/{prefix}" for prefix in even_prefixes(4)
    ]
    assert sorted(Counter(change.record.primary for change in changes).values()) == [5, 5, 6]
    record = changes[0].record
    assert (record.state, record.term, record.store_id) == (SHARD_STATE_CREATING, 1, 0)
    assert all(change.mod_revision == 0 for change in changes)


def test_creation_goes_on_where_it_stopped() -> None:
    """What is there stays, and the rest evens it out; a draining node gets nothing."""
    there = [shard(index, "a", bits=4) for index in range(4)]
    state = cluster(there, ["a", "b", "c", "d"], draining=["d"])
    changes = plan_creation(state, "default", even_prefixes(4))
    assert len(changes) == 12
    total = counts(state) + Counter(change.record.primary for change in changes)
    assert sorted(total.values()) == [5, 5, 6]
    assert "d" not in total
    assert plan_creation(cluster([], []), "default", even_prefixes(4)) == []


def test_a_new_node_gets_its_share_and_no_more() -> None:
    """Sixteen shards on three nodes and a fourth: exactly four move, all to it, two at a time."""
    state = cluster(owned({"a": 6, "b": 5, "c": 5}), ["a", "b", "c", "d"])
    changes = plan_changes(state, NONE, 2)
    assert [change.what for change in changes] == ["move", "move"]
    for change in changes:
        assert change.record.state == SHARD_STATE_MOVING
        assert change.record.target == "d"
        assert change.record.move_id == 1
        assert change.record.term == 1, "the term rises when the move is done"
    settled, moves = settle(state, 0)
    assert moves == 4
    assert counts(settled) == {"a": 4, "b": 4, "c": 4, "d": 4}


def test_nothing_moves_in_an_even_cluster() -> None:
    assert plan_changes(cluster(owned({"a": 6, "b": 5, "c": 5}), "abc"), NONE, 2) == []


def test_a_draining_node_is_emptied_and_gets_nothing() -> None:
    state = cluster(owned({"a": 6, "b": 5, "c": 5}), "abc", draining="a")
    settled, moves = settle(state, 1)
    assert moves == 6
    assert counts(settled) == {"b": 8, "c": 8}


def test_draining_the_last_node_moves_nothing() -> None:
    assert plan_changes(cluster(owned({"a": 4}), "a", draining="a"), NONE, 2) == []
    assert plan_changes(cluster(owned({"a": 4}), [], draining="a"), {"a"}, 2) == []


def test_shards_of_a_node_that_is_away_stay() -> None:
    """Dead or not, draining or not: what it has is there and nowhere else."""
    shards = owned({"a": 8, "b": 4, "c": 4})
    for dead in (NONE, frozenset("a")):
        for draining in ("", "a"):
            assert plan_changes(cluster(shards, "bc", draining), dead, 2) == []


def test_a_move_whose_target_died_is_taken_back() -> None:
    record = shard(0, "a", "b")
    record.move_id = 3
    state = cluster([record], ["a"])
    assert plan_changes(state, NONE, 2) == [], "away for a moment is not dead"
    [change] = plan_changes(state, {"b"}, 2)
    assert (change.what, change.mod_revision) == ("cancel", 1)
    assert change.record.state == SHARD_STATE_SERVING
    assert (change.record.primary, change.record.target) == ("a", "")
    assert change.record.move_id == 3, "kept, so that late messages of the move are told apart"
    assert change.record.store_id == 7


def test_a_move_to_a_node_that_drains_is_taken_back_once() -> None:
    """The shard is not given a second change in the plan that takes its move back."""
    state = cluster([shard(0, "a", "b"), shard(1, "a")], "abc", draining="b")
    changes = plan_changes(state, NONE, 2)
    assert Counter(change.name for change in changes).most_common(1)[0][1] == 1
    assert {change.what for change in changes if change.name == "default/00-8"} == {"cancel"}


def test_a_move_whose_source_is_away_goes_on() -> None:
    """The target's copy may be all that is left; and it holds up no other moves of the target."""
    shards = [shard(0, "a", "b"), shard(1, "a", "b"), *(shard(index, "c") for index in range(2, 8))]
    state = cluster(shards, "bc")
    changes = plan_changes(state, {"a"}, 2)
    assert {change.what for change in changes} == {"move"}
    assert all(change.record.target == "b" for change in changes)
    assert len(changes) == 2


def test_a_shard_that_was_never_made_goes_to_another_node() -> None:
    record = shard(0, "a")
    record.state = SHARD_STATE_CREATING
    record.store_id = 0
    for state, dead in (
        (cluster([record], ["b"]), frozenset("a")),
        (cluster([record], ["a", "b"], draining="a"), NONE),
    ):
        [change] = plan_changes(state, dead, 2)
        assert (change.what, change.record.primary, change.record.term) == ("reassign", "b", 2)
        assert change.record.state == SHARD_STATE_CREATING
    assert plan_changes(cluster([record], ["b"]), NONE, 2) == []
    assert plan_changes(cluster([record], []), {"a"}, 2) == []


def test_the_shard_that_moved_least_moves_first() -> None:
    """An operator has just moved one: evening out takes another."""
    shards = owned({"a": 3, "b": 1})
    shards[0].move_id = 5
    [change] = plan_changes(cluster(shards, "ab"), NONE, 2)
    assert change.record.move_id == 1


def test_what_rests_or_was_placed_stays() -> None:
    """P5, and what is evened out in their place."""
    shards = owned({"a": 4})
    names = [f"default/{Prefix(index, 8)}" for index in range(4)]
    shards[0].pinned_until_ms = 1_000
    state = cluster(shards, "ab")

    def moved(now_ms: int, resting: Iterable[str]) -> list[str]:
        changes = plan_changes(state, NONE, 9, resting=frozenset(resting), now_ms=now_ms)
        return [change.name for change in changes]

    assert moved(999, names[1:2]) == names[2:]
    assert moved(999, names[1:]) == []
    assert moved(1_000, names[1:]) == names[:1]
    draining = cluster(shards, "ab", draining="a")
    [change] = plan_changes(draining, NONE, 9, resting=frozenset(names[1:]), now_ms=999)
    assert (change.name, change.record.pinned_until_ms) == (names[0], 0)


nodes = st.integers(1, 7).map(lambda count: [f"n{index}" for index in range(count)])


@st.composite
def clusters(draw: st.DrawFn) -> ClusterState:
    """Any spread of serving shards over nodes that are up, away, or draining."""
    up = draw(nodes)
    away = draw(st.lists(st.sampled_from(["x", "y"]), unique=True))
    draining = draw(st.lists(st.sampled_from([*up, *away]), unique=True))
    primaries = draw(st.lists(st.sampled_from([*up, *away]), max_size=60))
    shards = [shard(index, node) for index, node in enumerate(primaries)]
    return cluster(shards, up, draining)


@settings(deadline=None, max_examples=60)
@given(clusters(), st.integers(0, 2**32), st.integers(1, 3))
def test_any_cluster_settles_evenly_with_as_few_moves_as_can_be(
    state: ClusterState, seed: int, moves_max: int
) -> None:
    """P1 to P4, whatever the order in which moves finish.

    The fewest moves: every shard that drains, and whatever stands above an even share, which the
    fullest nodes have rounded up.
    """
    targets = eligible_nodes(state)
    before = counts(state)
    settled, moves = settle(state, seed, moves_max)
    after = counts(settled)
    for node in set(before) - set(state.nodes):
        assert after[node] == before[node]
    if not targets:
        assert moves == 0
        return
    drained = sum(before[node] for node in state.nodes if node not in targets)
    assert all(after[node] == 0 for node in state.nodes if node not in targets)
    placed = [after[node] for node in targets]
    assert max(placed) - min(placed) <= 1
    share, rest = divmod(sum(placed), len(targets))
    fullest = sorted((before[node] for node in targets), reverse=True)
    fewest = drained + sum(
        max(0, count - share - (index < rest)) for index, count in enumerate(fullest)
    )
    assert moves == fewest


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(0, 120), st.integers(0, 2**32))
def test_adding_a_node_moves_its_share(count: int, shards: int, seed: int) -> None:
    """1/(N+1) of the shards, rounded; all of them to the new node."""
    share, rest = divmod(shards, count)
    state = cluster(
        owned({f"n{index:02}": share + (index < rest) for index in range(count)}),
        [f"n{index:02}" for index in range(count + 1)],
    )
    settled, moves = settle(state, seed)
    assert moves == shards // (count + 1)
    assert counts(settled)[f"n{count:02}"] == moves


@settings(deadline=None)
@given(clusters(), st.sets(st.sampled_from(["x", "y"])), st.data())
def test_plans_over_moves_under_way_keep_the_rules(
    state: ClusterState, dead: set[str], data: st.DataObject
) -> None:
    """With moves, deaths and shards unmade in any mixture: one change a shard, targets only among
    nodes that may be given something, and the bound on moves."""
    records = []
    everyone = sorted({*state.nodes, "x", "y"})
    for kept in state.shards.values():
        record = ShardRecord()
        record.CopyFrom(kept.record)
        kind = data.draw(st.sampled_from(["serving", "moving", "creating"]))
        if kind == "moving" and len(everyone) > 1:
            others = [node for node in everyone if node != record.primary]
            record.state, record.target = SHARD_STATE_MOVING, data.draw(st.sampled_from(others))
        elif kind == "creating":
            record.state, record.store_id = SHARD_STATE_CREATING, 0
        records.append(record)
    draining = {member.id for member in state.members.values() if member.draining}
    mixed = cluster(records, state.nodes, draining)
    changes = plan_changes(mixed, dead, 2)
    assert len({change.name for change in changes}) == len(changes)
    targets = set(eligible_nodes(mixed))
    for change in changes:
        old = mixed.shards[change.name].record
        match change.what:
            case "cancel":
                assert old.target in dead | draining
                assert change.record.primary == old.primary
            case "reassign":
                assert old.state == SHARD_STATE_CREATING
                assert old.primary in dead | draining
                assert change.record.primary in targets
            case _:
                assert old.state == SHARD_STATE_SERVING
                assert old.primary in state.nodes
                assert change.record.target in targets - {old.primary}
                assert change.record.primary == old.primary
