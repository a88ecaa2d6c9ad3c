"""The shard map: which node serves which prefix, at one revision.

Immutable: a change makes a new map, so that a request sees one map from beginning to end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .keypath import Prefix


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard as the map has it; `primary` is a node id."""

    table: str
    prefix: Prefix
    primary: str
    term: int
    serving: bool  # its primary has made its store (it may be moving)
    target: str = ""  # node that copies it
    move_id: int = 0
    store_id: int = 0

    @property
    def name(self) -> str:
        return f"{self.table}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Shards by table in path order, and node addresses."""

    revision: int
    addresses: Mapping[str, str]  # node id -> host:port of nodes that are up
    _starts: Mapping[str, tuple[int, ...]] = field(repr=False)
    _shards: Mapping[str, tuple[Shard, ...]] = field(repr=False)

    @classmethod
    def build(
        cls, revision: int, shards: Iterable[Shard], addresses: Mapping[str, str]
    ) -> ShardMap:
        by_table: dict[str, list[Shard]] = {}
        for shard in shards:
            by_table.setdefault(shard.table, []).append(shard)
        for rows in by_table.values():
            rows.sort(key=lambda shard: shard.prefix.first_path)
        return cls(
            revision,
            dict(addresses),
            {
                table: tuple(shard.prefix.first_path for shard in rows)
                for table, rows in by_table.items()
            },
            {table: tuple(rows) for table, rows in by_table.items()},
        )

    @property
    def tables(self) -> list[str]:
        return sorted(self._shards)

    def shards(self, table: str | None = None) -> list[Shard]:
        """Shards of one table in path order, or of all."""
        if table is not None:
            return list(self._shards.get(table, ()))
        return [shard for name in self.tables for shard in self._shards[name]]

    def find(self, table: str, path: int) -> Shard | None:
        """The shard that holds `path`; None when the table is unknown or the map has a gap."""
        starts = self._starts.get(table)
        if not starts:
            return None
        shard = self._shards[table][max(bisect_right(starts, path) - 1, 0)]
        return shard if shard.prefix.contains(path) else None
