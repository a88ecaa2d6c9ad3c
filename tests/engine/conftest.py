"""Builds the probes, `def` wrappers over the engine's C functions, before the tests import them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build_probes() -> None:
    """Bring the extensions and the probes up to date; quick when they are."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=ROOT,
        env=os.environ | {"DEODAR_PROBE": "1"},
        check=True,
        capture_output=True,
    )


# A worker of pytest-xdist finds what the main process has built.
if "PYTEST_XDIST_WORKER" not in os.environ:
    build_probes()
