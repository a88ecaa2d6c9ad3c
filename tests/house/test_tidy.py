"""Rules a reader relies on, kept by a test instead of by memory."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_SUFFIXES = {".py", ".pyi", ".pyx", ".pxd", ".proto"}
LINES_MAX = 800
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
PRAGMA = re.compile(r"\s+# (noqa|type: ignore)\b.*$")


@cache
def tracked(*suffixes: str) -> list[Path]:
    """Files of the working tree that git knows or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / line for line in listing.stdout.splitlines()]
    return [path for path in paths if path.suffix in suffixes and path.exists()]


def sources() -> list[Path]:
    found = tracked(*sorted(SOURCE_SUFFIXES))
    assert found, "no sources found: run from a git checkout"
    return found


def test_nothing_is_left_to_do() -> None:
    marker = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
    for path in sources():
        match = marker.search(path.read_text())
        assert match is None, f"{path.relative_to(ROOT)}: {match.group(0) if match else ''}"


def test_lines_and_files_are_short() -> None:
    for path in sources():
        lines = path.read_text().splitlines()
        assert len(lines) <= LINES_MAX, f"{path.relative_to(ROOT)} has {len(lines)} lines"
        for number, line in enumerate(lines, 1):
            code = PRAGMA.sub("", line)  # may stand behind a full line, as for ruff
            assert len(code) <= COLUMNS_MAX, f"{path.relative_to(ROOT)}:{number} is too long"


@pytest.mark.parametrize("top", ["client", "node", "router", "proto", "bench"])
def test_functions_are_short(top: str) -> None:
    for path in tracked(".py"):
        if path.relative_to(ROOT).parts[0] != top:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                assert length <= FUNCTION_LINES_MAX, (
                    f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines"
                )


def test_nothing_is_swallowed() -> None:
    """No handler that catches everything and does nothing with it."""
    for path in tracked(".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            bare = node.type is None
            broad = isinstance(node.type, ast.Name) and node.type.id == "BaseException"
            silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            assert not bare, f"{where}: bare except"
            broad_silent = broad or (
                isinstance(node.type, ast.Name) and node.type.id == "Exception"
            )
            assert not (silent and broad_silent), f"{where}: swallows every error"


def test_tests_mirror_the_tree() -> None:
    """A test file of a package is named after a module that exists there."""
    for package, folder in {
        "engine": "engine/deodar/engine",
        "node": "node/deodar/node",
        "registry": "router/deodar/registry",
    }.items():
        modules = {path.stem for path in (ROOT / folder).iterdir()}
        for test in (ROOT / "tests" / package).glob("test_*.py"):
            subject = test.stem.removeprefix("test_")
            assert any(subject == name or subject.startswith(name + "_") for name in modules), (
                f"{test.relative_to(ROOT)} is named after no module of {folder}"
            )
