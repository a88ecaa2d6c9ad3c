"""deodar cluster add"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from deodar.client.admin import AdminClient
from deodar.contract.limits import DEFAULT_ENDPOINT
from deodar.v1.admin_pb2 import ClusterStatusResponse

from .options import Endpoint, Json, connect_admin
from .output import CommandError, note, print_result
from .processes import Server
from .progress import wait_for


def add(
    node_id: Annotated[
        str | None, typer.Option("--id", help="Name of the node; default: the next node-N.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Its directory; default: deodar-data/ID.")
    ] = None,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT; port 0 picks a free one.")
    ] = "127.0.0.1:0",
    wait: Annotated[
        float, typer.Option(min=1, help="Seconds without progress after which to give up waiting.")
    ] = 120.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Start one more node on this machine and wait until the shards are spread evenly.

    The node outlives this command and logs to node.log in its directory.  Print its id and pid.
    """
    # The connection ends before the process starts: gRPC must not be carried over a fork.
    with connect_admin(endpoint) as client:
        before = client.status()
    name = node_id or _next_id(before)
    if any(node.id == name and node.state in ("up", "draining") for node in before.nodes):
        raise CommandError(f"node {name} is up already", metadata={"node": name})
    directory = (data or Path("deodar-data") / name).absolute()
    registry = f"{before.registry}://{','.join(before.registry_endpoints)}"
    server = Server(
        name,
        "deodar.node",
        [
            "--id",
            name,
            "--data",
            str(directory),
            "--listen",
            listen,
            "--registry",
            registry,
            "--cluster",
            before.cluster,
        ],
        directory / "node.log",
    )
    server.start()

    with connect_admin(endpoint) as client:
        after = _wait_spread(client, server, wait)
    address = next(node.address for node in after.nodes if node.id == name)
    shards = sum(shard.shard.primary == name for shard in after.shards)
    note(f"{name} serves {shards} of {len(after.shards)} shards at {address}")
    print_result(
        {
            "id": name,
            "pid": server.pid,
            "address": address,
            "data": str(directory),
            "shards": shards,
            "map_revision": after.map_revision,
        },
        f"{name} {server.pid}",
    )


def _next_id(status: ClusterStatusResponse) -> str:
    numbers = [
        int(match[1])
        for node in status.nodes
        if (match := re.fullmatch(r"node-(\d+)", node.id)) is not None
    ]
    return f"node-{max(numbers, default=0) + 1}"


def _wait_spread(client: AdminClient, server: Server, wait: float) -> ClusterStatusResponse:
    """Waits until the new node has its share; raises CommandError."""

    def check() -> None:
        if server.exit_code is not None:
            raise server.failure()

    name = server.name
    try:
        return wait_for(client, f"shards to {name}", lambda s: _spread(s, name), wait, check)
    except CommandError as error:
        if server.exit_code is None:
            error.message += f"; the node goes on, pid {server.pid}, log {server.log}"
        raise


def _spread(status: ClusterStatusResponse, name: str) -> tuple[int, int, bool]:
    """Shards of the new node, its share, and whether all nodes have theirs and nothing moves."""
    nodes = [node.id for node in status.nodes if node.state == "up"]
    counts = Counter(dict.fromkeys(nodes, 0))
    counts.update(shard.shard.primary for shard in status.shards)
    share = len(status.shards) // max(len(nodes), 1)
    moving = any(shard.shard.target or shard.state == "moving" for shard in status.shards)
    held = [counts[node] for node in nodes]
    even = name in nodes and max(held) - min(held) <= 1 and not moving
    return min(counts[name], share), share, even
