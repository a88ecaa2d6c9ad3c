"""The KV service of a router.

Requests and answers are bytes here: a request is parsed once, to find its key and to refuse what
breaks a bound; what is forwarded are the caller's bytes, and what comes back those of the node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final

import grpc
import grpc.aio

from deodar.contract.keypath import path_of
from deodar.contract.reasons import Reason, ServiceError
from deodar.v1 import kv_pb2

from . import fanout
from .forward import Forwarder
from .messages import check_key, check_value, parse
from .retry import Deadline
from .scan import scan
from .watch import Watches

SERVICE: Final = "deodar.v1.KV"
# Of all calls in flight together: some seconds of work, and memory that a small machine has.
CALLS_MAX: Final = 2_048
CALL_BYTES_MAX: Final = 536_870_912

Context = grpc.aio.ServicerContext[Any, Any]
UnaryHandler = Callable[[bytes, Context], Awaitable[bytes]]
Call = Callable[[Forwarder, bytes, Deadline], Awaitable[bytes]]


async def get(forwarder: Forwarder, data: bytes, deadline: Deadline) -> bytes:
    request = parse(kv_pb2.GetRequest, data)
    check_key(request.key)
    path = path_of(request.key)
    return await forwarder.call("Get", request.table, path, data, deadline, write=False)


async def put(forwarder: Forwarder, data: bytes, deadline: Deadline) -> bytes:
    request = parse(kv_pb2.PutRequest, data)
    check_key(request.key)
    check_value(request.value)
    path = path_of(request.key)
    return await forwarder.call("Put", request.table, path, data, deadline, write=True)


async def delete(forwarder: Forwarder, data: bytes, deadline: Deadline) -> bytes:
    request = parse(kv_pb2.DeleteRequest, data)
    check_key(request.key)
    path = path_of(request.key)
    return await forwarder.call("Delete", request.table, path, data, deadline, write=True)


async def increment(forwarder: Forwarder, data: bytes, deadline: Deadline) -> bytes:
    request = parse(kv_pb2.IncrementRequest, data)
    check_key(request.key)
    path = path_of(request.key)
    return await forwarder.call("Increment", request.table, path, data, deadline, write=True)


CALLS: Final[dict[str, Call]] = {
    "Get": get,
    "Put": put,
    "Delete": delete,
    "Increment": increment,
    "BatchGet": fanout.batch_get,
    "BatchWrite": fanout.batch_write,
    "Sync": fanout.sync,
}


class Admission:
    """Bounds what a router holds for calls in flight, so that overload is refused while that is
    cheap, instead of growing into memory and waiting time."""

    def __init__(self) -> None:
        self._calls = 0
        self._bytes = 0
        self._stopping = False

    def stop(self) -> None:
        """Refuses every call from now on."""
        self._stopping = True

    @contextmanager
    def admit(self, size: int) -> Iterator[None]:
        """For the length of a call with a request of `size` bytes.

        Raises OVERLOADED, or SHUTTING_DOWN.
        """
        if self._stopping:
            raise ServiceError(Reason.SHUTTING_DOWN, "the router stops")
        if self._calls >= CALLS_MAX or (self._calls and self._bytes + size > CALL_BYTES_MAX):
            message = f"{self._calls} calls with {self._bytes} bytes are in flight"
            raise ServiceError(Reason.OVERLOADED, message)
        self._calls += 1
        self._bytes += size
        try:
            yield
        finally:
            self._calls -= 1
            self._bytes -= size


def kv_handlers(
    forwarder: Forwarder, admission: Admission, watches: Watches
) -> grpc.GenericRpcHandler:
    """The service for `add_generic_rpc_handlers`."""

    def unary(call: Call) -> UnaryHandler:
        async def handler(data: bytes, context: Context) -> bytes:
            with admission.admit(len(data)):
                return await call(forwarder, data, Deadline(context.time_remaining()))

        return handler

    async def stream(data: bytes, context: Context) -> AsyncIterator[bytes]:
        remaining_s = context.time_remaining()
        deadline = None if remaining_s is None else Deadline(remaining_s)
        with admission.admit(len(data)):
            async for page in scan(forwarder, data, deadline):
                yield page

    async def watch(data: bytes, context: Context) -> AsyncIterator[bytes]:
        remaining_s = context.time_remaining()
        deadline = None if remaining_s is None else Deadline(remaining_s)
        async with aclosing(watches.watch(forwarder, data, deadline)) as answers:
            async for answer in answers:
                yield answer

    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(unary(call)) for name, call in CALLS.items()
    }
    handlers["Scan"] = grpc.unary_stream_rpc_method_handler(stream)
    handlers["Watch"] = grpc.unary_stream_rpc_method_handler(watch)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)
