"""How a call and its transport talk: the call is a generator that does no I/O itself.

It yields `Send` and gets the outcomes back, or `Pause` and gets an empty list; its return value is
that of the call, and what it raises the caller sees.  The blocking and the async client each drive
the same generators.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from deodar.contract.reasons import ServiceError

T = TypeVar("T")


class Method(NamedTuple):
    """One unary method of the service."""

    service: str  # "KV" or "Admin"
    name: str
    repeatable: bool  # doing it twice is the same as once


GET = Method("KV", "Get", repeatable=True)
PUT = Method("KV", "Put", repeatable=False)
DELETE = Method("KV", "Delete", repeatable=False)
INCREMENT = Method("KV", "Increment", repeatable=False)
BATCH_GET = Method("KV", "BatchGet", repeatable=True)
BATCH_WRITE = Method("KV", "BatchWrite", repeatable=False)
SYNC = Method("KV", "Sync", repeatable=True)
CLUSTER_STATUS = Method("Admin", "ClusterStatus", repeatable=True)
SET_DRAINING = Method("Admin", "SetDraining", repeatable=True)
MOVE_SHARD = Method("Admin", "MoveShard", repeatable=False)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one server."""

    address: str
    method: Method
    request: Message
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call has no answer.

    `by_server` is the server's own word; otherwise the transport failed, and `error` says whether
    the call may have been done (OUTCOME_UNKNOWN) or not (any other reason).
    """

    error: ServiceError
    by_server: bool


Outcome = Any  # the response message of the method, or a Failure


@dataclass(frozen=True, slots=True)
class Send:
    """Make these calls at once, and hand back their outcomes in this order."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until the shard map is newer than a revision, but no longer than `seconds`."""

    seconds: float
    newer_than: int


Plan = Generator[Send | Pause, list[Outcome], T]
