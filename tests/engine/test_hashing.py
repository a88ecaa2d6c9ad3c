"""XXH3 and the path rule of `deodar.engine.hashing`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from . import probe_hashing as hashing

VECTORS: list[dict[str, str]] = json.loads(
    (Path(__file__).parents[1] / "golden/v1/paths.json").read_text()
)["vectors"]


def expected_path(key: bytes) -> bytes:
    """Rule H1, from the Python face of the same library."""
    whole = xxhash.xxh3_128_digest(key)
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start < 0 or end < 0 or end == start + 1:
        return whole
    return xxhash.xxh3_128_digest(key[start + 1 : end])[:2] + whole[2:]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["about"] for vector in VECTORS])
def test_path_equals_golden_vector(vector: dict[str, str]) -> None:
    key = bytes.fromhex(vector["key"]) * int(vector.get("repeat", "1"))
    assert hashing.path(key).hex() == vector["path"]


@given(st.binary(min_size=1, max_size=300))
def test_path_is_rule_h1_of_any_key(key: bytes) -> None:
    assert hashing.path(key) == expected_path(key)


@given(st.text(alphabet="{}ab", min_size=1, max_size=12))
def test_path_is_rule_h1_where_braces_are_dense(key: str) -> None:
    assert hashing.path(key.encode()) == expected_path(key.encode())


@given(st.binary(max_size=5000), st.integers(0, 2**64 - 1))
def test_checksum_is_xxh3_64(data: bytes, seed: int) -> None:
    assert hashing.checksum(data, seed) == xxhash.xxh3_64_intdigest(data, seed)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_compare_orders_paths_as_bytes(left: bytes, right: bytes) -> None:
    assert hashing.compare(left, right) == (left > right) - (left < right)
    assert hashing.compare(left, left) == 0


def test_compare_looks_at_the_low_half() -> None:
    assert hashing.compare(b"\x01" * 15 + b"\x00", b"\x01" * 16) == -1


def test_tag_is_the_last_two_bytes() -> None:
    assert hashing.tag(bytes(range(16))) == 0x0E0F
