"""Keys and values of the registry; `deodar/v1/cluster.proto` says what each record means."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf import json_format

from deodar.contract.keypath import Prefix
from deodar.v1.cluster_pb2 import MemberRecord, NodeRecord, ShardRecord, TableRecord

from .interface import BadRecord

DEFAULT_CLUSTER: Final = "deodar"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Record = TypeVar("Record", NodeRecord, MemberRecord, TableRecord, ShardRecord)


def check_name(name: str, what: str) -> str:
    """The name of a cluster, node or table, as it may stand in a key; raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r}: 1 to 63 letters, digits, '.', '_' or '-', the first not a sign"
        )
    return name


def shard_name(table: str, prefix: Prefix) -> str:
    """``table/prefix``, as shards are called everywhere."""
    return f"{table}/{prefix}"


def record_shard_name(record: ShardRecord) -> str:
    return shard_name(record.table, record_prefix(record))


def record_prefix(record: ShardRecord) -> Prefix:
    """Raises ValueError when the record holds no valid prefix."""
    return Prefix.from_bytes(record.prefix, record.prefix_bits)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cluster."""

    cluster: str = DEFAULT_CLUSTER

    def __post_init__(self) -> None:
        check_name(self.cluster, "cluster")

    @property
    def root(self) -> str:
        return f"/deodar/{self.cluster}/"

    @property
    def nodes(self) -> str:
        return f"{self.root}nodes/"

    @property
    def members(self) -> str:
        return f"{self.root}members/"

    @property
    def tables(self) -> str:
        return f"{self.root}tables/"

    @property
    def shards(self) -> str:
        return f"{self.root}shards/"

    @property
    def controller(self) -> str:
        return f"{self.root}controller"

    def node(self, node_id: str) -> str:
        return self.nodes + check_name(node_id, "node")

    def member(self, node_id: str) -> str:
        return self.members + check_name(node_id, "node")

    def table(self, name: str) -> str:
        return self.tables + check_name(name, "table")

    def shard(self, table: str, prefix: Prefix) -> str:
        return f"{self.shards}{check_name(table, 'table')}/{prefix}"

    def shard_of(self, record: ShardRecord) -> str:
        return self.shard(record.table, record_prefix(record))

    def of(self, record: NodeRecord | MemberRecord | TableRecord | ShardRecord) -> str:
        """Where a record belongs; raises ValueError when it names no valid place."""
        match record:
            case NodeRecord():
                return self.node(record.id)
            case MemberRecord():
                return self.member(record.id)
            case TableRecord():
                return self.table(record.name)
            case _:
                return self.shard_of(record)


def encode(record: Record) -> bytes:
    """The JSON form, one line, field names as in the proto."""
    text: str = json_format.MessageToJson(record, preserving_proto_field_name=True, indent=None)
    return text.encode()


def decode(kind: type[Record], key: str, value: bytes) -> Record:
    """The record in `value`; raises BadRecord naming the key.

    Fields that this release does not know are passed over, so that newer and older servers can run
    in one cluster; a change that an older one makes drops them.  Everything else that is unknown -
    a state, a type - and a record whose name is not the key's are refused.
    """
    record = kind()
    try:
        json_format.ParseDict(_known_fields(kind, value), record)
        place = Keys(key.split("/")[2] if key.startswith("/deodar/") else "").of(record)
    except (json_format.ParseError, ValueError) as error:
        raise BadRecord(f"{key}: not a {kind.__name__}: {error}") from error
    if place != key:
        raise BadRecord(f"{key}: holds the record of {place}")
    return record


def _known_fields(kind: type[Record], value: bytes) -> dict[str, Any]:
    """The JSON object without fields that `kind` does not have; raises ValueError.

    Not by `ignore_unknown_fields`, which takes an unknown enum value for an absent one.
    """
    document = json.loads(value, object_pairs_hook=_once)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    fields = kind.DESCRIPTOR.fields
    known = {name for field in fields for name in (field.name, field.json_name)}
    return {name: held for name, held in document.items() if name in known}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises ValueError when it gives a name twice."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name is given twice")
    return document
