"""deodar cluster status"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from deodar.contract.keypath import Prefix
from deodar.contract.limits import DEFAULT_ENDPOINT
from deodar.v1.admin_pb2 import ClusterStatusResponse, ShardStatus

from .options import Endpoint, Json, Timeout, connect_admin
from .output import print_json, stdout


def status(
    timeout: Timeout = 10.0, endpoint: Endpoint = DEFAULT_ENDPOINT, json: Json = False
) -> None:
    """Show the nodes and shards of the cluster as they are now.

    A shard's name is its prefix in hexadecimal and its bits: a0-4 holds the hashes that begin
    with the four bits 1010.
    """
    with connect_admin(endpoint, timeout) as client:
        answer = client.status()
    if json:
        print_json(document_of(answer))
    else:
        _print(answer)


def document_of(answer: ClusterStatusResponse) -> dict[str, Any]:
    return {
        "cluster": answer.cluster,
        "map_revision": answer.map_revision,
        "registry": answer.registry,
        "registry_endpoints": list(answer.registry_endpoints),
        "controller": answer.controller,
        "nodes": [
            {
                "id": node.id,
                "address": node.address,
                "pid": node.pid,
                "state": node.state,
                "incarnation": node.incarnation,
                "zone": node.zone,
                "shards": node.shards,
            }
            for node in answer.nodes
        ],
        "shards": [_shard(shard) for shard in answer.shards],
    }


def _shard(status: ShardStatus) -> dict[str, Any]:
    record = status.shard
    return {
        "table": record.table,
        "prefix": record.prefix.hex(),
        "prefix_bits": record.prefix_bits,
        "state": status.state,
        "primary": record.primary,
        # Shards have one copy: the primary's.
        "replicas": [record.primary],
        "in_sync": [record.primary],
        "term": record.term,
        "target": record.target,
        "moved_keys": status.moved_keys if status.HasField("moved_keys") else None,
        "keys": status.keys if status.HasField("keys") else None,
        "bytes": status.bytes if status.HasField("bytes") else None,
        "reason": status.reason,
        "failed_moves": record.failed_moves,
        "move_failure": record.move_failure,
        "pinned_until_ms": record.pinned_until_ms or None,
    }


def _print(answer: ClusterStatusResponse) -> None:
    where = ", ".join(answer.registry_endpoints)
    console = stdout()
    console.print(
        f"cluster {answer.cluster}, map revision {answer.map_revision}, "
        f"{answer.registry} registry at {where}, controller {answer.controller or '-'}",
        markup=False,
        highlight=False,
    )
    nodes = Table("node", "state", "address", "pid", "shards", "keys", "bytes")
    for node in answer.nodes:
        own = [shard for shard in answer.shards if shard.shard.primary == node.id]
        nodes.add_row(
            node.id,
            node.state,
            node.address or "-",
            str(node.pid or "-"),
            str(node.shards),
            f"{sum(shard.keys for shard in own):,}",
            f"{sum(shard.bytes for shard in own):,}",
        )
    console.print(nodes)
    shards = Table("shard", "state", "primary", "term", "keys", "bytes", "")
    for shard in answer.shards:
        record = shard.shard
        prefix = Prefix.from_bytes(record.prefix, record.prefix_bits)
        note = f"to {record.target}, {shard.moved_keys:,} keys copied" if record.target else ""
        if record.failed_moves and not note:
            note = f"{record.failed_moves} moves failed, the last: {record.move_failure}"
        shards.add_row(
            f"{record.table}/{prefix}",
            shard.state,
            record.primary,
            str(record.term),
            f"{shard.keys:,}" if shard.HasField("keys") else "-",
            f"{shard.bytes:,}" if shard.HasField("bytes") else "-",
            shard.reason or note,
        )
    console.print(shards)
