"""Settings: bounds at both ends, the environment, and what a node advertises."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from deodar.node.config import NodeConfig, split_address

GOOD = {"id": "n1", "data": Path("d"), "registry": "etcd://127.0.0.1:2379"}


def test_the_environment_fills_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEODAR_NODE_ZONE", "z1")
    monkeypatch.setenv("DEODAR_NODE_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("DEODAR_NODE_REGISTRY_CA_FILE", "/ca.pem")
    config = NodeConfig(**GOOD, listen="127.0.0.1:2")
    assert (config.zone, config.listen) == ("z1", "127.0.0.1:2")
    assert config.registry_config().ca_file == Path("/ca.pem")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("id", ["a", "a" * 63, "n-1.x_y"], ["", "a" * 64, "-a", "a/b", "ä"]),
        ("cluster", ["deodar"], ["", "a/b"]),
        ("memory", [16_777_216, "16MiB", "4GiB"], [16_777_215, "16MB", "much", -1]),
        ("listen", ["h:0", "h:65535", "[::1]:1"], ["h", "h:65536", ":1", "h:x"]),
        ("advertise", ["", "h:1"], ["h"]),
        ("lease_ttl_ms", [2_000, 60_000], [1_999, 60_001]),
        ("stop_grace_s", [0, 600], [-1, 601]),
        ("registry_start_timeout_s", [0, 3_600], [-1, 3_601]),
        ("registry", ["embedded://h:1", "etcd://h:1,h:2"], ["http://h:1", "etcd://h"]),
    ],
)
def test_bounds(name: str, good: list[object], bad: list[object]):
    for value in good:
        NodeConfig(**{**GOOD, name: value})
    for value in bad:
        with pytest.raises(ValidationError):
            NodeConfig(**{**GOOD, name: value})


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:5"),
        ("0.0.0.0:7401", "node-1.nodes:7401", "node-1.nodes:7401"),
        ("0.0.0.0:0", "host:0", "host:5"),
    ],
)
def test_what_is_advertised(listen: str, advertise: str, expected: str):
    assert NodeConfig(**GOOD, listen=listen, advertise=advertise).advertised(5) == expected


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1"])
def test_a_wildcard_is_never_advertised(listen: str):
    with pytest.raises(ValueError, match="--advertise"):
        NodeConfig(**GOOD, listen=listen).advertised(1)


def test_addresses():
    assert split_address("[::1]:7") == ("[::1]", 7)
