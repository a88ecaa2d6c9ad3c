"""Every reason has its exception, and the exceptions keep their facts."""

from __future__ import annotations

import pytest

import deodar
from deodar.client.errors import ERRORS, BatchError, Error, error_of
from deodar.contract.reasons import RULES, Code, Reason, Retry, ServiceError


def test_every_reason_has_an_exception() -> None:
    assert set(ERRORS) == set(Reason)


@pytest.mark.parametrize("reason", list(Reason))
def test_reason_and_facts_survive(reason: Reason) -> None:
    error = error_of(ServiceError(reason, "why", {"a": "b"}))
    assert isinstance(error, Error)
    assert (error.reason, error.message, error.metadata) == (reason, "why", {"a": "b"})
    assert error.retry_after_ms == RULES[reason].retry_after_ms


@pytest.mark.parametrize("reason", list(Reason))
def test_unavailable_is_what_may_be_repeated(reason: Reason) -> None:
    """`Unavailable` promises that nothing was done: it and the retry rule must agree."""
    unavailable = issubclass(ERRORS[reason], deodar.Unavailable)
    assert unavailable == (RULES[reason].code is Code.UNAVAILABLE or reason is Reason.MOVED)
    if unavailable:
        assert RULES[reason].retry is not Retry.NEVER


def test_public_names_are_the_exceptions() -> None:
    exceptions = set(ERRORS.values()) | {BatchError, deodar.Closed, Error}
    exceptions |= {kind.__mro__[1] for kind in exceptions if issubclass(kind, Error)} - {Exception}
    for kind in exceptions:
        assert getattr(deodar, kind.__name__) is kind
        assert kind.__name__ in deodar.__all__


def test_condition_failed_tells_the_version() -> None:
    there = error_of(ServiceError(Reason.CONDITION_FAILED, "x", {"current_version": "7"}))
    absent = error_of(ServiceError(Reason.CONDITION_FAILED, "x"))
    assert isinstance(there, deodar.ConditionFailed)
    assert isinstance(absent, deodar.ConditionFailed)
    assert there.current_version == 7
    assert absent.current_version is None


def test_batch_error_tells_of_each() -> None:
    first = error_of(ServiceError(Reason.SHARD_UNAVAILABLE, "no node", {"shard": "default/00-4"}))
    error = BatchError([b"value", None, first])
    assert error.results == [b"value", None, first]
    assert error.failures == {2: first}
    assert error.reason is Reason.SHARD_UNAVAILABLE
    assert error.metadata == {"shard": "default/00-4"}
    assert "1 of 3" in str(error)
    assert "number 2" in str(error)
