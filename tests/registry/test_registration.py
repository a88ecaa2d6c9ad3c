"""A registration through outages longer than its lease, restarts, and rivals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from deodar.registry import registration as module
from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import (
    Delete,
    Entry,
    HeldByAnother,
    Put,
    Registry,
    RegistryUnavailable,
)
from deodar.registry.records import Keys, decode, encode
from deodar.registry.registration import Registration
from deodar.v1.cluster_pb2 import NodeRecord
from tests.etcd_server import EtcdServer

KEY = Keys("test").node("n1")
TTL_MS = 2_000


def value_of(identity: str, incarnation: int = 1) -> Callable[[], bytes]:
    return lambda: encode(
        NodeRecord(id="n1", address="h:1", identity=identity, incarnation=incarnation)
    )


async def until_held(registry: Registry, wanted: Callable[[Entry | None], bool]) -> Entry | None:
    """The key's entry once it is as wanted."""
    async with asyncio.timeout(15):
        while True:
            with suppress(RegistryUnavailable):
                entry = await registry.get(KEY)
                if wanted(entry):
                    return entry
            await asyncio.sleep(0.05)


async def test_registered_again_after_an_outage_longer_than_the_lease(etcd: EtcdServer) -> None:
    """The record goes with its lease while the owner lives on; when etcd is back so is it."""
    registry = await open_registry(RegistryConfig(url=etcd.url, timeout_ms=500))
    registration = Registration(registry, KEY, value_of("me"), TTL_MS)
    await registration.start()
    first = await registry.get(KEY)
    assert first is not None
    assert registration.registered
    await asyncio.to_thread(etcd.stop)
    await asyncio.sleep(TTL_MS / 1000 + 0.2)
    assert not registration.registered, "known by the local clock"
    await asyncio.sleep(1.0)
    await asyncio.to_thread(etcd.start)
    second = await until_held(
        registry, lambda entry: entry is not None and entry.lease != first.lease
    )
    assert second is not None
    await asyncio.sleep(TTL_MS / 1000 + 1)
    assert registration.registered
    kept = await registry.get(KEY)
    assert kept is not None
    assert kept.lease == second.lease
    await registration.close()
    assert await registry.get(KEY) is None
    await registry.close()


async def test_another_identity_is_refused_and_the_same_one_takes_over(tmp_path: Path) -> None:
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    mine = Registration(registry, KEY, value_of("me"), TTL_MS)
    await mine.start()
    rival = Registration(registry, KEY, value_of("rival"), TTL_MS)
    with pytest.raises(HeldByAnother, match="belongs to identity me"):
        await rival.start()
    restarted = Registration(registry, KEY, value_of("me", 2), TTL_MS)
    await restarted.start()
    entry = await registry.get(KEY)
    assert entry is not None
    assert decode(NodeRecord, KEY, entry.value).incarnation == 2
    # The old process ends late: its lease no longer holds the key.
    await mine.close()
    assert await registry.get(KEY) == entry
    await restarted.close()
    await rival.start()
    await rival.close()
    await registry.close()


async def test_something_unreadable_is_not_overwritten(tmp_path: Path) -> None:
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    await registry.commit([], [Put(KEY, b"not a record")])
    with pytest.raises(HeldByAnother):
        await Registration(registry, KEY, value_of("me"), TTL_MS).start()
    await registry.close()


async def test_a_key_that_vanished_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease lives, the key is gone: an operator deleted it, or a backup was restored."""
    monkeypatch.setattr(module, "CHECK_TTLS", 0.2)
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    registration = Registration(registry, KEY, value_of("me"), TTL_MS)
    await registration.start()
    await registry.commit([], [Delete(KEY)])
    await until_held(registry, lambda entry: entry is not None and registration.registered)
    await registration.close()
    await registry.close()


async def test_a_rival_that_took_the_key_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While we were cut off another identity registered: we wait until it is gone."""
    monkeypatch.setattr(module, "CHECK_TTLS", 0.2)
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    registration = Registration(registry, KEY, value_of("me"), TTL_MS)
    await registration.start()
    rival = value_of("rival")()
    await registry.commit([], [Put(KEY, rival)])
    await asyncio.sleep(1.5)
    entry = await registry.get(KEY)
    assert entry is not None
    assert entry.value == rival
    assert not registration.registered
    await registry.commit([], [Delete(KEY)])
    await until_held(registry, lambda entry: entry is not None)
    await registration.close()
    await registry.close()
