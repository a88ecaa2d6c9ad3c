"""Service errors on the wire, both ways, and the channel settings both ends must agree on.

On the wire an error is a gRPC status with google.rpc details: ErrorInfo (reason, domain, metadata),
RetryInfo where waiting helps, BadRequest for a field.  Inside a batch it is an OperationError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NoReturn, Protocol, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]
    BadRequest,
    ErrorInfo,
    RetryInfo,
)
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from deodar.v1.kv_pb2 import OperationError

from .limits import MESSAGE_BYTES_MAX
from .reasons import DOMAIN, Code, Reason, ServiceError

DETAILS_KEY: Final = "grpc-status-details-bin"
OUR_METHODS: Final = "/deodar."

_GRPC_CODES: Final[dict[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}

# Statuses that gRPC itself gives to a call that cannot have been carried out, whatever it was.
_REFUSED: Final[dict[grpc.StatusCode, Reason]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.LIMIT_EXCEEDED,  # message over MESSAGE_BYTES_MAX
    grpc.StatusCode.UNIMPLEMENTED: Reason.INTERNAL,
    grpc.StatusCode.UNAUTHENTICATED: Reason.INTERNAL,
    grpc.StatusCode.PERMISSION_DENIED: Reason.INTERNAL,
}

_log = structlog.get_logger(__name__)


class FailedCall(Protocol):
    """What a synchronous grpc.RpcError of a call and grpc.aio.AioRpcError have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Any: ...


def error_to_status(error: ServiceError) -> Status:
    """The status with its details, as it is packed into the trailing metadata."""
    rule = error.rule
    status = Status(code=rule.code, message=error.message)
    details: list[AnyMessage] = []

    def pack(message: ErrorInfo | RetryInfo | BadRequest) -> None:
        packed = AnyMessage()
        packed.Pack(message)
        details.append(packed)

    pack(ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=error.metadata))
    if rule.retry_after_ms is not None:
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(rule.retry_after_ms)
        pack(retry)
    if error.reason is Reason.INVALID_FIELD:
        violation = BadRequest.FieldViolation(
            field=error.metadata.get("field", ""), description=error.message
        )
        pack(BadRequest(field_violations=[violation]))
    status.details.extend(details)
    return status


def error_from_status(status: Status) -> ServiceError | None:
    """The inverse of `error_to_status`; None when the status carries no reason of ours."""
    for detail in status.details:
        info = ErrorInfo()
        if detail.Is(ErrorInfo.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
            if info.reason not in Reason.__members__:
                return None
            return ServiceError(Reason(info.reason), status.message, dict(info.metadata))
    return None


def error_from_rpc(error: grpc.RpcError, *, may_have_run: bool = True) -> ServiceError:
    """The service error behind a failed call.

    A failure of the transport has no reason of ours, so it depends on the call: `may_have_run` is
    False for reads and for calls that never left this process, and then the call may be repeated
    (NODE_UNREACHABLE, DEADLINE_EXCEEDED); a write that was sent is OUTCOME_UNKNOWN.
    """
    failed = cast(FailedCall, error)
    for key, value in failed.trailing_metadata() or ():
        if key == DETAILS_KEY:
            try:
                known = error_from_status(Status.FromString(value))
            except DecodeError:
                known = None
            if known is not None:
                return known
    code = failed.code()
    text = f"{code.name}: {failed.details() or 'no detail'}"
    if code in _REFUSED:
        return ServiceError(_REFUSED[code], text)
    if may_have_run:
        return ServiceError(Reason.OUTCOME_UNKNOWN, f"the answer was lost, {text}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceError(Reason.DEADLINE_EXCEEDED, text)
    return ServiceError(Reason.NODE_UNREACHABLE, text)


def error_to_operation(error: ServiceError) -> OperationError:
    """The error as one key's or operation's part of a batch."""
    return OperationError(
        code=error.rule.code,
        reason=error.reason.value,
        message=error.message,
        metadata=error.metadata,
    )


def error_from_operation(error: OperationError) -> ServiceError:
    """The inverse of `error_to_operation`; a reason unknown here becomes INTERNAL."""
    if error.reason in Reason.__members__:
        return ServiceError(Reason(error.reason), error.message, dict(error.metadata))
    return ServiceError(Reason.INTERNAL, f"{error.reason}: {error.message}", dict(error.metadata))


def invalid_field(field: str, message: str) -> ServiceError:
    """INVALID_FIELD naming the field of the request."""
    return ServiceError(Reason.INVALID_FIELD, f"{field}: {message}", {"field": field})


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ServiceError) -> NoReturn:
    """End the call with the error's status; always raises."""
    details = error_to_status(error).SerializeToString()
    await context.abort(
        _GRPC_CODES[error.rule.code], error.message, trailing_metadata=((DETAILS_KEY, details),)
    )
    raise AssertionError("abort returned")


Translate = Callable[[Exception], ServiceError | None]
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any  # grpc.RpcMethodHandler is generic in its stubs only


def _untranslated(_error: Exception) -> ServiceError | None:
    return None


Parse = Callable[[Any], Any]


def _parser(handler: Handler) -> Parse:
    """What reads a request inside the handler's own errors: gRPC answers bytes that are no message
    with UNKNOWN, and their sender is to blame."""
    deserializer = handler.request_deserializer
    if deserializer is None or handler.request_streaming:
        return lambda request: request

    def parse(request: bytes) -> Any:
        try:
            return deserializer(request)
        except DecodeError as error:
            raise invalid_field("request", f"not a message of the method: {error}") from error

    return parse


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what the handlers of our services raise into statuses.

    `translate` gives the service error of exceptions of a lower floor, None for those it does not
    know: these are faults of the server, logged with their trace and answered as INTERNAL.
    """

    def __init__(self, translate: Translate = _untranslated) -> None:
        self._translate = translate

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(OUR_METHODS):
            return handler
        parse = _parser(handler)
        if handler.response_streaming:
            behaviour = handler.stream_stream or handler.unary_stream
            build = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            wrapped: Any = self._streaming(method, cast(Any, behaviour), parse)
        else:
            behaviour = handler.stream_unary or handler.unary_unary
            build = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            wrapped = self._single(method, cast(Any, behaviour), parse)
        return build(
            wrapped,
            handler.request_deserializer if handler.request_streaming else None,
            handler.response_serializer,
        )

    def _single(
        self, method: str, behaviour: Callable[[Any, Context], Awaitable[Any]], parse: Parse
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            try:
                return await behaviour(parse(request), context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._end(method, context, error)
                raise

        return call

    def _streaming(
        self, method: str, behaviour: Callable[[Any, Context], AsyncIterator[Any]], parse: Parse
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                async with aclosing(cast(Any, behaviour(parse(request), context))) as answers:
                    async for answer in answers:
                        yield answer
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._end(method, context, error)
                raise

        return call

    async def _end(self, method: str, context: Context, error: Exception) -> None:
        known = error if isinstance(error, ServiceError) else self._translate(error)
        if known is None:
            _log.error("handler failed", method=method, exc_info=error)
            known = ServiceError(Reason.INTERNAL, f"{type(error).__name__} in {method}")
        await abort(context, known)


Options = tuple[tuple[str, int], ...]

_BOTH: Final[Options] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # without it gRPC waits a minute for a ping's answer
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


def server_options() -> Options:
    """Of every server: a port in use is an error, compressed requests are refused (gRPC inflates
    before it checks the size), ordinary clients' keep-alives are welcome."""
    return (
        *_BOTH,
        ("grpc.so_reuseport", 0),
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    )


def channel_options() -> Options:
    """Of every channel: a peer that comes back is found within about a second."""
    return (
        *_BOTH,
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    )


# Numbers of `Code` are those of google.rpc.Code, which grpc.StatusCode holds as well.
if not all(code in _GRPC_CODES for code in Code):
    raise ImportError("a Code of contract.reasons is no gRPC status")
