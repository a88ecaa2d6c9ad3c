"""deodar export"""

from __future__ import annotations

import base64
import csv
import io
import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Final, cast

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

import deodar
from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .encoding import Encoding, parse_bytes, show_bytes
from .formats import DELIMITERS, Format, compression_of, format_of
from .options import Endpoint, Json, KeyEncoding, Table, Timeout, connect
from .output import CommandError, json_bytes, json_mode, note, print_json, stderr
from .readers import Parsed, read_debian

PROGRESS_RECORDS: Final = 500

Writer = Callable[[deodar.Item], bytes]


def export(
    file: Annotated[
        str, typer.Argument(help="File to write, also .gz, .xz or .bz2; - is stdout.")
    ] = "-",
    layout: Annotated[
        Format | None, typer.Option("--format", help="Default: by the file's name, or jsonl.")
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Only keys that start with it; see --key-encoding.")
    ] = "",
    key_encoding: KeyEncoding = Encoding.UTF8,
    table: Table = DEFAULT_TABLE,
    timeout: Timeout = 30.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,
) -> None:
    """Write all records to FILE, in hash order, for import to read.

    jsonl: "key" and "value" as text, "key_base64" and "value_base64" where they are not UTF-8.
    csv, tsv: columns key_base64, value_base64, ttl_ms.
    debian: the values, with blank lines between; refused for a record that is not a stanza.

    Every byte comes back by import.  A record that is written meanwhile may be in FILE or not; FILE
    appears when it is complete.  With FILE -, --json tells the count on stderr.
    """
    chosen = layout or format_of(file) or Format.JSONL
    write = _writer(chosen)
    wanted = parse_bytes("--prefix", prefix, key_encoding)
    count = 0
    with (
        connect(endpoint, timeout) as client,
        _target(file) as target,
        Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:,} records"),
            console=stderr(),
            transient=True,
            disable=json_mode() or not stderr().is_terminal,
        ) as progress,
    ):
        task = progress.add_task("export", total=None)
        target.write(_header(chosen))
        for item in client.scan(table=table, key_prefix=wanted):
            target.write(write(item))
            count += 1
            if count % PROGRESS_RECORDS == 0:
                progress.update(task, completed=count)
    if json and file != "-":
        print_json({"records": count, "file": file, "format": chosen.value})
    elif json:
        print(jsonlib.dumps({"records": count, "format": chosen.value}), file=sys.stderr)
    else:
        note(f"{count:,} records written")


@contextmanager
def _target(file: str) -> Iterator[BinaryIO]:
    """A file that takes its name when it is complete and on disk."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    partial = path.with_name(f"{path.name}.partial")
    compression = compression_of(file)
    try:
        with partial.open("wb") as target:
            if compression is None:
                yield target
            else:
                with compression.open(target, "wb") as compressed:
                    yield cast(BinaryIO, compressed)
            target.flush()
            os.fsync(target.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _header(layout: Format) -> bytes:
    if layout not in DELIMITERS:
        return b""
    return _row(["key_base64", "value_base64", "ttl_ms"], DELIMITERS[layout])


def _writer(layout: Format) -> Writer:
    match layout:
        case Format.JSONL:
            return _jsonl
        case Format.DEBIAN:
            return _debian
        case _:
            delimiter = DELIMITERS[layout]
            return lambda item: _row(
                [
                    base64.b64encode(item.key).decode(),
                    base64.b64encode(item.value).decode(),
                    "" if item.ttl_ms is None else str(item.ttl_ms),
                ],
                delimiter,
            )


def _jsonl(item: deodar.Item) -> bytes:
    document: dict[str, object] = {**json_bytes("key", item.key), **json_bytes("value", item.value)}
    if item.ttl_ms is not None:
        document["ttl_ms"] = item.ttl_ms
    return jsonlib.dumps(document, ensure_ascii=False).encode() + b"\n"


def _row(cells: list[str], delimiter: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _debian(item: deodar.Item) -> bytes:
    """The stanza, if it would come back as the same record."""
    stanza = item.value + b"\n\n"
    rows = list(read_debian(io.BytesIO(stanza)))
    match rows:
        case [Parsed(put=put)] if (put.key, put.value) == (item.key, item.value):
            return stanza
    key = show_bytes(item.key, Encoding.UTF8)
    raise CommandError(f"the value of {key} is no stanza of that package: use another --format")
