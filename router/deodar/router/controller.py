"""The elected controller: makes the first shards, and moves them as nodes come and go.

It decides from the view, by `placement`, and changes records by compare-and-set: whatever it
misread changes nothing.  Nodes carry its decisions out.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from deodar.contract.keypath import even_prefixes
from deodar.contract.limits import DEFAULT_TABLE
from deodar.registry.backoff import Backoff
from deodar.registry.cluster_view import ClusterState, ClusterView
from deodar.registry.interface import (
    Compare,
    OutcomeUnknown,
    Put,
    Registry,
    RegistryError,
)
from deodar.registry.records import encode
from deodar.registry.tasks import start_task, stop_task
from deodar.v1.cluster_pb2 import TABLE_KIND_HASH, TableRecord
from deodar.v1.kv_pb2 import DURABILITY_BUFFERED

from .election import Election
from .placement import Change, eligible_nodes, plan_changes, plan_creation
from .rest import Rests

MOVES_PER_NODE_MAX: Final = 2
# Longer than a node needs to register again once an outage of the registry is over.
DEAD_AFTER_S: Final = 3.0
# Records of new shards in one commit, with room for the fence.
CREATIONS_PER_COMMIT: Final = 100
# How long a round lasts when nothing happens; deaths are noticed in between.
ROUND_S: Final = 1.0
# Longest wait for the view to show a commit; acting on an older view changes nothing.
VIEW_LAG_S: Final = 5.0

_log = structlog.get_logger(__name__)


class ControllerSettings(Protocol):
    @property
    def shard_bits(self) -> int:
        """Bits of the prefixes of the first table's shards."""

    @property
    def bootstrap_nodes(self) -> int:
        """Nodes to wait for before the first shards are made."""


class Controller:
    """Stands for election and, while elected, keeps shards where they belong."""

    def __init__(
        self,
        registry: Registry,
        view: ClusterView,
        settings: ControllerSettings,
        *,
        moves_per_node_max: int = MOVES_PER_NODE_MAX,
        dead_after_s: float = DEAD_AFTER_S,
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._registry = registry
        self._view = view
        self._settings = settings
        self._moves_per_node_max = moves_per_node_max
        self._dead_after_s = dead_after_s
        self._away_since: dict[str, float] = {}  # node id -> monotonic seconds
        self._rests = Rests()
        self._election = Election(registry, view, self.name)
        self._task: asyncio.Task[None] | None = None

    @property
    def elected(self) -> bool:
        return self._election.won

    async def start(self) -> None:
        self._task = start_task(self._run(), "controller")

    async def close(self) -> None:
        """Stop, and let another controller be elected at once."""
        if self._task is not None:
            await stop_task(self._task)
        await self._election.resign()

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._election.win()
                await self._lead()
                backoff.reset()
            except RegistryError as error:
                _log.warning("controller interrupted", error=str(error))
            await backoff.wait()

    async def _lead(self) -> None:
        """Returns when no longer elected."""
        self._away_since.clear()
        await self._view.refresh()
        while self._election.won:
            state = self._view.state
            fence = self._election.fence
            if state.mod_revisions.get(fence.key) != fence.mod_revision:
                break
            if not await self._round(state):
                await self._view.wait_change(state.revision, ROUND_S)
        _log.warning("no longer controller", name=self.name)
        await self._election.resign()

    async def _round(self, state: ClusterState) -> bool:
        """One look and what follows from it; False when there was nothing to do."""
        dead = self._dead(state)
        if DEFAULT_TABLE not in state.tables:
            return await self._bootstrap(state)
        changes = plan_changes(
            state,
            dead,
            self._moves_per_node_max,
            resting=self._rests.resting(state, time.monotonic()),
            now_ms=time.time_ns() // 1_000_000,
        )
        for change in changes:
            await self._commit([change])
        return bool(changes)

    def _dead(self, state: ClusterState) -> set[str]:
        """Nodes that shards' records name and that have been away for long enough."""
        named = {
            node
            for kept in state.shards.values()
            for node in (kept.record.primary, kept.record.target)
            if node
        }
        now = time.monotonic()
        away = named - set(state.nodes)
        self._away_since = {node: self._away_since.get(node, now) for node in away}
        return {
            node for node, since in self._away_since.items() if now - since >= self._dead_after_s
        }

    async def _bootstrap(self, state: ClusterState) -> bool:
        """The shards first and the table last, so that a table that is there is whole."""
        if len(eligible_nodes(state)) < self._settings.bootstrap_nodes:
            return False
        # Another controller may have begun, with settings of its own.
        begun = (kept.record for kept in state.shards.values())
        bits = next(
            (record.prefix_bits for record in begun if record.table == DEFAULT_TABLE),
            self._settings.shard_bits,
        )
        creations = plan_creation(state, DEFAULT_TABLE, even_prefixes(bits))
        for start in range(0, len(creations), CREATIONS_PER_COMMIT):
            if not await self._commit(creations[start : start + CREATIONS_PER_COMMIT]):
                return True
        table = TableRecord(
            name=DEFAULT_TABLE,
            kind=TABLE_KIND_HASH,
            initial_prefix_bits=bits,
            default_durability=DURABILITY_BUFFERED,
        )
        key = self._view.keys.of(table)
        await self._write([Compare(key, 0)], [Put(key, encode(table))])
        _log.info("table made", table=table.name, shards=1 << bits)
        return True

    async def _commit(self, changes: Sequence[Change]) -> bool:
        """Change records, all or none; False when they were changed by others meanwhile."""
        keys = [self._view.keys.shard_of(change.record) for change in changes]
        done = await self._write(
            [Compare(key, change.mod_revision) for key, change in zip(keys, changes, strict=True)],
            [Put(key, encode(change.record)) for key, change in zip(keys, changes, strict=True)],
        )
        for change in changes:
            _log.info(
                f"shard {change.what}" if done else f"shard {change.what} overtaken",
                shard=change.name,
                primary=change.record.primary,
                target=change.record.target,
            )
        return done

    async def _write(self, compares: Sequence[Compare], puts: Sequence[Put]) -> bool:
        """Commit under the fence, and wait until the view shows how it ended."""
        try:
            revision = await self._registry.commit([self._election.fence, *compares], puts)
        except OutcomeUnknown as error:
            _log.warning("answer of the registry lost", error=str(error))
            revision = None
        if revision is None:
            await self._view.refresh()
            return False
        await self._view.wait_change(revision - 1, VIEW_LAG_S)
        return True
