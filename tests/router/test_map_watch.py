"""What a watcher of the shard map is told: a client that applies it has the router's map.

The property test plays random states through a feed and applies the messages as a client would.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deodar.contract.keypath import Prefix
from deodar.registry.cluster_view import ClusterState, KeptShard
from deodar.router.map_watch import MapFeed
from deodar.v1 import admin_pb2, cluster_pb2

TABLES = ("default", "other")
NODES = ("n1", "n2", "n3")


def record(table: str, value: int, primary: str) -> cluster_pb2.ShardRecord:
    prefix = Prefix(value, 2)
    return cluster_pb2.ShardRecord(
        table=table,
        prefix=prefix.to_bytes(),
        prefix_bits=prefix.bits,
        state=cluster_pb2.SHARD_STATE_SERVING,
        primary=primary,
    )


def state(
    revision: int, shards: dict[tuple[str, int], tuple[str, int]], nodes: dict[str, str]
) -> ClusterState:
    """`shards` maps (table, prefix) to (primary, revision of the record)."""
    return ClusterState.build(
        revision,
        nodes=[cluster_pb2.NodeRecord(id=name, address=where) for name, where in nodes.items()],
        shards=[
            KeptShard(record(table, value, primary), changed)
            for (table, value), (primary, changed) in shards.items()
        ],
    )


class Watcher:
    """A client's map, kept by the messages alone."""

    def __init__(self) -> None:
        self.shards: dict[tuple[str, bytes], str] = {}
        self.nodes: dict[str, str] = {}
        self.revision = 0

    def take(self, message: admin_pb2.WatchShardMapResponse) -> None:
        if message.full:
            self.shards.clear()
            self.nodes.clear()
        for shard in message.removed_shards:
            del self.shards[shard.table, shard.prefix]
        for shard in message.shards:
            self.shards[shard.table, shard.prefix] = shard.primary
        for gone in message.removed_nodes:
            del self.nodes[gone]
        for node in message.nodes:
            self.nodes[node.id] = node.address
        self.revision = message.map_revision


shards_of = st.dictionaries(
    st.tuples(st.sampled_from(TABLES), st.integers(0, 3)),
    st.tuples(st.sampled_from(NODES), st.integers(1, 50)),
)
nodes_of = st.dictionaries(st.sampled_from(NODES), st.sampled_from(["a:1", "a:2"]))


@given(st.lists(st.tuples(shards_of, nodes_of), min_size=1, max_size=8), st.sampled_from(TABLES))
def test_a_watcher_ends_up_with_the_map(
    steps: list[tuple[dict[tuple[str, int], tuple[str, int]], dict[str, str]]], table: str
) -> None:
    """A record's primary is made a function of its revision, as in a registry."""
    feed, watcher = MapFeed(table), Watcher()
    for revision, (shards, nodes) in enumerate(steps, start=1):
        kept = {key: (NODES[changed % 3], changed) for key, (_, changed) in shards.items()}
        message = feed.advance(state(revision, kept, nodes))
        if message is not None:
            assert message.full == (watcher.revision == 0)
            watcher.take(message)
        wanted = {
            (name, Prefix(value, 2).to_bytes()): primary
            for (name, value), (primary, _) in kept.items()
            if name == table
        }
        assert watcher.shards == wanted
        assert watcher.nodes == nodes


def test_the_first_message_is_full_even_when_empty() -> None:
    message = MapFeed("").advance(state(7, {}, {}))
    assert message is not None
    assert message.full
    assert message.map_revision == 7


def test_nothing_is_said_when_nothing_changed() -> None:
    feed = MapFeed("")
    shards, nodes = {("default", 0): ("n1", 3)}, {"n1": "a:1"}
    assert feed.advance(state(3, shards, nodes)) is not None
    assert feed.advance(state(4, shards, nodes)) is None


def test_a_change_holds_only_what_changed() -> None:
    feed = MapFeed("")
    feed.advance(state(1, {("default", 0): ("n1", 1), ("default", 1): ("n2", 1)}, {"n1": "a:1"}))
    message = feed.advance(
        state(5, {("default", 0): ("n1", 1), ("default", 1): ("n1", 5)}, {"n1": "a:1"})
    )
    assert message is not None
    assert not message.full
    assert [shard.primary for shard in message.shards] == ["n1"]
    assert not message.nodes
    assert not message.removed_nodes
