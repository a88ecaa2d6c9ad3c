"""deodar check"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .options import Json
from .output import EXIT_REFUSED, CommandError, print_json, stderr, stdout

# Files that tell what a directory is.
NODE_FILE: Final = "node.json"
STORE_FILE: Final = "STORE"
SHARDS: Final = "shards"


def check(
    data_dir: Annotated[
        Path, typer.Argument(help="A node's data directory, one above several, or a store's.")
    ],
    json: Json = False,
) -> None:
    """Check every checksum and invariant of the stores in DATA_DIR, without changing a byte.

    A store that a running node holds is "in use" and is not checked: stop the node first.  Exits
    with 1 when anything is wrong with a store that was checked.
    """
    # Not at the top: no other command needs the engine.
    from deodar.engine import EngineError, Locked, check_directory

    stores = _stores(data_dir)
    found: list[dict[str, Any]] = []
    for store in stores:
        in_use = False
        problems: list[str] = []
        try:
            problems = check_directory(store)
        except Locked:
            in_use = True
        except (EngineError, OSError) as error:
            problems = [str(error)]
        found.append({"store": str(store), "in_use": in_use, "problems": problems})
        if not json:
            _print(store, problems, in_use=in_use)
    broken = sum(bool(entry["problems"]) for entry in found)
    unchecked = sum(entry["in_use"] for entry in found)
    if json:
        print_json({"stores": found, "broken": broken, "in_use": unchecked})
    else:
        said = f"{len(stores) - unchecked} stores checked, {broken} with problems"
        stdout().print(said + (f", {unchecked} in use and NOT checked" if unchecked else ""))
    if broken:
        raise typer.Exit(EXIT_REFUSED)


def _stores(directory: Path) -> list[Path]:
    """The stores at, in or one floor below a directory; raises CommandError when it is neither."""
    if not directory.is_dir():
        raise CommandError(f"{directory} is no directory")
    if (directory / STORE_FILE).exists():
        return [directory]
    nodes = [directory] if (directory / NODE_FILE).exists() else []
    nodes += [path.parent for path in sorted(directory.glob(f"*/{NODE_FILE}"))]
    if not nodes:
        raise CommandError(f"{directory} holds neither a node's data nor a store")
    return [
        store for node in nodes for store in sorted((node / SHARDS).glob("*")) if store.is_dir()
    ]


def _print(store: Path, problems: list[str], *, in_use: bool) -> None:
    if in_use:
        stderr().print(f"{store}: in use, not checked", style="yellow", markup=False)
    for problem in problems:
        stderr().print(f"{store}: {problem}", style="red", markup=False)
