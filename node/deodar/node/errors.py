"""Exceptions of the engine as service errors: one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import invalid_field
from deodar.engine import errors as engine


def _invalid(error: engine.InvalidArgument) -> ServiceError:
    return invalid_field(error.field, str(error).removeprefix(f"{error.field}: "))


def _condition(error: engine.ConditionFailed) -> ServiceError:
    metadata = {}
    if error.current_version is not None:
        metadata["current_version"] = str(error.current_version)
    return ServiceError(Reason.CONDITION_FAILED, str(error), metadata)


def _corruption(error: engine.Corruption) -> ServiceError:
    metadata = {"file": error.file, "offset": str(error.offset), "rule": error.rule}
    return ServiceError(Reason.CORRUPTION, str(error), metadata)


def _format(error: engine.FormatVersion) -> ServiceError:
    metadata = {"file": error.file, "offset": "0", "rule": f"format version {error.found}"}
    return ServiceError(Reason.CORRUPTION, str(error), metadata)


def _as(reason: Reason) -> Callable[[engine.EngineError], ServiceError]:
    return lambda error: ServiceError(reason, str(error))


# From class to what it becomes; a test walks the engine's classes through it.
TABLE: Final[dict[type[engine.EngineError], Callable[[Any], ServiceError]]] = {
    engine.InvalidArgument: _invalid,
    engine.ConditionFailed: _condition,
    engine.NotANumber: _as(Reason.NOT_A_NUMBER),
    engine.OutOfRange: _as(Reason.OUT_OF_RANGE),
    engine.DiskFull: _as(Reason.DISK_FULL),
    engine.LimitExceeded: _as(Reason.LIMIT_EXCEEDED),
    engine.Overloaded: _as(Reason.OVERLOADED),
    engine.OutOfMemory: _as(Reason.OVERLOADED),
    engine.ReadOnly: _as(Reason.STORE_READ_ONLY),
    engine.Corruption: _corruption,
    engine.FormatVersion: _format,
    engine.IOFailure: _as(Reason.STORE_READ_ONLY),
    engine.Locked: _as(Reason.SHARD_UNAVAILABLE),
    engine.NotAStore: _as(Reason.SHARD_UNAVAILABLE),
    # A store is closed under a call only when its shard goes away or the node stops.
    engine.Closed: _as(Reason.SHARD_MOVING),
    engine.LogTrimmed: _as(Reason.COMPACTED),
    # The write is in its epoch, and whether that reaches the disk is not known.
    engine.TimedOut: _as(Reason.OUTCOME_UNKNOWN),
}


def service_error(error: Exception) -> ServiceError | None:
    """The service error of an engine exception; None for anything else."""
    if isinstance(error, engine.EngineError):
        return TABLE[type(error)](error)
    return None
