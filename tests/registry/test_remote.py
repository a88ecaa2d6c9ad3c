"""The served registry through restarts of the process that serves it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.embedded import EmbeddedRegistry
from deodar.registry.interface import Compare, OutcomeUnknown, Put, RegistryUnavailable
from tests.etcd_server import free_port

from .conftest import first_snapshot, next_events, served, watching

REPOSITORY = Path(__file__).resolve().parents[2]


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


def start_server(directory: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.registry.serve", str(directory), str(port)]
    return subprocess.Popen(command, cwd=REPOSITORY)


async def test_nothing_answered_for_is_lost_when_its_process_is_killed(tmp_path: Path) -> None:
    """Racing increments while the registry's process is killed, three times.

    Afterwards the counter lies between what is known to be done and that plus what is in doubt, and
    revisions go on.
    """
    port = free_port()
    config = RegistryConfig(url=f"embedded://127.0.0.1:{port}", timeout_ms=2_000)
    server = start_server(tmp_path / "r", port)
    try:
        remote = await open_registry(config)
        await remote.commit([Compare("/counter", 0)], [Put("/counter", b"0")])
        done = doubtful = highest = 0
        stop = asyncio.Event()

        async def increment() -> None:
            nonlocal done, doubtful, highest
            while not stop.is_set():
                try:
                    entry = await remote.get("/counter")
                    assert entry is not None
                    value = b"%d" % (int(entry.value) + 1)
                    revision = await remote.commit(
                        [Compare("/counter", entry.mod_revision)], [Put("/counter", value)]
                    )
                    if revision is not None:
                        done += 1
                        highest = max(highest, revision)
                except OutcomeUnknown:
                    doubtful += 1
                except RegistryUnavailable:
                    continue

        tasks = [asyncio.create_task(increment()) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0.5)
            server.kill()
            server.wait()
            server = start_server(tmp_path / "r", port)
            await (await open_registry(config)).close()
        stop.set()
        await asyncio.gather(*tasks)
        entry = await remote.get("/counter")
        assert entry is not None
        assert done > 10
        assert done <= int(entry.value) <= done + doubtful
        assert entry.mod_revision >= highest
        await remote.close()
    finally:
        server.kill()
        server.wait()
