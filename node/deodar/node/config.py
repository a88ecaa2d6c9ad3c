"""Settings of a node: flags, or the environment with the prefix ``DEODAR_NODE_``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from deodar.registry.config import RegistryConfig

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class NodeConfig(BaseSettings):
    """Where a node keeps its data and how it is found."""

    model_config = SettingsConfigDict(env_prefix="DEODAR_NODE_", extra="forbid")

    id: Annotated[str, Field(pattern=NAME)]
    data: Path
    registry: str
    listen: str = "127.0.0.1:7401"  # port 0 picks a free one
    advertise: str = ""  # host:port that others connect to; empty = as listened
    cluster: Annotated[str, Field(pattern=NAME)] = "deodar"
    zone: str = ""
    # For the regions of all stores together; None = half of the machine's or control group's.
    memory: Annotated[ByteSize, Field(ge=16_777_216)] | None = None
    lease_ttl_ms: Annotated[int, Field(ge=2_000, le=60_000)] = 5_000
    stop_grace_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    registry_start_timeout_s: Annotated[float, Field(ge=0, le=3_600)] = 30.0
    watches_max: Annotated[int, Field(ge=0, le=1_000_000)] = 4_096  # of shards, at once
    registry_ca_file: Path | None = None
    registry_cert_file: Path | None = None
    registry_key_file: Path | None = None
    registry_user: str | None = None
    registry_password: SecretStr | None = None

    @field_validator("listen", "advertise")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @model_validator(mode="after")
    def _registry(self) -> Self:
        self.registry_config()
        return self

    def registry_config(self) -> RegistryConfig:
        """How to reach the registry."""
        return RegistryConfig.model_validate(
            {
                "url": self.registry,
                "start_timeout_s": self.registry_start_timeout_s,
                "ca_file": self.registry_ca_file,
                "cert_file": self.registry_cert_file,
                "key_file": self.registry_key_file,
                "user": self.registry_user,
                "password": self.registry_password,
            }
        )

    def advertised(self, port: int) -> str:
        """The address for others, given the port that was bound; raises ValueError for a wildcard
        address, which nobody else could connect to."""
        if self.advertise:
            host, advertised_port = split_address(self.advertise)
            port = advertised_port or port
        else:
            host, _ = split_address(self.listen)
        if host in ("0.0.0.0", "[::]", "::", "*"):
            raise ValueError(f"{host} is no address for others: set --advertise")
        return f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"not an address: {address!r}; expected host:port")
    return host, int(port)
