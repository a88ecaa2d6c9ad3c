"""deodar cluster move"""

from __future__ import annotations

from typing import Annotated

import typer

from deodar.contract.keypath import Prefix
from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE
from deodar.v1.admin_pb2 import ClusterStatusResponse

from .options import Endpoint, Json, Table, connect_admin
from .output import CommandError, misused, note, print_result
from .progress import wait_for


def move(
    shard: Annotated[str, typer.Argument(help="As in cluster status: default/a0-4, or a0-4.")],
    target: Annotated[str, typer.Argument(help="Id of the node that is to have it.")],
    table: Table = DEFAULT_TABLE,
    wait: Annotated[
        float, typer.Option(min=1, help="Seconds without progress after which to give up waiting.")
    ] = 120.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Move SHARD to node TARGET and wait until it is there.

    The shard is read and written all the while, but for a moment at the end.  For 10 minutes it is
    not moved again to even the nodes out, other shards are; draining TARGET moves it all the same.
    """
    named_table, separator, name = shard.rpartition("/")
    if separator:
        table = named_table
    try:
        prefix = Prefix.parse(name)
    except ValueError as error:
        raise misused(f"SHARD: {error}") from error

    with connect_admin(endpoint) as client:
        move_id = client.move_shard(table, prefix, target)

        def arrived(status: ClusterStatusResponse) -> tuple[int, int, bool]:
            row = next(
                (
                    row.shard
                    for row in status.shards
                    if row.shard.table == table
                    and row.shard.prefix == prefix.to_bytes()
                    and row.shard.prefix_bits == prefix.bits
                ),
                None,
            )
            if row is None or (row.primary != target and row.target != target):
                raise CommandError(f"the move of {shard} to {target} was given up")
            return 0, 1, row.primary == target

        after = wait_for(client, f"{shard} to {target}", arrived, wait)
    note(f"{shard} is served by {target}")
    print_result(
        {"shard": shard, "primary": target, "move_id": move_id, "map_revision": after.map_revision},
        "",
    )
