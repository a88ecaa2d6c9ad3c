"""deodar incr"""

from __future__ import annotations

from typing import Annotated

import typer

from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .encoding import Encoding, parse_bytes
from .options import (
    Durability,
    Endpoint,
    Json,
    Key,
    KeyEncoding,
    Table,
    Timeout,
    connect,
    durability_of,
)
from .output import json_bytes, print_result


def incr(
    key: Key,
    delta: Annotated[int, typer.Argument(help="What to add; may be negative.")] = 1,
    durability: Durability = None,
    key_encoding: KeyEncoding = Encoding.UTF8,
    table: Table = DEFAULT_TABLE,
    timeout: Timeout = 10.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Add to the decimal number at KEY (absent = 0), and print the sum."""
    name = parse_bytes("KEY", key, key_encoding)
    with connect(endpoint, timeout) as client:
        value = client.increment(name, delta, table=table, durability=durability_of(durability))
    print_result(json_bytes("key", name) | {"value": value}, str(value))
