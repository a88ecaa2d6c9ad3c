"""The `deodar` command: its list of commands, and what becomes of their errors."""

from __future__ import annotations

import sys
from typing import Annotated, Final, NoReturn

import typer

import deodar

from .bench import bench
from .check import check
from .cluster_add import add
from .cluster_drain import drain
from .cluster_move import move
from .cluster_status import status
from .delete import delete
from .dev import dev
from .export import export
from .get import get
from .import_ import import_
from .incr import incr
from .output import CommandError, report
from .put import put
from .scan import scan
from .servers import node, router
from .watch import watch

# A dash before a number is a sign, not an option.
_NUMBERS: Final = {"ignore_unknown_options": True}
# What follows is for the server, --help as well.
_ALL_PASSES: Final = {"ignore_unknown_options": True, "allow_extra_args": True}

app = typer.Typer(
    name="deodar",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A distributed, sharded, persistent key-value service.  Exit codes: 0 done, 1 refused "
    "or failed, 2 misused: an unknown option, or a value outside its documented bounds.",
)
cluster = typer.Typer(no_args_is_help=True, help="Look at a cluster and change its shape.")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"deodar {deodar.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Options of no command."""


app.command()(dev)
app.command(context_settings=_ALL_PASSES, add_help_option=False)(node)
app.command(context_settings=_ALL_PASSES, add_help_option=False)(router)
app.command()(get)
app.command()(put)
app.command("del")(delete)
app.command(context_settings=_NUMBERS)(incr)
app.command()(scan)
app.command()(watch)
app.command("import")(import_)
app.command()(export)
app.command()(bench)
app.command()(check)
cluster.command()(status)
cluster.command()(add)
cluster.command()(drain)
cluster.command()(move)
app.add_typer(cluster, name="cluster")


def run() -> NoReturn:
    """Entry point; exits with 0, 1 or 2."""
    try:
        app(prog_name="deodar")
    except (CommandError, deodar.Error, OSError) as error:
        sys.exit(report(error))
    sys.exit(0)
