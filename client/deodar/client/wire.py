"""What both transports need to know of gRPC: channel settings and how a call failed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, cast

import grpc

from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import DETAILS_KEY, FailedCall, channel_options, error_from_rpc
from deodar.v1.admin_pb2_grpc import AdminStub
from deodar.v1.kv_pb2_grpc import KVStub

from .plan import Failure

STUBS: Final = {"KV": KVStub, "Admin": AdminStub}

# How long a call waits for a connection before it goes another way.  A call is only sent on a
# connection that stands, so that a refused one is known not to have been sent.
READY_S: Final = 1.0
# Between two tries to follow the shard map.
FOLLOW_PAUSE_S: Final = 0.25
FOLLOW_PAUSE_MAX_S: Final = 2.0

LEAVE_S: Final = 120.0

OPTIONS: Final = [
    *channel_options(),
    # Each of several connections to one server is to be one, not a share of the same.
    ("grpc.use_local_subchannel_pool", 1),
]


class Leavers:
    """Servers that the shard map has named and names no more.

    Their channels would try to connect for ever; they are closed `LEAVE_S` later, when no call of
    an ordinary length can be under way on them.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def due(self, connected: Collection[str], named: Collection[str], now: float) -> list[str]:
        """The addresses to close now; `now` is of the monotonic clock."""
        self._since = {
            address: self._since.get(address, now) for address in connected if address not in named
        }
        return [address for address, since in self._since.items() if now - since >= LEAVE_S]


class Unreached(Exception):  # noqa: N818
    """A stream was not opened, since there is no connection."""


def failure_of(error: grpc.RpcError, *, repeatable: bool) -> Failure:
    """Why a call that was sent has no answer."""
    metadata = cast(FailedCall, error).trailing_metadata() or ()
    by_server = any(key == DETAILS_KEY for key, _ in metadata)
    return Failure(error_from_rpc(error, may_have_run=not repeatable), by_server)


def unreached(address: str) -> Failure:
    """No connection, so nothing was sent."""
    error = ServiceError(
        Reason.NODE_UNREACHABLE, f"no connection to {address}", {"address": address}
    )
    return Failure(error, by_server=False)


def out_of_time(address: str) -> Failure:
    """The deadline passed before the call was sent."""
    error = ServiceError(
        Reason.DEADLINE_EXCEEDED, f"out of time before {address} was asked", {"address": address}
    )
    return Failure(error, by_server=False)
