"""The table of reasons is complete, and every engine error has its place in it."""

from __future__ import annotations

import inspect

import grpc
import pytest

from deodar.contract.reasons import RULES, Code, Reason, Retry, ServiceError
from deodar.engine import errors as engine
from deodar.node.errors import TABLE, service_error

SAMPLES: dict[type[engine.EngineError], engine.EngineError] = {
    engine.InvalidArgument: engine.InvalidArgument("ttl_ms", "must be positive"),
    engine.ConditionFailed: engine.ConditionFailed(7, index=2),
    engine.Corruption: engine.Corruption("data-0", 4096, "R4"),
    engine.FormatVersion: engine.FormatVersion("STORE", 9),
    engine.IOFailure: engine.IOFailure(5, "data-0", "pread"),
}


def engine_classes() -> list[type[engine.EngineError]]:
    return [
        value
        for value in vars(engine).values()
        if inspect.isclass(value)
        and issubclass(value, engine.EngineError)
        and value is not engine.EngineError
    ]


def test_every_reason_has_a_rule():
    assert set(RULES) == set(Reason)


def test_codes_are_grpc_statuses():
    numbers = {code.value[0]: code.name for code in grpc.StatusCode}
    assert {code.value: code.name for code in Code}.items() <= numbers.items()


def test_unavailable_means_not_done_and_safe_to_repeat():
    for reason, rule in RULES.items():
        if rule.code is Code.UNAVAILABLE:
            assert rule.retry is not Retry.NEVER, reason
            assert rule.retry_after_ms is not None, reason


@pytest.mark.parametrize("kind", engine_classes(), ids=lambda kind: kind.__name__)
def test_every_engine_error_maps_to_a_reason(kind: type[engine.EngineError]):
    assert kind in TABLE
    error = service_error(SAMPLES.get(kind) or kind("why"))
    assert error is not None
    assert error.reason in RULES
    assert error.message


def test_facts_of_an_engine_error_survive():
    failed = service_error(engine.ConditionFailed(7))
    assert failed is not None
    assert failed.metadata == {"current_version": "7"}
    absent = service_error(engine.ConditionFailed(None))
    assert absent is not None
    assert absent.metadata == {}
    damaged = service_error(engine.Corruption("data-0", 4096, "R4"))
    assert damaged is not None
    assert damaged.metadata == {"file": "data-0", "offset": "4096", "rule": "R4"}
    field = service_error(engine.InvalidArgument("ttl_ms", "must be positive"))
    assert field is not None
    assert field.metadata == {"field": "ttl_ms"}


def test_foreign_exceptions_are_not_engine_errors():
    assert service_error(KeyError("x")) is None
    assert isinstance(ServiceError(Reason.MOVED, "x"), Exception)
