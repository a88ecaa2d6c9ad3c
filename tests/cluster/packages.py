"""A large real input: the machine's own package lists, or the like of them where there are none."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

STANZAS_MIN = 10_000


def stanzas_of(packages: bytes) -> dict[bytes, bytes]:
    """Package name -> its last stanza, bytes as they stand, without the blank line behind it."""
    stanzas: dict[bytes, bytes] = {}
    for stanza in packages.split(b"\n\n"):
        text = stanza.strip(b"\n")
        if not text:
            continue
        name = next(
            line.split(b":", 1)[1].strip()
            for line in text.split(b"\n")
            if line.startswith(b"Package:")
        )
        stanzas[name] = text
    return stanzas


def write_packages(target: Path) -> None:
    """Writes tens of thousands of stanzas to `target`."""
    if shutil.which("apt-cache"):
        listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=False)
        if listing.stdout.count(b"\nPackage: ") >= STANZAS_MIN:
            target.write_bytes(listing.stdout)
            return
    source = random.Random(20)
    with target.open("wb") as file:
        for number in range(40_000):
            description = source.randbytes(source.randrange(40, 900)).hex()
            file.write(
                f"Package: package-{number}\nVersion: 1.{source.randrange(99)}\n"
                f"Description: {description}\n Second line, \u00e4\u00f6\u00fc.\n\n".encode()
            )
