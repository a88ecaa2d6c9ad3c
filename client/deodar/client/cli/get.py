"""deodar get"""

from __future__ import annotations

from typing import Annotated

import typer

from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .encoding import Encoding, parse_bytes, show_bytes, write_value
from .options import Endpoint, Json, Key, KeyEncoding, Table, Timeout, connect
from .output import CommandError, json_bytes, print_json


def get(
    key: Key,
    raw: Annotated[bool, typer.Option("--raw", help="The value's very bytes.")] = False,
    encoding: Annotated[
        Encoding | None,
        typer.Option(help="Print the value as a line of text, so written.  Default on a terminal."),
    ] = None,
    key_encoding: KeyEncoding = Encoding.UTF8,
    table: Table = DEFAULT_TABLE,
    timeout: Timeout = 10.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,
) -> None:
    """Print the value of KEY; exit with 1 when there is none.

    Not on a terminal, the value's very bytes are written, without a line end.  --json prints
    {"key", "value", "version", "ttl_ms"}, with "value_base64" when it is not UTF-8.
    """
    name = parse_bytes("KEY", key, key_encoding)
    with connect(endpoint, timeout) as client:
        item = client.get_item(name, table=table)
    if item is None:
        raise CommandError(f"no key {show_bytes(name, Encoding.UTF8)}", reason="ABSENT")
    if json:
        print_json(
            json_bytes("key", item.key)
            | json_bytes("value", item.value)
            | {"version": item.version, "ttl_ms": item.ttl_ms}
        )
    else:
        write_value(item.value, raw=raw, encoding=encoding)
