"""deodar scan"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import deodar
from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .encoding import Encoding, parse_bytes, show_bytes
from .options import Endpoint, Json, KeyEncoding, Table, Timeout, ValueEncoding, connect
from .output import json_bytes, note, print_json


def scan(
    prefix: Annotated[
        str, typer.Option(help="Only keys that start with it; see --key-encoding.")
    ] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Records at most.")] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Leave values out.")] = False,
    cursor: Annotated[str, typer.Option(help="Go on where an earlier scan stopped.")] = "",
    encoding: ValueEncoding = Encoding.UTF8,
    key_encoding: KeyEncoding = Encoding.UTF8,
    table: Table = DEFAULT_TABLE,
    timeout: Timeout = 10.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,
) -> None:
    """Print records in hash order, one a line: key, tab, value; what is not printable is escaped.

    A scan that its --limit stopped tells the cursor to go on with: on stderr, or with --json as a
    last line {"cursor": ...}.
    """
    start = parse_bytes("--cursor", cursor, Encoding.HEX)
    wanted = parse_bytes("--prefix", prefix, key_encoding)
    with connect(endpoint, timeout) as client:
        items = client.scan(
            table=table, cursor=start, limit=limit, key_prefix=wanted, keys_only=keys_only
        )
        for item in items:
            if json:
                print_json(_document(item, keys_only))
            else:
                sys.stdout.write(_line(item, keys_only, encoding) + "\n")
        sys.stdout.flush()
    if items.cursor is not None:
        if json:
            print_json({"cursor": items.cursor.hex()})
        note(f"more: --cursor {items.cursor.hex()}")


def _document(item: deodar.Item, keys_only: bool) -> dict[str, object]:
    value = {} if keys_only else json_bytes("value", item.value)
    return json_bytes("key", item.key) | value | {"version": item.version, "ttl_ms": item.ttl_ms}


def _line(item: deodar.Item, keys_only: bool, encoding: Encoding) -> str:
    key = show_bytes(item.key, encoding)
    return key if keys_only else f"{key}\t{show_bytes(item.value, encoding)}"
