"""Result codes, the facts of a failure, and the one place that raises."""

from __future__ import annotations

import errno

import pytest

from deodar.engine import errors

from . import probe_status as status

EXPECTED: dict[str, type[errors.EngineError]] = {
    "INVALID": errors.InvalidArgument,
    "CONDITION": errors.ConditionFailed,
    "DISK_FULL": errors.DiskFull,
    "OVER_LIMIT": errors.LimitExceeded,
    "QUEUE_FULL": errors.Overloaded,
    "READ_ONLY": errors.ReadOnly,
    "CORRUPT": errors.Corruption,
    "IO_ERROR": errors.IOFailure,
    "NO_MEMORY": errors.OutOfMemory,
    "FORMAT_VERSION": errors.FormatVersion,
    "LOCKED": errors.Locked,
    "CLOSED": errors.Closed,
    "LOG_TRIMMED": errors.LogTrimmed,
    "TIMEOUT": errors.TimedOut,
}


def test_answers_do_not_raise() -> None:
    assert status.CODES["OK"] == 1
    assert status.raised("OK") is None
    assert status.raised("NOT_FOUND") is None


def test_every_other_status_has_its_exception() -> None:
    assert set(status.CODES) == {"OK", "NOT_FOUND", *EXPECTED}
    assert sorted(status.CODES.values()) == list(range(1, 17))
    for name, kind in EXPECTED.items():
        with pytest.raises(kind) as raised:
            status.raised(name)
        assert type(raised.value) is kind


@pytest.mark.parametrize("unknown", [0, 17, -1])
def test_unknown_status_is_our_bug(unknown: int) -> None:
    with pytest.raises(AssertionError):
        status.raise_code(unknown)


def test_facts_arrive() -> None:
    with pytest.raises(errors.Corruption) as corrupt:
        status.raised("CORRUPT", file=b"data-000001.segment", offset=2**40, rule=b"R3")
    assert (corrupt.value.file, corrupt.value.offset, corrupt.value.rule) == (
        "data-000001.segment",
        2**40,
        "R3",
    )
    with pytest.raises(errors.IOFailure) as failed:
        status.raised("IO_ERROR", error_number=errno.EIO, file=b"log", rule=b"fdatasync")
    assert isinstance(failed.value, OSError)
    assert (failed.value.errno, failed.value.filename, failed.value.call) == (
        errno.EIO,
        "log",
        "fdatasync",
    )
    with pytest.raises(errors.FormatVersion) as version:
        status.raised("FORMAT_VERSION", file=b"store", format_version=7)
    assert (version.value.file, version.value.found) == ("store", 7)
    with pytest.raises(errors.InvalidArgument, match="depth: 1 to 9") as invalid:
        status.raised("INVALID", file=b"depth", rule=b"1 to 9")
    assert invalid.value.field == "depth"
    with pytest.raises(errors.ReadOnly, match=r"segment: an earlier sync failed: No space left"):
        status.raised(
            "READ_ONLY", file=b"segment", rule=b"an earlier sync failed", error_number=errno.ENOSPC
        )
    with pytest.raises(errors.DiskFull, match="segment: fallocate"):
        status.raised("DISK_FULL", file=b"segment", rule=b"fallocate")


def test_first_cause_is_kept() -> None:
    assert status.set_twice(b"first", b"second") == (b"first", b"first rule")


def test_long_facts_are_cut_not_overrun() -> None:
    assert status.set_twice(b"f" * 1000, b"")[0] == b"f" * 255
    with pytest.raises(errors.DiskFull) as raised:
        status.raised("DISK_FULL", rule=b"r" * 1000)
    assert str(raised.value) == "r" * 95


def test_facts_that_are_not_text_are_shown() -> None:
    with pytest.raises(errors.Corruption) as raised:
        status.raised("CORRUPT", file=b"\xff\xfe", rule=b"x")
    assert raised.value.file == "\ufffd\ufffd"
