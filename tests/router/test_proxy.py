"""Admission: overload is refused while it is cheap.  (What a router forwards is tested on real
clusters, in tests/contract and test_faults.)"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from deodar.contract.reasons import Reason, ServiceError
from deodar.router.proxy import CALL_BYTES_MAX, CALLS_MAX, Admission


def test_calls_in_flight_are_bounded() -> None:
    admission = Admission()
    with ExitStack() as calls:
        for _ in range(CALLS_MAX):
            calls.enter_context(admission.admit(1))
        with pytest.raises(ServiceError) as caught, admission.admit(1):
            pass
        assert caught.value.reason is Reason.OVERLOADED
    with admission.admit(1):
        pass


def test_bytes_in_flight_are_bounded_but_one_call_always_passes() -> None:
    admission = Admission()
    with admission.admit(CALL_BYTES_MAX + 1):
        with pytest.raises(ServiceError) as caught, admission.admit(1):
            pass
        assert caught.value.rule.retry_after_ms is not None
    with admission.admit(CALL_BYTES_MAX - 1), admission.admit(1):
        pass


def test_a_failed_call_gives_its_room_back() -> None:
    admission = Admission()
    for _ in range(CALLS_MAX + 1):
        with pytest.raises(KeyError), admission.admit(CALL_BYTES_MAX):
            raise KeyError


def test_nothing_is_admitted_once_it_stops() -> None:
    admission = Admission()
    with admission.admit(1):
        admission.stop()
        with pytest.raises(ServiceError) as caught, admission.admit(1):
            pass
    assert caught.value.reason is Reason.SHUTTING_DOWN
