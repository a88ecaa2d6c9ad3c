"""Deodar, a distributed, sharded, persistent key-value service.

    with deodar.connect("127.0.0.1:7400") as client:
        version = client.put(b"cedar", b"tree")
        assert client.get(b"cedar") == b"tree"

`deodar.aio.connect` is the async twin; `deodar.engine.Store` the embedded store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deodar.client.errors import (
    BatchError,
    Closed,
    ConditionFailed,
    Corruption,
    DeadlineExceeded,
    DiskFull,
    Error,
    Internal,
    InvalidArgument,
    LimitExceeded,
    NodeUnreachable,
    NotANumber,
    NotEnoughReplicas,
    NotFound,
    OutcomeUnknown,
    OutOfRange,
    Overloaded,
    ReadOnly,
    Refused,
    ShardUnavailable,
    Unavailable,
    WatchPositionLost,
)
from deodar.client.records import Delete, Durability, Event, Item, Put, Written

if TYPE_CHECKING:
    from deodar.client.client import Client

    __version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'deodar' has no attribute {name!r}")
    # Not at the top: reading a package's metadata takes a good part of a command's start.
    from importlib.metadata import version

    return version("deodar")


def connect(
    endpoint: str | Sequence[str] = "127.0.0.1:7400",
    *,
    smart: bool = True,
    timeout: float = 10.0,
    connections: int = 1,
) -> Client:
    """A blocking client of the cluster behind one or more routers.

    `endpoint`: ``host:port`` of a router, several in a list or with commas between.  `smart`: go
    straight to the node that has a key, with routers to fall back on; False = always by a router.
    `timeout`: seconds that a call may take when it is not told otherwise.  `connections`: to each
    server, 1 to 64; many busy threads gain from more than one.

    Nothing is connected before the first call.
    """
    # Not at the top: the embedded store is used without gRPC.
    from deodar.client.client import Client

    return Client(endpoint, smart=smart, timeout=timeout, connections=connections)


__all__ = [
    "BatchError",
    "Closed",
    "ConditionFailed",
    "Corruption",
    "DeadlineExceeded",
    "Delete",
    "DiskFull",
    "Durability",
    "Error",
    "Event",
    "Internal",
    "InvalidArgument",
    "Item",
    "LimitExceeded",
    "NodeUnreachable",
    "NotANumber",
    "NotEnoughReplicas",
    "NotFound",
    "OutOfRange",
    "OutcomeUnknown",
    "Overloaded",
    "Put",
    "ReadOnly",
    "Refused",
    "ShardUnavailable",
    "Unavailable",
    "WatchPositionLost",
    "Written",
    "__version__",
    "connect",
]
