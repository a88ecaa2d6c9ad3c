"""A data directory: one process, one node, one cluster, and never guessed at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deodar.node.identity import DataDirectory, DataDirectoryRefused


def test_it_is_made_once_and_known_again(tmp_path: Path):
    with DataDirectory.open(tmp_path / "a" / "n1", "n1", "c") as first:
        assert first.shards.is_dir()
    with DataDirectory.open(tmp_path / "a" / "n1", "n1", "c") as again:
        assert again.identity == first.identity
    with DataDirectory.open(tmp_path / "n2", "n1", "c") as other:
        assert other.identity != first.identity


def test_one_at_a_time(tmp_path: Path):
    with (
        DataDirectory.open(tmp_path, "n1", "c"),
        pytest.raises(DataDirectoryRefused, match="another process"),
    ):
        DataDirectory.open(tmp_path, "n1", "c")
    DataDirectory.open(tmp_path, "n1", "c").close()


@pytest.mark.parametrize(("node", "cluster"), [("n2", "c"), ("n1", "d")])
def test_it_belongs_to_one_node_of_one_cluster(tmp_path: Path, node: str, cluster: str):
    DataDirectory.open(tmp_path, "n1", "c").close()
    with pytest.raises(DataDirectoryRefused, match="belongs to"):
        DataDirectory.open(tmp_path, node, cluster)
    DataDirectory.open(tmp_path, "n1", "c").close()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        json.dumps({"format_version": 2, "id": "n1", "cluster": "c", "identity": "x"}),
        json.dumps({"format_version": 1, "id": "n1", "cluster": "c", "identity": ""}),
        json.dumps({"format_version": 1, "id": "n1", "cluster": "c"}),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str):
    DataDirectory.open(tmp_path, "n1", "c").close()
    (tmp_path / "node.json").write_text(content)
    with pytest.raises(DataDirectoryRefused):
        DataDirectory.open(tmp_path, "n1", "c")


def test_shards_without_an_identity_are_refused(tmp_path: Path):
    """A lost node.json must not make a new node of old data."""
    DataDirectory.open(tmp_path, "n1", "c").close()
    (tmp_path / "node.json").unlink()
    with pytest.raises(DataDirectoryRefused, match=r"no node\.json"):
        DataDirectory.open(tmp_path, "n1", "c")
