"""The files of a store, byte by byte: what version 1 wrote, every later program reads."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

from deodar.engine import Store, check_directory

from . import probe_formats

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"


def test_layout_is_golden() -> None:
    golden = json.loads((GOLDEN / "layout.json").read_text())
    assert probe_formats.layout() == golden["files"]


def golden_store(target: Path, name: str) -> Path:
    """Unpacks "closed" or "crashed": 300 keys, a large value, deletions, and a deadline."""
    with tarfile.open(GOLDEN / "stores.tar.xz") as archive:
        archive.extractall(target, filter="data")
    return target / name


def test_stores_of_version_1_open(tmp_path: Path) -> None:
    """A closed store and one as a crash left it, both written by format version 1."""
    expected = {b"key %d" % index: b"%d" % index * 20 for index in range(0, 300) if index % 3}
    expected[b"large"] = b"large" * 100_000
    for name in ("closed", "crashed"):
        path = golden_store(tmp_path, name)
        assert check_directory(path) == []
        with Store.open(path) as store:
            assert {item.key: item.value for item in store.scan()} == expected
            item = store.get_item(b"key 7")
            assert item is not None
            assert item.deadline_ms == 4_000_000_000_000
            assert item.version == 8
            store.put(b"key 0", b"again")
            assert store.check() == []
        with Store.open(path) as store:
            assert store.get(b"key 0") == b"again"
        shutil.rmtree(path)


def test_one_checkpoint_stays(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for turn in range(3):
            store.put(b"key", b"%d" % turn)
            store.checkpoint()
            assert len(list(tmp_path.glob("checkpoint-*"))) == 1
    names = {path.name.split("-")[0] for path in tmp_path.iterdir()}
    assert names <= {"STORE", "LOCK", "RESERVE", "checkpoint", "data", "trie"}


def test_long_log_starts_a_checkpoint(tmp_path: Path) -> None:
    """Promise 5: what a restart replays is bounded by the log since the last checkpoint."""
    with Store.open(tmp_path, checkpoint_log_bytes=100_000, epoch_ms=1) as store:
        for index in range(2000):
            store.put(b"key %d" % index, bytes(500))
            if index % 100 == 0:
                store.sync()
        assert int(store.stats()["checkpoints"]) >= 2
