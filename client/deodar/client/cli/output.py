"""How commands speak: results on stdout, all else on stderr, JSON when asked for.

Exit codes: 0 done, 1 refused or failed, 2 misused.  Misused is what no cluster would ever take: an
option that does not exist, and a value outside its documented bounds, whether this command finds
that or the cluster does (INVALID_FIELD).  All else that did not work is 1.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from deodar.client.errors import BatchError, Error
from deodar.contract.reasons import Reason

EXIT_REFUSED: Final = 1
EXIT_MISUSED: Final = 2

_state = {"json": False}


class CommandError(Exception):
    """A command cannot do what was asked; the message is one line that says why."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "REFUSED",
        exit_code: int = EXIT_REFUSED,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.exit_code = exit_code
        self.metadata = metadata or {}


def misused(message: str) -> CommandError:
    return CommandError(message, reason="MISUSED", exit_code=EXIT_MISUSED)


def set_json(value: bool) -> bool:
    """Callback of ``--json``."""
    _state["json"] = value
    return value


def json_mode() -> bool:
    return _state["json"]


def stdout() -> Console:
    return Console(soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    return Console(stderr=True, soft_wrap=True)


def note(message: str) -> None:
    """A line for the person at the terminal; nothing in JSON mode."""
    if not json_mode():
        stderr().print(Text(message))


def print_json(document: object) -> None:
    """One document on one line."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_result(document: dict[str, Any], text: str) -> None:
    """A result: the document in JSON mode, else the text, if there is any."""
    if json_mode():
        print_json(document)
    elif text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def report(error: Exception) -> int:
    """Prints an expected error and returns the exit code."""
    if isinstance(error, CommandError):
        facts, exit_code = _facts(error.reason, error.message, error.metadata), error.exit_code
    elif isinstance(error, Error):
        metadata: dict[str, Any] = dict(error.metadata)
        if isinstance(error, BatchError):
            metadata["failed"] = len(error.failures)
        message = error.message
        if error.reason is Reason.NODE_UNREACHABLE and "node" not in metadata:
            message += ": is a router running there?"
        typed = error.reason is Reason.INVALID_FIELD
        exit_code = EXIT_MISUSED if typed else EXIT_REFUSED
        facts = _facts(error.reason.value, message, metadata)
    else:
        facts, exit_code = _facts("REFUSED", _plain(error), {}), EXIT_REFUSED
    if json_mode():
        print_json({"error": facts})
    else:
        line = Text("deodar: ", style="bold red")
        line.append(" ".join(str(facts["message"]).split()), style="not bold default")
        stderr().print(line)
    return exit_code


def json_bytes(name: str, data: bytes) -> dict[str, str]:
    """``name`` as text, or ``name_base64`` when it is not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _facts(reason: str, message: str, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"reason": reason, "message": message, "metadata": metadata}


def _plain(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__
