"""deodar del"""

from __future__ import annotations

from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .encoding import Encoding, parse_bytes
from .options import (
    Durability,
    Endpoint,
    IfVersion,
    Json,
    Key,
    KeyEncoding,
    Table,
    Timeout,
    connect,
    durability_of,
)
from .output import json_bytes, print_result


def delete(
    key: Key,
    if_version: IfVersion = None,
    durability: Durability = None,
    key_encoding: KeyEncoding = Encoding.UTF8,
    table: Table = DEFAULT_TABLE,
    timeout: Timeout = 10.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Delete KEY, and print whether there was something."""
    name = parse_bytes("KEY", key, key_encoding)
    with connect(endpoint, timeout) as client:
        found = client.delete(
            name, table=table, if_version=if_version, durability=durability_of(durability)
        )
    print_result(json_bytes("key", name) | {"found": found}, "deleted" if found else "absent")
