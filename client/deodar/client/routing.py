"""Where a key is served: the client's own copy of the shard map, and the routers to fall back on.

Pure state, changed by whole-object assignment only, so that one thread may follow the map while
others route by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from deodar.contract.keypath import Prefix
from deodar.contract.limits import DEFAULT_TABLE
from deodar.contract.shardmap import Shard, ShardMap
from deodar.v1.admin_pb2 import WatchShardMapResponse
from deodar.v1.cluster_pb2 import SHARD_STATE_MOVING, SHARD_STATE_SERVING, ShardRecord

from .requests import invalid

# How long a node that could not be reached is left alone.
AVOID_S: Final = 1.0
NO_MAP: Final = ShardMap.build(0, [], {})


@dataclass(frozen=True, slots=True)
class Target:
    """A server chosen for a call, and the map revision it was chosen by."""

    address: str
    is_node: bool  # not a router
    revision: int


def parse_endpoints(endpoint: str | Sequence[str]) -> tuple[str, ...]:
    """``host:port`` of routers, one or several, also separated by commas."""
    parts = endpoint.split(",") if isinstance(endpoint, str) else list(endpoint)
    endpoints = tuple(part.strip() for part in parts)
    for part in endpoints:
        host, _, port = part.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise invalid("endpoint", f"{part!r} is not host:port")
    if not endpoints:
        raise invalid("endpoint", "none given")
    return endpoints


class Routing:
    """The shard map as last heard, and which router is used now."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        smart: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoints = tuple(endpoints)
        self.smart = smart
        self.map = NO_MAP
        self._clock = clock
        self._router = 0  # index of the endpoint in use
        self._records: dict[tuple[str, bytes, int], ShardRecord] = {}
        self._avoided: dict[str, float] = {}  # address -> when it may be tried again

    @property
    def router(self) -> str:
        return self.endpoints[self._router]

    def target(self, table: str, path: int, *, newer_than: int = -1) -> Target:
        """The node that serves `path`, or a router.

        A router when the map is not newer than `newer_than`, does not know, or its node is avoided.
        """
        shards = self.map
        if self.smart and shards.revision > newer_than:
            shard = shards.find(table or DEFAULT_TABLE, path)
            if shard is not None and shard.serving:
                address = shards.addresses.get(shard.primary)
                if address is not None and not self._is_avoided(address):
                    return Target(address, True, shards.revision)
        return self.router_target()

    def router_target(self) -> Target:
        return Target(self.router, False, self.map.revision)

    @property
    def servers(self) -> set[str]:
        """The addresses of all routers and of the nodes that the map names."""
        return {*self.endpoints, *self.map.addresses.values()}

    def avoid(self, target: Target) -> None:
        """Notes a server that was not reached: a node rests, a router gives way to the next."""
        if target.is_node:
            self._avoided = self._avoided | {target.address: self._clock() + AVOID_S}
        elif self.router == target.address:
            self._router = (self._router + 1) % len(self.endpoints)

    def update(self, change: WatchShardMapResponse) -> None:
        """Takes in one answer of WatchShardMap; called by one thread or task alone."""
        records = {} if change.full else self._records
        addresses = {} if change.full else dict(self.map.addresses)
        for record in change.shards:
            records[_identity(record)] = record
        for record in change.removed_shards:
            records.pop(_identity(record), None)
        for node in change.nodes:
            addresses[node.id] = node.address
        for name in change.removed_nodes:
            addresses.pop(name, None)
        self._records = records
        self.map = ShardMap.build(change.map_revision, map(shard_of, records.values()), addresses)

    def _is_avoided(self, address: str) -> bool:
        until = self._avoided.get(address)
        return until is not None and self._clock() < until


def shard_of(record: ShardRecord) -> Shard:
    """The record as the map holds it."""
    return Shard(
        table=record.table,
        prefix=Prefix.from_bytes(record.prefix, record.prefix_bits),
        primary=record.primary,
        term=record.term,
        serving=record.state in (SHARD_STATE_SERVING, SHARD_STATE_MOVING),
        target=record.target,
        move_id=record.move_id,
        store_id=record.store_id,
    )


def _identity(record: ShardRecord) -> tuple[str, bytes, int]:
    return record.table, record.prefix, record.prefix_bits
