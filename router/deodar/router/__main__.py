"""``python -m deodar.router``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from pydantic import ValidationError

from deodar.registry.interface import RegistryError

from .config import RouterConfig
from .logs import configure_logs
from .main import CannotListen, run

REFUSED = 1
MISUSED = 2

_log = structlog.get_logger("deodar.router")


def main(
    listen: Annotated[
        str | None, typer.Option(help="host:port to listen on; port 0 picks a free one.")
    ] = None,
    registry: Annotated[str | None, typer.Option(help="etcd://host:port[,host:port...]")] = None,
    registry_ca_file: Annotated[
        Path | None, typer.Option(help="Certificate authority of the registry: turns TLS on.")
    ] = None,
    registry_cert_file: Annotated[
        Path | None, typer.Option(help="Our certificate for the registry.")
    ] = None,
    registry_key_file: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    registry_user: Annotated[
        str | None,
        typer.Option(help="Password: DEODAR_ROUTER_REGISTRY_PASSWORD in the environment."),
    ] = None,
    embedded_registry: Annotated[
        Path | None, typer.Option(help="Directory of an embedded registry, for one machine.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster.")] = None,
    shard_bits: Annotated[
        int | None, typer.Option(help="The first shards are the prefixes of so many bits.")
    ] = None,
    bootstrap_nodes: Annotated[
        int | None, typer.Option(help="Live nodes to wait for before the first shards.")
    ] = None,
    stop_grace_s: Annotated[
        float | None, typer.Option(help="Seconds for calls in flight at the end.")
    ] = None,
    registry_start_timeout_s: Annotated[
        float | None, typer.Option(help="Seconds to wait for the registry at the start.")
    ] = None,
) -> None:
    """Run a router.  What is not given comes from DEODAR_ROUTER_* in the environment."""
    given: dict[str, Any] = {name: value for name, value in locals().items() if value is not None}
    configure_logs()
    try:
        config = RouterConfig(**given)
    except ValidationError as error:
        for problem in error.errors():
            field = ".".join(str(part) for part in problem["loc"])
            _log.error("bad setting", setting=field, problem=problem["msg"])
        sys.exit(MISUSED)
    try:
        asyncio.run(run(config))
    except (CannotListen, RegistryError, OSError) as error:
        _log.error("cannot start", problem=str(error))
        sys.exit(REFUSED)


if __name__ == "__main__":
    typer.run(main)
