"""Build steps that setuptools cannot express in pyproject.toml.

Two products are made from sources at build time: the protobuf modules of ``deodar.v1`` and the
Cython extensions of ``deodar.engine``.  ``DEODAR_DEBUG=1`` builds the extensions with the
engine's assertions and Cython's bounds checks on; ``DEODAR_PROBE=1`` also builds the test
probes of ``tests/engine``, which no wheel holds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).resolve().parent
PROTO_ROOT = ROOT / "proto"
ENGINE = Path("engine/deodar/engine")
PROBES = Path("tests/engine")
DEBUG = os.environ.get("DEODAR_DEBUG") == "1"
PROBE = os.environ.get("DEODAR_PROBE") == "1"


def compile_protos() -> None:
    """Generate ``*_pb2.py``, ``*_pb2_grpc.py`` and their stubs beside the ``.proto`` files."""
    from importlib.resources import files

    from grpc_tools import protoc

    sources = sorted(str(p.relative_to(PROTO_ROOT)) for p in PROTO_ROOT.rglob("*.proto"))
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ["PATH"] = scripts
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTO_ROOT}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={PROTO_ROOT}",
            f"--grpc_python_out={PROTO_ROOT}",
            f"--mypy_out={PROTO_ROOT}",
            f"--mypy_grpc_out={PROTO_ROOT}",
            *sources,
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


class BuildPy(build_py):
    def run(self) -> None:
        compile_protos()
        super().run()


class EditableWheel(editable_wheel):
    def run(self) -> None:
        compile_protos()
        super().run()


def engine_extensions() -> list[Extension]:
    flags = ["-O3", "-g1", "-Wall", "-Wno-unused-function", "-Wno-unreachable-code", "-pthread"]
    macros: list[tuple[str, str | None]] = []
    if DEBUG:
        flags = ["-O1", "-g", "-pthread"]
        macros.append(("DEODAR_DEBUG", "1"))
    sources = [(f"deodar.engine.{path.stem}", path) for path in sorted(ENGINE.glob("*.pyx"))]
    if PROBE:
        sources += [(f"tests.engine.{path.stem}", path) for path in sorted(PROBES.glob("*.pyx"))]
    return [
        Extension(
            name,
            [str(path)],
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
            define_macros=macros,
        )
        for name, path in sources
    ]


setup(
    ext_modules=cythonize(
        engine_extensions(),
        language_level=3,
        include_path=["engine"],
        build_dir="build/cython",
        nthreads=os.cpu_count() or 1,
        compiler_directives={
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "freethreading_compatible": False,
        },
    ),
    cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel},
)
