"""Exceptions of the engine.

Each exists because a caller can act on it.  Facts are attributes, never only message text.
"""

from __future__ import annotations

import errno
import os


class EngineError(Exception):
    """Base of all errors of `deodar.engine`; nothing was changed."""


class InvalidArgument(EngineError, ValueError):  # noqa: N818
    """An argument is outside its documented bounds; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ConditionFailed(EngineError):  # noqa: N818
    """`if_version` or `if_absent` did not hold.

    `current_version` is the version of the live record, None when there is none; `index` is the
    operation's place in its batch.
    """

    def __init__(self, current_version: int | None, index: int = 0) -> None:
        state = "absent" if current_version is None else f"at version {current_version}"
        super().__init__(f"condition of operation {index} failed: the key is {state}")
        self.current_version = current_version
        self.index = index


class NotANumber(EngineError):  # noqa: N818
    """`increment` of a value that is not a signed 64-bit decimal number."""


class OutOfRange(EngineError):  # noqa: N818
    """`increment` past the signed 64-bit range."""


class DiskFull(EngineError):  # noqa: N818
    """No space for the write; reads go on, and writes resume when there is space."""


class LimitExceeded(EngineError):  # noqa: N818
    """A documented bound of the engine, or of open files, was reached."""


class Overloaded(EngineError):  # noqa: N818
    """The write buffer stayed full for `stall_ms`: the disk does not keep up."""


class ReadOnly(EngineError):  # noqa: N818
    """A write or fsync failed earlier; reopen the store to go on from what is durable."""


class Corruption(EngineError):  # noqa: N818
    """Bytes on disk broke a rule of the format."""

    def __init__(self, file: str, offset: int, rule: str) -> None:
        super().__init__(f"{file} at byte {offset}: {rule}")
        self.file = file
        self.offset = offset
        self.rule = rule


class FormatVersion(EngineError):  # noqa: N818
    """The store was written by another format version."""

    def __init__(self, file: str, found: int) -> None:
        super().__init__(f"{file} has format version {found}, this program reads version 1")
        self.file = file
        self.found = found


class IOFailure(EngineError, OSError):  # noqa: N818
    """A system call failed; `errno` and `filename` say which."""

    def __init__(self, error_number: int, file: str, call: str) -> None:
        OSError.__init__(self, error_number, f"{call}: {os.strerror(error_number)}", file)
        self.call = call


class OutOfMemory(EngineError, MemoryError):  # noqa: N818
    """Memory or addresses are used up."""


class Locked(EngineError):  # noqa: N818
    """The directory is open in another Store or process."""


class NotAStore(EngineError):  # noqa: N818
    """The directory holds no store."""


class Closed(EngineError):  # noqa: N818
    """The store was closed."""


class LogTrimmed(EngineError):  # noqa: N818
    """The log no longer reaches back to the version asked for."""


class TimedOut(EngineError, TimeoutError):  # noqa: N818
    """The time given ran out; the write stays in its epoch."""


def from_status(
    status: int,
    *,
    file: str,
    rule: str,
    offset: int,
    error_number: int,
    format_version: int,
) -> EngineError:
    """The exception of a Status of `status.pxd` (same numbers), with its facts."""
    detail = rule or "no detail"
    match status:
        case 3:
            return InvalidArgument(file or "argument", detail)
        case 4:
            return ConditionFailed(None)
        case 5:
            return DiskFull(f"{file}: {detail}" if file else detail)
        case 6:
            return LimitExceeded(detail)
        case 7:
            return Overloaded(detail)
        case 8:
            cause = os.strerror(error_number) if error_number else detail
            return ReadOnly(f"{file or 'store'}: {detail}: {cause}")
        case 9:
            return Corruption(file, offset, detail)
        case 10:
            return IOFailure(error_number or errno.EIO, file, detail)
        case 11:
            return OutOfMemory(detail)
        case 12:
            return FormatVersion(file, format_version)
        case 13:
            return Locked(detail)
        case 14:
            return Closed(detail)
        case 15:
            return LogTrimmed(detail)
        case 16:
            return TimedOut(detail)
        case _:
            raise AssertionError(f"status {status} has no exception")
