"""From a key to its path in the global trie, and arithmetic on prefixes of paths.

A path is 128 bits, most significant first; a shard is a prefix of it.  `deodar.engine.hashing`
states the same rule in C; both are held to one file of golden vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

PATH_BITS = 128
PATH_BYTES = 16
TAG_BITS = 16  # bits of the path that a hash tag decides


def hash_tag(key: bytes) -> bytes | None:
    """The bytes between the first ``{`` and the next ``}`` behind it; None when there are none."""
    start = key.find(b"{")
    if start < 0:
        return None
    end = key.find(b"}", start + 1)
    if end <= start + 1:
        return None
    return key[start + 1 : end]


def path_of(key: bytes) -> int:
    """The 128-bit path of a key (rule H1)."""
    path: int = xxhash.xxh3_128_intdigest(key)
    tag = hash_tag(key)
    if tag is None:
        return path
    shift = PATH_BITS - TAG_BITS
    tag_path: int = xxhash.xxh3_128_intdigest(tag)
    return (tag_path >> shift << shift) | (path & ((1 << shift) - 1))


class Prefix(NamedTuple):
    """The first `bits` bits of a path; `value` holds them right-aligned."""

    value: int
    bits: int

    @property
    def first_path(self) -> int:
        return self.value << (PATH_BITS - self.bits)

    @property
    def end_path(self) -> int:
        """One past the last path; 2**128 for the last prefix."""
        return (self.value + 1) << (PATH_BITS - self.bits)

    def contains(self, path: int) -> bool:
        return path >> (PATH_BITS - self.bits) == self.value

    def to_bytes(self) -> bytes:
        """Left-aligned in whole bytes, unused bits zero: the form of the wire and the registry."""
        size = (self.bits + 7) // 8
        return (self.value << (size * 8 - self.bits)).to_bytes(size, "big")

    @classmethod
    def from_bytes(cls, data: bytes, bits: int) -> Prefix:
        """Raises ValueError when the length or an unused bit is wrong."""
        if not 0 <= bits <= PATH_BITS or len(data) != (bits + 7) // 8:
            raise ValueError(f"{len(data)} bytes do not hold a prefix of {bits} bits")
        padding = len(data) * 8 - bits
        number = int.from_bytes(data, "big")
        if number & ((1 << padding) - 1):
            raise ValueError("unused bits of a prefix are not zero")
        return cls(number >> padding, bits)

    def __str__(self) -> str:
        return f"{self.to_bytes().hex()}-{self.bits}"

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """The inverse of ``str``; raises ValueError."""
        digits, separator, bits = text.partition("-")
        if not separator or not bits.isdecimal():
            raise ValueError(f"not a prefix: {text!r}")
        return cls.from_bytes(bytes.fromhex(digits), int(bits))


def even_prefixes(bits: int) -> list[Prefix]:
    """All prefixes of `bits` bits in order: a whole cover of the hash space."""
    return [Prefix(value, bits) for value in range(1 << bits)]


def path_bytes(path: int) -> bytes:
    return path.to_bytes(PATH_BYTES, "big")


def cursor_path(cursor: bytes) -> int:
    """The path at which a scan cursor stands; raises ValueError for one that is too short."""
    if not cursor:
        return 0
    if len(cursor) < PATH_BYTES:
        raise ValueError(f"a cursor has at least {PATH_BYTES} bytes, not {len(cursor)}")
    return int.from_bytes(cursor[:PATH_BYTES], "big")
