"""What is wrong with a call is refused before anything is sent, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import deodar
from deodar.client.client import Client
from deodar.contract import limits

# Nothing listens there: a call that is sent fails in another way.
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def client() -> Iterator[Client]:
    with deodar.connect(NOWHERE) as client:
        yield client


Make = Callable[[Client, Any], object]
WITH_KEY: dict[str, Make] = {
    "get": lambda c, key: c.get(key),
    "get_item": lambda c, key: c.get_item(key),
    "put": lambda c, key: c.put(key, b""),
    "delete": lambda c, key: c.delete(key),
    "increment": lambda c, key: c.increment(key),
    "batch_get": lambda c, key: c.batch_get([b"a", key]),
    "batch_write put": lambda c, key: c.batch_write([deodar.Put(key, b"")]),
    "batch_write delete": lambda c, key: c.batch_write([deodar.Delete(key)]),
}


@pytest.mark.parametrize("call", WITH_KEY.values(), ids=WITH_KEY)
@pytest.mark.parametrize("key", [b"", b"k" * (limits.KEY_BYTES_MAX + 1)], ids=["empty", "long"])
def test_bad_keys_are_refused_alike(client: Client, call: Make, key: bytes) -> None:
    with pytest.raises(deodar.InvalidArgument, match=str(len(key))) as caught:
        call(client, key)
    assert caught.value.field == "key"


@pytest.mark.parametrize("call", WITH_KEY.values(), ids=WITH_KEY)
@pytest.mark.parametrize("key", ["text", 5, None], ids=repr)
def test_keys_are_bytes(client: Client, call: Make, key: object) -> None:
    with pytest.raises(TypeError, match="key must be bytes"):
        call(client, key)


BAD: dict[str, tuple[Callable[[Client], object], str]] = {
    "value too long": (lambda c: c.put(b"k", bytes(limits.VALUE_BYTES_MAX + 1)), "value"),
    "ttl 0": (lambda c: c.put(b"k", b"", ttl_ms=0), "ttl_ms"),
    "ttl -1": (lambda c: c.put(b"k", b"", ttl_ms=-1), "ttl_ms"),
    "ttl above": (lambda c: c.put(b"k", b"", ttl_ms=limits.TTL_MS_MAX + 1), "ttl_ms"),
    "ttl 2**63": (lambda c: c.put(b"k", b"", ttl_ms=2**63), "ttl_ms"),
    "ttl 2**64": (lambda c: c.put(b"k", b"", ttl_ms=2**64), "ttl_ms"),
    "version": (lambda c: c.put(b"k", b"", if_version=-1), "if_version"),
    "version 2**64": (lambda c: c.delete(b"k", if_version=2**64), "if_version"),
    "both conditions": (lambda c: c.put(b"k", b"", if_version=1, if_absent=True), "if_absent"),
    "delta": (lambda c: c.increment(b"k", 2**63), "delta"),
    "durability": (lambda c: c.put(b"k", b"", durability="extra"), "durability"),  # type: ignore[arg-type]
    "timeout 0": (lambda c: c.get(b"k", timeout=0), "timeout"),
    "timeout nan": (lambda c: c.get(b"k", timeout=float("nan")), "timeout"),
    "timeout inf": (lambda c: c.get(b"k", timeout=float("inf")), "timeout"),
    "keys": (lambda c: c.batch_get([b"k"] * 10_001), "keys"),
    "operations": (lambda c: c.batch_write([deodar.Delete(b"k")] * 10_001), "operations"),
    "batch bytes": (
        lambda c: c.batch_write([deodar.Put(b"k", bytes(limits.BATCH_BYTES_MAX // 2))] * 2),
        "operations",
    ),
    "scan limit": (lambda c: c.scan(limit=0), "limit"),
    "cursor": (lambda c: c.scan(cursor=b"short"), "cursor"),
}


@pytest.mark.parametrize(("call", "field"), BAD.values(), ids=BAD)
def test_bad_values_are_refused_and_named(
    client: Client, call: Callable[[Client], object], field: str
) -> None:
    with pytest.raises(deodar.InvalidArgument) as caught:
        call(client)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


WRONG_TYPES: dict[str, Callable[[Client], object]] = {
    "value": lambda c: c.put(b"k", "text"),  # type: ignore[arg-type]
    "ttl": lambda c: c.put(b"k", b"", ttl_ms=1.5),  # type: ignore[arg-type]
    "delta": lambda c: c.increment(b"k", True),
    "table": lambda c: c.get(b"k", table=b"default"),  # type: ignore[arg-type]
    "timeout": lambda c: c.get(b"k", timeout="1"),  # type: ignore[arg-type]
    "one key": lambda c: c.batch_get(b"abc"),  # type: ignore[arg-type]
    "tuple": lambda c: c.batch_write([(b"k", b"v")]),  # type: ignore[list-item]
    "prefix": lambda c: c.scan(key_prefix="a"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_types_are_type_errors(client: Client, call: Callable[[Client], object]) -> None:
    with pytest.raises(TypeError):
        call(client)


@pytest.mark.parametrize("endpoint", ["", "host", "host:", ":7400", "host:0", "host:65536", []])
def test_bad_endpoints_are_refused(endpoint: str | list[str]) -> None:
    with pytest.raises(deodar.InvalidArgument) as caught:
        deodar.connect(endpoint)
    assert caught.value.field == "endpoint"
