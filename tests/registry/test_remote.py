"""The served registry through restarts of the process that serves it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import Put, RegistryUnavailable
from tests.etcd_server import free_port

from .conftest import first_snapshot, next_events, served, watching


async def test_watch_and_lease_go_on_through_a_restart(tmp_path: Path) -> None:
    """The router stops for a moment: the watch goes on where it was, the lease outlives it."""
    port = free_port()
    config = RegistryConfig(url=f"embedded://127.0.0.1:{port}", timeout_ms=3_000)
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    async with served(registry, port):
        remote = await open_registry(config)
        lease = await remote.grant_lease(2_000)
        await remote.commit([], [Put("/leased", b"x", lease.id)])
        stream = await watching(remote, "/").__aenter__()
        await first_snapshot(stream)
        await remote.commit([], [Put("/a", b"1")])
        assert [event.value for event in await next_events(stream, 1)] == [b"1"]
    await registry.close()
    registry = await EmbeddedRegistry.open(tmp_path / "r")
    async with served(registry, port):
        await remote.commit([], [Put("/a", b"2")])
        # Snapshots would fail here: nothing was missed, so it does not start over.
        assert [event.value for event in await next_events(stream, 1)] == [b"2"]
        await asyncio.sleep(2.2)
        assert not lease.lost
        assert await remote.get("/leased") is not None
    await registry.close()
    with pytest.raises(RegistryUnavailable):
        await remote.commit([], [Put("/a", b"no")])
    await stream.aclose()
    await remote.close()
