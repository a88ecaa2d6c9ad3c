"""``python -m bench COMMAND``."""

from __future__ import annotations

import typer

from bench import engine

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)


@app.callback()
def bench() -> None:
    """Measure Deodar beside its peers on this machine."""


app.command("engine")(engine.main)

if __name__ == "__main__":
    app()
