"""Errors survive the wire: every reason through a real server and channel, and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo

from deodar.contract.limits import MESSAGE_BYTES_MAX
from deodar.contract.reasons import RULES, Reason, ServiceError
from deodar.contract.rpc_status import (
    ErrorInterceptor,
    channel_options,
    error_from_operation,
    error_from_rpc,
    error_from_status,
    error_to_operation,
    error_to_status,
    invalid_field,
    server_options,
)
from deodar.v1 import kv_pb2, kv_pb2_grpc


class FailingKV(kv_pb2_grpc.KVServicer):
    """Raises what the test put into `error`: at once, or behind one answer of a stream."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.delay_s = 0.0

    async def Get(self, _request, _context):  # noqa: N802
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        return kv_pb2.GetResponse(found=True)

    async def Scan(self, _request, _context):  # noqa: N802
        yield kv_pb2.ScanResponse(cursor=b"1")
        if self.error is not None:
            raise self.error


def translate(error: Exception) -> ServiceError | None:
    return ServiceError(Reason.DISK_FULL, str(error)) if isinstance(error, OSError) else None


@pytest.fixture
async def service() -> AsyncIterator[tuple[FailingKV, kv_pb2_grpc.KVAsyncStub, str]]:
    server = grpc.aio.server(interceptors=[ErrorInterceptor(translate)], options=server_options())
    servicer = FailingKV()
    kv_pb2_grpc.add_KVServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    target = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(target, options=channel_options()) as channel:
        yield servicer, kv_pb2_grpc.KVStub(channel), target
    await server.stop(None)


async def failure(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def drain(stream: AsyncIterator[object]) -> int:
    count = 0
    async for _ in stream:
        count += 1
    return count


@pytest.mark.parametrize("reason", list(Reason))
async def test_every_reason_survives_a_call(service, reason: Reason):
    servicer, stub, _ = service
    servicer.error = ServiceError(reason, "why", {"field": "key", "n": "7"})
    raised = await failure(stub.Get(kv_pb2.GetRequest(key=b"k")))
    assert raised.code().value[0] == RULES[reason].code
    assert raised.details() == "why"
    known = error_from_rpc(raised)
    assert (known.reason, known.message, known.metadata) == (
        reason,
        "why",
        {"field": "key", "n": "7"},
    )
    again = error_from_operation(error_to_operation(known))
    assert (again.reason, again.message, again.metadata) == (
        known.reason,
        known.message,
        known.metadata,
    )


async def test_a_stream_keeps_what_came_before_the_error(service):
    servicer, stub, _ = service
    servicer.error = ServiceError(Reason.MOVED, "elsewhere", {"map_revision": "9"})
    stream = stub.Scan(kv_pb2.ScanRequest())
    assert (await stream.read()).cursor == b"1"
    raised = await failure(stream.read())
    assert error_from_rpc(raised).reason is Reason.MOVED


async def test_errors_of_a_lower_floor_are_translated(service):
    servicer, stub, _ = service
    servicer.error = OSError("disk")
    raised = await failure(stub.Get(kv_pb2.GetRequest(key=b"k")))
    assert error_from_rpc(raised).reason is Reason.DISK_FULL


async def test_a_fault_of_the_server_is_internal_and_names_no_secret(service):
    servicer, stub, _ = service
    servicer.error = KeyError("private")
    for call in (stub.Get(kv_pb2.GetRequest(key=b"k")), drain(stub.Scan(kv_pb2.ScanRequest()))):
        raised = await failure(call)
        known = error_from_rpc(raised)
        assert known.reason is Reason.INTERNAL
        assert "KeyError" in known.message
        assert "private" not in known.message


async def test_standard_details_are_sent():
    status = error_to_status(invalid_field("key", "is empty"))
    violations = BadRequest()
    assert any(detail.Unpack(violations) for detail in status.details)
    assert violations.field_violations[0].field == "key"
    status = error_to_status(ServiceError(Reason.OVERLOADED, "later"))
    retry = RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.ToMilliseconds() == RULES[Reason.OVERLOADED].retry_after_ms


def test_a_reason_of_another_release_is_not_guessed_at():
    status = error_to_status(ServiceError(Reason.MOVED, "x"))
    status.details[0].value = status.details[0].value.replace(b"MOVED", b"BUZZY")
    assert error_from_status(status) is None
    operation = error_to_operation(ServiceError(Reason.MOVED, "x"))
    operation.reason = "BUZZY"
    assert error_from_operation(operation).reason is Reason.INTERNAL


async def test_a_peer_that_is_gone():
    """Reads may be repeated; whether a write happened is not known."""
    async with grpc.aio.insecure_channel("127.0.0.1:1", options=channel_options()) as channel:
        raised = await failure(kv_pb2_grpc.KVStub(channel).Get(kv_pb2.GetRequest(key=b"k")))
    assert error_from_rpc(raised, may_have_run=False).reason is Reason.NODE_UNREACHABLE
    assert error_from_rpc(raised).reason is Reason.OUTCOME_UNKNOWN


async def test_deadlines_and_unknown_methods(service):
    servicer, stub, target = service
    servicer.delay_s = 5.0
    raised = await failure(stub.Get(kv_pb2.GetRequest(key=b"k"), timeout=0.05))
    assert raised.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert error_from_rpc(raised, may_have_run=False).reason is Reason.DEADLINE_EXCEEDED
    assert error_from_rpc(raised).reason is Reason.OUTCOME_UNKNOWN
    async with grpc.aio.insecure_channel(target) as channel:
        unknown = channel.unary_unary("/deodar.v1.KV/None")
        raised = await failure(unknown(b""))
    assert raised.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error_from_rpc(raised).reason is Reason.INTERNAL


@pytest.mark.parametrize("method", ["Get", "Scan"])
async def test_bytes_that_are_no_message_are_the_callers_fault(service, method: str):
    _, _, target = service
    async with grpc.aio.insecure_channel(target) as channel:
        path = f"/deodar.v1.KV/{method}"
        call = channel.unary_unary if method == "Get" else channel.unary_stream
        answer = call(path)(b"\xff\xff")
        raised = await failure(answer if method == "Get" else drain(answer))
    assert raised.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_from_rpc(raised).reason is Reason.INVALID_FIELD


async def test_the_largest_message_passes_and_a_larger_one_is_refused(service):
    _, stub, _ = service
    largest = kv_pb2.GetRequest(key=b"x" * (MESSAGE_BYTES_MAX - 5))
    assert largest.ByteSize() == MESSAGE_BYTES_MAX
    assert (await stub.Get(largest)).found
    raised = await failure(stub.Get(kv_pb2.GetRequest(key=b"x" * MESSAGE_BYTES_MAX)))
    assert error_from_rpc(raised).reason is Reason.LIMIT_EXCEEDED


async def test_compressed_requests_are_refused(service):
    _, _, target = service
    async with grpc.aio.insecure_channel(
        target, options=channel_options(), compression=grpc.Compression.Gzip
    ) as channel:
        request = kv_pb2.GetRequest(key=b"x" * 100_000)
        raised = await failure(kv_pb2_grpc.KVStub(channel).Get(request))
    assert raised.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_in_use_is_an_error(service):
    _, _, target = service
    second = grpc.aio.server(options=server_options())
    with pytest.raises(RuntimeError):
        second.add_insecure_port(target)
