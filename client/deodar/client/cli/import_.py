"""deodar import"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, BinaryIO, Final

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from deodar.contract.keypath import path_of
from deodar.contract.limits import DEFAULT_ENDPOINT, DEFAULT_TABLE

from .formats import DAMAGED, Format, decompressed, format_of
from .loader import GaveUp, Loader
from .options import Durability, Endpoint, Json, Table, connect, durability_of
from .output import (
    EXIT_REFUSED,
    CommandError,
    json_mode,
    misused,
    note,
    print_json,
    stderr,
)
from .readers import Bad, read_records

# Bad lines that are told of one by one; the rest is counted.
BAD_SHOWN: Final = 20
PROGRESS_RECORDS: Final = 200


class OnError(StrEnum):
    """What a line without a record does."""

    SKIP = "skip"
    STOP = "stop"


def import_(
    file: Annotated[str, typer.Argument(help="File to read, also .gz, .xz or .bz2; - is stdin.")],
    layout: Annotated[
        Format | None, typer.Option("--format", help="Default: by the file's name.")
    ] = None,
    key_column: Annotated[
        str | None, typer.Option(help="CSV, TSV: name of the column, or its number from 1.")
    ] = None,
    value_column: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    on_error: Annotated[
        OnError, typer.Option(help="Pass over bad lines, or stop at the first.")
    ] = OnError.SKIP,
    durability: Durability = None,
    table: Table = DEFAULT_TABLE,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds for which what cannot be written is tried.")
    ] = 60.0,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    json: Json = False,  # noqa: ARG001 - read by its callback
) -> None:
    """Write the records of FILE.

    jsonl: {"key": ..., "value": ...} a line, or "key_base64", "value_base64"; "ttl_ms" if any.
    csv, tsv: the first row names the columns "key" and "value" (or with _base64) and "ttl_ms";
    with both columns given as numbers there is no such row.
    debian: a Packages file; a package's name and its stanza's bytes, the last one of a name wins.

    Bad lines are told of by number.  Exits with 1 when there were any, or when the import could not
    go on; however it ends, it tells how many records were written, refused, and in doubt: written
    or not.  Repeating an import is safe.
    """
    chosen = layout or format_of(file)
    if chosen is None:
        raise misused(f"the name {file!r} tells no format: give --format")
    report = _Report(stop=on_error is OnError.STOP, by_name=chosen is Format.DEBIAN)
    with (
        _opened(file) as (source, size),
        connect(endpoint, timeout) as client,
        Loader(client, table, durability_of(durability), report.refuse, timeout) as loader,
        _progress(file, size) as progress,
    ):
        task = progress.add_task("import", total=size, note="0")
        try:
            for row in read_records(decompressed(source), chosen, key_column, value_column):
                report.lines += 1
                if isinstance(row, Bad):
                    report.refuse(row)
                else:
                    report.meet(row.put.key)
                    loader.add(row)
                if report.lines % PROGRESS_RECORDS == 0:
                    progress.update(task, completed=_position(source), note=f"{report.lines:,}")
            loader.finish()
        except _Stopped as stopped:
            _settle(loader)
            raise report.failure(f"line {stopped.bad.line}: {stopped.bad.why}", loader) from stopped
        except DAMAGED as error:
            _settle(loader)
            raise report.failure(f"{file} is damaged: {error}", loader) from error
        except GaveUp as error:
            loader.give_up()
            reason = error.error.reason.value
            raise report.failure(str(error), loader, reason=reason) from error
    report.print(loader)
    if report.bad_count:
        raise typer.Exit(EXIT_REFUSED)


def _settle(loader: Loader) -> None:
    """Writes what was read before the import stopped, as far as that is possible."""
    try:
        loader.finish()
    except GaveUp:
        loader.give_up()


class _Stopped(Exception):  # noqa: N818
    """A bad line, and it was asked to stop."""

    def __init__(self, bad: Bad) -> None:
        super().__init__(bad.why)
        self.bad = bad


class _Report:
    """What was met in the file."""

    def __init__(self, *, stop: bool, by_name: bool) -> None:
        self.lines = 0  # records and bad lines
        self.bad_count = 0
        self.replaced = 0  # records whose key came before in the file; counted where it is usual
        self._stop = stop
        self._stopping = False
        self._bad: list[Bad] = []
        self._seen: set[int] | None = set() if by_name else None
        self._begun = time.monotonic()

    def meet(self, key: bytes) -> None:
        if self._seen is not None:
            path = path_of(key)
            self.replaced += path in self._seen
            self._seen.add(path)

    def refuse(self, bad: Bad) -> None:
        """Notes a bad line; raises _Stopped at the first when asked to stop."""
        self.bad_count += 1
        if len(self._bad) < BAD_SHOWN:
            self._bad.append(bad)
            note(f"line {bad.line}: {bad.why}")
        if self._stop and not self._stopping:
            self._stopping = True
            raise _Stopped(bad)

    def document(self, loader: Loader) -> dict[str, Any]:
        return {
            "records": self.lines,
            "written": loader.written,
            "refused": self.bad_count,
            "unknown": loader.unknown,
            "replaced": self.replaced,
            "seconds": round(time.monotonic() - self._begun, 3),
            "bad": [{"line": bad.line, "message": bad.why} for bad in self._bad],
        }

    def failure(self, why: str, loader: Loader, *, reason: str = "REFUSED") -> CommandError:
        """Why the import stopped, and how far it had come."""
        counts = (
            f"stopped, {loader.written:,} records written, {self.bad_count:,} refused, "
            f"{loader.unknown:,} in doubt"
        )
        return CommandError(f"{why} ({counts})", reason=reason, metadata=self.document(loader))

    def print(self, loader: Loader) -> None:
        facts, written = self.document(loader), loader.written
        if json_mode():
            print_json(facts)
            return
        if self.bad_count > len(self._bad):
            note(f"... and {self.bad_count - len(self._bad)} more bad lines")
        rate = written / facts["seconds"] if facts["seconds"] else 0.0
        note(
            f"{written:,} records written in {facts['seconds']:.1f} s ({rate:,.0f}/s), "
            f"{self.bad_count:,} refused"
        )
        if self.replaced:
            note(f"{self.replaced:,} of them replaced an earlier one of the same name")


@contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file and its size in bytes, None when that is not known."""
    if file == "-":
        yield sys.stdin.buffer, None
        return
    with open(file, "rb") as source:
        size = os.fstat(source.fileno()).st_size
        yield source, size or None


def _position(source: BinaryIO) -> int | None:
    return source.tell() if source.seekable() else None


@contextmanager
def _progress(file: str, size: int | None) -> Iterator[Progress]:
    columns = [TextColumn(file), BarColumn()]
    if size is not None:
        columns += [DownloadColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("{task.fields[note]} records"))
    console = stderr()
    disabled = json_mode() or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disabled) as progress:
        yield progress
