"""Changing a shard's record by compare-and-set, until the outcome is known."""

from __future__ import annotations

import asyncio
import random

import structlog

from deodar.contract.keypath import Prefix
from deodar.registry.interface import (
    Compare,
    OutcomeUnknown,
    Put,
    Registry,
    RegistryError,
)
from deodar.registry.records import Keys, decode, encode, record_prefix
from deodar.v1.cluster_pb2 import SHARD_STATE_MOVING, SHARD_STATE_SERVING, ShardRecord

RETRY_S = 0.2
FAILURE_CHARACTERS_MAX = 300

_log = structlog.get_logger(__name__)


def without_move(record: ShardRecord, failure: str = "") -> ShardRecord:
    """The record as it is when its move has been given up: the source serves on.

    `failure` says why the move failed; empty when it did not but was interrupted.
    """
    settled = ShardRecord()
    settled.CopyFrom(record)
    settled.state = SHARD_STATE_SERVING
    settled.target = ""
    if failure:
        settled.pinned_until_ms = 0
        settled.failed_moves += 1
        settled.move_failure = failure[:FAILURE_CHARACTERS_MAX]
    return settled


def is_move(record: ShardRecord | None, term: int, move_id: int) -> bool:
    """The record is still in the move that these numbers name."""
    return (
        record is not None
        and record.state == SHARD_STATE_MOVING
        and record.term == term
        and record.move_id == move_id
    )


class ShardRecords:
    """The shard records of one cluster, for reading and changing; never from a cache."""

    def __init__(self, registry: Registry, cluster: str) -> None:
        self._registry = registry
        self._keys = Keys(cluster)

    async def read(self, table: str, prefix: Prefix) -> tuple[ShardRecord, int] | None:
        """The record and its revision, linearizable; waits through an outage of the registry and
        until an operator has mended a record that cannot be read."""
        key = self._keys.shard(table, prefix)
        while True:
            try:
                entry = await self._registry.get(key)
                if entry is None:
                    return None
                return decode(ShardRecord, key, entry.value), entry.mod_revision
            except RegistryError as error:
                await _pause("record not read", key, error)

    async def change(self, record: ShardRecord, mod_revision: int) -> bool:
        """Put the record in place of the one at `mod_revision`; False when that is gone.

        After a lost answer the same change is tried again: either it succeeds now, or it finds
        the revision changed, so that no change of ours can still take effect once this returns.
        By whom it was changed is told by primary, term and store, which nobody else would give:
        the record may have been changed again since.  Waits through an outage of the registry.
        """
        key = self._keys.of(record)
        put = Put(key, encode(record))
        in_doubt = False
        while True:
            try:
                if await self._registry.commit([Compare(key, mod_revision)], [put]) is not None:
                    return True
                break
            except OutcomeUnknown as error:
                in_doubt = True
                await _pause("answer of the registry lost", key, error)
            except RegistryError as error:
                await _pause("record not changed", key, error)
        if not in_doubt:
            return False
        found = await self.read(record.table, record_prefix(record))
        return found is not None and _owner(found[0]) == _owner(record)


def _owner(record: ShardRecord) -> tuple[str, int, int]:
    return record.primary, record.term, record.store_id


async def _pause(event: str, key: str, error: Exception) -> None:
    _log.warning(event, key=key, error=str(error))
    await asyncio.sleep(RETRY_S * (0.5 + random.random()))
