"""The retry rule, as a table over every reason, and the pauses between attempts."""

from __future__ import annotations

import time

import pytest

from deodar.contract.reasons import RULES, Reason, Retry, ServiceError
from deodar.router.retry import (
    CALL_S,
    PAUSE_MS_MAX,
    REROUTE_S,
    AnswerLost,
    Attempts,
    Deadline,
    NotServedYet,
    may_retry,
)

REROUTED = {Reason.MOVED, Reason.SHARD_MOVING, Reason.SHUTTING_DOWN}


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("reason", list(Reason))
def test_only_reroute_is_tried_again(reason: Reason, write: bool) -> None:
    """A node's word decides alike for reads and writes: only REROUTE means "elsewhere"."""
    assert may_retry(ServiceError(reason, "said by a node"), write=write) == (reason in REROUTED)


def test_a_lost_answer_is_tried_again_for_reads_only() -> None:
    assert may_retry(AnswerLost(Reason.NODE_UNREACHABLE, "lost"), write=False)
    assert not may_retry(AnswerLost(Reason.OUTCOME_UNKNOWN, "lost"), write=True)
    assert not may_retry(AnswerLost(Reason.NODE_UNREACHABLE, "lost"), write=True)


def test_a_read_out_of_time_is_not_tried_again() -> None:
    assert not may_retry(AnswerLost(Reason.DEADLINE_EXCEEDED, "late"), write=False)


def test_pauses_double_with_jitter_up_to_their_bound() -> None:
    attempts = Attempts(Deadline(60.0))
    error = ServiceError(Reason.MOVED, "elsewhere")
    pauses = [attempts.pause_s(error) for _ in range(12)]
    full_ms = 10.0
    for pause in pauses:
        assert pause is not None
        assert full_ms / 2 <= pause * 1000 <= full_ms
        full_ms = min(full_ms * 2, PAUSE_MS_MAX)


def test_the_pause_starts_where_the_reason_says() -> None:
    error = ServiceError(Reason.SHUTTING_DOWN, "stops")
    first_ms = RULES[Reason.SHUTTING_DOWN].retry_after_ms
    pause = Attempts(Deadline(60.0)).pause_s(error)
    assert first_ms is not None
    assert pause is not None
    assert first_ms / 2 <= pause * 1000 <= first_ms


def test_attempts_end_before_the_deadline() -> None:
    error = ServiceError(Reason.SHUTTING_DOWN, "stops")
    assert Attempts(Deadline(0.01)).pause_s(error) is None


def test_attempts_end_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """MOVED is tried for REROUTE_S; a shard that is not there yet for less."""
    now = time.monotonic()
    attempts = Attempts(Deadline(60.0))
    monkeypatch.setattr(time, "monotonic", lambda: now + 2.0)
    assert attempts.pause_s(ServiceError(Reason.MOVED, "elsewhere")) is not None
    assert attempts.pause_s(NotServedYet(Reason.SHARD_UNAVAILABLE, "made soon")) is None
    monkeypatch.setattr(time, "monotonic", lambda: now + REROUTE_S)
    assert attempts.pause_s(ServiceError(Reason.MOVED, "elsewhere")) is None


@pytest.mark.parametrize("reason", list(Reason))
def test_the_caller_never_sees_a_reroute(reason: Reason) -> None:
    """Given up, MOVED and its like become SHARD_UNAVAILABLE; the rest is as it was."""
    error = ServiceError(reason, "why", {"shard": "default/a0-4"})
    given_up = Attempts(Deadline(1.0)).given_up(error)
    assert given_up.rule.retry is not Retry.REROUTE
    assert given_up.metadata["shard"] == "default/a0-4"
    if reason in REROUTED:
        assert given_up.reason is Reason.SHARD_UNAVAILABLE
        assert given_up.metadata["cause"] == reason.value
    else:
        assert given_up is error


def test_a_call_without_a_deadline_gets_one() -> None:
    assert CALL_S - 1 < Deadline(None).remaining_s <= CALL_S
    assert 0 < Deadline(0.5).remaining_s <= 0.5
    assert Deadline(-1.0).remaining_s == 0.0
