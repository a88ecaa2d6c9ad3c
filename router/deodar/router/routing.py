"""Where a key lives, by the last map that was seen.

Through an outage of the registry the last map stays good enough: without it no shard can change
its primary.  A node whose lease has ended may still serve its shards (nobody else has them), so its
last address is kept for as long as a shard names it.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import structlog

from deodar.contract.limits import DEFAULT_TABLE
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.shardmap import Shard
from deodar.registry.cluster_view import ClusterState, ClusterView
from deodar.registry.interface import RegistryError

from .channels import ChannelPool
from .retry import NotServedYet

CHANGE_WAIT_S = 60.0

_log = structlog.get_logger(__name__)


class Target(NamedTuple):
    """A shard and the node to ask for it."""

    shard: Shard
    address: str  # empty = never seen up
    up: bool  # its lease is alive

    @property
    def node(self) -> str:
        return self.shard.primary

    def facts(self) -> dict[str, str]:
        """Metadata of errors about it."""
        return {"node": self.node, "address": self.address, "shard": self.shard.name}


class Routing:
    def __init__(self, view: ClusterView, pool: ChannelPool) -> None:
        self._view = view
        self._pool = pool
        self._addresses: dict[str, str] = {}
        self._rereading: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def state(self) -> ClusterState:
        return self._view.state

    @property
    def revision(self) -> int:
        return self._view.state.revision

    def start(self) -> None:
        self._remember(self.state)
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        tasks = [task for task in (self._following, self._rereading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def table(self, name: str) -> str:
        """The table's name; raises UNKNOWN_TABLE, or NotServedYet for the default one."""
        table = name or DEFAULT_TABLE
        if table in self.state.tables:
            return table
        if table == DEFAULT_TABLE:
            message = f"table {table!r} waits for the first nodes"
            raise NotServedYet(Reason.SHARD_UNAVAILABLE, message, {"table": table})
        raise ServiceError(Reason.UNKNOWN_TABLE, f"no table {table!r}", {"table": table})

    def locate(self, table: str, path: int) -> Target:
        """Who serves `path`; raises NotServedYet for a shard without a store."""
        shard = self.state.map.find(table, path)
        if shard is None:
            message = f"no shard of table {table!r} holds path {path:032x}"
            raise NotServedYet(Reason.SHARD_UNAVAILABLE, message, {"table": table})
        target = self.target(shard)
        if not shard.serving:
            message = f"node {shard.primary} is making shard {shard.name}"
            raise NotServedYet(Reason.SHARD_UNAVAILABLE, message, target.facts())
        return target

    def target(self, shard: Shard) -> Target:
        live = self.state.map.addresses.get(shard.primary)
        return Target(shard, self.address(shard.primary), live is not None)

    def target_changed(self, target: Target) -> bool:
        """Whether the map now names another node or address for what `target` was found for."""
        shard = self.state.map.find(target.shard.table, target.shard.prefix.first_path)
        if shard is None or not shard.serving:
            return False
        now = self.target(shard)
        return (now.node, now.address) != (target.node, target.address)

    def address(self, node: str) -> str:
        """host:port where the node is, or was seen last; empty when it never was."""
        return self.state.map.addresses.get(node) or self._addresses.get(node, "")

    def primaries(self, table: str) -> list[Target]:
        """One target for each node that serves shards of the table."""
        by_node = {
            shard.primary: self.target(shard)
            for shard in self.state.map.shards(table)
            if shard.serving
        }
        return list(by_node.values())

    async def wait_newer(self, revision: int, timeout_s: float) -> bool:
        """Whether a map behind `revision` came within the time."""
        state = await self._view.wait_change(revision, timeout_s)
        return state.revision > revision

    async def reread(self) -> None:
        """Reads the map from the registry itself; calls at the same time share one read."""
        if self._rereading is None or self._rereading.done():
            self._rereading = asyncio.create_task(self._reread())
        await asyncio.shield(self._rereading)

    async def _reread(self) -> None:
        try:
            await self._view.refresh()
        except RegistryError as error:
            _log.warning("the last map stays in use", error=str(error), revision=self.revision)

    async def _follow(self) -> None:
        revision = 0
        while True:
            state = await self._view.wait_change(revision, CHANGE_WAIT_S)
            revision = state.revision
            self._remember(state)

    def _remember(self, state: ClusterState) -> None:
        wanted = {shard.primary for shard in state.map.shards()}
        kept = {node: where for node, where in self._addresses.items() if node in wanted}
        self._addresses = kept | dict(state.map.addresses)
        self._pool.keep(self._addresses)
