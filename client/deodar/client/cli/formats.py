"""The file formats of import and export, and how a file's format is guessed."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from enum import StrEnum
from pathlib import PurePath
from typing import Any, BinaryIO, Final, NamedTuple, cast


class Format(StrEnum):
    """How records are laid out."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    DEBIAN = "debian"


_SUFFIXES: Final = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".tab": Format.TSV,
}
DELIMITERS: Final = {Format.CSV: ",", Format.TSV: "\t"}


class Compression(NamedTuple):
    suffix: str
    magic: bytes
    open: Callable[..., Any]


COMPRESSIONS: Final = (
    Compression(".gz", b"\x1f\x8b", gzip.open),
    Compression(".xz", b"\xfd7zXZ\0", lzma.open),
    Compression(".bz2", b"BZh", bz2.open),
)


def compression_of(name: str) -> Compression | None:
    """By the name's last suffix."""
    suffix = PurePath(name).suffix
    return next((known for known in COMPRESSIONS if known.suffix == suffix), None)


def format_of(name: str) -> Format | None:
    """By the file's name, a suffix of compression left aside; None when it does not tell."""
    path = PurePath(name)
    if compression_of(name) is not None:
        path = path.with_suffix("")
    known = _SUFFIXES.get(path.suffix.lower())
    if known is None and (path.stem == "Packages" or path.name.endswith("_Packages")):
        return Format.DEBIAN
    return known


def decompressed(source: BinaryIO) -> BinaryIO:
    """The content, by its first bytes; `source` must be buffered (``peek``)."""
    head = cast(Any, source).peek(8)
    for known in COMPRESSIONS:
        if head.startswith(known.magic):
            return cast(BinaryIO, known.open(source, "rb"))
    return source


# What reading a damaged compressed file raises, besides OSError.
DAMAGED: Final = (EOFError, lzma.LZMAError)
