"""Builds the probes, `def` wrappers over the engine's C functions, before the tests import them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


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


# Here and not in tests/engine: the main process of pytest-xdist loads this file alone, and its
# workers find what it has built.
if "PYTEST_XDIST_WORKER" not in os.environ:
    build_probes()
