"""Bytes on the command line, both ways."""

from __future__ import annotations

import base64
import binascii
import os
import sys
from enum import StrEnum

from .output import misused


class Encoding(StrEnum):
    """How bytes are written as text."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


def parse_bytes(name: str, text: str, encoding: Encoding) -> bytes:
    """Bytes from an argument; bytes that are not UTF-8 pass through as the shell gave them."""
    try:
        match encoding:
            case Encoding.UTF8:
                return os.fsencode(text)
            case Encoding.HEX:
                return bytes.fromhex(text)
            case Encoding.BASE64:
                return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise misused(f"{name} is not {encoding}: {error}") from error


def show_bytes(data: bytes, encoding: Encoding) -> str:
    """Bytes as one line of text.

    As UTF-8, what is not printable is escaped as in Python, and so are backslashes.
    """
    match encoding:
        case Encoding.HEX:
            return data.hex()
        case Encoding.BASE64:
            return base64.b64encode(data).decode()
        case Encoding.UTF8:
            text = data.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
            return "".join(
                char if char.isprintable() else char.encode("unicode_escape").decode()
                for char in text
            )


def write_value(data: bytes, *, raw: bool, encoding: Encoding | None) -> None:
    """A value on stdout: its very bytes when `raw` or when stdout is no terminal and nothing was
    asked for, else one line of text."""
    if raw or (encoding is None and not sys.stdout.isatty()):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        sys.stdout.write(show_bytes(data, encoding or Encoding.UTF8) + "\n")
        sys.stdout.flush()
