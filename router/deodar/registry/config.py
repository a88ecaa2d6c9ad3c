"""Where the registry is and how to reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

SCHEMES = ("etcd", "embedded")


class RegistryConfig(BaseModel):
    """Settings of a registry's client.

    `url` is ``etcd://host:port[,host:port...]`` or ``embedded://host:port``.  A certificate
    authority turns TLS on; a certificate with its key proves who we are (mutual TLS).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    timeout_ms: int = Field(default=5_000, ge=100, le=60_000)  # of one call
    start_timeout_s: float = Field(default=30.0, ge=0)  # how long a start waits for the registry
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    user: str | None = None
    password: SecretStr | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ValueError(f"registry URL {url!r}: expected etcd://HOST:PORT or embedded://...")
        addresses = rest.rstrip("/").split(",")
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise ValueError(f"registry URL {url!r}: {address!r} is not HOST:PORT")
        if scheme == "embedded" and len(addresses) != 1:
            raise ValueError(f"registry URL {url!r}: an embedded registry has one address")
        return url

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.kind == "embedded" and (self.ca_file, self.cert_file, self.user) != (None,) * 3:
            raise ValueError("an embedded registry knows neither TLS nor passwords")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("registry certificate and key go together")
        if self.cert_file is not None and self.ca_file is None:
            raise ValueError("a registry certificate needs the certificate authority as well")
        if (self.user is None) != (self.password is None):
            raise ValueError("registry user and password go together")
        return self

    @property
    def kind(self) -> Literal["etcd", "embedded"]:
        return "etcd" if self.url.startswith("etcd:") else "embedded"

    @property
    def addresses(self) -> list[str]:
        return self.url.partition("://")[2].rstrip("/").split(",")
