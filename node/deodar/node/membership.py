"""A node's place in the cluster: its member record, whose incarnation rises with each start."""

from __future__ import annotations

from deodar.registry.interface import (
    Compare,
    HeldByAnother,
    OutcomeUnknown,
    Put,
    Registry,
    RegistryUnavailable,
)
from deodar.registry.records import Keys, decode, encode
from deodar.v1.cluster_pb2 import MemberRecord, NodeRecord

CLAIM_ATTEMPTS = 10


async def join(registry: Registry, keys: Keys, node: str, identity: str) -> int:
    """Count this start in the member record; returns the new incarnation.

    A node whose disk was wiped comes back under its id with a new identity, once the old one is
    no longer up; its shards are then missing, not empty.  Raises HeldByAnother while a node of
    another identity is up under this id, and RegistryError.
    """
    holder = await registry.get(keys.node(node))
    if holder is not None:
        live = decode(NodeRecord, holder.key, holder.value)
        if live.identity != identity:
            raise HeldByAnother(
                f"node id {node!r} is in use by another data directory, at {live.address}"
            )
    key = keys.member(node)
    for _ in range(CLAIM_ATTEMPTS):
        entry = await registry.get(key)
        member = MemberRecord(id=node)
        if entry is not None:
            member = decode(MemberRecord, key, entry.value)
        member.identity = identity
        member.incarnation += 1
        compare = Compare(key, entry.mod_revision if entry else 0)
        try:
            if await registry.commit([compare], [Put(key, encode(member))]) is not None:
                return member.incarnation
        except OutcomeUnknown:
            # If it did happen, the next round skips a number, which is as good.
            continue
    raise RegistryUnavailable(f"{key} could not be changed in {CLAIM_ATTEMPTS} attempts")
