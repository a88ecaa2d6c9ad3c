"""Builds the probes, `def` wrappers over the engine's C functions, before the tests import them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build_probes() -> None:
    """Bring the extensions and the probes up to date; quick when they are."""
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=ROOT,
        env=os.environ | {"DEODAR_PROBE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.exit(f"the probes do not build:\n{done.stdout}{done.stderr}", returncode=3)


# A worker of pytest-xdist finds what the main process has built.
if "PYTEST_XDIST_WORKER" not in os.environ:
    build_probes()
