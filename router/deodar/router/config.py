"""Settings of a router: flags, or the environment with the prefix ``DEODAR_ROUTER_``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self

from deodar.contract.limits import ROUTER_PORT
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
# 65,536 shards: more are made by splitting where the data is.
SHARD_BITS_MAX: Final = 16


class RouterConfig(BaseSettings):
    """A router joins a registry or is one: exactly one of `registry` and `embedded_registry`."""

    model_config = SettingsConfigDict(env_prefix="DEODAR_ROUTER_", extra="forbid")

    listen: str = f"127.0.0.1:{ROUTER_PORT}"  # port 0 picks a free one
    registry: str = ""  # etcd://host:port[,host:port...]
    embedded_registry: Path | None = None  # its directory; for a cluster on one machine
    cluster: Annotated[str, Field(pattern=NAME)] = "deodar"
    # The first shards are the prefixes of this many bits, made when this many nodes are up.
    shard_bits: Annotated[int, Field(ge=0, le=SHARD_BITS_MAX)] = 4
    bootstrap_nodes: Annotated[int, Field(ge=1)] = 1
    stop_grace_s: Annotated[float, Field(ge=0, le=600)] = 10.0  # for calls in flight at the end
    registry_start_timeout_s: Annotated[float, Field(ge=0, le=3_600)] = 30.0

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
        return self

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0]
