"""What a node has to do about a shard: the record and what the node has, to one step.

Pure.  The host runs one step of a shard at a time and decides anew after each.
"""

from __future__ import annotations

import enum

from deodar.v1.cluster_pb2 import SHARD_STATE_CREATING, SHARD_STATE_MOVING, ShardRecord

from .shard import HostedShard, ShardState


class Step(enum.Enum):
    NONE = "none"
    CREATE = "create"  # make an empty store and say so in the record
    OPEN = "open"  # the record names this node: open the store it ought to have
    COPY = "copy"  # a move to this node has begun
    DROP = "drop"  # served elsewhere: remove what is here


def decide(record: ShardRecord, hosted: HostedShard | None, node: str) -> Step:
    """The next step for the shard."""
    if hosted is not None and record.term < hosted.term:
        return Step.NONE  # the view is behind what this node did itself
    if record.primary == node:
        if hosted is not None:
            return Step.NONE
        return Step.CREATE if record.state == SHARD_STATE_CREATING else Step.OPEN
    if hosted is not None:
        if hosted.state is ShardState.COPYING:
            return Step.NONE  # its copy ends it
        superseded = record.term > hosted.term and record.store_id != hosted.store_id
        return Step.DROP if superseded else Step.NONE
    if record.state == SHARD_STATE_MOVING and record.target == node:
        return Step.COPY
    return Step.NONE
