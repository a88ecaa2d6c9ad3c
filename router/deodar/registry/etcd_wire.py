"""Calls to etcd over gRPC: endpoints with failover, TLS, passwords, and what may be repeated.

W1: a call is sent only over a connection that is up; a failure before that is
    RegistryUnavailable and certainly not done.
W2: a call that changes something is sent once; a lost answer is OutcomeUnknown.  The one exception
    is a token that etcd refused, which it does before anything else.
W3: `hasleader` makes a member that has lost its leader refuse instead of waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from deodar.etcd.v3 import etcd_pb2 as pb

from .backoff import Backoff
from .config import RegistryConfig
from .interface import OutcomeUnknown, RegistryRefused, RegistryUnavailable
from .lease import now_ms
from .readiness import channel_ready

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)

# Longest wait for one endpoint's connection while there are others to try.
CONNECT_MS: Final = 1_000
# Pause after every endpoint has failed at once.
ROUND_PAUSE_S: Final = 0.05
# etcd cuts its answers at about 2 MiB (fragments); a page of records stays far below this.
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

# Pings only while a call is open: etcd ends connections that ping more often than every 5 s.
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
)

# What a call may end with although etcd may have carried it out.
_UNSURE: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)
# How etcd refuses a token: unknown, or of an older state of its users.
_TOKEN_REFUSED: Final = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT}
)

_log = structlog.get_logger(__name__)


class Refusal(RegistryRefused):
    """etcd answered with an error; `code` says of which kind.  Nothing was done."""

    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        super().__init__(f"etcd refused: {code.name}: {details or 'no detail'}")
        self.code = code


class Method(NamedTuple, Generic[Request, Answer]):
    """A method of etcd; `streaming` ones take and give streams."""

    path: str
    request: type[Request]
    answer: type[Answer]
    streaming: bool = False


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
LEASE_GRANT: Final = Method(
    "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse
)
LEASE_REVOKE: Final = Method(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse
)
LEASE_KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    pb.LeaseKeepAliveRequest,
    pb.LeaseKeepAliveResponse,
    streaming=True,
)
WATCH: Final = Method(
    "/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse, streaming=True
)
AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
)
STATUS: Final = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)


class Stream(Generic[Request, Answer]):
    """One open stream of a streaming method; for one task."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def send(self, request: Request) -> None:
        await self._call.write(request)

    async def receive(self, timeout_ms: float) -> Answer | None:
        """The next message; None when none came in time (a later call goes on waiting for it).

        Raises RegistryUnavailable at the end of the stream, grpc.aio.AioRpcError as gRPC does.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._call.read())
        done, _ = await asyncio.wait({self._reading}, timeout=timeout_ms / 1000)
        if not done:
            return None
        reading, self._reading = self._reading, None
        message = reading.result()
        if message is grpc.aio.EOF:
            raise RegistryUnavailable("etcd ended a stream")
        answer: Answer = message
        return answer

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})


class Endpoint:
    """One member of the etcd cluster and the channel to it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.channel = (
            grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(address, options=_OPTIONS)
        )

    async def ready(self, timeout_ms: float) -> bool:
        """Whether its connection is up, waiting for one that is being made."""
        return await channel_ready(self.channel, timeout_ms)

    def stub(self, method: Method[Request, Answer]) -> Callable[..., Any]:
        make = self.channel.stream_stream if method.streaming else self.channel.unary_unary
        stub: Callable[..., Any] = make(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        return stub


def _read_file(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


class EtcdWire:
    """Calls etcd, going from endpoint to endpoint as they fail."""

    def __init__(self, config: RegistryConfig) -> None:
        """Raises OSError when a certificate file cannot be read."""
        self._timeout_ms = config.timeout_ms
        credentials = None
        if config.ca_file is not None:
            credentials = grpc.ssl_channel_credentials(
                _read_file(config.ca_file),
                _read_file(config.key_file),
                _read_file(config.cert_file),
            )
        self._endpoints = [Endpoint(address, credentials) for address in config.addresses]
        self._current_index = 0
        self._user = config.user
        self._password = config.password
        self._token: str | None = None
        self._token_lock = asyncio.Lock()

    @property
    def timeout_ms(self) -> int:
        return self._timeout_ms

    async def close(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    async def read(
        self,
        method: Method[Request, Answer],
        request: Request,
        *,
        timeout_ms: float | None = None,
    ) -> Answer:
        """A call that may be repeated.  Raises RegistryUnavailable or Refusal."""
        return await self._call(method, request, timeout_ms or self._timeout_ms, True)

    async def write(self, method: Method[Request, Answer], request: Request) -> Answer:
        """A call that is sent once.  Raises RegistryUnavailable, OutcomeUnknown or Refusal."""
        return await self._call(method, request, self._timeout_ms, False)

    @asynccontextmanager
    async def stream(
        self, method: Method[Request, Answer]
    ) -> AsyncGenerator[Stream[Request, Answer], None]:
        """A stream to an endpoint that is up; its failures become RegistryUnavailable."""
        endpoint = await self._ready(now_ms() + self._timeout_ms)
        metadata = await self._metadata(endpoint)
        stream: Stream[Request, Answer] = Stream(endpoint.stub(method)(metadata=metadata))
        try:
            yield stream
        except grpc.aio.AioRpcError as error:
            if self._user is not None and error.code() in _TOKEN_REFUSED:
                self.forget_token()
            else:
                self._leave(endpoint)
            raise RegistryUnavailable(_text(endpoint, error)) from error
        except RegistryUnavailable:
            self._leave(endpoint)
            raise
        finally:
            await stream.close()

    def forget_token(self) -> None:
        """The next call gets a new one."""
        self._token = None

    async def _call(
        self,
        method: Method[Request, Answer],
        request: Request,
        timeout_ms: float,
        repeatable: bool,
    ) -> Answer:
        end_ms = now_ms() + timeout_ms
        attempt_ms = timeout_ms / len(self._endpoints) if repeatable else timeout_ms
        backoff = Backoff(first_s=0.05, longest_s=0.5)
        renewed = False
        while True:
            endpoint = await self._ready(end_ms)
            metadata = await self._metadata(endpoint)
            left_ms = max(1.0, min(attempt_ms, end_ms - now_ms()))
            try:
                return await self._attempt(endpoint, method, request, metadata, left_ms)
            except grpc.aio.AioRpcError as error:
                code = error.code()
                if self._user is not None and code in _TOKEN_REFUSED and not renewed:
                    renewed = True
                    self.forget_token()
                    continue
                if code not in _UNSURE:
                    raise Refusal(code, error.details()) from error
                self._leave(endpoint)
                text = _text(endpoint, error)
                if not repeatable:
                    raise OutcomeUnknown(text) from error
                if now_ms() >= end_ms:
                    raise RegistryUnavailable(text) from error
            await backoff.wait(at_most_s=(end_ms - now_ms()) / 1000)

    async def _attempt(
        self,
        endpoint: Endpoint,
        method: Method[Request, Answer],
        request: Request,
        metadata: tuple[tuple[str, str], ...],
        timeout_ms: float,
    ) -> Answer:
        call = endpoint.stub(method)
        if not method.streaming:
            answer: Answer = await call(request, metadata=metadata, timeout=timeout_ms / 1000)
            return answer
        stream = call(metadata=metadata, timeout=timeout_ms / 1000)
        try:
            await stream.write(request)
            message: Any = await stream.read()
        finally:
            stream.cancel()
        if message is grpc.aio.EOF:
            raise RegistryUnavailable(f"{endpoint.address} ended {method.path} without an answer")
        return cast(Answer, message)

    async def _ready(self, end_ms: float) -> Endpoint:
        """An endpoint whose connection is up, the one of the last success first."""
        count = len(self._endpoints)
        while True:
            start_index = self._current_index
            for step in range(count):
                index = (start_index + step) % count
                left_ms = end_ms - now_ms()
                wait_ms = left_ms if count == 1 else min(left_ms, CONNECT_MS)
                if await self._endpoints[index].ready(wait_ms):
                    self._current_index = index
                    return self._endpoints[index]
            if now_ms() >= end_ms:
                addresses = ", ".join(endpoint.address for endpoint in self._endpoints)
                raise RegistryUnavailable(f"no connection to etcd at {addresses}")
            await asyncio.sleep(ROUND_PAUSE_S)

    def _leave(self, endpoint: Endpoint) -> None:
        """Start the next search behind an endpoint that failed."""
        index = self._endpoints.index(endpoint)
        if index == self._current_index:
            self._current_index = (index + 1) % len(self._endpoints)

    async def _metadata(self, endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
        metadata: tuple[tuple[str, str], ...] = (("hasleader", "true"),)
        if self._user is None or self._password is None:
            return metadata
        async with self._token_lock:
            if self._token is None:
                request = pb.AuthenticateRequest(
                    name=self._user, password=self._password.get_secret_value()
                )
                try:
                    answer = await self._attempt(
                        endpoint, AUTHENTICATE, request, metadata, self._timeout_ms
                    )
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _UNSURE:
                        raise Refusal(error.code(), error.details()) from error
                    self._leave(endpoint)
                    raise RegistryUnavailable(_text(endpoint, error)) from error
                self._token = answer.token
                _log.info("registry token renewed", user=self._user)
            return (*metadata, ("token", self._token))


def _text(endpoint: Endpoint, error: grpc.aio.AioRpcError) -> str:
    return f"etcd at {endpoint.address}: {error.code().name}: {error.details() or 'no detail'}"
