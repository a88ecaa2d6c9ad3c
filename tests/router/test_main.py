"""A router as a process: how it starts, what it refuses to start with, how it ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from deodar.v1 import admin_pb2, admin_pb2_grpc
from tests.etcd_server import EtcdServer, running_etcd
from tests.processes import Process, free_port, wait_until

START_S = 20.0


def router(directory: Path, *arguments: str) -> Process:
    command = [sys.executable, "-m", "deodar.router", *arguments]
    return Process("router", command, directory)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with running_etcd(tmp_path / "etcd") as server:
        yield server


def logged(process: Process, event: str) -> list[dict[str, object]]:
    lines = process.log.read_text().splitlines() if process.log.exists() else []
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in entries if entry["event"] == event]


def wait_serving(process: Process) -> str:
    """The address in the log line that says it serves."""

    def serves() -> bool:
        process.check_alive()
        return bool(logged(process, "serving"))

    wait_until(serves, START_S, "the router serves")
    return str(logged(process, "serving")[-1]["address"])


@pytest.fixture
def served(tmp_path: Path, etcd: EtcdServer) -> Iterator[tuple[Process, str]]:
    process = router(tmp_path, "--listen", "127.0.0.1:0", "--registry", etcd.url)
    process.start()
    try:
        yield process, wait_serving(process)
    finally:
        process.close()
        print(process.log_tail())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "registry"),
        (["--registry", "etcd://127.0.0.1:1", "--embedded-registry", "somewhere"], "registry"),
        (["--registry", "etcd://127.0.0.1:1", "--listen", "nowhere"], "host:port"),
        (["--registry", "etcd://127.0.0.1:1", "--shard-bits", "17"], "shard_bits"),
        (["--registry", "etcd://127.0.0.1:1", "--cluster", "a/b"], "cluster"),
        (["--registry", "http://127.0.0.1:1"], "registry"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_misuse_exits_with_2_and_names_the_setting(arguments: list[str], word: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deodar.router", *arguments],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_exits_with_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = router(tmp_path, "--listen", address, "--embedded-registry", str(tmp_path / "r"))
        process.start()
        assert process.wait(START_S) == 1
    (problem,) = logged(process, "cannot start")
    assert address in str(problem["problem"])
    assert "Traceback" not in process.log.read_text()


def test_a_registry_that_stays_away_exits_with_1(tmp_path: Path) -> None:
    process = router(
        tmp_path,
        *("--listen", "127.0.0.1:0", "--registry", f"etcd://127.0.0.1:{free_port()}"),
        *("--registry-start-timeout-s", "1"),
    )
    process.start()
    assert process.wait(START_S) == 1
    assert logged(process, "cannot start")


def test_health_names_the_services(served: tuple[Process, str]) -> None:
    with grpc.insecure_channel(served[1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "deodar.v1.KV", "deodar.v1.Admin"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="unknown"), timeout=5)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_generic_client_finds_its_way_by_reflection(served: tuple[Process, str]) -> None:
    """As grpcurl does: services, messages and a call in JSON, with no code of ours."""
    with grpc.insecure_channel(served[1]) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"deodar.v1.KV", "deodar.v1.Admin"} <= set(database.get_services())
        pool = descriptor_pool.DescriptorPool(database)
        method = pool.FindServiceByName("deodar.v1.Admin").FindMethodByName("ClusterStatus")
        request = message_factory.GetMessageClass(method.input_type)
        answer = message_factory.GetMessageClass(method.output_type)
        call = channel.unary_unary(
            "/deodar.v1.Admin/ClusterStatus",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        status = json_format.MessageToDict(call(json_format.Parse("{}", request()), timeout=5))
    assert status["cluster"] == "deodar"
    assert status["registry"] == "etcd"


def test_sigterm_ends_watches_and_exits_with_0(served: tuple[Process, str]) -> None:
    """A watch never ends by itself, so a stop must not wait for it."""
    process, address = served
    with grpc.insecure_channel(address) as channel:
        watch = admin_pb2_grpc.AdminStub(channel).WatchShardMap(admin_pb2.WatchShardMapRequest())
        assert next(watch).full
        began = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - began < 5
        with pytest.raises(grpc.RpcError) as caught:
            next(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
