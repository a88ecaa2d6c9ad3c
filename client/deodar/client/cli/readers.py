"""Reads records from files, one at a time: what a line says, or what is wrong with it."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from deodar.client.errors import InvalidArgument
from deodar.client.records import Put
from deodar.client.requests import put_fields
from deodar.contract.limits import VALUE_BYTES_MAX

from .formats import DELIMITERS, Format
from .output import CommandError, misused

# Base64 of the largest value, with room for its key and the rest.
LINE_BYTES_MAX: Final = VALUE_BYTES_MAX * 4 // 3 + 1_048_576
_FIELDS: Final = frozenset({"key", "key_base64", "value", "value_base64", "ttl_ms", "version"})


@dataclass(frozen=True, slots=True)
class Parsed:
    """A record, and the line it began on."""

    line: int
    put: Put


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that holds no record, and why."""

    line: int
    why: str


Row = Parsed | Bad


def read_records(
    source: BinaryIO, layout: Format, key_column: str | None, value_column: str | None
) -> Iterator[Row]:
    """The records of a file.

    Raises CommandError when the file as a whole cannot be read, such as a header without the
    columns.
    """
    match layout:
        case Format.JSONL:
            return read_jsonl(source)
        case Format.DEBIAN:
            return read_debian(source)
        case _:
            return read_table(source, DELIMITERS[layout], key_column, value_column)


def read_jsonl(source: BinaryIO) -> Iterator[Row]:
    """One object a line: "key" or "key_base64", "value" or "value_base64", "ttl_ms"."""
    for number, line in _lines(source):
        if line is None:
            yield Bad(number, f"longer than {LINE_BYTES_MAX} bytes")
        elif line.strip():
            yield _row(number, line)


def _row(number: int, line: bytes) -> Row:
    try:
        return Parsed(number, checked(_put_of(json.loads(line.decode("utf-8-sig")))))
    except RecursionError:
        return Bad(number, "nested too deeply")
    except (ValueError, InvalidArgument) as error:
        return Bad(number, str(error))


def _put_of(document: Any) -> Put:
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    unknown = document.keys() - _FIELDS
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}")
    ttl_ms = document.get("ttl_ms")
    if ttl_ms is not None and (isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int)):
        raise ValueError("ttl_ms is not a whole number")
    return Put(_field(document, "key"), _field(document, "value"), ttl_ms)


def _field(document: dict[str, Any], name: str) -> bytes:
    encoded = f"{name}_base64"
    if (name in document) == (encoded in document):
        raise ValueError(f"either {name!r} or {encoded!r} is needed")
    text = document.get(name, document.get(encoded))
    if not isinstance(text, str):
        raise ValueError(f"{name} is not a string")
    return text.encode() if name in document else base64.b64decode(text, validate=True)


def read_table(
    source: BinaryIO, delimiter: str, key_column: str | None, value_column: str | None
) -> Iterator[Row]:
    """Rows of CSV or TSV.

    Columns are named by the first row, or are numbers from 1 and every row is a record.  Without
    names they are "key" or "key_base64", "value" or "value_base64", and "ttl_ms".
    """
    csv.field_size_limit(LINE_BYTES_MAX)
    # Bytes that are not UTF-8 come through unchanged as surrogates.
    text = io.TextIOWrapper(source, encoding="utf-8", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    columns = _Columns.of(rows, key_column, value_column)
    line = rows.line_num
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Bad(line + 1, str(error))
        else:
            if row:
                yield columns.row(line + 1, row)
        line = rows.line_num


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the parts of a record stand in a row."""

    key: int
    value: int
    ttl: int | None
    key_base64: bool = False
    value_base64: bool = False

    @classmethod
    def of(cls, rows: Iterator[list[str]], key: str | None, value: str | None) -> _Columns:
        if key is not None and value is not None and key.isdecimal() and value.isdecimal():
            if not int(key) or not int(value):
                raise misused("columns are numbered from 1")
            return cls(int(key) - 1, int(value) - 1, None)
        try:
            header = next(rows, [])
        except csv.Error as error:
            raise CommandError(f"line 1: {error}") from error
        if header:
            header[0] = header[0].removeprefix("\ufeff")
        key_index, key_base64 = _column(header, "key", key)
        value_index, value_base64 = _column(header, "value", value)
        ttl = header.index("ttl_ms") if "ttl_ms" in header else None
        return cls(key_index, value_index, ttl, key_base64, value_base64)

    def row(self, line: int, row: Sequence[str]) -> Row:
        try:
            text = row[self.ttl] if self.ttl is not None else ""
            return Parsed(
                line,
                checked(
                    Put(
                        _cell(row[self.key], self.key_base64),
                        _cell(row[self.value], self.value_base64),
                        int(text) if text else None,
                    )
                ),
            )
        except IndexError:
            return Bad(line, f"only {len(row)} columns")
        except (ValueError, InvalidArgument) as error:
            return Bad(line, str(error))


def _column(header: list[str], name: str, asked: str | None) -> tuple[int, bool]:
    """Index of a column in the header, and whether it is base64."""
    for wanted in [asked] if asked is not None else [name, f"{name}_base64"]:
        if wanted in header:
            return header.index(wanted), wanted == f"{name}_base64"
    if asked is None:
        raise CommandError(f"the first line names no column {name!r}: use --{name}-column")
    raise CommandError(f"the first line names no column {asked!r}")


def _cell(text: str, encoded: bool) -> bytes:
    if encoded:
        return base64.b64decode(text, validate=True)
    return text.encode(errors="surrogateescape")


def read_debian(source: BinaryIO) -> Iterator[Row]:
    """Stanzas of a Packages file: the package's name, and the stanza's bytes as they stand,
    without the line end of its last line."""
    lines: list[bytes] = []
    first, size, too_long = 0, 0, False
    for number, line in _lines(source):
        if line is not None and not line.strip():
            if lines or too_long:
                yield _stanza(first, lines, too_long)
            lines, size, too_long = [], 0, False
            continue
        if not lines and not too_long:
            first = number
        size += LINE_BYTES_MAX if line is None else len(line)
        too_long = too_long or size > VALUE_BYTES_MAX + 1
        if line is not None and not too_long:
            lines.append(line)
    if lines or too_long:
        yield _stanza(first, lines, too_long)


def _stanza(first: int, lines: list[bytes], too_long: bool) -> Row:
    if too_long:
        return Bad(first, f"stanza of more than {VALUE_BYTES_MAX} bytes")
    name = next((line[8:].strip() for line in lines if line[:8].lower() == b"package:"), b"")
    if not name:
        return Bad(first, "stanza without a Package field")
    try:
        return Parsed(first, checked(Put(name, b"".join(lines).removesuffix(b"\n"))))
    except InvalidArgument as error:
        return Bad(first, str(error))


def checked(put: Put) -> Put:
    """Raises InvalidArgument for what the service would refuse."""
    put_fields(put)
    return put


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Lines by number; None for one that is too long, which is passed over."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) < LINE_BYTES_MAX or line.endswith(b"\n"):
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = source.readline(LINE_BYTES_MAX)
        yield number, None
