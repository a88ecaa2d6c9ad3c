"""The shards of this node, found by path."""

from __future__ import annotations

from collections.abc import Iterator

from deodar.contract.keypath import PATH_BITS

from .shard import HostedShard


class ShardTable:
    """All prefixes of a table have the same length, or a few: one look-up for each length."""

    def __init__(self) -> None:
        self._by_name: dict[str, HostedShard] = {}
        self._by_path: dict[str, dict[int, dict[int, HostedShard]]] = {}

    def find(self, table: str, path: int) -> HostedShard | None:
        """The shard that holds the path."""
        for shift, shards in self._by_path.get(table, {}).items():
            shard = shards.get(path >> shift)
            if shard is not None:
                return shard
        return None

    def get(self, name: str) -> HostedShard | None:
        return self._by_name.get(name)

    def add(self, shard: HostedShard) -> None:
        """Put the shard in; its name must be free."""
        if shard.name in self._by_name:
            raise AssertionError(f"{shard.name} is here twice")
        self._by_name[shard.name] = shard
        lengths = self._by_path.setdefault(shard.table, {})
        lengths.setdefault(PATH_BITS - shard.prefix.bits, {})[shard.prefix.value] = shard

    def remove(self, shard: HostedShard) -> None:
        del self._by_name[shard.name]
        lengths = self._by_path[shard.table]
        shift = PATH_BITS - shard.prefix.bits
        del lengths[shift][shard.prefix.value]
        if not lengths[shift]:
            del lengths[shift]

    def __iter__(self) -> Iterator[HostedShard]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)
