"""Changing a record when the registry hangs: the outcome is known when `change` returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from deodar.contract.keypath import Prefix
from deodar.node.record import ShardRecords, is_move, without_move
from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.interface import Compare, Delete, Put, Registry
from deodar.registry.records import Keys, encode
from deodar.v1.cluster_pb2 import SHARD_STATE_MOVING, SHARD_STATE_SERVING, ShardRecord
from tests.etcd_server import EtcdServer

PREFIX = Prefix(0, 1)
KEY = Keys("c").shard("t", PREFIX)


def shard(**fields: object) -> ShardRecord:
    return ShardRecord(
        table="t", prefix=b"\0", prefix_bits=1, **{"primary": "a", "term": 1, **fields}
    )


@pytest.fixture
async def registry(etcd: EtcdServer) -> AsyncIterator[Registry]:
    opened = await open_registry(RegistryConfig(url=etcd.url, timeout_ms=500))
    yield opened
    await opened.close()


async def put(registry: Registry, record: ShardRecord, revision: int = 0) -> int:
    made = await registry.commit([Compare(KEY, revision)], [Put(KEY, encode(record))])
    assert made is not None
    return made


async def test_change_and_lose(registry: Registry):
    records = ShardRecords(registry, "c")
    assert await records.read("t", PREFIX) is None
    revision = await put(registry, shard())
    assert await records.read("t", PREFIX) == (shard(), revision)
    assert await records.change(shard(term=2), revision)
    assert not await records.change(shard(term=3), revision)
    found = await records.read("t", PREFIX)
    assert found is not None
    assert found[0].term == 2


async def test_a_lost_answer_is_followed_up(registry: Registry, etcd: EtcdServer):
    """The registry hangs when the change arrives: it takes effect, and `change` says so."""
    records = ShardRecords(registry, "c")
    revision = await put(registry, shard())
    etcd.pause()
    change = asyncio.create_task(records.change(shard(term=2, store_id=9), revision))
    await asyncio.sleep(1.2)
    assert not change.done()
    etcd.resume()
    assert await asyncio.wait_for(change, 10)
    found = await records.read("t", PREFIX)
    assert found is not None
    assert found[0] == shard(term=2, store_id=9)


class LosingRegistry:
    """A real registry that carries a commit out and loses the answer; then, before the next
    attempt, somebody else changes the record."""

    def __init__(self, registry: Registry, then: ShardRecord) -> None:
        self._registry = registry
        self._then: ShardRecord | None = then

    async def commit(self, compares: list[Compare], operations: list[Put | Delete]) -> int | None:
        from deodar.registry.interface import OutcomeUnknown

        revision = await self._registry.commit(compares, operations)
        if self._then is not None:
            then, self._then = self._then, None
            assert revision is not None
            await put(self._registry, then, revision)
            raise OutcomeUnknown("answer lost")
        return revision

    def __getattr__(self, name: str) -> object:
        return getattr(self._registry, name)


@pytest.mark.parametrize(
    ("then", "ours"),
    [
        (shard(term=2, store_id=9, state=SHARD_STATE_MOVING, target="b", move_id=4), True),
        (shard(term=3, store_id=11, primary="b"), False),
    ],
)
async def test_our_change_is_known_under_a_later_one(
    registry: Registry, then: ShardRecord, ours: bool
):
    """A move that began right behind a take-over whose answer was lost must not make its new
    primary throw its store away."""
    revision = await put(registry, shard())
    records = ShardRecords(LosingRegistry(registry, then), "c")  # type: ignore[arg-type]
    assert await records.change(shard(term=2, store_id=9), revision) is ours


def test_moves():
    moving = shard(state=SHARD_STATE_MOVING, target="b", move_id=4)
    assert is_move(moving, 1, 4)
    assert not is_move(moving, 1, 3)
    assert not is_move(moving, 2, 4)
    assert not is_move(None, 1, 4)
    settled = without_move(moving)
    assert not is_move(settled, 1, 4)
    assert (settled.state, settled.target, settled.move_id) == (SHARD_STATE_SERVING, "", 4)
    assert moving.target == "b"
    assert settled.failed_moves == 0
    moving.pinned_until_ms = 9
    assert without_move(moving).pinned_until_ms == 9
    failed = without_move(moving, "x" * 1_000)
    assert (failed.failed_moves, failed.move_failure) == (1, "x" * 300)
    assert failed.pinned_until_ms == 0
