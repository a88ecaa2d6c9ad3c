"""Checks of data on disk find damage, and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from deodar.engine import Store
from tests.cli.conftest import Run


@pytest.fixture
def node_data(tmp_path: Path) -> Path:
    """The directory of a node with two stores."""
    data = tmp_path / "node"
    for name in ("default-00-1", "default-80-1"):
        (data / "shards").mkdir(parents=True, exist_ok=True)
        with Store.open(data / "shards" / name) as store:
            for number in range(500):
                store.put(b"key-%d" % number, b"value" * 20)
    (data / "node.json").write_text("{}")
    return data


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_sound_stores(call: Run, node_data: Path) -> None:
    before = snapshot(node_data)
    for directory, count in [
        (node_data, 2),
        (node_data.parent, 2),
        (node_data / "shards" / "default-00-1", 1),
    ]:
        document = call("check", str(directory), "--json").ok().json()
        assert (len(document["stores"]), document["broken"]) == (count, 0)
    assert b"2 stores checked, 0 with problems" in call("check", str(node_data)).ok().out
    assert snapshot(node_data) == before


def test_damage_is_found(call: Run, node_data: Path) -> None:
    store = node_data / "shards" / "default-00-1"
    largest = max(
        (path for path in store.rglob("*") if path.is_file()),
        key=lambda path: path.read_bytes().count(b"value"),
    )
    data = bytearray(largest.read_bytes())
    data[data.find(b"value" * 10) + 7] ^= 1
    largest.write_bytes(data)
    document = call("check", str(node_data), "--json")
    assert document.code == 1
    broken = [entry for entry in document.json()["stores"] if entry["problems"]]
    assert [entry["store"] for entry in broken] == [str(store)]
    assert "default-00-1" in call("check", str(node_data)).err


def test_a_store_in_use_is_no_damage_and_not_checked(call: Run, node_data: Path) -> None:
    used = node_data / "shards" / "default-00-1"
    with Store.open(used):
        document = call("check", str(node_data), "--json").ok().json()
        assert (document["broken"], document["in_use"]) == (0, 1)
        assert [entry["store"] for entry in document["stores"] if entry["in_use"]] == [str(used)]
        said = call("check", str(node_data)).ok()
    assert b"1 stores checked, 0 with problems, 1 in use and NOT checked" in said.out
    assert f"{used}: in use, not checked" in said.err


def test_what_is_no_data_is_refused(call: Run, tmp_path: Path) -> None:
    assert call("check", str(tmp_path)).code == 1
    assert call("check", str(tmp_path / "missing")).code == 1
