"""deodar watch"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import deodar
from deodar.client.client import Watch
from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .encoding import Encoding, parse_bytes, show_bytes
from .options import Endpoint, Json, KeyEncoding, Table, Timeout, ValueEncoding, connect
from .output import json_bytes, misused, note, print_json


def watch(
    key: Annotated[str | None, typer.Argument(help="The key; see --key-encoding.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="All keys that start with it; '' = the whole table.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many changes.")] = None,
    position: Annotated[
        str, typer.Option("--from", help="Go on where an earlier watch stopped.")
    ] = "",
    encoding: ValueEncoding = Encoding.UTF8,
    key_encoding: KeyEncoding = Encoding.UTF8,
    table: Table = DEFAULT_TABLE,
    timeout: Timeout = 10.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,
) -> None:
    """Print the changes of KEY, or of the keys with a --prefix, as they become durable.

    One a line: "put", tab, key, tab, value, or "delete", tab, key; what is not printable is
    escaped.  Ctrl-C ends it.  At the end it tells the position to go on --from: on stderr, or with
    --json in every line.  The --timeout bounds how long nobody may serve the watch.
    """
    if (key is None) == (prefix is None):
        raise misused("give either KEY or --prefix")
    with connect(endpoint, timeout) as client:
        events = client.watch(
            None if key is None else parse_bytes("KEY", key, key_encoding),
            prefix=None if prefix is None else parse_bytes("--prefix", prefix, key_encoding),
            table=table,
            position=parse_bytes("--from", position, Encoding.HEX),
        )
        try:
            with events:
                note("watching")
                _print_all(events, count, encoding, as_json=json)
        except KeyboardInterrupt:
            pass  # the way to end it
    note(f"to go on: --from {events.position.hex()}")


def _print_all(events: Watch, count: int | None, encoding: Encoding, *, as_json: bool) -> None:
    for number, event in enumerate(events, 1):
        if as_json:
            print_json(_document(event))
        else:
            sys.stdout.write(_line(event, encoding) + "\n")
            sys.stdout.flush()
        if number == count:
            return


def _document(event: deodar.Event) -> dict[str, object]:
    value = {} if event.value is None else json_bytes("value", event.value)
    return {
        "event": "delete" if event.deleted else "put",
        **json_bytes("key", event.key),
        **value,
        "version": event.version,
        "deadline_ms": event.deadline_ms,
        "position": event.position.hex(),
    }


def _line(event: deodar.Event, encoding: Encoding) -> str:
    key = show_bytes(event.key, encoding)
    if event.value is None:
        return f"delete\t{key}"
    return f"put\t{key}\t{show_bytes(event.value, encoding)}"
