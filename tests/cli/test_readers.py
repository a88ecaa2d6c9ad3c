"""What a file says, line by line, and what is wrong with a bad line."""

from __future__ import annotations

import base64
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deodar.client.cli import readers
from deodar.client.cli.export import _debian, _header, _writer
from deodar.client.cli.formats import Format, decompressed, format_of
from deodar.client.cli.output import CommandError
from deodar.client.cli.readers import Bad, Parsed, Row, read_records
from deodar.client.records import Item, Put

KEYS = st.binary(min_size=1, max_size=40)
VALUES = st.binary(max_size=80)


def read(
    data: bytes, layout: Format, key: str | None = None, value: str | None = None
) -> list[Row]:
    return list(read_records(io.BytesIO(data), layout, key, value))


def bad_lines(rows: list[Row]) -> list[int]:
    return [row.line for row in rows if isinstance(row, Bad)]


@given(st.lists(st.tuples(KEYS, VALUES, st.none() | st.integers(1, 10**9)), max_size=8))
@pytest.mark.parametrize("layout", [Format.JSONL, Format.CSV, Format.TSV])
def test_what_is_exported_comes_back(
    layout: Format, records: list[tuple[bytes, bytes, int | None]]
) -> None:
    items = [Item(key, value, 1, ttl) for key, value, ttl in records]
    data = _header(layout) + b"".join(_writer(layout)(item) for item in items)
    rows = read(data, layout)
    assert [row.put for row in rows if isinstance(row, Parsed)] == [
        Put(key, value, ttl) for key, value, ttl in records
    ]
    assert not bad_lines(rows)


def test_bad_json_lines_are_told_by_number() -> None:
    lines = [
        b'\xef\xbb\xbf{"key": "a", "value": "1"}',  # with a byte order mark
        b"",
        b"nonsense",
        b"[1]",
        b'{"key": "a"}',
        b'{"key": "", "value": ""}',
        b'{"key": "a", "key_base64": "YQ==", "value": ""}',
        b'{"key_base64": "!", "value": ""}',
        b'{"key": 5, "value": ""}',
        b'{"key": "\\ud800", "value": ""}',
        b'{"key": "a", "value": "", "ttl_ms": 0}',
        b'{"key": "a", "value": "", "ttl_ms": "5"}',
        b'{"key": "a", "value": "", "extra": 1}',
        b'{"key": "\xff", "value": ""}',
        b"[" * 100_000,
        b'{"key": "b", "value_base64": "AP8=", "ttl_ms": 5}',
    ]
    rows = read(b"\n".join(lines), Format.JSONL)
    assert bad_lines(rows) == list(range(3, 16))
    good = [row.put for row in rows if isinstance(row, Parsed)]
    assert good == [Put(b"a", b"1"), Put(b"b", b"\0\xff", 5)]
    assert all(row.why for row in rows if isinstance(row, Bad))


def test_a_line_that_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LINE_BYTES_MAX", 64)
    line = json.dumps({"key": "k", "value": "v" * 200}).encode()
    rows = read(line + b'\n{"key": "a", "value": ""}\n' + line, Format.JSONL)
    assert bad_lines(rows) == [1, 3]
    assert isinstance(rows[1], Parsed)
    assert rows[1].line == 2


def test_tables_by_header() -> None:
    data = b'id,value,key,ttl_ms\n1,"two\nlines",a,\n2,v,b,50\n3,short\n4,v,,\n5,v,d,x\n6,v,e,\n'
    rows = read(data, Format.CSV)
    assert [row.put for row in rows if isinstance(row, Parsed)] == [
        Put(b"a", b"two\nlines"),
        Put(b"b", b"v", 50),
        Put(b"e", b"v"),
    ]
    assert bad_lines(rows) == [5, 6, 7]
    assert [row.line for row in rows] == [2, 4, 5, 6, 7, 8]


def test_tables_by_named_and_numbered_columns() -> None:
    named = read(b"name\tsize\ncaf\xe9\t5\n", Format.TSV, "name", "size")
    assert [row.put for row in named if isinstance(row, Parsed)] == [Put(b"caf\xe9", b"5")]
    numbered = read(b"x,1,2\ny,3,4\n", Format.CSV, "1", "3")
    assert [row.put for row in numbered if isinstance(row, Parsed)] == [
        Put(b"x", b"2"),
        Put(b"y", b"4"),
    ]


@pytest.mark.parametrize(
    ("data", "key", "value"),
    [
        (b"", None, None),
        (b"a,b\n1,2\n", None, None),
        (b"key,value\n", "name", None),
        (b"key,value\n", "0", "1"),
    ],
)
def test_a_table_without_its_columns_is_refused(
    data: bytes, key: str | None, value: str | None
) -> None:
    with pytest.raises(CommandError, match="column"):
        read(data, Format.CSV, key, value)


def test_stanzas_keep_their_bytes() -> None:
    first = b"Package: abc\nVersion: 1\nDescription: d\xc3\xa9\n more\n ."
    second = b"package:  x-y \nVersion: 2"
    bad = b"Version: 3\nPackages: no"
    data = b"\n\n" + first + b"\n\n\n" + bad + b"\n\n" + second
    rows = read(data, Format.DEBIAN)
    assert rows[0] == Parsed(3, Put(b"abc", first))
    assert bad_lines(rows) == [10]
    assert rows[2] == Parsed(13, Put(b"x-y", second))
    assert read(b"", Format.DEBIAN) == []
    items = [Item(b"abc", first, 1), Item(b"x-y", second, 2)]
    again = read(b"".join(_debian(item) for item in items), Format.DEBIAN)
    assert [row.put for row in again if isinstance(row, Parsed)] == [
        Put(item.key, item.value) for item in items
    ]


@pytest.mark.parametrize(
    "item",
    [
        Item(b"a", b"no stanza", 1),
        Item(b"a", b"Package: b", 1),
        Item(b"a", b"Package: a\n\nPackage: a", 1),
        Item(b"a", b"Package: a\n", 1),
    ],
)
def test_what_is_no_stanza_is_not_exported_as_one(item: Item) -> None:
    with pytest.raises(CommandError, match="no stanza"):
        _debian(item)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("a.jsonl", Format.JSONL),
        ("a.csv.gz", Format.CSV),
        ("dir/a.TSV", Format.TSV),
        ("Packages", Format.DEBIAN),
        ("Packages.xz", Format.DEBIAN),
        ("deb.debian.org_debian_dists_x_main_binary-amd64_Packages", Format.DEBIAN),
        ("a.txt", None),
        ("-", None),
    ],
)
def test_formats_are_guessed_from_names(name: str, layout: Format | None) -> None:
    assert format_of(name) is layout


@pytest.mark.parametrize("module", ["gzip", "lzma", "bz2"])
def test_compressed_files_are_known_by_their_bytes(module: str) -> None:
    compress = __import__(module).compress
    source = io.BufferedReader(io.BytesIO(compress(b"content")))  # type: ignore[arg-type]
    assert decompressed(source).read() == b"content"
    plain = io.BufferedReader(io.BytesIO(b"content"))  # type: ignore[arg-type]
    assert decompressed(plain).read() == b"content"


def test_base64_of_the_writers_is_strict() -> None:
    assert bad_lines(read(b"key_base64,value\nYQ=,v\n", Format.CSV)) == [2]
    assert base64.b64decode("YQ==") == b"a"
