"""Servers as processes of their own, with their logs in files."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .output import CommandError

STOP_S: Final = 30.0
LOG_LINES: Final = 5
ATTACHED: Final = "deodar.client.cli.attached"


class Server:
    """A node or a router: ``python -m module arguments``, in a session of its own.

    So a Ctrl-C at the terminal reaches the command alone, which then ends its servers in order.
    An `attached` one stops by itself when the command is gone without having done so.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        log: Path,
        *,
        attached: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self._attached = attached
        modules = [ATTACHED, module] if attached else [module]
        self._command = [sys.executable, "-m", *modules, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # bytes: where this process's part of the log begins

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._running().poll()

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if self._attached else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Asks it to stop; see `wait`."""
        if self.exit_code is None:
            self._running().send_signal(signal.SIGTERM)

    def wait(self, deadline: float) -> bool:
        """Waits until it has ended, kills it at the deadline (monotonic); whether it ended well."""
        process = self._running()
        try:
            return process.wait(max(deadline - time.monotonic(), 0.1)) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False

    def failure(self) -> CommandError:
        """For a server that has ended by itself."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        said = lines[-1] if lines else "it said nothing"
        return CommandError(
            f"{self.name} ended with exit code {self.exit_code}: {said} (log: {self.log})",
            metadata={"log": str(self.log), "last_lines": lines},
        )

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process


def check_port_free(host: str, port: int) -> None:
    """Raises CommandError when something listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CommandError(
                f"port {port} cannot be used: {error.strerror}",
                reason="PORT_IN_USE",
                metadata={"port": port},
            ) from error
