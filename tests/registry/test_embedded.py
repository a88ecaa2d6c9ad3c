"""The embedded registry alone: what is on disk, leases by its clock, and bounded history."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from deodar.engine import errors
from deodar.engine.store import Put as StorePut
from deodar.engine.store import Store
from deodar.registry import embedded
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import (
    BadRecord,
    Changes,
    Compacted,
    Compare,
    OutcomeUnknown,
    Put,
    RegistryUnavailable,
    Snapshot,
)


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    """Entries, revisions and leases; a compare made before holds after."""
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    first = await registry.commit([], [Put("/a", b"1"), Put("/b", b"")])
    lease, _ = await registry.new_lease(2_000)
    second = await registry.commit([], [Put("/leased", b"x", lease)])
    before = await registry.range("/")
    await registry.close()
    with pytest.raises(RegistryUnavailable):
        await registry.get("/a")

    registry = await EmbeddedRegistry.open(tmp_path / "r")
    assert await registry.range("/") == before
    assert second is not None
    assert before.revision == second
    third = await registry.commit([Compare("/a", first or 0)], [Put("/a", b"2")])
    assert third == second + 1
    await registry.close()


async def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """In use, damaged: one typed error with the directory in it, and nothing is left open."""
    directory = tmp_path / "r"
    registry = await EmbeddedRegistry.open(directory)
    with pytest.raises(RegistryUnavailable, match=f"{directory} .*in use by another process"):
        await EmbeddedRegistry.open(directory)
    await registry.commit([], [Put("/a", b"1")])
    await registry.close()
    identity = directory / "STORE"
    whole = identity.read_bytes()
    identity.write_bytes(bytes(len(whole)))
    with pytest.raises(RegistryUnavailable, match=f"{directory} cannot be opened"):
        await EmbeddedRegistry.open(directory)
    identity.write_bytes(whole)
    registry = await EmbeddedRegistry.open(directory)
    assert await registry.get("/a") is not None
    await registry.close()


async def test_leases_get_a_full_ttl_at_a_start(tmp_path: Path) -> None:
    """A lease that has nearly run out when the registry stops lives on for its ttl after."""
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    lease, ttl_ms = await registry.new_lease(2_000)
    assert ttl_ms == 2_000
    await registry.commit([], [Put("/leased", b"x", lease)])
    await asyncio.sleep(1.5)
    await registry.close()
    await asyncio.sleep(1.0)
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    await asyncio.sleep(1.5)
    assert await registry.get("/leased") is not None
    await asyncio.sleep(1.0)
    assert await registry.get("/leased") is None
    assert await registry.keep_lease(lease, 0) == 0
    await registry.close()
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    assert await registry.keep_lease(lease, 0) == 0, "an ended lease is not revived"
    await registry.close()


async def test_a_pause_of_the_registry_ends_no_lease(tmp_path: Path) -> None:
    """Standing still for longer than a ttl, nobody could have renewed anything."""
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    lease, _ = await registry.new_lease(2_000)
    await registry.commit([], [Put("/leased", b"x", lease)])
    await asyncio.sleep(0.2)
    time.sleep(2.5)  # noqa: ASYNC251
    await asyncio.sleep(0.5)
    assert await registry.keep_lease(lease, 0) == 2_000
    assert await registry.get("/leased") is not None
    await registry.close()


async def test_old_changes_are_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """History is bounded: exactly at its edge a stream goes on, behind it it starts over."""
    monkeypatch.setattr(embedded, "HISTORY_EVENTS_MAX", 5)
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    revisions = [await registry.commit([], [Put("/a", b"%d" % number)]) for number in range(8)]
    edge = revisions[2] or 0
    async with aclosing(registry.changes_after("/", edge)) as stream:
        changes = await anext(stream)
        assert [event.value for event in changes.events] == [b"3", b"4", b"5", b"6", b"7"]
        assert changes.revision == revisions[-1]
    async with aclosing(registry.changes_after("/", edge - 1)) as stream:
        with pytest.raises(Compacted):
            await anext(stream)
    async with aclosing(registry.changes_after("/", registry.revision + 1)) as stream:
        with pytest.raises(Compacted):
            await anext(stream)
    await registry.close()


async def test_a_slow_watcher_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not read while more happens than is kept gets a snapshot, not a gap."""
    monkeypatch.setattr(embedded, "HISTORY_EVENTS_MAX", 5)
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    watch: Any = registry.watch("/")
    async with aclosing(watch) as stream:
        assert isinstance(await anext(stream), Snapshot)
        assert isinstance(await anext(stream), Changes)
        for number in range(20):
            revision = await registry.commit([], [Put("/a", b"%d" % number)])
        step = await anext(stream)
        assert isinstance(step, Snapshot)
        assert step.revision == revision
        assert [entry.value for entry in step.entries] == [b"19"]
    await registry.close()


async def test_a_commit_is_finished_though_its_caller_is_gone(tmp_path: Path) -> None:
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    task = asyncio.create_task(registry.commit([], [Put("/a", b"1")]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    async with asyncio.timeout(5):
        await registry.commit([], [Put("/b", b"2")])
    snapshot = await registry.range("/")
    await registry.close()
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    assert await registry.range("/") == snapshot
    await registry.close()


class FailingStore:
    """The store behind a registry, failing its writes with a given error."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.error: errors.EngineError | None = None
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def write(self, *arguments: Any, **keywords: Any) -> Any:
        if self.error is not None:
            self.failures += 1
            raise self.error
        return self.store.write(*arguments, **keywords)


async def test_a_full_disk_refuses_and_heals(tmp_path: Path) -> None:
    store: Any = FailingStore(Store.open(tmp_path / "r"))
    registry = EmbeddedRegistry(store)
    await registry.commit([], [Put("/a", b"1")])
    store.error = errors.DiskFull("full")
    with pytest.raises(RegistryUnavailable):
        await registry.commit([], [Put("/a", b"2")])
    entry = await registry.get("/a")
    assert entry is not None
    assert entry.value == b"1"
    store.error = None
    assert await registry.commit([Compare("/a", entry.mod_revision)], [Put("/a", b"3")])
    await registry.close()


async def test_a_failed_store_leaves_the_outcome_unknown_and_takes_no_more(tmp_path: Path) -> None:
    """The write that met the failure may be on disk; those after it are not even tried."""
    store: Any = FailingStore(Store.open(tmp_path / "r"))
    registry = EmbeddedRegistry(store)
    await registry.commit([], [Put("/a", b"1")])
    store.error = errors.IOFailure(5, "log", "fdatasync")
    with pytest.raises(OutcomeUnknown):
        await registry.commit([], [Put("/a", b"2")])
    store.error = None
    with pytest.raises(RegistryUnavailable):
        await registry.commit([], [Put("/a", b"3")])
    assert store.failures == 1
    entry = await registry.get("/a")
    assert entry is not None
    assert entry.value == b"1"
    await registry.close()


async def test_a_foreign_store_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r")
    store.write([StorePut(b"user:1", b"x")], durability="durable")
    store.close()
    with pytest.raises(BadRecord):
        await EmbeddedRegistry.open(tmp_path / "r")
