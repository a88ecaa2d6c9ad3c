"""Connections to a real node: few when idle, more when busy, none longer than its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deodar.router.channels import CHANNELS_MAX, HOLD_S, ChannelPool, NodeChannels
from deodar.v1 import kv_pb2
from tests.cluster_harness import Cluster
from tests.processes import free_port

# One loop for all: the transport's poller belongs to the first loop that it serves.
pytestmark = pytest.mark.asyncio(loop_scope="module")

ESTABLISHED = "01"
CALL = "/deodar.v1.KV/Get"
REQUEST = kv_pb2.GetRequest(key=b"k").SerializeToString()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node with one shard."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, nodes=1, shard_bits=0) as cluster:
        yield cluster.nodes["n1"].address


def connections(address: str) -> int:
    """Connections of this process to the address."""
    port = f"{int(address.rpartition(':')[2]):04X}"
    inodes = set()
    # gRPC takes IPv6 sockets where it can, for IPv4 as well.
    tables = [Path(f"/proc/self/net/{table}").read_text() for table in ("tcp", "tcp6")]
    for line in [line for table in tables for line in table.splitlines()[1:]]:
        fields = line.split()
        if fields[2].endswith(f":{port}") and fields[3] == ESTABLISHED:
            inodes.add(f"socket:[{fields[9]}]")
    return len(inodes & set(_descriptors()))


def _descriptors() -> list[str]:
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return links


async def call(channels: NodeChannels) -> None:
    channel = await channels.ready_channel(5.0)
    assert channel is not None
    await channel.call(CALL, REQUEST, 5.0)


async def test_one_connection_while_calls_come_one_by_one(node: str) -> None:
    channels = NodeChannels(node)
    for _ in range(50):
        await call(channels)
    assert connections(node) == 1
    await channels.close(None)
    assert connections(node) == 0


async def test_more_connections_for_many_calls_at_once(node: str) -> None:
    channels = NodeChannels(node)
    for _ in range(5):
        await asyncio.gather(*(call(channels) for _ in range(200)))
    assert 1 < connections(node) <= CHANNELS_MAX
    await channels.close(None)


async def test_the_wait_for_a_connection_is_bounded() -> None:
    channels = NodeChannels(f"127.0.0.1:{free_port()}")
    began = time.monotonic()
    waits = await asyncio.gather(*(channels.ready_channel(0.3) for _ in range(20)))
    assert waits == [None] * 20
    assert time.monotonic() - began < 0.8
    await channels.close(None)


async def test_a_node_that_stops_is_left_alone(node: str) -> None:
    pool = ChannelPool()
    await call(pool.node("n1", node))
    pool.hold("n1", "127.0.0.1:1")  # said by a node that was elsewhere
    assert await pool.node("n1", node).ready_channel(0.05) is not None
    pool.hold("n1", node)
    assert await pool.node("n1", node).ready_channel(0.05) is None
    began = time.monotonic()
    await call(pool.node("n1", node))
    assert HOLD_S / 2 < time.monotonic() - began < HOLD_S + 1.0
    await pool.close()


async def test_connections_go_with_their_node(node: str) -> None:
    pool = ChannelPool()
    await call(pool.node("n1", node))
    pool.keep({"n1": node})
    assert connections(node) == 1
    pool.keep({})
    await pool.close()
    assert connections(node) == 0
