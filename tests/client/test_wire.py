"""Channels to servers that are gone are closed, but not while a call may be under way."""

from __future__ import annotations

from deodar.client.wire import LEAVE_S, Leavers


def test_leavers_are_due_after_a_while() -> None:
    leavers = Leavers()
    assert leavers.due(["a", "b"], {"a", "b"}, 0.0) == []
    assert leavers.due(["a", "b"], {"a"}, 1.0) == []
    assert leavers.due(["a", "b"], {"a"}, LEAVE_S) == []
    assert leavers.due(["a", "b"], {"a"}, LEAVE_S + 1.0) == ["b"]
    assert leavers.due(["a"], {"a"}, LEAVE_S + 2.0) == []


def test_who_comes_back_starts_anew() -> None:
    leavers = Leavers()
    leavers.due(["a"], set(), 0.0)
    leavers.due(["a"], {"a"}, 100.0)
    assert leavers.due(["a"], set(), LEAVE_S + 1.0) == []
