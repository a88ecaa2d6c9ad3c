"""How the cluster stands: the registry's records, joined with what the nodes say of themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import grpc.aio
from google.protobuf.message import DecodeError

from deodar.contract.keypath import Prefix
from deodar.registry.cluster_view import ClusterState
from deodar.v1 import admin_pb2, cluster_pb2, replication_pb2

from .channels import ChannelPool
from .routing import Routing

NODE_SHARDS: Final = "/deodar.v1.Replication/NodeShards"
NODE_S: Final = 1.0  # how long a node may take to tell of its shards

# node id -> "table/prefix-bits" -> what the node says of it; None = the node did not answer
Reports = Mapping[str, Mapping[str, replication_pb2.NodeShard] | None]


async def ask_nodes(routing: Routing, pool: ChannelPool) -> Reports:
    """What each node that is up, or that a shard names, says of its shards; all at once."""
    state = routing.state
    shards = [record for record, _ in state.shards.values()]
    named = {record.primary for record in shards} | {record.target for record in shards}
    nodes = sorted((named | state.nodes.keys()) - {""})
    answers = await asyncio.gather(*(_ask(routing.address(node), node, pool) for node in nodes))
    return dict(zip(nodes, answers, strict=True))


async def _ask(
    address: str, node: str, pool: ChannelPool
) -> dict[str, replication_pb2.NodeShard] | None:
    if not address:
        return None
    channel = await pool.node(node, address).ready_channel(NODE_S)
    if channel is None:
        return None
    try:
        data = await channel.call(NODE_SHARDS, b"", NODE_S)
        answer = replication_pb2.NodeShardsResponse.FromString(data)
    except (grpc.aio.AioRpcError, DecodeError):
        return None
    return {_name(shard.shard): shard for shard in answer.shards}


def shard_statuses(state: ClusterState, reports: Reports) -> list[admin_pb2.ShardStatus]:
    """The shards of every table in path order."""
    records = sorted(
        (record for record, _ in state.shards.values()),
        key=lambda record: (record.table, record.prefix, record.prefix_bits),
    )
    return [_shard_status(record, state, reports) for record in records]


def node_statuses(state: ClusterState) -> list[admin_pb2.NodeStatus]:
    """The members of the cluster by id, up or not."""
    shards = [record for record, _ in state.shards.values()]
    counts = Counter(record.primary for record in shards)
    coming = {record.target for record in shards}
    return [
        _node_status(state, node, counts[node], node in coming)
        for node in sorted(state.members.keys() | state.nodes.keys())
    ]


def _node_status(state: ClusterState, node: str, shards: int, coming: bool) -> admin_pb2.NodeStatus:
    up = state.nodes.get(node, cluster_pb2.NodeRecord())
    member = state.members.get(node, cluster_pb2.MemberRecord())
    if member.draining and not shards and not coming:
        what = "drained"
    elif node not in state.nodes:
        what = "down"
    else:
        what = "draining" if member.draining else "up"
    return admin_pb2.NodeStatus(
        id=node,
        address=up.address,
        pid=up.pid,
        incarnation=up.incarnation or member.incarnation,
        state=what,
        zone=up.zone,
        shards=shards,
    )


def _shard_status(
    record: cluster_pb2.ShardRecord, state: ClusterState, reports: Reports
) -> admin_pb2.ShardStatus:
    status = admin_pb2.ShardStatus(shard=record)
    name = _name(record)
    report = _report(reports, record.primary, name)
    if record.state == cluster_pb2.SHARD_STATE_CREATING:
        status.state = "creating"
        status.reason = report.reason if report is not None else ""
    elif reports.get(record.primary) is None:
        status.state = "unavailable"
        lease = "does not answer" if record.primary in state.nodes else "is down"
        status.reason = f"node {record.primary} {lease}"
    elif report is None:
        status.state = "unavailable"
        status.reason = f"node {record.primary} does not have it"
    elif report.state in ("serving", "fenced"):
        moving = record.state == cluster_pb2.SHARD_STATE_MOVING or report.state == "fenced"
        status.state = "moving" if moving else "serving"
        status.keys, status.bytes = report.keys, report.bytes
    else:
        status.state = "unavailable"
        status.reason = report.reason or report.state
    if record.state == cluster_pb2.SHARD_STATE_MOVING:
        copy = _report(reports, record.target, name)
        status.moved_keys = copy.moved_keys if copy is not None else 0
        if copy is not None and copy.state == "failed" and not status.reason:
            status.reason = f"node {record.target}: {copy.reason}"
    return status


def _report(reports: Reports, node: str, shard: str) -> replication_pb2.NodeShard | None:
    return (reports.get(node) or {}).get(shard)


def _name(shard: cluster_pb2.ShardRecord | replication_pb2.ShardName) -> str:
    return f"{shard.table}/{Prefix.from_bytes(shard.prefix, shard.prefix_bits)}"


def cluster_status(
    cluster: str,
    registry_kind: str,
    endpoints: Iterable[str],
    state: ClusterState,
    reports: Reports,
) -> admin_pb2.ClusterStatusResponse:
    return admin_pb2.ClusterStatusResponse(
        cluster=cluster,
        map_revision=state.revision,
        nodes=node_statuses(state),
        shards=shard_statuses(state, reports),
        registry=registry_kind,
        registry_endpoints=endpoints,
        controller=state.controller,
    )
