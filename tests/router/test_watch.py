"""The Watch call as any gRPC client sees it, on a router and on a node: what is refused, what comes
first, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from deodar.contract.keypath import Prefix, path_bytes, path_of
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import error_from_rpc
from deodar.contract.watchpos import Mark, WatchPosition
from deodar.router import watch as watch_module
from deodar.router.watch import Watches
from deodar.v1 import kv_pb2
from tests.cluster_harness import Cluster
from tests.processes import wait_until
from tests.wire import Service, connected, failure, keys_of_shard

Watch = kv_pb2.WatchRequest
NODE_WATCHES_MAX = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("cluster"),
        nodes=1,
        shard_bits=2,
        node_arguments=["--watches-max", str(NODE_WATCHES_MAX)],
    ) as running:
        yield running


@pytest.fixture(params=["router", "node"])
def service(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Service]:
    address = cluster.endpoint if request.param == "router" else cluster.nodes["n1"].address
    with connected(address) as stubs:
        yield stubs


@pytest.fixture
def router(cluster: Cluster) -> Iterator[Service]:
    with connected(cluster.endpoint) as stubs:
        yield stubs


def first_of(call: Any) -> Any:
    """The first answer; ends the watch."""
    try:
        return next(call)
    finally:
        call.cancel()


PATH = path_bytes(path_of(b"k"))
ELSEWHERE = WatchPosition("default", {Prefix(0, 9): Mark(1, 1)}).encode()
OTHER_TABLE = WatchPosition("other", {Prefix(0, 2): Mark(1, 1)}).encode()
FUTURE_FORMAT = kv_pb2.WatchPosition(format=2, table="default").SerializeToString()
BAD_PREFIX = kv_pb2.WatchPosition(
    format=1, shards=[kv_pb2.WatchPosition.Shard(prefix=b"\xff", prefix_bits=2)]
).SerializeToString()


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (Watch(), Reason.INVALID_FIELD, "selection"),
        (Watch(key=b""), Reason.INVALID_FIELD, "key"),
        (Watch(key=bytes(65_537)), Reason.INVALID_FIELD, "key"),
        (Watch(key_prefix=b"a", path=b"short"), Reason.INVALID_FIELD, "path"),
        (Watch(key=b"k", position=b"\xff\xff\xff"), Reason.INVALID_FIELD, "position"),
        (Watch(key=b"k", position=b"\x08\x01"), Reason.INVALID_FIELD, "position"),
        (Watch(key=b"k", position=FUTURE_FORMAT), Reason.INVALID_FIELD, "position"),
        (Watch(key=b"k", position=BAD_PREFIX), Reason.INVALID_FIELD, "position"),
        (Watch(key=b"k", position=OTHER_TABLE), Reason.INVALID_FIELD, "position"),
        (Watch(key=b"k", position=ELSEWHERE), Reason.WATCH_POSITION_LOST, None),
        (Watch(key_prefix=b"", path=PATH, position=ELSEWHERE), Reason.WATCH_POSITION_LOST, None),
        (Watch(key=b"k", table="none"), Reason.UNKNOWN_TABLE, None),
    ],
)
def test_what_is_refused(
    service: Service, request_: kv_pb2.WatchRequest, reason: Reason, field: str | None
) -> None:
    failed = failure(lambda: next(service.kv.Watch(request_, timeout=10)))
    assert failed.reason is reason, failed
    if field is not None:
        assert failed.metadata["field"] == field


def test_a_position_of_another_history_or_of_the_future_is_lost(service: Service) -> None:
    position = WatchPosition.decode(first_of(service.kv.Watch(Watch(key=b"k"))).position)
    [(prefix, mark)] = position.marks.items()
    for other in (
        mark._replace(history=mark.history ^ 1),
        mark._replace(version=mark.version + 1_000),
    ):
        bad = WatchPosition("default", {prefix: other}).encode()
        watch = service.kv.Watch(Watch(key=b"k", position=bad))
        failed = failure(watch.__next__)
        assert failed.code is grpc.StatusCode.OUT_OF_RANGE
        assert failed.reason is Reason.WATCH_POSITION_LOST


def test_first_that_it_stands_then_events_then_progress(service: Service) -> None:
    watch = service.kv.Watch(Watch(key=b"k"), timeout=20)
    first = next(watch)
    assert not first.events
    written = service.kv.Put(kv_pb2.PutRequest(key=b"k", value=b"v", ttl_ms=60_000))
    deleted = service.kv.Delete(kv_pb2.DeleteRequest(key=b"k"))
    assert deleted.found
    events: list[kv_pb2.WatchEvent] = []
    while len(events) < 2:
        answer = next(watch)
        events += answer.events
    put, delete = events
    assert (put.kind, put.key, put.value) == (kv_pb2.WATCH_EVENT_KIND_PUT, b"k", b"v")
    assert put.version == written.version
    assert abs(put.deadline_ms - time.time() * 1000 - 60_000) < 20_000
    assert (delete.kind, delete.value) == (kv_pb2.WATCH_EVENT_KIND_DELETE, b"")
    assert not delete.HasField("deadline_ms")
    began = time.monotonic()
    assert not next(watch).events
    assert time.monotonic() - began < 3
    watch.cancel()
    again = service.kv.Watch(Watch(key=b"k", position=first.position), timeout=20)
    resumed: list[kv_pb2.WatchEvent] = []
    while len(resumed) < 2:
        resumed += next(again).events
    assert resumed == events
    again.cancel()


def test_one_shard_of_many(router: Service, cluster: Cluster) -> None:
    [first, second, *_] = cluster.status().shards
    wanted, other = next(keys_of_shard(first)), next(keys_of_shard(second))
    path = path_bytes(path_of(wanted))
    watch = router.kv.Watch(Watch(key_prefix=b"k", path=path), timeout=20)
    assert len(WatchPosition.decode(next(watch).position).marks) == 1
    for key in (other, wanted):
        router.kv.Put(kv_pb2.PutRequest(key=key))
    events: list[kv_pb2.WatchEvent] = []
    while not events:
        events = list(next(watch).events)
    assert [event.key for event in events] == [wanted]
    watch.cancel()


def test_a_watch_has_a_deadline_like_any_call(service: Service) -> None:
    watch = service.kv.Watch(Watch(key=b"k"), timeout=1.2)
    with pytest.raises(grpc.RpcError) as raised:
        for _ in watch:
            pass
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_node_has_so_many_watches_and_gives_them_back(router: Service) -> None:
    """The whole table takes one of each of the four shards."""
    request = Watch(key_prefix=b"")
    open_ones = [router.kv.Watch(request) for _ in range(NODE_WATCHES_MAX // 4)]
    for watch in open_ones:
        next(watch)
    failed = failure(lambda: next(router.kv.Watch(request)))
    assert failed.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert failed.reason is Reason.OVERLOADED
    assert failed.metadata["watches_max"] == str(NODE_WATCHES_MAX)
    # So much that the streams are full, and their senders wait.
    for number in range(60):
        router.kv.Put(kv_pb2.PutRequest(key=b"%d" % number, value=bytes(500_000)))
    for watch in open_ones:
        watch.cancel()
    deadline = time.monotonic() + 5
    while (refusal := refusal_of(router, request)) is not None:
        assert refusal is Reason.OVERLOADED
        assert time.monotonic() < deadline, "cancelled watches have not ended"


def refusal_of(service: Service, request: kv_pb2.WatchRequest) -> Reason | None:
    """Why a watch cannot stand; None when it can."""
    try:
        first_of(service.kv.Watch(request))
    except grpc.RpcError as error:
        return error_from_rpc(error).reason
    return None


async def test_a_router_has_so_many_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "WATCHES_MAX", 0)
    watches = Watches()
    request = Watch(key=b"k").SerializeToString()
    with pytest.raises(ServiceError) as raised:
        await anext(watches.watch(None, request, None))  # type: ignore[arg-type]
    assert raised.value.reason is Reason.OVERLOADED
    watches.stop()
    with pytest.raises(ServiceError) as raised:
        await anext(watches.watch(None, request, None))  # type: ignore[arg-type]
    assert raised.value.reason is Reason.SHUTTING_DOWN


def test_a_router_that_stops_says_so_at_once(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path, nodes=1, shard_bits=1) as cluster,
        connected(cluster.endpoint) as service,
    ):
        watch = service.kv.Watch(Watch(key_prefix=b""))
        next(watch)
        [router] = cluster.routers
        began = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - began < 5
        failed = failure(lambda: list(watch))
        assert failed.reason is Reason.SHUTTING_DOWN


def test_a_node_that_stops_says_so_and_a_hung_one_is_found(tmp_path: Path) -> None:
    """Behind a router: the events come when the node is back."""
    with (
        Cluster(tmp_path, nodes=1, shard_bits=1) as cluster,
        connected(cluster.endpoint) as service,
    ):
        with connected(cluster.nodes["n1"].address) as node:
            direct = node.kv.Watch(Watch(key=b"k"))
            next(direct)
            through = service.kv.Watch(Watch(key_prefix=b""), timeout=60)
            next(through)
            assert cluster.nodes["n1"].stop() == 0
            assert failure(lambda: list(direct)).reason is Reason.SHUTTING_DOWN
        cluster.start_node("n1")
        service.kv.Put(kv_pb2.PutRequest(key=b"k", value=b"back"), timeout=10)
        assert next_event(through).value == b"back"
        cluster.nodes["n1"].pause()
        time.sleep(6)
        cluster.nodes["n1"].resume()
        wait_until(lambda: put(service, b"hung"), 20, "the node takes writes again")
        assert next_event(through).value == b"hung"


def put(service: Service, value: bytes) -> bool:
    try:
        service.kv.Put(kv_pb2.PutRequest(key=b"k", value=value), timeout=5)
    except grpc.RpcError:
        return False
    return True


def next_event(watch: Any) -> Any:
    while True:
        events = next(watch).events
        if events:
            return events[0]
