"""Files in and out of a real cluster: every byte comes back, bad lines are told of."""

from __future__ import annotations

import gzip
import json
import os
import time
import uuid
from pathlib import Path

import pytest

import deodar
from tests.cli.conftest import Run
from tests.cluster_harness import Cluster
from tests.processes import free_port


@pytest.fixture
def empty(cluster: Cluster) -> Cluster:
    """The cluster without a record."""
    with deodar.connect(cluster.endpoint) as client:
        keys = [item.key for item in client.scan(keys_only=True)]
        client.batch_write([deodar.Delete(key) for key in keys])
    return cluster


def content(cluster: Cluster) -> dict[bytes, bytes]:
    with deodar.connect(cluster.endpoint) as client:
        return {item.key: item.value for item in client.scan()}


RECORDS = {
    b"a": b"",
    b"\0": b"\0\1\0\0",
    b"\xff\xfe": os.urandom(300),
    "käse".encode(): b"line\nline\r\n\ttab,comma\"quote'",
    b"{tag}1": b"null",
    b"large": os.urandom(1_500_000),
    **{b"key-%d" % number: b"%d" % number for number in range(700)},
}


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.tsv", "out.jsonl.gz", "out.csv.xz"])
def test_every_byte_comes_back(empty: Cluster, run: Run, tmp_path: Path, name: str) -> None:
    file = str(tmp_path / name)
    with deodar.connect(empty.endpoint) as client:
        client.batch_write([deodar.Put(key, value) for key, value in RECORDS.items()])
        client.put(b"expires", b"v", ttl_ms=3_600_000)
    exported = run("export", file, "--json").ok().json()
    assert exported["records"] == len(RECORDS) + 1
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with deodar.connect(empty.endpoint) as client:
        client.batch_write([deodar.Delete(key) for key in [*RECORDS, b"expires"]])
    report = run("import", file, "--json").ok().json()
    assert (report["written"], report["refused"]) == (len(RECORDS) + 1, 0)
    assert content(empty) == {**RECORDS, b"expires": b"v"}
    with deodar.connect(empty.endpoint) as client:
        item = client.get_item(b"expires")
        assert item is not None
        assert item.ttl_ms is not None
        assert 3_000_000 < item.ttl_ms <= 3_600_000
        item = client.get_item(b"a")
        assert item is not None
        assert item.ttl_ms is None


def test_packages_files(empty: Cluster, run: Run, tmp_path: Path) -> None:
    stanzas = {
        f"package-{number}".encode(): f"Package: package-{number}\nVersion: {number}\n"
        f"Description: d\u00e9\n more\n .\n end".encode()
        for number in range(1500)
    }
    old = b"Package: package-7\nVersion: old\n\n"
    file = tmp_path / "Packages.gz"
    file.write_bytes(gzip.compress(old + b"\n\n".join(stanzas.values()) + b"\n"))
    report = run("import", str(file), "--json").ok().json()
    assert (report["written"], report["replaced"], report["refused"]) == (1501, 1, 0)
    assert content(empty) == stanzas
    out = run("export", "--format", "debian").ok()
    assert "1,500 records written" in out.err
    for key in stanzas:
        run("del", key) if key == b"package-1" else None
    again = run("import", "-", "--format", "debian", stdin=out.out).ok()
    assert "0 refused" in again.err
    assert content(empty) == stanzas


def test_bad_lines_are_skipped_and_told(empty: Cluster, run: Run) -> None:
    lines = [
        json.dumps({"key": f"k{number}", "value": "v"}) if number % 10 else "nonsense"
        for number in range(1, 101)
    ]
    data = "\n".join(lines).encode()
    done = run("import", "-", "--format", "jsonl", stdin=data)
    assert done.code == 1
    for number in range(10, 101, 10):
        assert f"line {number}: " in done.err
    assert "90 records written" in done.err
    assert len(content(empty)) == 90
    report = run("import", "-", "--format", "jsonl", "--json", stdin=data).json()
    assert (report["written"], report["refused"]) == (90, 10)
    assert [bad["line"] for bad in report["bad"]] == list(range(10, 101, 10))


def test_the_first_bad_line_stops_when_asked(empty: Cluster, run: Run) -> None:
    data = b'{"key": "a", "value": "1"}\nnonsense\n{"key": "b", "value": "2"}\n'
    done = run("import", "-", "--format", "jsonl", "--on-error", "stop", stdin=data)
    assert done.code == 1
    assert "line 2" in done.err.splitlines()[-1]
    assert content(empty) == {b"a": b"1"}


def test_the_last_line_of_a_key_wins(empty: Cluster, run: Run) -> None:
    rows = "".join(f"k{number % 25}\t{number}\n" for number in range(5000))
    run("import", "-", "--format", "tsv", "--key-column", "1", "--value-column", "2",
        stdin=rows.encode()).ok()  # fmt: skip
    assert content(empty) == {b"k%d" % n: b"%d" % (4975 + n) for n in range(25)}


def test_a_prefix_is_exported_alone(empty: Cluster, run: Run) -> None:
    with deodar.connect(empty.endpoint) as client:
        client.batch_write([deodar.Put(key, b"v") for key in (b"a1", b"a2", b"b1")])
    lines = run("export", "--prefix", "a").ok().out.splitlines()
    assert sorted(json.loads(line)["key"] for line in lines) == ["a1", "a2"]


def test_a_failed_export_leaves_no_file(empty: Cluster, run: Run, tmp_path: Path) -> None:
    with deodar.connect(empty.endpoint) as client:
        client.put(b"k", b"not a stanza")
    file = tmp_path / "Packages"
    file.write_bytes(b"as before")
    done = run("export", str(file))
    assert done.code == 1
    assert "no stanza" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["Packages"]
    assert file.read_bytes() == b"as before"
    assert run("export", str(tmp_path / "no" / "such.csv")).code == 1


def test_files_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    missing = run("import", str(tmp_path / "missing.csv"))
    assert missing.code == 1
    assert "missing.csv" in missing.err
    cut = tmp_path / f"{uuid.uuid4().hex}.jsonl.gz"
    cut.write_bytes(gzip.compress(os.urandom(5000).hex().encode() * 5)[:-200])
    done = run("import", str(cut))
    assert done.code == 1
    assert "damaged" in done.err
    headless = run("import", "-", "--format", "csv", stdin=b"x,y\n1,2\n")
    assert headless.code == 1
    assert "column" in headless.err
    assert run("import", "-", "--format", "csv", stdin=b"").code == 1


def test_nobody_takes_it(call: Run, tmp_path: Path) -> None:
    """It gives up within its time and tells what became of the records, in JSON as well."""
    file = tmp_path / "records.jsonl"
    file.write_text("".join(f'{{"key": "{n}", "value": "v"}}\n' for n in range(5_000)))
    begun = time.monotonic()
    done = call(
        "import", str(file), "--timeout", "2", "--json", endpoint=f"127.0.0.1:{free_port()}"
    )
    assert time.monotonic() - begun < 8
    assert done.code == 1
    error = done.json()["error"]
    assert error["reason"] == "NODE_UNREACHABLE"
    facts = error["metadata"]
    assert (facts["written"], facts["refused"], facts["unknown"]) == (0, 0, 0)


def test_a_node_that_is_down(tmp_path: Path, call: Run) -> None:
    """What the other node has taken is counted, and no more."""
    file = tmp_path / "records.jsonl"
    file.write_text("".join(f'{{"key": "{n}", "value": "v"}}\n' for n in range(3_000)))
    with Cluster(tmp_path / "cluster", nodes=2, shard_bits=3) as cluster:
        cluster.nodes["n2"].kill()
        begun = time.monotonic()
        done = call("import", str(file), "--timeout", "2", "--json", endpoint=cluster.endpoint)
        assert time.monotonic() - begun < 10
        facts = done.json()["error"]["metadata"]
        assert done.code == 1
        assert facts["refused"] == 0
        cluster.start_node("n2")
        cluster.wait_serving()
        there = len(content(cluster))
    assert 0 < facts["written"] <= there <= facts["written"] + facts["unknown"]
