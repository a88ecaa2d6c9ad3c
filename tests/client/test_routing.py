"""The client's copy of the map: where a key goes, before, while and after the map changes."""

from __future__ import annotations

from deodar.client.routing import AVOID_S, Routing
from deodar.contract.keypath import Prefix, even_prefixes
from deodar.v1.admin_pb2 import NodeAddress, WatchShardMapResponse
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    SHARD_STATE_SERVING,
    ShardRecord,
    ShardState,
)

FIRST, SECOND = "127.0.0.1:7400", "127.0.0.1:7500"
N1, N2 = "127.0.0.1:7401", "127.0.0.1:7402"
LOW, HIGH = 0, 2**128 - 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def record(
    prefix: Prefix, primary: str, state: ShardState.ValueType = SHARD_STATE_SERVING
) -> ShardRecord:
    return ShardRecord(
        table="default",
        prefix=prefix.to_bytes(),
        prefix_bits=prefix.bits,
        state=state,
        primary=primary,
        term=1,
    )


def full_map(revision: int = 5) -> WatchShardMapResponse:
    low, high = even_prefixes(1)
    return WatchShardMapResponse(
        map_revision=revision,
        full=True,
        shards=[record(low, "n1"), record(high, "n2")],
        nodes=[NodeAddress(id="n1", address=N1), NodeAddress(id="n2", address=N2)],
    )


def make(*, smart: bool = True) -> tuple[Routing, Clock]:
    clock = Clock()
    return Routing([FIRST, SECOND], smart=smart, clock=clock), clock


def test_without_a_map_a_router_is_asked() -> None:
    routing, _ = make()
    assert routing.target("", LOW).address == FIRST
    assert not routing.target("", LOW).is_node


def test_keys_go_to_the_node_of_their_shard() -> None:
    routing, _ = make()
    routing.update(full_map())
    assert routing.target("", LOW).address == N1
    assert routing.target("default", HIGH).address == N2
    assert routing.target("default", HIGH).revision == 5
    assert routing.target("other", HIGH).address == FIRST


def test_a_client_that_is_not_smart_asks_routers_only() -> None:
    routing, _ = make(smart=False)
    routing.update(full_map())
    assert routing.target("", LOW).address == FIRST


def test_a_map_that_led_astray_is_not_used_again() -> None:
    routing, _ = make()
    routing.update(full_map(5))
    assert routing.target("", LOW, newer_than=5).address == FIRST
    routing.update(full_map(6))
    assert routing.target("", LOW, newer_than=5).address == N1


def test_changes_are_taken_in() -> None:
    routing, _ = make()
    routing.update(full_map())
    low, high = even_prefixes(1)
    routing.update(
        WatchShardMapResponse(
            map_revision=6,
            shards=[record(low, "n2", SHARD_STATE_MOVING)],
            removed_nodes=["n1"],
        )
    )
    assert routing.target("", LOW).address == N2
    assert routing.target("", HIGH).address == N2
    routing.update(WatchShardMapResponse(map_revision=7, removed_shards=[record(high, "n2")]))
    assert routing.target("", HIGH).address == FIRST
    assert routing.target("", LOW).address == N2
    routing.update(full_map(3))
    assert routing.map.revision == 3
    assert routing.target("", LOW).address == N1


def test_shards_in_the_making_and_dead_nodes_are_for_the_router() -> None:
    routing, _ = make()
    routing.update(full_map())
    low, high = even_prefixes(1)
    routing.update(
        WatchShardMapResponse(
            map_revision=6,
            shards=[record(low, "n1", SHARD_STATE_CREATING), record(high, "n3")],
        )
    )
    assert routing.target("", LOW).address == FIRST
    assert routing.target("", HIGH).address == FIRST


def test_a_node_that_was_not_reached_rests() -> None:
    routing, clock = make()
    routing.update(full_map())
    routing.avoid(routing.target("", LOW))
    assert routing.target("", LOW).address == FIRST
    assert routing.target("", HIGH).address == N2
    clock.now += AVOID_S
    assert routing.target("", LOW).address == N1


def test_routers_take_turns_when_one_is_not_reached() -> None:
    routing, _ = make()
    first = routing.router_target()
    routing.avoid(first)
    assert routing.router == SECOND
    routing.avoid(first)  # somebody else's late word about the first
    assert routing.router == SECOND
    routing.avoid(routing.router_target())
    assert routing.router == FIRST
