"""deodar cluster drain"""

from __future__ import annotations

from typing import Annotated

import typer

from deodar.contract.limits import DEFAULT_ENDPOINT
from deodar.v1.admin_pb2 import ClusterStatusResponse

from .options import Endpoint, Json, connect_admin
from .output import note, print_result
from .progress import wait_for


def drain(
    node: Annotated[str, typer.Argument(help="Id of the node.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it take shards again, and do not wait.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=1, help="Seconds without progress after which to give up waiting.")
    ] = 120.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Move every shard off NODE and wait until it is empty; then it can be stopped for good.

    Giving up waiting does not stop the moves.
    """
    with connect_admin(endpoint) as client:
        revision = client.set_draining(node, not undo)
        if undo:
            print_result({"id": node, "state": "up", "map_revision": revision}, "")
            return
        before = client.status()
        total = sum(shard.shard.primary == node for shard in before.shards)
        after = wait_for(client, f"shards off {node}", lambda s: _left(s, node, total), wait)
    note(f"{node} holds no shard any more")
    print_result({"id": node, "state": "drained", "map_revision": after.map_revision}, "")


def _left(status: ClusterStatusResponse, node: str, total: int) -> tuple[int, int, bool]:
    left = sum(shard.shard.primary == node for shard in status.shards)
    state = next((row.state for row in status.nodes if row.id == node), "")
    return max(total - left, 0), total, state == "drained"
