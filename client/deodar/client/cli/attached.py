"""Runs a server that ends with the process that started it.

``python -m deodar.client.cli.attached MODULE ARGUMENTS...`` runs it as ``python -m MODULE`` does.
Its stdin is a pipe that the starter holds and never writes to: when the starter is gone, however it
ended, the pipe closes and the server gets the SIGTERM that it would have had from it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

_STDIN = 0


def _follow_starter() -> None:
    while os.read(_STDIN, 1):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    module = sys.argv.pop(1)
    threading.Thread(target=_follow_starter, name="starter", daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
