"""The shard map for clients that route by themselves: first whole, then its changes."""

from __future__ import annotations

from collections.abc import Mapping

from deodar.registry.cluster_view import ClusterState, KeptShard
from deodar.v1 import admin_pb2


class MapFeed:
    """What one watcher knows, and what it has to be told next."""

    def __init__(self, table: str) -> None:
        """Empty table = every table."""
        self._table = table
        self._shards: dict[str, KeptShard] = {}
        self._addresses: Mapping[str, str] = {}
        self._first = True

    def advance(self, state: ClusterState) -> admin_pb2.WatchShardMapResponse | None:
        """The message that brings the watcher to `state`; None when it knows all of it."""
        shards = {
            name: entry
            for name, entry in state.shards.items()
            if not self._table or entry[0].table == self._table
        }
        addresses = state.map.addresses
        message = admin_pb2.WatchShardMapResponse(
            map_revision=state.revision,
            full=self._first,
            shards=[
                record
                for name, (record, revision) in shards.items()
                if name not in self._shards or self._shards[name][1] != revision
            ],
            removed_shards=[
                record for name, (record, _) in self._shards.items() if name not in shards
            ],
            nodes=[
                admin_pb2.NodeAddress(id=node, address=address)
                for node, address in addresses.items()
                if self._addresses.get(node) != address
            ],
            removed_nodes=[node for node in self._addresses if node not in addresses],
        )
        self._shards, self._addresses = shards, addresses
        changed = message.shards or message.removed_shards or message.nodes or message.removed_nodes
        if not self._first and not changed:
            return None
        self._first = False
        return message
