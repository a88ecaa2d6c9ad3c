"""The async client against real nodes: the same calls, and many at once."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import AsyncIterator

import pytest

import deodar
import deodar.aio
from deodar.client.aio import AsyncClient
from deodar.client.client import Client
from tests.cluster_harness import Cluster


def fresh() -> bytes:
    return uuid.uuid4().hex.encode()


@pytest.fixture(params=[True, False], ids=["smart", "by router"])
async def aio_client(
    cluster: Cluster, request: pytest.FixtureRequest
) -> AsyncIterator[AsyncClient]:
    async with deodar.aio.connect(cluster.endpoint, smart=request.param) as client:
        yield client


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert calls(Client) == calls(AsyncClient)


async def test_every_call(aio_client: AsyncClient) -> None:
    client, key = aio_client, fresh()
    assert await client.get(key) is None
    version = await client.put(key, b"v", ttl_ms=60_000)
    item = await client.get_item(key)
    assert item is not None
    assert (item.key, item.value, item.version) == (key, b"v", version)
    with pytest.raises(deodar.ConditionFailed):
        await client.put(key, b"w", if_absent=True)
    assert await client.delete(key) is True
    assert await client.increment(key, 3) == 3
    keys = [fresh() for _ in range(100)]
    await client.batch_write([deodar.Put(name, name) for name in keys])
    assert await client.batch_get([*keys, key, b"absent"]) == [*keys, b"3", None]
    await client.sync()
    with pytest.raises(TypeError):
        await client.get("text")  # type: ignore[arg-type]
    with pytest.raises(deodar.NotFound):
        await client.get(key, table="nope")


async def test_many_calls_at_once(aio_client: AsyncClient) -> None:
    key = fresh()
    await asyncio.gather(*(aio_client.increment(key) for _ in range(300)))
    assert await aio_client.get(key) == b"300"


async def test_scan(aio_client: AsyncClient) -> None:
    prefix = fresh()
    keys = {prefix + str(number).encode() for number in range(250)}
    await aio_client.batch_write([deodar.Put(key, b"v") for key in keys])
    everything = [item.key async for item in aio_client.scan(key_prefix=prefix)]
    assert len(everything) == len(keys)
    assert set(everything) == keys
    scan = aio_client.scan(key_prefix=prefix)
    first = [(await anext(scan)).key for _ in range(100)]
    await scan.close()
    rest = aio_client.scan(key_prefix=prefix, cursor=scan.cursor)
    assert first + [item.key async for item in rest] == everything
    assert rest.cursor is None


async def test_connect_may_be_awaited_and_closing_is_final(cluster: Cluster) -> None:
    client = await deodar.aio.connect(cluster.endpoint)
    await client.get(b"k")
    await client.close()
    await client.close()
    with pytest.raises(deodar.Closed):
        await client.get(b"k")


async def test_nobody_there_ends_soon() -> None:
    begun = time.monotonic()
    async with deodar.aio.connect("127.0.0.1:1") as client:
        with pytest.raises(deodar.NodeUnreachable):
            await client.put(b"k", b"v")
    assert time.monotonic() - begun < 8


async def test_a_cancelled_call_leaves_the_client_whole(aio_client: AsyncClient) -> None:
    key = fresh()
    for _ in range(20):
        task = asyncio.create_task(aio_client.put(key, b"v"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await aio_client.put(key, b"last")
    assert await aio_client.get(key) == b"last"
