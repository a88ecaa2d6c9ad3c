"""The folder tree is the architecture: a lower floor never imports a higher one.

Reads import and cimport lines of every module; seen to fail with `node` importing `router`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Lowest first; a module may cimport from its own or a lower line.
ENGINE_FLOORS = [
    {"errors", "items", "limits", "atomics", "debug", "status", "threads", "hashing", "env"},
    {"env_reading", "ballast", "directory", "identity", "reservation", "reclaim", "space"},
    {"disk_queue", "record"},
    {"disk_aio", "disk_uring"},
    {"disk"},
    {"log", "epoch", "damage"},
    {"frames", "trieimage", "triespace", "leaf", "branch", "trie"},
    {"triecheck", "trieupdate", "triewalk"},
    {"checkpoint"},
    {"core", "stats"},
    {"index"},
    {"read", "scan", "write", "batch", "changes", "compaction", "recovery", "check"},
    {"maintenance"},
    {"lifecycle", "arguments", "many"},
    {"store"},
]

# Package -> packages of ours that it may import.
PACKAGES = {
    "v1": set(),
    "etcd": set(),
    "contract": {"v1"},
    "engine": set(),
    "registry": {"contract", "v1", "etcd", "engine"},
    "node": {"engine", "contract", "registry", "v1"},
    "router": {"contract", "registry", "v1"},
    "client": {"contract", "v1"},
}
FOLDERS = {
    "contract": "proto/deodar/contract",
    "engine": "engine/deodar/engine",
    "registry": "router/deodar/registry",
    "node": "node/deodar/node",
    "router": "router/deodar/router",
    "client": "client/deodar/client",
}
# The command line may look into a directory on disk; nothing else of the client may.
EXCEPTIONS = {("client/deodar/client/cli", "engine")}

CIMPORT = re.compile(r"^\s*from\s+\.(\w+)\s+cimport\b|^\s*from\s+\.(\w+)\s+import\b", re.MULTILINE)
PACKAGE_IMPORT = re.compile(r"^\s*(?:from|import)\s+deodar\.(\w+)", re.MULTILINE)


def floor_of(module: str) -> int:
    for number, floor in enumerate(ENGINE_FLOORS):
        if module in floor:
            return number
    raise AssertionError(f"engine module {module!r} stands on no floor: add it to ENGINE_FLOORS")


def engine_sources() -> list[Path]:
    folder = ROOT / FOLDERS["engine"]
    return sorted([*folder.glob("*.pyx"), *folder.glob("*.pxd")])


@pytest.mark.parametrize("source", engine_sources(), ids=lambda path: path.name)
def test_engine_floor_imports_only_downwards(source: Path) -> None:
    floor = floor_of(source.stem)
    for match in CIMPORT.finditer(source.read_text()):
        target = match.group(1) or match.group(2)
        assert floor_of(target) <= floor, f"{source.name} imports {target}, which stands above it"


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_package_imports_only_what_it_may(package: str) -> None:
    for source in sorted((ROOT / FOLDERS[package]).rglob("*.py")):
        relative = str(source.parent.relative_to(ROOT))
        for match in PACKAGE_IMPORT.finditer(source.read_text()):
            target = match.group(1)
            if target == package or target not in PACKAGES:
                continue
            allowed = target in PACKAGES[package] or (relative, target) in EXCEPTIONS
            assert allowed, f"{source.relative_to(ROOT)} imports deodar.{target}"
