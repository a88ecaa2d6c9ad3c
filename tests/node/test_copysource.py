"""Pages cut into messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deodar.engine import Change, Item
from deodar.node.copysource import chunks, to_change


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100))
def test_chunks(sizes: list[int], bytes_max: int):
    items = [Item(b"k", bytes(size), 1, None) for size in sizes]
    parts = list(chunks(items, bytes_max))
    assert [item for part in parts for item in part] == items
    for part in parts:
        assert part
        assert len(part) == 1 or sum(len(item.value) + 1 for item in part) <= bytes_max


def test_changes_keep_every_field():
    put = to_change(Item(b"k", b"", 3, 5))
    assert put.HasField("value")
    assert (put.value, put.version, put.deadline_ms) == (b"", 3, 5)
    deletion = to_change(Change(b"k", None, 4, None))
    assert not deletion.HasField("value")
    assert not deletion.HasField("deadline_ms")
