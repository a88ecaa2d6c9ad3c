"""Watches of both clients against real nodes, straight and by a router."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid

import pytest

import deodar
import deodar.aio
from deodar.client.client import Client
from deodar.contract.reasons import Reason
from tests.cluster_harness import Cluster


def fresh(name: str = "w") -> bytes:
    return f"{name}-{uuid.uuid4().hex}".encode()


def test_a_key(client: Client) -> None:
    key = fresh()
    with client.watch(key) as watch:
        begin = watch.position
        first = client.put(key, b"1", ttl_ms=60_000)
        client.put(key + b"other", b"")
        client.put(key, b"\0\xff")
        client.delete(key)
        events = [next(watch) for _ in range(3)]
    assert [(event.value, event.deleted) for event in events] == [
        (b"1", False),
        (b"\0\xff", False),
        (None, True),
    ]
    assert events[0].version == first
    assert events[0].deadline_ms is not None
    assert events[1].deadline_ms is None
    assert events[0].version < events[1].version < events[2].version
    with client.watch(key, position=begin) as watch:
        assert next(watch).value == b"1"
    for index, event in enumerate(events[:2]):
        with client.watch(key, position=event.position) as watch:
            assert next(watch).version == events[index + 1].version


def test_a_prefix_over_all_shards_and_the_position_within(client: Client) -> None:
    """Each event once, whatever the event behind which the watch is taken up."""
    name = fresh()
    keys = [name + b"-%d" % number for number in range(40)]
    with client.watch(prefix=name) as watch:
        for key in keys:
            client.put(key, key)
        seen, positions = [], [watch.position]
        for _ in keys:
            seen.append(next(watch).key)
            positions.append(watch.position)
    assert sorted(seen) == sorted(keys)
    for taken in (0, 1, 17, 39):
        with client.watch(prefix=name, position=positions[taken]) as watch:
            rest = [next(watch).key for _ in keys[taken:]]
        assert sorted(rest) == sorted(seen[taken:])


def test_the_whole_table_and_an_empty_value(client: Client) -> None:
    key = fresh()
    with client.watch() as watch:
        client.put(key, b"")
        event = next(event for event in watch if event.key == key)
        assert event.value == b""
        assert not event.deleted


def test_what_is_refused(client: Client) -> None:
    with pytest.raises(deodar.InvalidArgument) as invalid:
        client.watch(b"k", prefix=b"k")
    assert invalid.value.field == "prefix"
    for wrong in (b"not a position", b"\x08\x01"):
        with pytest.raises(deodar.InvalidArgument) as invalid:
            client.watch(b"k", position=wrong)
        assert invalid.value.field == "position"
    with pytest.raises(deodar.InvalidArgument):
        client.watch(b"")
    with pytest.raises(TypeError):
        client.watch("k")  # type: ignore[arg-type]
    with pytest.raises(deodar.NotFound):
        client.watch(b"k", table="none")
    with client.watch(b"k") as watch:
        one_shard = watch.position
    with pytest.raises(deodar.WatchPositionLost) as lost:
        client.watch(prefix=b"k", position=one_shard)
    assert lost.value.reason is Reason.WATCH_POSITION_LOST


def test_closing_ends_it_from_another_thread_too(client: Client) -> None:
    with client.watch(fresh()) as watch:
        threading.Timer(0.3, watch.close).start()
        began = time.monotonic()
        assert list(watch) == []
        assert time.monotonic() - began < 5
    with pytest.raises(StopIteration):
        next(watch)
    watch.close()


def test_a_closed_client_ends_its_watches(cluster: Cluster) -> None:
    with deodar.connect(cluster.endpoint) as client:
        watch = client.watch(fresh())
    with pytest.raises(deodar.Closed):
        next(watch)


def test_nobody_there() -> None:
    with deodar.connect("127.0.0.1:1", timeout=1) as client:
        began = time.monotonic()
        with pytest.raises(deodar.NodeUnreachable):
            client.watch(b"k")
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("smart", [True, False])
async def test_async(cluster: Cluster, smart: bool) -> None:
    name = fresh()
    async with deodar.aio.connect(cluster.endpoint, smart=smart) as client:
        async with client.watch(prefix=name) as watch:
            begin = watch.position
            for number in range(10):
                await client.put(name + b"%d" % number, b"")
            seen = {(await anext(watch)).key for _ in range(10)}
            assert len(seen) == 10
        async for event in client.watch(prefix=name, position=begin):
            seen.discard(event.key)
            if not seen:
                break
        with pytest.raises(deodar.NotFound):
            await anext(client.watch(b"k", table="none"))
        with pytest.raises(deodar.InvalidArgument):
            client.watch(b"k", prefix=b"k")


async def test_async_cancellation(cluster: Cluster) -> None:
    async with deodar.aio.connect(cluster.endpoint) as client:
        key = fresh()
        watch = client.watch(key)
        task = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await watch.close()
        assert await client.get(key) is None
