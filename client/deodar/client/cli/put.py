"""deodar put"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE, VALUE_BYTES_MAX

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
from .output import json_bytes, misused, print_result


def put(
    key: Key,
    value: Annotated[
        str | None, typer.Argument(help="The value; - or nothing reads it from stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the value from a file.")] = None,
    ttl_ms: Annotated[
        int | None, typer.Option(min=1, help="Milliseconds until it expires; default: never.")
    ] = None,
    if_version: IfVersion = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only where there is no record.")
    ] = False,
    durability: Durability = None,
    key_encoding: KeyEncoding = Encoding.UTF8,
    table: Table = DEFAULT_TABLE,
    timeout: Timeout = 10.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Write a value and print its version.

    A value that starts with a dash goes behind two dashes: deodar put KEY -- -5
    """
    name = parse_bytes("KEY", key, key_encoding)
    data = _value(value, file)
    with connect(endpoint, timeout) as client:
        version = client.put(
            name,
            data,
            table=table,
            ttl_ms=ttl_ms,
            if_version=if_version,
            if_absent=if_absent,
            durability=durability_of(durability),
        )
    print_result(json_bytes("key", name) | {"version": version}, str(version))


def _value(value: str | None, file: Path | None) -> bytes:
    if file is not None:
        if value is not None:
            raise misused("give VALUE or --file, not both")
        with file.open("rb") as source:
            return source.read(VALUE_BYTES_MAX + 1)
    if value is not None and value != "-":
        return parse_bytes("VALUE", value, Encoding.UTF8)
    if value is None and sys.stdin.isatty():
        raise misused("no VALUE: give it, --file, or - to read stdin")
    return sys.stdin.buffer.read(VALUE_BYTES_MAX + 1)
