"""What goes in and comes out of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Durability = Literal["buffered", "replicated", "durable"]


class Item(NamedTuple):
    """A record."""

    key: bytes
    value: bytes  # empty in a scan with keys_only
    version: int
    ttl_ms: int | None = None  # milliseconds left; None = never expires


@dataclass(frozen=True, slots=True)
class Put:
    """A write of a batch; see `Client.put`."""

    key: bytes
    value: bytes
    ttl_ms: int | None = None
    if_version: int | None = None
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion of a batch; see `Client.delete`."""

    key: bytes
    if_version: int | None = None


class Written(NamedTuple):
    """What one operation of a batch did."""

    version: int  # version of the write; 0 for a delete that found nothing
    found: bool  # for a delete: there was a record
