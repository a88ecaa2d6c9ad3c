"""Writes to a store until it is killed, and says over standard output what it was told.

Operation i depends on the seed and i only, so whoever knows both knows every state.  A line "d N"
means that operations before N are durable; "i N", that operations before N were begun.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from deodar.engine import Delete, Put, Store

State = dict[bytes, bytes]
OPTIONS = {"region_bytes": 262_144, "epoch_ms": 2, "checkpoint_log_bytes": 400_000}


def operation(seed: int, index: int) -> tuple[str, list[tuple[bytes, bytes | None]]]:
    """Kind and effects of an operation; a value of None deletes.

    Each operation also writes its index, so that no two states are alike.
    """
    chance = random.Random(seed * 1_000_003 + index)
    key = b"key %d" % chance.randrange(200)
    value = chance.randbytes(chance.choice([0, 10, 100, 3000]))
    kind = chance.choice(["put", "put", "put", "delete", "batch"])
    if kind == "put":
        return kind, [(key, value)]
    if kind == "delete":
        return kind, [(key, None)]
    return kind, [(b"key %d" % chance.randrange(200), value) for _ in range(5)]


def apply(state: State, seed: int, index: int) -> None:
    """What the operation does to a dict."""
    for key, value in operation(seed, index)[1]:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    state[b"index"] = b"%d" % index


def perform(store: Store, seed: int, index: int) -> None:
    """What the operation does to a store: one batch."""
    effects = operation(seed, index)[1]
    batch = [Delete(key) if value is None else Put(key, value) for key, value in effects]
    store.write([*batch, Put(b"index", b"%d" % index)])


def indexes(start: int) -> Iterator[int]:
    while True:
        yield start
        start += 1


def main(path: str, seed: int, start: int, stop_every: int) -> None:
    with Store.open(path, **OPTIONS) as store:  # type: ignore[arg-type]
        for index in indexes(start):
            perform(store, seed, index)
            if index % 97 == 0:
                print("i", index + 1, flush=True)
            if index % stop_every == 0:
                store.sync()
                print("d", index + 1, flush=True)
            if index % 5000 == 4999:
                store.compact()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
