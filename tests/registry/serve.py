"""An embedded registry in a process of its own, to be killed: ``serve.py DIRECTORY PORT``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from deodar.registry.embedded import EmbeddedRegistry
from tests.registry.conftest import served


async def main(directory: Path, port: int) -> None:
    registry = await EmbeddedRegistry.open(directory)
    async with served(registry, port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
