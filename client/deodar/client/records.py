"""What goes in and comes out of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from deodar.contract.keypath import path_of
from deodar.contract.watchpos import WatchPosition

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


@dataclass(frozen=True, slots=True)
class Event:
    """A change that a watch has seen."""

    key: bytes
    value: bytes | None  # None = deleted
    version: int
    deadline_ms: int | None  # when it expires, milliseconds since 1970; None = never
    answer_position: bytes  # behind all events of the answer that brought it

    @property
    def deleted(self) -> bool:
        return self.value is None

    @property
    def position(self) -> bytes:
        """Where a later watch goes on behind this event."""
        answer = WatchPosition.decode(self.answer_position)
        path = path_of(self.key)
        marks = {
            prefix: mark._replace(version=self.version) if prefix.contains(path) else mark
            for prefix, mark in answer.marks.items()
        }
        return WatchPosition(answer.table, marks).encode()
