"""Real processes for tests: started on free ports, logged to files, always ended."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Below the range that the kernel takes outgoing ports from, so that a port found free stays free.
PORTS = range(20_000, 32_000)
LOG_LINES_SHOWN = 40
POLL_S = 0.05

# Ends the process with the thread that started it, however the test run ends; then becomes the
# command.  PR_SET_PDEATHSIG is 1.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""

_ports_given: set[int] = set()


def free_port() -> int:
    """A TCP port of the loopback that nothing listens on and that was not given before."""
    for port in random.sample(PORTS, len(PORTS)):
        if port in _ports_given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _ports_given.add(port)
        return port
    raise RuntimeError(f"no free port between {PORTS.start} and {PORTS.stop}")


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Polls `condition`; raises TimeoutError naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(POLL_S)


class Process:
    """One program: its command, its log and, while it runs, its pid.

    Start it from a thread that outlives it: the kernel kills it when that thread ends.
    """

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        self.command = list(command)
        self.log = directory / f"{name}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._wanted = False  # started, and not ended by us

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, environment: dict[str, str] | None = None) -> None:
        assert not self.alive, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | (environment or {}),
            )
        self._wanted = True

    def stop(self, timeout_s: float = 20.0) -> int:
        """Asks it to end (SIGTERM) and returns its exit code; raises TimeoutExpired."""
        child = self._running()
        self._wanted = False
        child.send_signal(signal.SIGTERM)
        return child.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL: no chance to write or say anything."""
        child = self._running()
        self._wanted = False
        child.kill()
        child.wait()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int:
        """Exit code of a process that ends by itself; raises TimeoutExpired."""
        self._wanted = False
        return self._running().wait(timeout_s)

    def close(self) -> None:
        """Ends it if it runs, whatever its state.  Idempotent."""
        if self.alive:
            self.kill()

    def log_tail(self, lines: int = LOG_LINES_SHOWN) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"--- {self.name}\n" + "\n".join(text.splitlines()[-lines:])

    def check_alive(self) -> None:
        """Raises RuntimeError with the end of its log when it has ended by itself."""
        if self._wanted and not self.alive:
            code = self._running().returncode
            raise RuntimeError(f"{self.name} has ended (exit code {code})\n{self.log_tail()}")

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, f"{self.name} was not started"
        return self._child
