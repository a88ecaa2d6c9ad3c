"""The client of an embedded registry that a router serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
import grpc.aio

from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import channel_options, error_from_rpc
from deodar.v1 import registry_pb2 as pb
from deodar.v1.registry_pb2_grpc import RegistryStub

from .backoff import Backoff
from .config import RegistryConfig
from .follow import follow
from .interface import (
    Changes,
    Compacted,
    Compare,
    Delete,
    Entry,
    Event,
    LeaseLost,
    OutcomeUnknown,
    Put,
    RegistryError,
    RegistryRefused,
    RegistryUnavailable,
    Snapshot,
)
from .lease import KeptLease, now_ms
from .readiness import channel_ready
from .transaction import check_transaction

if TYPE_CHECKING:
    from deodar.v1.registry_pb2_grpc import RegistryAsyncStub

# Signs of life a watch may miss before its peer counts as dead; one comes every second.
SILENCE_MS: Final = 5_000

_ERRORS: Final[dict[Reason, type[RegistryError]]] = {
    Reason.OUTCOME_UNKNOWN: OutcomeUnknown,
    Reason.COMPACTED: Compacted,
    Reason.LEASE_LOST: LeaseLost,
    Reason.REGISTRY_UNAVAILABLE: RegistryUnavailable,
    Reason.NODE_UNREACHABLE: RegistryUnavailable,
    Reason.DEADLINE_EXCEEDED: RegistryUnavailable,
    Reason.SHUTTING_DOWN: RegistryUnavailable,
}


def _registry_error(error: ServiceError) -> RegistryError:
    return _ERRORS.get(error.reason, RegistryRefused)(error.message)


def _event(event: pb.RegistryEvent) -> Event:
    value = event.value if event.HasField("value") else None
    return Event(event.key, value, event.mod_revision, event.lease)


class RemoteRegistry:
    """`Registry` over service deodar.v1.Registry."""

    kind = "embedded"

    def __init__(self, config: RegistryConfig) -> None:
        """Raises OSError when a certificate file cannot be read."""
        self._address = config.addresses[0]
        self._timeout_ms = config.timeout_ms
        self._channel = grpc.aio.insecure_channel(self._address, options=channel_options())
        self._stub: RegistryAsyncStub = cast(Any, RegistryStub)(self._channel)

    @property
    def endpoints(self) -> list[str]:
        return [self._address]

    async def close(self) -> None:
        await self._channel.close()

    async def range(self, prefix: str) -> Snapshot:
        answer = await self._read(self._stub.Range, pb.RangeRequest(prefix=prefix))
        return Snapshot(
            answer.revision,
            tuple(
                Entry(entry.key, entry.value, entry.mod_revision, entry.lease)
                for entry in answer.entries
            ),
        )

    async def get(self, key: str) -> Entry | None:
        for entry in (await self.range(key)).entries:
            if entry.key == key:
                return entry
        return None

    async def commit(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> int | None:
        check_transaction(compares, operations)
        request = pb.CommitRequest(
            compares=[
                pb.RegistryCompare(key=compare.key, mod_revision=compare.mod_revision)
                for compare in compares
            ],
            puts=[
                pb.RegistryPut(key=put.key, value=put.value, lease=put.lease)
                for put in operations
                if isinstance(put, Put)
            ],
            deletes=[item.key for item in operations if isinstance(item, Delete)],
        )
        end_ms = now_ms() + self._timeout_ms
        await self._ready(end_ms)
        answer = await self._call(self._stub.Commit, request, end_ms, may_have_run=True)
        return answer.revision if answer.succeeded else None

    async def grant_lease(self, ttl_ms: int) -> KeptLease:
        sent_ms = now_ms()
        # An answer that is lost leaves a lease without keys, which ends by itself.
        answer = await self._read(self._stub.GrantLease, pb.GrantLeaseRequest(ttl_ms=ttl_ms))
        return KeptLease(self, answer.lease, answer.ttl_ms, sent_ms)

    async def keep_lease(self, lease_id: int, timeout_ms: float) -> int:
        request = pb.KeepLeaseRequest(lease=lease_id)
        answer = await self._read(self._stub.KeepLease, request, timeout_ms=timeout_ms)
        ttl_ms: int = answer.ttl_ms
        return ttl_ms

    async def revoke_lease(self, lease_id: int) -> None:
        await self._read(self._stub.RevokeLease, pb.RevokeLeaseRequest(lease=lease_id))

    def watch(self, prefix: str) -> AsyncIterator[Snapshot | Changes]:
        return follow(
            partial(self.range, prefix), partial(self._changes_after, prefix), prefix=prefix
        )

    async def _changes_after(self, prefix: str, revision: int) -> AsyncGenerator[Changes, None]:
        await self._ready(now_ms() + self._timeout_ms)
        request = pb.WatchRegistryRequest(prefix=prefix, after_revision=revision)
        call = self._stub.WatchRegistry(request)
        try:
            while True:
                # A read that is cut short ends the call, which is what silence deserves.
                async with asyncio.timeout(SILENCE_MS / 1000):
                    answer: Any = await call.read()
                if answer is grpc.aio.EOF:
                    raise RegistryUnavailable(f"{self._address} ended the watch of {prefix}")
                yield Changes(answer.revision, tuple(_event(event) for event in answer.events))
        except TimeoutError as error:
            raise RegistryUnavailable(f"{self._address} is silent on a watch") from error
        except grpc.aio.AioRpcError as error:
            raise _registry_error(error_from_rpc(error, may_have_run=False)) from error
        finally:
            call.cancel()

    async def _read(self, method: Any, request: Any, *, timeout_ms: float | None = None) -> Any:
        """A call that may be repeated, until the time is over."""
        end_ms = now_ms() + (timeout_ms or self._timeout_ms)
        backoff = Backoff(first_s=0.05, longest_s=0.5)
        while True:
            await self._ready(end_ms)
            try:
                return await self._call(method, request, end_ms, may_have_run=False)
            except RegistryUnavailable:
                if now_ms() >= end_ms:
                    raise
            await backoff.wait(at_most_s=(end_ms - now_ms()) / 1000)

    async def _call(self, method: Any, request: Any, end_ms: float, *, may_have_run: bool) -> Any:
        left_s = max(1.0, end_ms - now_ms()) / 1000
        try:
            return await method(request, timeout=left_s)
        except grpc.aio.AioRpcError as error:
            raise _registry_error(error_from_rpc(error, may_have_run=may_have_run)) from error

    async def _ready(self, end_ms: float) -> None:
        while not await channel_ready(self._channel, end_ms - now_ms()):
            if now_ms() >= end_ms:
                raise RegistryUnavailable(f"no connection to the registry at {self._address}")
            await asyncio.sleep(0.05)
