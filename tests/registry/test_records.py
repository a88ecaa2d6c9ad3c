"""Keys and values: golden forms, round trips, and what is refused."""

from __future__ import annotations

import json

import pytest

from deodar.contract.keypath import Prefix
from deodar.registry.interface import BadRecord
from deodar.registry.records import Keys, check_name, decode, encode, record_shard_name
from deodar.v1.cluster_pb2 import (
    SHARD_STATE_MOVING,
    MemberRecord,
    NodeRecord,
    ShardRecord,
)

KEY = Keys().shard("default", Prefix(10, 4))


def test_keys_are_as_documented() -> None:
    keys = Keys("prod")
    assert keys.node("n-1") == "/deodar/prod/nodes/n-1"
    assert keys.member("n-1") == "/deodar/prod/members/n-1"
    assert keys.table("default") == "/deodar/prod/tables/default"
    assert keys.shard("default", Prefix(0b1010, 4)) == "/deodar/prod/shards/default/a0-4"
    assert keys.shard("default", Prefix(0, 0)) == "/deodar/prod/shards/default/-0"
    assert keys.controller == "/deodar/prod/controller"


@pytest.mark.parametrize("name", ["", "a/b", "/", "..", ".a", "-a", "a b", "é", "a\n", "x" * 64])
def test_names_that_would_break_a_key_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="node"):
        Keys("c").node(name)


def test_longest_name_is_taken() -> None:
    assert check_name("x" * 63, "node") == "x" * 63


def test_records_are_json_with_the_names_of_the_proto() -> None:
    record = ShardRecord(
        table="default",
        prefix=Prefix(10, 4).to_bytes(),
        prefix_bits=4,
        state=SHARD_STATE_MOVING,
        primary="n1",
        term=2,
        store_id=(1 << 64) - 1,
        target="n2",
        move_id=7,
    )
    value = encode(record)
    assert b"\n" not in value
    assert json.loads(value) == {
        "table": "default",
        "prefix": "oA==",
        "prefix_bits": 4,
        "state": "SHARD_STATE_MOVING",
        "primary": "n1",
        "term": "2",
        "store_id": "18446744073709551615",
        "target": "n2",
        "move_id": "7",
    }
    assert decode(ShardRecord, KEY, value) == record
    assert record_shard_name(record) == "default/a0-4"
    assert encode(NodeRecord()) == b"{}"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"state": "SHARD_STATE_OF_TOMORROW"}',
        b'{"term": "1", "term": "2"}',
        b'{"term": "one"}',
        b'{"primary": 1}',
        b'{"table": "default"',
        b'{"prefix_bits": -1}',
        b'{"prefix_bits": 9, "prefix": "oA=="}',  # a byte too few
        b'{"prefix_bits": 3, "prefix": "8A=="}',  # an unused bit set
    ],
)
def test_damaged_shard_records_are_refused(value: bytes) -> None:
    with pytest.raises(BadRecord, match=KEY):
        decode(ShardRecord, KEY, value)


def test_fields_of_a_newer_release_are_passed_over() -> None:
    """As in the middle of a rolling upgrade; what is known is read as ever."""
    newer = {"id": "n1", "zone": "z", "rack": {"row": [1, 2]}, "weight": None}
    key = Keys().node("n1")
    assert decode(NodeRecord, key, json.dumps(newer).encode()) == NodeRecord(id="n1", zone="z")


def test_a_record_under_another_key_is_refused() -> None:
    value = encode(NodeRecord(id="n1"))
    assert decode(NodeRecord, Keys("c").node("n1"), value).id == "n1"
    member = encode(MemberRecord(id="n1", draining=True))
    with pytest.raises(BadRecord):
        decode(NodeRecord, Keys("c").member("n1"), member)
    for key in (Keys("c").node("n2"), Keys("c").member("n1"), "n1", "/deodar/c"):
        with pytest.raises(BadRecord):
            decode(NodeRecord, key, value)
