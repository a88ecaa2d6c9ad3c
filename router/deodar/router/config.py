"""Settings of a router: flags, or the environment with the prefix ``DEODAR_ROUTER_``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from deodar.contract.limits import ROUTER_PORT
from deodar.registry.config import RegistryConfig

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
# 65,536 shards: more are made by splitting where the data is.
SHARD_BITS_MAX: Final = 16


class RouterConfig(BaseSettings):
    """A router joins a registry or is one: exactly one of `registry` and `embedded_registry`."""

    model_config = SettingsConfigDict(env_prefix="DEODAR_ROUTER_", extra="forbid")

    listen: str = f"127.0.0.1:{ROUTER_PORT}"  # port 0 picks a free one
    registry: str = ""  # etcd://host:port[,host:port...]
    registry_ca_file: Path | None = None  # turns TLS to the registry on
    registry_cert_file: Path | None = None  # with its key: who we are there
    registry_key_file: Path | None = None
    registry_user: str | None = None
    registry_password: SecretStr | None = None  # from the environment, never a flag
    registry_start_timeout_s: Annotated[float, Field(ge=0, le=3_600)] = 30.0
    embedded_registry: Path | None = None  # its directory; for a cluster on one machine
    cluster: Annotated[str, Field(pattern=NAME)] = "deodar"
    # The first shards are the prefixes of this many bits, made when this many nodes are up.
    shard_bits: Annotated[int, Field(ge=0, le=SHARD_BITS_MAX)] = 4
    bootstrap_nodes: Annotated[int, Field(ge=1)] = 1
    stop_grace_s: Annotated[float, Field(ge=0, le=600)] = 10.0  # for calls in flight at the end

    @field_validator("listen")
    @classmethod
    def _address(cls, listen: str) -> str:
        host, separator, port = listen.rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"not an address: {listen!r}; expected host:port")
        return listen

    @model_validator(mode="after")
    def _one_registry(self) -> Self:
        if bool(self.registry) == (self.embedded_registry is not None):
            raise ValueError("give either a registry or a directory for an embedded one")
        if self.registry:
            try:
                self.registry_config()
            except ValidationError as error:
                raise ValueError("; ".join(fault["msg"] for fault in error.errors())) from error
        return self

    def registry_config(self) -> RegistryConfig:
        """How to reach the registry that is not embedded."""
        return RegistryConfig(
            url=self.registry,
            start_timeout_s=self.registry_start_timeout_s,
            ca_file=self.registry_ca_file,
            cert_file=self.registry_cert_file,
            key_file=self.registry_key_file,
            user=self.registry_user,
            password=self.registry_password,
        )

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0]
