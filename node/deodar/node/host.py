"""All shards of this node, kept in step with their records.

The view of the registry says what should be; `steps.decide` says what to do next; here it is done,
one step of a shard at a time.  Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import structlog

from deodar.contract.keypath import Prefix
from deodar.contract.reasons import Reason, ServiceError
from deodar.engine import EngineError, NotAStore, Store
from deodar.registry.cluster_view import ClusterState, ClusterView
from deodar.registry.records import record_prefix, record_shard_name
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_MOVING,
    ShardRecord,
)

from .directory import Note, ShardDirectories, Verdict, judge
from .errors import service_error
from .fence import follow_fence
from .memory import MemoryBudget
from .record import ShardRecords, is_move, without_move
from .shard import HostedShard, ShardState
from .shardtable import ShardTable
from .steps import Step, decide
from .transfer import FAILURES, Transfer, TransferFailed, take_out
from .workers import Workers

TICK_S = 1.0
# A stopping node goes on refusing until nobody has called for so long, or for so long in all.
QUIET_S = 0.1
QUIET_WAIT_S = 1.0
GIVE_UP_WAIT_S = 2.0
# A full write buffer is waited for on the event loop (`HostedShard.write`), never in the engine.
STORE_OPTIONS: dict[str, Any] = {"stall_ms": 0}

_log = structlog.get_logger(__name__)


class Host:
    """The shards of one node."""

    def __init__(
        self,
        node: str,
        directories: ShardDirectories,
        view: ClusterView,
        records: ShardRecords,
        workers: Workers,
        memory: MemoryBudget,
    ) -> None:
        self.node = node
        self._memory = memory
        self.shards = ShardTable()
        self.stopping = False
        self._refused_at = 0.0
        self._directories = directories
        self._view = view
        self._records = records
        self._workers = workers
        self._steps: dict[str, asyncio.Task[None]] = {}
        # Why the last step of a shard failed, until one succeeds or none is to be done.
        self.faults: dict[str, str] = {}
        self._fences: dict[str, asyncio.Task[None]] = {}
        self._follow_task: asyncio.Task[None] | None = None

    @property
    def state(self) -> ClusterState:
        return self._view.state

    @property
    def map_revision(self) -> int:
        return self._view.state.map.revision

    # Finding shards.

    def find(self, table: str, path: int) -> HostedShard:
        """The shard of this node that holds the path; its gate may still be shut.

        Raises UNKNOWN_TABLE, MOVED, SHARD_MOVING, SHARD_UNAVAILABLE, SHUTTING_DOWN.
        """
        if self.stopping:
            self._refused_at = monotonic()
            raise ServiceError(Reason.SHUTTING_DOWN, f"node {self.node} is stopping")
        shard = self.shards.find(table, path)
        if shard is None or shard.state in (ShardState.COPYING, ShardState.DROPPED):
            raise self._not_here(table, path)
        return shard

    def own(self, table: str) -> list[HostedShard]:
        """The shards of a table that the records give to this node, in path order.

        Raises SHARD_UNAVAILABLE for one that is not open, and as `find`.
        """
        self.check_table(table)
        return [
            self.find(table, shard.prefix.first_path)
            for shard in self.state.map.shards(table)
            if shard.primary == self.node
        ]

    def check_table(self, table: str) -> None:
        """Raises UNKNOWN_TABLE."""
        if table not in self.state.tables and not self.state.map.shards(table):
            raise ServiceError(Reason.UNKNOWN_TABLE, f"no table {table!r}", {"table": table})

    def _not_here(self, table: str, path: int) -> ServiceError:
        self.check_table(table)
        shard = self.state.map.find(table, path)
        if shard is None:
            return ServiceError(Reason.SHARD_UNAVAILABLE, f"no shard of {table!r} holds the key")
        if shard.primary == self.node:
            if shard.name in self._steps:
                return ServiceError(
                    Reason.SHARD_MOVING, f"{shard.name} is arriving", {"shard": shard.name}
                )
            return ServiceError(
                Reason.SHARD_UNAVAILABLE, f"{shard.name} is not open yet", {"shard": shard.name}
            )
        return ServiceError(
            Reason.MOVED,
            f"{shard.name} is on node {shard.primary}",
            {"map_revision": str(self.map_revision), "shard": shard.name},
        )

    # Life.

    async def start(self) -> None:
        """Clear what crashes left, give up moves to this node that an earlier self began, open
        the shards that are here, then follow the records."""
        state = self.state
        await self._sweep(state)
        for record, _ in list(state.shards.values()):
            if record.state == SHARD_STATE_MOVING and record.target == self.node:
                await take_out(record, self._records, f"node {self.node} restarted")
        self._reconcile(self.state)
        opening = [task for name, task in self._steps.items() if self._is_own(name)]
        if opening:
            await asyncio.wait(opening)
        self._follow_task = asyncio.create_task(self._follow())

    async def refuse(self) -> None:
        """Answer SHUTTING_DOWN from now on, watches too; returns when callers have heard of it: a
        server that stops listening at once cancels calls, and a cancelled write is in doubt."""
        self.stopping = True
        for shard in self.shards:
            shard.feed.wake()
        self._refused_at = begun = monotonic()
        left = QUIET_S
        while left > 0:
            await asyncio.sleep(left)
            left = min(self._refused_at + QUIET_S, begun + QUIET_WAIT_S) - monotonic()

    async def stop(self) -> None:
        """End moves, sync and close every store."""
        self.stopping = True
        tasks = [*self._steps.values(), *self._fences.values()]
        if self._follow_task is not None:
            tasks.append(self._follow_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        copying = [shard for shard in self.shards if shard.state is ShardState.COPYING]
        await asyncio.gather(*map(self._give_up, copying))
        await asyncio.gather(*(self._close(shard) for shard in self.shards))

    async def _give_up(self, shard: HostedShard) -> None:
        """Take a move that this stop interrupted out of the record, if the registry is there; if
        not, the next start does it."""
        found = self.state.shards.get(shard.name)
        if found is not None:
            try:
                async with asyncio.timeout(GIVE_UP_WAIT_S):
                    await take_out(found[0], self._records)
            except TimeoutError:
                _log.warning("interrupted move stays in the record", shard=shard.name)

    async def _close(self, shard: HostedShard) -> None:
        try:
            await shard.close()
        except EngineError as error:
            _log.error("store did not close", shard=shard.name, error=str(error))

    def _is_own(self, name: str) -> bool:
        found = self.state.shards.get(name)
        return found is not None and found[0].primary == self.node

    async def _sweep(self, state: ClusterState) -> None:
        await self._workers.run(self._directories.remove_drafts)
        for table, prefix in await self._workers.run(self._directories.found):
            name = f"{table}/{prefix}"
            found = state.shards.get(name)
            note = await self._workers.run(self._directories.read_note, table, prefix)
            match judge(note, found[0] if found else None, self.node):
                case Verdict.REMOVE:
                    await self._workers.run(self._directories.remove, table, prefix)
                    _log.info("removed a store that was superseded", shard=name)
                case Verdict.KEEP:
                    path = str(self._directories.path(table, prefix))
                    _log.warning("store that no record asks for is kept", shard=name, path=path)
                case Verdict.OURS:
                    pass

    # Steps.

    async def _follow(self) -> None:
        revision = self.state.revision
        while True:
            self._reconcile(self.state)
            self._memory.divide()
            revision = (await self._view.wait_change(revision, TICK_S)).revision

    def _reconcile(self, state: ClusterState) -> None:
        if self.stopping:
            return
        for name, (record, _) in state.shards.items():
            if name in self._steps:
                continue
            step = decide(record, self.shards.get(name), self.node)
            if step is Step.NONE:
                self.faults.pop(name, None)
            else:
                task = asyncio.create_task(self._run(step, name, record))
                self._steps[name] = task
        for name in self.faults.keys() - state.shards.keys():
            del self.faults[name]

    async def _run(self, step: Step, name: str, record: ShardRecord) -> None:
        log = _log.bind(shard=name, step=step.value)
        try:
            match step:
                case Step.CREATE:
                    await self._create(record)
                case Step.OPEN:
                    await self._open(record)
                case Step.COPY:
                    await self._copy(record)
                case Step.DROP:
                    await self._drop(record)
            self.faults.pop(name, None)
            log.info("step done")
        except (*FAILURES, TransferFailed) as error:
            self.faults[name] = f"{step.value}: {str(error) or type(error).__name__}"
            log.warning("step failed", error=str(error) or type(error).__name__)
        except Exception as error:
            # A fault of ours: the other shards go on, and the status tells of this one.
            self.faults[name] = f"{step.value}: {type(error).__name__}: {error}"
            log.exception("step failed")
        finally:
            del self._steps[name]

    async def _create(self, record: ShardRecord) -> None:
        """Make the store of a new shard, then say so in the record.

        After a crash between the two the same empty store is used again; one that holds anything
        belongs to a history that the registry has lost, and is not written over.
        """
        prefix = record_prefix(record)
        await self._note(record, unfinished=True, term=record.term)
        store = await self._open_store(record.table, prefix, create=True)
        if store.last_version != 0:
            await self._workers.run(store.close)
            self._add_broken(record, ShardState.FAILED, "the directory holds an older store")
            return
        await self._workers.run(self._directories.sync)
        shard = HostedShard(record.table, prefix, record.term, self._workers, store)
        await self._note(record, unfinished=True, term=record.term, history=shard.history)
        found = await self._records.read(record.table, prefix)
        if found is not None and found[0] == record:
            made = without_move(record)
            made.store_id = store.store_id
            if await self._records.change(made, found[1]):
                self.shards.add(shard)
                await self._note(record, unfinished=False, term=record.term, history=shard.history)
                return
        await shard.close()

    async def _open(self, record: ShardRecord) -> None:
        """Open the store that the record names; serve nothing in its place."""
        prefix = record_prefix(record)
        try:
            store = await self._open_store(record.table, prefix, create=False)
        except NotAStore as error:
            if await self._workers.run(self._directories.has_store, record.table, prefix):
                self._add_broken(record, ShardState.FAILED, str(error), service_error(error))
            else:
                self._add_broken(record, ShardState.MISSING, "data missing")
            return
        except EngineError as error:
            self._add_broken(record, ShardState.FAILED, str(error), service_error(error))
            return
        if store.store_id != record.store_id:
            await self._workers.run(store.close)
            self._add_broken(record, ShardState.MISSING, "data missing: another store is here")
            return
        shard = HostedShard(record.table, prefix, record.term, self._workers, store)
        note = await self._workers.run(self._directories.read_note, record.table, prefix)
        if note is not None and note.history:
            shard.history = note.history
        await self._note(record, unfinished=False, term=record.term, history=shard.history)
        self.shards.add(shard)
        if record.state == SHARD_STATE_MOVING:
            shard.fence(record.move_id)
            self._follow_fence(shard, abort=True)

    async def _copy(self, record: ShardRecord) -> None:
        """Run a move to this node; whatever fails, the source has everything."""
        table, prefix = record.table, record_prefix(record)
        found = await self._records.read(table, prefix)
        if found is None or not is_move(found[0], record.term, record.move_id):
            return
        if await self._workers.run(self._directories.has_store, table, prefix):
            why = "a store that no record asks for is in the way"
            await take_out(record, self._records, f"node {self.node}: {why}")
            raise TransferFailed(why)
        shard = HostedShard(table, prefix, record.term, self._workers, state=ShardState.COPYING)
        self.shards.add(shard)
        try:
            shard.serve(await self._transfer(shard, record))
        except Exception as error:
            # The record first: a copy that it may still name is not removed.
            why = f"node {self.node}: {str(error) or type(error).__name__}"
            await take_out(record, self._records, why)
            self.shards.remove(shard)
            await shard.close()
            await self._workers.run(self._directories.remove, table, prefix)
            raise
        await self._note(record, unfinished=False, term=shard.term, history=shard.history)

    async def _transfer(self, shard: HostedShard, record: ShardRecord) -> int:
        await self._note(record, unfinished=True, term=record.term)
        shard.attach(await self._open_store(shard.table, shard.prefix, create=True))
        await self._workers.run(self._directories.sync)
        source = self.state.nodes.get(record.primary)
        if source is None:
            raise TransferFailed(f"source {record.primary} is down")

        async def keep_history(history: int) -> None:
            await self._note(record, unfinished=True, term=record.term, history=history)

        transfer = Transfer(shard, record, self._records, self._workers, keep_history)
        return await transfer.run(source.address)

    async def _drop(self, record: ShardRecord) -> None:
        """Close and remove a store whose shard another node serves with a store of its own."""
        prefix = record_prefix(record)
        shard = self.shards.get(record_shard_name(record))
        if shard is None:
            raise AssertionError(f"{record_shard_name(record)} is dropped twice")
        await shard.close()
        self.shards.remove(shard)
        note = await self._workers.run(self._directories.read_note, record.table, prefix)
        if judge(note, record, self.node) is Verdict.REMOVE:
            await self._workers.run(self._directories.remove, record.table, prefix)

    async def _note(
        self, record: ShardRecord, *, unfinished: bool, term: int, history: int = 0
    ) -> None:
        table, prefix, note = record.table, record_prefix(record), Note(unfinished, term, history)
        if await self._workers.run(self._directories.read_note, table, prefix) != note:
            await self._workers.run(self._directories.write_note, table, prefix, note)

    async def _open_store(self, table: str, prefix: Prefix, *, create: bool) -> Store:
        path = self._directories.path(table, prefix)
        share_bytes = self._memory.expect()
        try:
            store = await self._workers.run(
                Store.open, path, create=create, memory_bytes=share_bytes, **STORE_OPTIONS
            )
        except BaseException:  # also when cancelled: the share is the other stores' again
            self._memory.forgo()
            raise
        self._memory.add(store)
        return store

    def _add_broken(
        self,
        record: ShardRecord,
        state: ShardState,
        reason: str,
        failure: ServiceError | None = None,
    ) -> None:
        prefix = record_prefix(record)
        shard = HostedShard(
            record.table,
            prefix,
            record.term,
            self._workers,
            state=state,
            reason=reason,
            failure=failure,
        )
        self.shards.add(shard)
        _log.error("shard cannot be served", shard=shard.name, state=state.value, reason=reason)

    # The source's end of a move.

    async def fenced(self, table: str, prefix: Prefix, term: int, move_id: int) -> HostedShard:
        """Fence the shard for this move and return it when its last operation has ended.

        Again for the same move: the same.  Raises STALE_MOVE when the record is not in this move.
        """
        shard = await self.moving(table, prefix, term, move_id)
        if shard.state is ShardState.SERVING:
            shard.fence(move_id)
            self._follow_fence(shard)
        await shard.emptied()
        return shard

    async def moving(self, table: str, prefix: Prefix, term: int, move_id: int) -> HostedShard:
        """This node's shard, if it is the source of this move; else raises STALE_MOVE."""
        name = f"{table}/{prefix}"
        if not self.is_source(name, term, move_id):
            await self._view.refresh()
        shard = self.shards.get(name)
        if shard is None or shard.store is None or not self.is_source(name, term, move_id):
            raise ServiceError(Reason.STALE_MOVE, f"move {move_id} of {name} is not going on here")
        return shard

    def is_source(self, name: str, term: int, move_id: int) -> bool:
        """The shard is here and its record is in this move, as far as the view goes."""
        shard = self.shards.get(name)
        found = self.state.shards.get(name)
        return (
            shard is not None
            and found is not None
            and found[0].primary == self.node
            and shard.state in (ShardState.SERVING, ShardState.FENCED)
            and is_move(found[0], term, move_id)
        )

    def _follow_fence(self, shard: HostedShard, *, abort: bool = False) -> None:
        async def follow() -> None:
            try:
                await follow_fence(shard, self._records, self._is_up, abort=abort)
            finally:
                del self._fences[shard.name]

        self._fences[shard.name] = asyncio.create_task(follow())

    def _is_up(self, node: str) -> bool:
        return node in self.state.nodes
