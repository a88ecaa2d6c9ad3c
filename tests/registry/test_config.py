"""Registry URLs and the settings that go together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deodar.registry.config import RegistryConfig


def test_urls() -> None:
    config = RegistryConfig(url="etcd://a:2379,b.example:2379/")
    assert (config.kind, config.addresses) == ("etcd", ["a:2379", "b.example:2379"])
    assert RegistryConfig(url="etcd://[::1]:2379").addresses == ["[::1]:2379"]
    assert RegistryConfig(url="embedded://127.0.0.1:7400").kind == "embedded"


@pytest.mark.parametrize(
    "url",
    ["", "etcd", "etcd://", "etcd://a", "etcd://a:0", "etcd://a:65536", "etcd://a:1,", "http://a:1",
     "etcd://a:1,,b:1", "embedded://a:1,b:1", "etcd://:2379", "etcd://a:x"],
)  # fmt: skip
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="registry URL"):
        RegistryConfig(url=url)


@pytest.mark.parametrize(
    "settings",
    [
        {"cert_file": "c"},
        {"key_file": "k", "ca_file": "a"},
        {"cert_file": "c", "key_file": "k"},
        {"user": "u"},
        {"password": "p"},
        {"timeout_ms": 0},
        {"surprise": 1},
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RegistryConfig(url="etcd://a:1", **settings)


@pytest.mark.parametrize("settings", [{"ca_file": "a"}, {"user": "u", "password": "p"}])
def test_an_embedded_registry_takes_no_credentials(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="neither TLS nor passwords"):
        RegistryConfig(url="embedded://a:1", **settings)


def test_the_password_is_not_shown() -> None:
    config = RegistryConfig(url="etcd://a:1", user="u", password="secret")
    assert "secret" not in repr(config)
