"""The record format: every rule of record.pxd, byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from . import probe_record as record

GOLDEN = Path(__file__).parents[1] / "golden/v1"
NUMBERS = struct.pack("<QQ", 7, 9)
NUMBER_64 = st.integers(0, 2**64 - 1)


def raw(
    *,
    kind: int = record.PUT,
    flags: int = 0,
    key: bytes = b"key",
    key_field: int | None = None,
    value: bytes = b"value",
    value_field: int | None = None,
    deadline: bytes = b"",
    epoch: int = 1,
    version: int = 2,
    padding: bytes | None = None,
    sequence: int = 1,
) -> bytes:
    """A record made by hand from the table in record.pxd, right or wrong, with a right checksum."""
    body = struct.pack(
        "<HBBIIQ",
        max(len(key) - 1, 0) if key_field is None else key_field,
        kind,
        flags,
        len(value) if value_field is None else value_field,
        epoch,
        version,
    )
    body += deadline + key + value
    checksum = xxhash.xxh3_64_intdigest(body, sequence) & 0xFFFFFFFF
    whole = struct.pack("<I", checksum) + body
    return whole + (bytes(-len(whole) % 8) if padding is None else padding)


def test_layout_equals_golden_file() -> None:
    assert record.layout() == json.loads((GOLDEN / "layout.json").read_text())["record"]


def test_encode_writes_the_bytes_of_the_table() -> None:
    made = record.encode(
        record.PUT, b"key", b"value", version=2, epoch=1, deadline_ms=5, flags=record.RELOCATED
    )
    assert made == raw(flags=record.RELOCATED | record.DEADLINE, deadline=struct.pack("<Q", 5))


def test_checksum_is_seeded_with_the_sequence_of_the_region() -> None:
    """R3."""
    made = record.encode(record.PUT, b"key", b"value", version=2, epoch=1, sequence=2**40 + 9)
    assert made == raw(sequence=2**40 + 9)
    assert "R3" in record.decode(made, sequence=2**40 + 10)
    assert "R3" in record.decode(made, sequence=9)


@given(
    key=st.binary(min_size=1, max_size=200),
    value=st.binary(max_size=400),
    version=NUMBER_64,
    epoch=st.integers(0, 2**32 - 1),
    deadline_ms=NUMBER_64,
    relocated=st.booleans(),
    sequence=NUMBER_64,
    behind=st.binary(max_size=40),
)
def test_decode_gives_back_what_was_encoded(
    key: bytes,
    value: bytes,
    version: int,
    epoch: int,
    deadline_ms: int,
    relocated: bool,
    sequence: int,
    behind: bytes,
) -> None:
    flags = record.RELOCATED if relocated else 0
    made = record.encode(
        record.PUT,
        key,
        value,
        version=version,
        epoch=epoch,
        deadline_ms=deadline_ms,
        flags=flags,
        sequence=sequence,
    )
    expected = {
        "kind": record.PUT,
        "flags": flags | (record.DEADLINE if deadline_ms else 0),
        "epoch": epoch,
        "version": version,
        "deadline_ms": deadline_ms,
        "key": key,
        "value": value,
        "record_bytes": len(made),
    }
    assert len(made) % 8 == 0
    assert record.decode(made + behind, sequence=sequence) == expected
    assert record.view(made) == expected
    assert record.key_of(made) == key


@pytest.mark.parametrize("key_bytes", [1, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("value_bytes", [0, 1, 1_000_001])
def test_bounds_of_key_and_value_pass(key_bytes: int, value_bytes: int) -> None:
    made = record.encode(record.PUT, b"k" * key_bytes, b"v" * value_bytes)
    found = record.decode(made)
    assert isinstance(found, dict)
    assert (len(found["key"]), len(found["value"])) == (key_bytes, value_bytes)


def test_value_at_its_bound_passes() -> None:
    made = record.encode(record.PUT, b"k", bytes(67_108_864))
    assert isinstance(record.decode(made), dict)


def test_delete_seal_and_link_pass() -> None:
    made = record.encode(record.DELETE, b"gone", b"", version=3, flags=record.RELOCATED)
    found = record.decode(made)
    assert isinstance(found, dict)
    assert (found["kind"], found["key"], found["value"]) == (record.DELETE, b"gone", b"")
    for kind in (record.SEAL, record.LINK):
        made = record.encode(kind, b"", NUMBERS, version=3)
        assert len(made) == record.LINK_BYTES
        found = record.decode(made)
        assert isinstance(found, dict)
        assert (found["kind"], found["key"], found["value"]) == (kind, b"", NUMBERS)
        assert record.view(made) == found


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "kind 0": ({"kind": 0}, "unknown kind"),
    "kind 5": ({"kind": 5}, "unknown kind"),
    "kind 255": ({"kind": 255}, "unknown kind"),
    "flag 8": ({"flags": 8}, "unknown flag"),
    "flag 128": ({"flags": 128 | record.RELOCATED}, "unknown flag"),
    "value bound": ({"value_field": 67_108_865}, "VALUE_BYTES_MAX"),
    "value 4 GiB": ({"value_field": 2**32 - 1}, "VALUE_BYTES_MAX"),
    "value behind": ({"value_field": 60}, "ends behind"),
    "key behind": ({"key_field": 65_535}, "ends behind"),
    "zero deadline": ({"flags": record.DEADLINE, "deadline": bytes(8)}, "deadline is 0"),
    "padding": ({"padding": b"\0" * 6 + b"\1", "key": b"k", "value": b""}, "padding"),
    "delete with value": ({"kind": record.DELETE}, "DELETE has"),
    "delete with deadline": (
        {"kind": record.DELETE, "value": b"", "flags": record.DEADLINE, "deadline": b"\1" * 8},
        "DELETE has",
    ),
    "seal with key": ({"kind": record.SEAL, "key": b"ab", "value": NUMBERS}, "SEAL or LINK has a"),
    "seal of 15": ({"kind": record.SEAL, "key": b"", "value": NUMBERS[:15]}, "SEAL or LINK has a"),
    "link of 17": (
        {"kind": record.LINK, "key": b"", "value": NUMBERS + b"x"},
        "SEAL or LINK has a",
    ),
    "seal relocated": (
        {"kind": record.SEAL, "key": b"", "value": NUMBERS, "flags": record.RELOCATED},
        "SEAL or LINK has flags",
    ),
    "other region": ({"sequence": 2}, "checksum"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_is_refused_by_name(name: str) -> None:
    change, rule = BROKEN[name]
    found = record.decode(raw(**change))
    assert isinstance(found, str)
    assert rule in found


def test_decode_reads_nothing_behind_available() -> None:
    made = raw()
    for cut in range(len(made)):
        found = record.decode(made[:cut])
        assert isinstance(found, str)
        assert "behind the region" in found


@given(st.data())
def test_no_changed_record_is_accepted(data: st.DataObject) -> None:
    """Any change of any bytes of a record is refused, or is behind what the record covers."""
    made = bytearray(
        record.encode(
            record.PUT,
            data.draw(st.binary(min_size=1, max_size=40)),
            data.draw(st.binary(max_size=80)),
            version=data.draw(NUMBER_64),
            deadline_ms=data.draw(st.sampled_from([0, 1, 2**63])),
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(made) - 1))
        made[at] ^= data.draw(st.integers(1, 255))
    original = record.decode(bytes(made))
    if isinstance(original, dict):
        again = record.encode(
            original["kind"],
            original["key"],
            original["value"],
            version=original["version"],
            epoch=original["epoch"],
            deadline_ms=original["deadline_ms"],
            flags=original["flags"],
        )
        assert again == bytes(made[: len(again)])


@given(st.binary(max_size=200), NUMBER_64)
def test_random_bytes_are_refused(noise: bytes, sequence: int) -> None:
    """2**-32 of all noise would pass the checksum: none that hypothesis finds does."""
    assert isinstance(record.decode(noise, sequence=sequence), str)
