"""deodar node, deodar router: the servers themselves, in place of this process."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer


def node(context: typer.Context) -> None:
    """Run one storage node.  All options are the node's own; see deodar node --help."""
    _become("deodar.node", context.args)


def router(context: typer.Context) -> None:
    """Run one router.  All options are the router's own; see deodar router --help."""
    _become("deodar.router", context.args)


def _become(module: str, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
