"""How far a watch has come: bytes to its callers, a version for each shard to who serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from deodar.v1 import kv_pb2

from .keypath import Prefix
from .reasons import Reason, ServiceError

FORMAT: Final = 1


class Mark(NamedTuple):
    """A place in the changes of a shard: behind `version` of this history.

    A history is a shard's own number.  It moves along with the shard, so versions of the same
    history always mean the same changes.
    """

    history: int
    version: int


@dataclass(frozen=True, slots=True)
class WatchPosition:
    """The marks of the shards that a watch follows."""

    table: str
    marks: Mapping[Prefix, Mark]

    def mark(self, prefix: Prefix) -> Mark | None:
        """Where the shard of `prefix` stands."""
        return self.marks.get(prefix)

    def encode(self) -> bytes:
        shards = [
            kv_pb2.WatchPosition.Shard(
                prefix=prefix.to_bytes(),
                prefix_bits=prefix.bits,
                history=mark.history,
                version=mark.version,
            )
            for prefix, mark in self.marks.items()
        ]
        return kv_pb2.WatchPosition(
            format=FORMAT, table=self.table, shards=shards
        ).SerializeToString()

    @classmethod
    def decode(cls, data: bytes) -> WatchPosition:
        """Raises ValueError for bytes that are no position."""
        try:
            message = kv_pb2.WatchPosition.FromString(data)
        except DecodeError as error:
            raise ValueError(f"not a position of a watch: {error}") from error
        if message.format != FORMAT or not message.shards:
            raise ValueError("not a position of a watch")
        return cls(
            message.table,
            {
                Prefix.from_bytes(shard.prefix, shard.prefix_bits): Mark(
                    shard.history, shard.version
                )
                for shard in message.shards
            },
        )


def position_lost(why: str, shard: str) -> ServiceError:
    """WATCH_POSITION_LOST for a shard."""
    message = f"{shard}: {why}; scan, and watch from now on"
    return ServiceError(Reason.WATCH_POSITION_LOST, message, {"shard": shard})
