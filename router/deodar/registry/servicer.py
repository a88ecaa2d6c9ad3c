"""Serves an embedded registry to the nodes of its machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc.aio

from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import invalid_field
from deodar.v1 import registry_pb2 as pb
from deodar.v1.registry_pb2_grpc import RegistryServicer as RegistryServicerBase

from .embedded import EmbeddedRegistry
from .interface import (
    Compacted,
    Compare,
    Delete,
    LeaseLost,
    OutcomeUnknown,
    Put,
    RegistryRefused,
    RegistryUnavailable,
)

Context = grpc.aio.ServicerContext[Any, Any]


@contextmanager
def _errors_of_the_service() -> Any:
    try:
        yield
    except RegistryUnavailable as error:
        raise ServiceError(Reason.REGISTRY_UNAVAILABLE, str(error)) from error
    except OutcomeUnknown as error:
        raise ServiceError(Reason.OUTCOME_UNKNOWN, str(error)) from error
    except Compacted as error:
        raise ServiceError(Reason.COMPACTED, str(error)) from error
    except LeaseLost as error:
        raise ServiceError(Reason.LEASE_LOST, str(error)) from error
    except (RegistryRefused, ValueError) as error:
        raise invalid_field("operations", str(error)) from error


class RegistryServicer(RegistryServicerBase):
    """Service deodar.v1.Registry; needs `ErrorInterceptor` on its server."""

    def __init__(self, registry: EmbeddedRegistry) -> None:
        self._registry = registry

    async def Range(self, request: pb.RangeRequest, context: Context) -> pb.RangeResponse:
        with _errors_of_the_service():
            snapshot = await self._registry.range(request.prefix)
        return pb.RangeResponse(
            revision=snapshot.revision,
            entries=[
                pb.RegistryEntry(
                    key=entry.key,
                    value=entry.value,
                    mod_revision=entry.mod_revision,
                    lease=entry.lease,
                )
                for entry in snapshot.entries
            ],
        )

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        compares = [Compare(item.key, item.mod_revision) for item in request.compares]
        operations: list[Put | Delete] = [
            Put(item.key, item.value, item.lease) for item in request.puts
        ]
        operations += [Delete(key) for key in request.deletes]
        with _errors_of_the_service():
            revision = await self._registry.commit(compares, operations)
        return pb.CommitResponse(succeeded=revision is not None, revision=revision or 0)

    async def GrantLease(
        self, request: pb.GrantLeaseRequest, context: Context
    ) -> pb.GrantLeaseResponse:
        with _errors_of_the_service():
            lease, ttl_ms = await self._registry.new_lease(request.ttl_ms)
        return pb.GrantLeaseResponse(lease=lease, ttl_ms=ttl_ms)

    async def KeepLease(
        self, request: pb.KeepLeaseRequest, context: Context
    ) -> pb.KeepLeaseResponse:
        with _errors_of_the_service():
            ttl_ms = await self._registry.keep_lease(request.lease, 0)
        return pb.KeepLeaseResponse(ttl_ms=ttl_ms)

    async def RevokeLease(
        self, request: pb.RevokeLeaseRequest, context: Context
    ) -> pb.RevokeLeaseResponse:
        with _errors_of_the_service():
            await self._registry.revoke_lease(request.lease)
        return pb.RevokeLeaseResponse()

    async def WatchRegistry(
        self, request: pb.WatchRegistryRequest, context: Context
    ) -> AsyncIterator[pb.WatchRegistryResponse]:
        stream = self._registry.changes_after(request.prefix, request.after_revision)
        with _errors_of_the_service():
            async with aclosing(stream) as changes_stream:
                async for changes in changes_stream:
                    response = pb.WatchRegistryResponse(revision=changes.revision)
                    for event in changes.events:
                        response.events.add(
                            key=event.key,
                            value=event.value,
                            mod_revision=event.mod_revision,
                            lease=event.lease,
                        )
                    yield response
