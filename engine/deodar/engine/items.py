"""The plain values that go in and out of a `Store`."""

from typing import Literal, NamedTuple

Durability = Literal["buffered", "durable"]


class Item(NamedTuple):
    """A live record."""

    key: bytes
    value: bytes
    version: int
    deadline_ms: int | None  # milliseconds since 1970; None = never expires


class Put(NamedTuple):
    """A write of a batch."""

    key: bytes
    value: bytes
    ttl_ms: int | None = None
    if_version: int | None = None
    if_absent: bool = False


class Delete(NamedTuple):
    """A deletion in a batch."""

    key: bytes
    if_version: int | None = None


class Written(NamedTuple):
    """What one operation of a batch did."""

    version: int  # version of the write; 0 for a delete that found nothing
    existed: bool  # the key had a live record before
    epoch: int  # epoch the write belongs to: pass it to `wait_durable`


class Change(NamedTuple):
    """One change as the log has it; `value` None = deletion."""

    key: bytes
    value: bytes | None
    version: int
    deadline_ms: int | None
