"""Looking at a cluster and changing its shape, for the command line; always by way of a router."""

from __future__ import annotations

from collections.abc import Sequence

from deodar.contract.keypath import Prefix
from deodar.v1 import admin_pb2

from .client import Client
from .core import DEFAULT_TIMEOUT_S


class AdminClient(Client):
    """A client that can also use the Admin service; its own calls go by a router."""

    def __init__(
        self, endpoint: str | Sequence[str], *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        super().__init__(endpoint, smart=False, timeout=timeout)

    def status(self) -> admin_pb2.ClusterStatusResponse:
        """Nodes, shards and moves as they are now."""
        return self._run(self._core.cluster_status(None))

    def set_draining(self, node: str, draining: bool) -> int:
        """Lets a node lose its shards, or take shards again; the map revision of the change.

        Raises `NotFound` for a node that is no member.
        """
        return self._run(self._core.set_draining(node, draining, None)).map_revision

    def move_shard(self, table: str, prefix: Prefix, target: str) -> int:
        """Starts a move and returns its number; raises `NotFound` or `Refused`."""
        request = admin_pb2.MoveShardRequest(
            table=table, prefix=prefix.to_bytes(), prefix_bits=prefix.bits, target=target
        )
        return self._run(self._core.move_shard(request, None)).move_id
