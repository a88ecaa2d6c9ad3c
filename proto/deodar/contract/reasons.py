"""Why a call failed: one table from reason to gRPC status and what the caller may do.

Servers pick a reason; clients go by the reason alone, never by message text.  A reason exists only
if some caller can act on it.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

DOMAIN: Final = "deodar"


class Code(enum.IntEnum):
    """The gRPC status codes in use (numbers of google.rpc.Code)."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


class Retry(enum.Enum):
    NEVER = "never"  # the caller has to change something
    LATER = "later"  # the same call may succeed; nothing was done
    REROUTE = "reroute"  # refresh the shard map, then the same call; users never see it


class Reason(enum.StrEnum):
    INVALID_FIELD = "INVALID_FIELD"  # metadata: field
    UNKNOWN_TABLE = "UNKNOWN_TABLE"  # metadata: table
    UNKNOWN_NODE = "UNKNOWN_NODE"  # metadata: node
    UNKNOWN_SHARD = "UNKNOWN_SHARD"
    CONDITION_FAILED = "CONDITION_FAILED"  # metadata: current_version when there is a record
    NOT_A_NUMBER = "NOT_A_NUMBER"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    DISK_FULL = "DISK_FULL"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    OVERLOADED = "OVERLOADED"
    STORE_READ_ONLY = "STORE_READ_ONLY"
    CORRUPTION = "CORRUPTION"  # metadata: file, offset, rule
    MOVED = "MOVED"  # metadata: map_revision that the server goes by
    SHARD_MOVING = "SHARD_MOVING"  # fenced for the moment of a move
    SHARD_UNAVAILABLE = "SHARD_UNAVAILABLE"  # metadata: shard; no node serves it
    NODE_UNREACHABLE = "NODE_UNREACHABLE"  # metadata: node, address
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    REGISTRY_UNAVAILABLE = "REGISTRY_UNAVAILABLE"
    LEASE_LOST = "LEASE_LOST"  # a lease named in the call has ended
    COMPACTED = "COMPACTED"
    WATCH_POSITION_LOST = "WATCH_POSITION_LOST"  # the log does not reach back to it: rescan
    SHUTTING_DOWN = "SHUTTING_DOWN"
    STALE_MOVE = "STALE_MOVE"  # between nodes: term or move_id is not the shard's
    MOVE_REFUSED = "MOVE_REFUSED"  # the shard cannot move there now
    INTERNAL = "INTERNAL"  # a fault of the server itself, with its trace in the server's log


class Rule(NamedTuple):
    code: Code
    retry: Retry
    retry_after_ms: int | None = None  # sent as google.rpc.RetryInfo where waiting helps


RULES: Final[dict[Reason, Rule]] = {
    Reason.INVALID_FIELD: Rule(Code.INVALID_ARGUMENT, Retry.NEVER),
    Reason.UNKNOWN_TABLE: Rule(Code.NOT_FOUND, Retry.NEVER),
    Reason.UNKNOWN_NODE: Rule(Code.NOT_FOUND, Retry.NEVER),
    Reason.UNKNOWN_SHARD: Rule(Code.NOT_FOUND, Retry.NEVER),
    Reason.CONDITION_FAILED: Rule(Code.ABORTED, Retry.NEVER),
    Reason.NOT_A_NUMBER: Rule(Code.FAILED_PRECONDITION, Retry.NEVER),
    Reason.OUT_OF_RANGE: Rule(Code.OUT_OF_RANGE, Retry.NEVER),
    Reason.DISK_FULL: Rule(Code.RESOURCE_EXHAUSTED, Retry.LATER, 1000),
    Reason.LIMIT_EXCEEDED: Rule(Code.RESOURCE_EXHAUSTED, Retry.NEVER),
    Reason.OVERLOADED: Rule(Code.RESOURCE_EXHAUSTED, Retry.LATER, 50),
    Reason.STORE_READ_ONLY: Rule(Code.UNAVAILABLE, Retry.LATER, 1000),
    Reason.CORRUPTION: Rule(Code.DATA_LOSS, Retry.NEVER),
    Reason.MOVED: Rule(Code.FAILED_PRECONDITION, Retry.REROUTE),
    Reason.SHARD_MOVING: Rule(Code.UNAVAILABLE, Retry.REROUTE, 20),
    Reason.SHARD_UNAVAILABLE: Rule(Code.UNAVAILABLE, Retry.LATER, 250),
    Reason.NODE_UNREACHABLE: Rule(Code.UNAVAILABLE, Retry.LATER, 250),
    Reason.NOT_ENOUGH_REPLICAS: Rule(Code.UNAVAILABLE, Retry.LATER, 250),
    Reason.OUTCOME_UNKNOWN: Rule(Code.UNKNOWN, Retry.NEVER),
    Reason.DEADLINE_EXCEEDED: Rule(Code.DEADLINE_EXCEEDED, Retry.NEVER),
    Reason.REGISTRY_UNAVAILABLE: Rule(Code.UNAVAILABLE, Retry.LATER, 500),
    Reason.LEASE_LOST: Rule(Code.FAILED_PRECONDITION, Retry.NEVER),
    Reason.COMPACTED: Rule(Code.OUT_OF_RANGE, Retry.NEVER),
    Reason.WATCH_POSITION_LOST: Rule(Code.OUT_OF_RANGE, Retry.NEVER),
    Reason.SHUTTING_DOWN: Rule(Code.UNAVAILABLE, Retry.REROUTE, 100),
    Reason.STALE_MOVE: Rule(Code.FAILED_PRECONDITION, Retry.NEVER),
    Reason.MOVE_REFUSED: Rule(Code.FAILED_PRECONDITION, Retry.NEVER),
    Reason.INTERNAL: Rule(Code.INTERNAL, Retry.NEVER),
}


class ServiceError(Exception):
    """An error on its way to or from the wire."""

    def __init__(
        self, reason: Reason, message: str, metadata: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = metadata or {}

    @property
    def rule(self) -> Rule:
        return RULES[self.reason]
