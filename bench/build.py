"""Builds the drivers from their Cython sources into ``build/bench``, when they are out of date.

A driver whose C headers are not installed is left out and named; the others build without it.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "bench" / "drivers"
BUILD: Final = ROOT / "build" / "bench"
DRIVERS_BUILT: Final = BUILD / "bench" / "drivers"

FLAGS: Final = ["-O3", "-g1", "-Wall", "-Wno-unused-function", "-Wno-unreachable-code", "-pthread"]


@dataclass(frozen=True, slots=True)
class DriverSource:
    """A driver and what it needs beyond a C compiler."""

    name: str
    header: str | None = None
    library: str | None = None
    package: str | None = None  # the Debian package that has header and library


SHARED: Final = (DriverSource("streams"), DriverSource("driver"))
SYSTEMS: Final = {
    source.name: source
    for source in (
        DriverSource("deodar"),
        DriverSource("lmdb", "lmdb.h", "lmdb", "liblmdb-dev"),
        DriverSource("leveldb", "leveldb/c.h", "leveldb", "libleveldb-dev"),
        DriverSource("rocksdb", "rocksdb/c.h", "rocksdb", "librocksdb-dev"),
        DriverSource("bare_hash"),
    )
}


def has_header(header: str) -> bool:
    """Whether the C compiler finds `header`."""
    finished = subprocess.run(
        [os.environ.get("CC", "cc"), "-E", "-x", "c", "-"],
        input=f"#include <{header}>\n",
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode == 0


def missing_for(source: DriverSource) -> str | None:
    """What has to be installed for `source`, None when nothing is missing."""
    if source.header is None or has_header(source.header):
        return None
    return f"<{source.header}> is not installed (Debian: {source.package})"


def build_drivers(names: list[str]) -> dict[str, str]:
    """Build the drivers `names` and what they share; returns those left out, with the reason."""
    missing: dict[str, str] = {}
    sources = list(SHARED)
    for name in names:
        reason = missing_for(SYSTEMS[name])
        if reason is None:
            sources.append(SYSTEMS[name])
        else:
            missing[name] = reason
    compile_sources(sources)
    return missing


def compile_sources(sources: list[DriverSource]) -> None:
    """Translate and compile what is older than its sources."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension  # type: ignore[import-untyped]
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    extensions = [
        Extension(
            f"bench.drivers.{source.name}",
            [str((SOURCES / source.name).with_suffix(".pyx").relative_to(ROOT))],
            libraries=[source.library] if source.library else [],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
        )
        for source in sources
    ]
    previous = Path.cwd()
    os.chdir(ROOT)
    try:
        translated = cythonize(  # type: ignore[no-untyped-call]
            extensions,
            language_level=3,
            include_path=[".", "engine"],
            build_dir=str(BUILD / "cython"),
            quiet=True,
            compiler_directives={
                "boundscheck": False,
                "wraparound": False,
                "cdivision": True,
                "initializedcheck": False,
            },
        )
        command = build_ext(Distribution({"name": "bench", "ext_modules": translated}))
        command.build_lib = str(BUILD)
        command.build_temp = str(BUILD / "temp")
        command.verbose = 0
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(previous)
