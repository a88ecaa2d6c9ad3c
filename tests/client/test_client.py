"""The blocking client against real nodes, straight and by a router: its promises one by one."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path

import pytest

import deodar
from deodar.client.client import Client
from tests.cluster_harness import Cluster
from tests.processes import wait_until


def fresh(name: str = "k") -> bytes:
    """A key that no other test has."""
    return f"{name}-{uuid.uuid4().hex}".encode()


def test_what_is_put_is_got(client: Client) -> None:
    key = fresh()
    assert client.get(key) is None
    assert client.get_item(key) is None
    version = client.put(key, b"one")
    assert client.get(key) == b"one"
    assert client.get_item(key) == deodar.Item(key, b"one", version, None)
    assert client.put(key, b"two") > version
    assert client.delete(key) is True
    assert client.delete(key) is False
    assert client.get(key) is None


def test_an_empty_value_is_not_absent(client: Client) -> None:
    key, other = fresh(), fresh()
    version = client.put(key, b"")
    assert client.get(key) == b""
    assert client.batch_get([key, other]) == [b"", None]
    client.put(key, b"x", if_version=version)
    assert client.get(key) == b"x"


@pytest.mark.parametrize("part", [b"\0", b"\0\1\0\0", b"a\0b", b"a", b"\xff\xfe", b"{tag}x", b"\n"])
def test_keys_and_values_are_any_bytes(client: Client, part: bytes) -> None:
    key = part + fresh()
    client.put(key, part * 3)
    assert client.get(key) == part * 3
    assert [item.key for item in client.scan(key_prefix=key)] == [key]


def test_bytes_like_keys_are_taken(client: Client) -> None:
    key = fresh()
    client.put(bytearray(key), memoryview(b"v"))  # type: ignore[arg-type]
    assert client.get(key) == b"v"


def test_conditions(client: Client) -> None:
    key = fresh()
    with pytest.raises(deodar.ConditionFailed) as caught:
        client.put(key, b"x", if_version=1)
    assert caught.value.current_version is None
    version = client.put(key, b"one", if_absent=True)
    with pytest.raises(deodar.ConditionFailed) as caught:
        client.put(key, b"two", if_absent=True)
    assert caught.value.current_version == version
    with pytest.raises(deodar.ConditionFailed):
        client.delete(key, if_version=version + 1)
    assert client.get(key) == b"one"
    assert client.delete(key, if_version=version) is True


def test_ttl(client: Client) -> None:
    key = fresh()
    client.put(key, b"soon gone", ttl_ms=200)
    item = client.get_item(key)
    assert item is not None
    assert item.ttl_ms is not None
    assert 0 < item.ttl_ms <= 200
    wait_until(lambda: client.get(key) is None, 5, "expiry")
    client.put(key, b"stays", ttl_ms=200)
    client.put(key, b"stays")
    item = client.get_item(key)
    assert item is not None
    assert item.ttl_ms is None


def test_increment(client: Client) -> None:
    key = fresh()
    assert client.increment(key) == 1
    assert client.increment(key, -5) == -4
    assert client.get(key) == b"-4"
    client.put(key, b"text")
    with pytest.raises(deodar.NotANumber):
        client.increment(key)
    client.put(key, str(2**63 - 1).encode())
    with pytest.raises(deodar.OutOfRange):
        client.increment(key)
    assert client.get(key) == str(2**63 - 1).encode()


def test_durability(client: Client) -> None:
    key = fresh()
    client.put(key, b"1", durability="buffered")
    client.put(key, b"2", durability="durable")
    with pytest.raises(deodar.NotEnoughReplicas):
        client.put(key, b"3", durability="replicated")
    assert client.get(key) == b"2"
    client.sync()


def test_batches_answer_in_the_order_asked(client: Client) -> None:
    keys = [fresh(str(number)) for number in range(300)]
    written = client.batch_write([deodar.Put(key, key[::-1]) for key in keys])
    assert len(written) == len(keys)
    assert all(result.version > 0 for result in written)
    asked = [keys[7], keys[0], fresh(), keys[7], *keys[100:200]]
    expected = [keys[7][::-1], keys[0][::-1], None, keys[7][::-1]]
    expected += [key[::-1] for key in keys[100:200]]
    assert client.batch_get(asked) == expected
    assert client.batch_get([]) == []
    assert client.batch_write([]) == []
    deleted = client.batch_write([deodar.Delete(keys[0]), deodar.Delete(fresh())])
    assert [result.found for result in deleted] == [True, False]


def test_a_batch_reports_each_failure(client: Client) -> None:
    there, other = fresh(), fresh()
    client.put(there, b"old")
    with pytest.raises(deodar.BatchError) as caught:
        client.batch_write([deodar.Put(there, b"new", if_absent=True), deodar.Put(other, b"new")])
    assert isinstance(caught.value.results[0], deodar.ConditionFailed)
    assert client.get(there) == b"old"


def test_large_values_pass_whole(client: Client) -> None:
    """Also more than one answer of a server may hold."""
    prefix = fresh()
    keys = [prefix + str(number).encode() for number in range(10)]
    value = os.urandom(2_000_000)
    for key in keys:
        client.put(key, value)
    assert client.batch_get(keys) == [value] * 10
    assert sum(len(item.value) for item in client.scan(key_prefix=prefix)) == 20_000_000


def test_scan_is_complete_and_goes_on_where_it_stopped(client: Client) -> None:
    prefix = fresh("scan")
    keys = {prefix + str(number).encode() for number in range(500)}
    client.batch_write([deodar.Put(key, b"v") for key in keys])
    everything = [item.key for item in client.scan(key_prefix=prefix)]
    assert len(everything) == len(keys)
    assert set(everything) == keys
    parts: list[bytes] = []
    cursor: bytes | None = None
    while True:
        scan = client.scan(key_prefix=prefix, limit=37, cursor=cursor, keys_only=True)
        items = list(scan)
        assert all(item.value == b"" for item in items)
        parts += [item.key for item in items]
        cursor = scan.cursor
        if cursor is None or not items:
            break
    assert parts == everything
    scan = client.scan(key_prefix=prefix)
    first = [next(scan).key for _ in range(123)]
    scan.close()
    assert first + [i.key for i in client.scan(key_prefix=prefix, cursor=scan.cursor)] == everything


def test_other_tables_do_not_exist(client: Client) -> None:
    with pytest.raises(deodar.NotFound):
        client.get(b"k", table="nope")
    with pytest.raises(deodar.NotFound):
        client.batch_get([b"k"], table="nope")
    with pytest.raises(deodar.NotFound):
        list(client.scan(table="nope"))


def test_threads_share_a_client(cluster: Cluster) -> None:
    key, faults = fresh(), []

    def work(client: Client) -> None:
        try:
            for _ in range(50):
                client.increment(key)
        except deodar.Error as error:
            faults.append(error)

    with deodar.connect(cluster.endpoint, connections=2) as client:
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert client.get(key) == b"300"


def test_a_smart_client_learns_the_map(cluster: Cluster) -> None:
    with deodar.connect(cluster.endpoint) as client:
        client.get(b"k")
        routing = client._core.routing
        wait_until(lambda: routing.target("default", 0).is_node, 5, "the map")
        addresses = {node.address for node in cluster.nodes.values()}
        assert routing.target("default", 0).address in addresses


def test_a_closed_client_says_so(cluster: Cluster) -> None:
    client = deodar.connect(cluster.endpoint)
    client.put(fresh(), b"v")
    client.close()
    client.close()
    with pytest.raises(deodar.Closed):
        client.get(b"k")


def test_a_client_is_not_carried_over_a_fork(cluster: Cluster) -> None:
    with deodar.connect(cluster.endpoint) as client:
        client.get(b"k")
        child = os.fork()
        if child == 0:
            try:
                client.get(b"k", timeout=5)
            except deodar.Closed:
                os._exit(7)
            finally:
                os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert client.get(b"k") is None


def test_nobody_there_ends_soon_and_another_router_is_found(cluster: Cluster) -> None:
    begun = time.monotonic()
    with deodar.connect("127.0.0.1:1") as client, pytest.raises(deodar.NodeUnreachable):
        client.put(b"k", b"v")
    assert time.monotonic() - begun < 8
    with deodar.connect(["127.0.0.1:1", cluster.endpoint]) as client:
        client.put(fresh(), b"v")


def test_faults_of_nodes_and_routers(tmp_path: Path) -> None:
    """What a client sees while a node, then the router, is dead; it mends by itself.

    No call hangs or answers "absent" for a key that cannot be read; with the router dead, what
    lives goes on, straight to the node.
    """
    keys = [f"key-{number}".encode() for number in range(64)]
    with (
        Cluster(tmp_path, nodes=2, shard_bits=3) as cluster,
        deodar.connect(cluster.endpoint) as client,
    ):
        client.batch_write([deodar.Put(key, b"v", None) for key in keys], durability="durable")
        wait_until(lambda: client._core.routing.target("", 0).is_node, 5, "the map")
        cluster.nodes["n1"].kill()
        begun = time.monotonic()
        with pytest.raises(deodar.BatchError) as caught:
            client.batch_get(keys)
        assert time.monotonic() - begun < 8
        results = caught.value.results
        assert 0 < len(caught.value.failures) < len(keys)
        assert all(result == b"v" or isinstance(result, deodar.Unavailable) for result in results)
        dead = keys[next(iter(caught.value.failures))]
        alive = keys[results.index(b"v")]
        for _ in range(3):
            with pytest.raises(deodar.Unavailable):
                client.put(dead, b"v")
        client.put(alive, b"v")

        cluster.start_node("n1")
        cluster.wait_serving()
        assert client.batch_get(keys) == [b"v"] * len(keys)

        cluster.routers[0].kill()
        assert client.get(alive) == b"v"
        client.put(alive, b"v")
        cluster.routers[0].start()
        cluster.wait_serving()
        assert client.batch_get(keys) == [b"v"] * len(keys)
