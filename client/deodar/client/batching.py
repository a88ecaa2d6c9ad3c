"""A batch of many keys, split by the servers that serve them and put together again.

Operations keep their order among those that go to one server, so two writes of one key in a batch
never change places; the operations of one shard go together, in one call, and are atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from deodar.contract.reasons import Reason, Retry, ServiceError
from deodar.contract.rpc_status import error_from_operation
from deodar.v1.kv_pb2 import WriteResult

from .errors import Error, error_of
from .plan import Call, Failure, Method, Pause, Plan, Send
from .records import Written
from .retry import Attempts
from .routing import Routing, Target


def written_of(result: WriteResult) -> Written:
    return Written(result.version, result.found)


class Batch:
    """The attempts of one batch; `paths` has the place of each key in the hash space."""

    def __init__(
        self,
        routing: Routing,
        attempts: Attempts,
        method: Method,
        table: str,
        paths: Sequence[int],
        request: Callable[[list[int]], Message],  # of the keys with these indices
    ) -> None:
        self._routing = routing
        self._attempts = attempts
        self._method = method
        self._table = table
        self._paths = paths
        self._request = request
        self._results: list[Any] = [None] * len(paths)

    def run(self) -> Plan[list[Any]]:
        """The result message or the `Error` of each key."""
        pending = list(range(len(self._paths)))
        while pending:
            groups = self._groups(pending)
            seconds = self._attempts.remaining_s
            outcomes = yield Send(
                tuple(
                    Call(target.address, self._method, self._request(indices), seconds)
                    for target, indices in groups
                )
            )
            pending, pauses = [], []
            for (target, indices), outcome in zip(groups, outcomes, strict=True):
                again, pause = self._take(target, indices, outcome)
                pending += again
                pauses += pause
            pending.sort()
            if pauses:
                yield max(pauses, key=lambda pause: pause.seconds)
        return self._results

    def _groups(self, pending: list[int]) -> list[tuple[Target, list[int]]]:
        groups: dict[str, tuple[Target, list[int]]] = {}
        for index in pending:
            target = self._routing.target(
                self._table, self._paths[index], newer_than=self._attempts.newer_than
            )
            groups.setdefault(target.address, (target, []))[1].append(index)
        return list(groups.values())

    def _take(
        self, target: Target, indices: list[int], outcome: Any
    ) -> tuple[list[int], list[Pause]]:
        """Notes the results of one call; the indices to ask again, and the pause before."""
        if isinstance(outcome, Failure):
            return self._after(indices, outcome, target)
        if len(outcome.results) != len(indices):
            error = error_of(
                ServiceError(
                    Reason.INTERNAL,
                    f"{target.address} answered {len(outcome.results)} of {len(indices)} keys",
                )
            )
            return self._fail(indices, error)
        moved: dict[int, ServiceError] = {}
        left_out: dict[int, ServiceError] = {}
        for index, result in zip(indices, outcome.results, strict=True):
            if not result.HasField("error"):
                self._results[index] = result
                continue
            failed = error_from_operation(result.error)
            if failed.rule.retry is Retry.REROUTE:
                moved[index] = failed
            elif failed.reason is Reason.LIMIT_EXCEEDED and self._method.repeatable:
                left_out[index] = failed
            else:
                self._results[index] = error_of(failed)
        again: list[int] = []
        if len(moved) + len(left_out) < len(indices):
            # The answer was full: the rest fits into further ones.
            again += left_out
        else:
            for index, failed in left_out.items():
                self._fail([index], error_of(failed))
        if not moved:
            return again, []
        last = Failure(next(reversed(moved.values())), by_server=True)
        waiting, pauses = self._after(list(moved), last, target)
        return again + waiting, pauses

    def _after(
        self, indices: list[int], failure: Failure, target: Target
    ) -> tuple[list[int], list[Pause]]:
        try:
            return indices, [self._attempts.after(failure, target)]
        except Error as error:
            return self._fail(indices, error)

    def _fail(self, indices: list[int], error: Error) -> tuple[list[int], list[Pause]]:
        for index in indices:
            self._results[index] = error
        return [], []
