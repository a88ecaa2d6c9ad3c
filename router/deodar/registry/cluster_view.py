"""A cluster as the registry has it, kept up to date by a watch.

V1: the view only moves forward: it is the registry's content at one revision, and a later state has
    a higher one, unless the registry itself was restored from a backup.
V2: through an outage of the registry it stays as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from google.protobuf.message import Message

from deodar.contract.shardmap import Shard, ShardMap
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_CREATING,
    SHARD_STATE_MOVING,
    MemberRecord,
    NodeRecord,
    ShardRecord,
    TableRecord,
)

from .backoff import Backoff
from .interface import BadRecord, Changes, Entry, Event, Registry, RegistryError, Snapshot
from .records import Keys, decode, record_prefix, record_shard_name
from .tasks import start_task, stop_task

_log = structlog.get_logger(__name__)


class KeptShard(NamedTuple):
    record: ShardRecord
    mod_revision: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All records of a cluster at one revision; never changed."""

    revision: int
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)  # by id; those that are up
    members: Mapping[str, MemberRecord] = field(default_factory=dict)  # by id
    tables: Mapping[str, TableRecord] = field(default_factory=dict)  # by name
    shards: Mapping[str, KeptShard] = field(default_factory=dict)  # by "table/prefix"
    mod_revisions: Mapping[str, int] = field(default_factory=dict)  # by registry key
    controller: str = ""  # id of the elected controller
    map: ShardMap = field(default_factory=lambda: ShardMap.build(0, (), {}))

    @classmethod
    def build(
        cls,
        revision: int,
        *,
        nodes: Iterable[NodeRecord] = (),
        members: Iterable[MemberRecord] = (),
        tables: Iterable[TableRecord] = (),
        shards: Iterable[KeptShard] = (),
        mod_revisions: Mapping[str, int] | None = None,
        controller: str = "",
    ) -> ClusterState:
        nodes_by_id = {record.id: record for record in nodes}
        shards_by_name = {record_shard_name(kept.record): kept for kept in shards}
        return cls(
            revision,
            nodes_by_id,
            {record.id: record for record in members},
            {record.name: record for record in tables},
            shards_by_name,
            mod_revisions or {},
            controller,
            ShardMap.build(
                revision,
                (shard_of(kept.record) for kept in shards_by_name.values()),
                {record.id: record.address for record in nodes_by_id.values()},
            ),
        )


def shard_of(record: ShardRecord) -> Shard:
    """The shard as the map has it."""
    return Shard(
        table=record.table,
        prefix=record_prefix(record),
        primary=record.primary,
        term=record.term,
        serving=record.state != SHARD_STATE_CREATING,
        target=record.target if record.state == SHARD_STATE_MOVING else "",
        move_id=record.move_id,
        store_id=record.store_id,
    )


class ClusterView:
    """Follows the records of one cluster; for one event loop."""

    def __init__(self, registry: Registry, cluster: str) -> None:
        """Raises ValueError for a name that no cluster can have."""
        self.keys = Keys(cluster)
        self._kinds: dict[str, type[Any]] = {
            self.keys.nodes: NodeRecord,
            self.keys.members: MemberRecord,
            self.keys.tables: TableRecord,
            self.keys.shards: ShardRecord,
        }
        self._registry = registry
        self._revision = 0
        self._records: dict[str, tuple[Message | str, int]] = {}  # by key, with mod_revision
        self._state: ClusterState | None = ClusterState(0)  # None = to be built again
        self._changed = asyncio.Event()  # replaced at each change
        self._refresh_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything, then follow.  Raises RegistryError when the first read fails."""
        await self.refresh()
        self._task = start_task(self._run(), "cluster view")

    async def close(self) -> None:
        if self._task is not None:
            await stop_task(self._task)

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def state(self) -> ClusterState:
        if self._state is None:
            self._state = self._build()
        return self._state

    async def wait_change(self, after_revision: int, timeout: float | None = None) -> ClusterState:  # noqa: ASYNC109
        """The state once it is newer than `after_revision`, or as it is after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._revision <= after_revision:
                    await self._changed.wait()
        return self.state

    async def refresh(self) -> ClusterState:
        """The state with everything committed before this call.  Raises RegistryError."""
        async with self._refresh_lock:
            before = self._revision
            snapshot = await self._registry.range(self.keys.root)
            # Between the two, the watch has overtaken the read.
            if not before <= snapshot.revision < self._revision:
                if snapshot.revision < before:
                    _log.error("registry went back", to=snapshot.revision, revision=before)
                self._replace(snapshot)
        return self.state

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                watch: Any = self._registry.watch(self.keys.root)
                async with aclosing(watch) as stream:
                    async for step in stream:
                        await self._take(step)
                        backoff.reset()
            except RegistryError as error:
                _log.error("cluster view interrupted", error=str(error))
            await backoff.wait()

    async def _take(self, step: Snapshot | Changes) -> None:
        if isinstance(step, Changes):
            self._apply(step)
        elif step.revision >= self._revision:
            self._replace(step)
        else:
            # Older than a refresh, or the registry went back: a read from now on tells.
            await self.refresh()

    def _replace(self, snapshot: Snapshot) -> None:
        old, self._records = self._records, {}
        for entry in snapshot.entries:
            known = old.get(entry.key)
            if known is not None and known[1] == entry.mod_revision:
                self._records[entry.key] = known
            else:
                self._put(entry)
        if snapshot.revision != self._revision or self._records != old:
            self._advance(snapshot.revision)

    def _apply(self, changes: Changes) -> None:
        events = [event for event in changes.events if event.mod_revision > self._revision]
        for event in events:
            self._records.pop(event.key, None)
            if event.value is not None:
                self._put(event)
        if events:
            self._advance(changes.revision)

    def _put(self, kept: Entry | Event) -> None:
        """A record that cannot be read is left out; its key exists, so no one makes it anew."""
        assert kept.value is not None
        if kept.key == self.keys.controller:
            self._records[kept.key] = (kept.value.decode(errors="replace"), kept.mod_revision)
            return
        for prefix, kind in self._kinds.items():
            if kept.key.startswith(prefix):
                try:
                    record = decode(kind, kept.key, kept.value)
                except BadRecord as error:
                    _log.error("bad record", error=str(error))
                    return
                self._records[kept.key] = (record, kept.mod_revision)

    def _advance(self, revision: int) -> None:
        self._revision = revision
        self._state = None
        self._changed.set()
        self._changed = asyncio.Event()

    def _build(self) -> ClusterState:
        by_kind: dict[type[Any], list[Any]] = {}
        shards: list[KeptShard] = []
        controller = ""
        for record, mod_revision in self._records.values():
            if isinstance(record, str):
                controller = record
            elif isinstance(record, ShardRecord):
                shards.append(KeptShard(record, mod_revision))
            else:
                by_kind.setdefault(type(record), []).append(record)
        return ClusterState.build(
            self._revision,
            nodes=by_kind.get(NodeRecord, ()),
            members=by_kind.get(MemberRecord, ()),
            tables=by_kind.get(TableRecord, ()),
            shards=shards,
            mod_revisions={key: kept[1] for key, kept in self._records.items()},
            controller=controller,
        )
