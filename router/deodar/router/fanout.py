"""Calls that concern many shards: batches and syncs.

A batch is split by node and its answers are put together in the order asked.  What one node cannot
do becomes the error of its own keys alone; what was refused because a shard is elsewhere or on its
way is asked again there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from deodar.contract.keypath import path_of
from deodar.contract.limits import BATCH_BYTES_MAX
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import error_from_operation, error_to_operation
from deodar.v1 import kv_pb2

from .forward import Forwarder
from .messages import check_batch_count, check_key, operation_keys, parse
from .retry import Attempts, Deadline, NotServedYet, may_retry
from .routing import Target


class _Result(Protocol):
    """A BatchGetResult or a WriteResult."""

    @property
    def error(self) -> kv_pb2.OperationError: ...
    def HasField(self, field_name: Any) -> bool: ...  # noqa: N802


class _Answer(Protocol):
    """A BatchGetResponse or a BatchWriteResponse."""

    @property
    def header(self) -> kv_pb2.ResponseHeader: ...
    @property
    def results(self) -> Sequence[Any]: ...


R = TypeVar("R", bound=_Result)
R_co = TypeVar("R_co", bound=_Result, covariant=True)


class _Batch(Protocol[R_co]):
    """What reading and writing a batch differ in."""

    method: str
    write: bool
    table: str
    paths: list[int]

    def part(self, indices: list[int]) -> bytes:
        """The request for some of its operations."""

    def take(self, data: bytes) -> _Answer:
        """An answer to a part; keeps what belongs to no operation."""

    def failed(self, error: ServiceError) -> R_co: ...


class _Reads:
    method = "BatchGet"
    write = False

    def __init__(self, request: kv_pb2.BatchGetRequest) -> None:
        check_batch_count(len(request.keys), "keys")
        for index, key in enumerate(request.keys):
            check_key(key, f"keys[{index}]")
        self.table = request.table
        self.paths = [path_of(key) for key in request.keys]
        self._keys = list(request.keys)

    def part(self, indices: list[int]) -> bytes:
        keys = [self._keys[index] for index in indices]
        return kv_pb2.BatchGetRequest(table=self.table, keys=keys).SerializeToString()

    def take(self, data: bytes) -> _Answer:
        return kv_pb2.BatchGetResponse.FromString(data)

    def failed(self, error: ServiceError) -> kv_pb2.BatchGetResult:
        return kv_pb2.BatchGetResult(error=error_to_operation(error))


class _Writes:
    method = "BatchWrite"
    write = True

    def __init__(self, request: kv_pb2.BatchWriteRequest) -> None:
        self._operations = list(request.operations)
        self._durability = request.durability
        self.table = request.table
        self.paths = [path_of(key) for key in operation_keys(self._operations)]
        self.receipts: list[kv_pb2.Receipt] = []

    def part(self, indices: list[int]) -> bytes:
        return kv_pb2.BatchWriteRequest(
            table=self.table,
            operations=[self._operations[index] for index in indices],
            durability=self._durability,
        ).SerializeToString()

    def take(self, data: bytes) -> _Answer:
        answer = kv_pb2.BatchWriteResponse.FromString(data)
        self.receipts.extend(answer.receipts)
        return answer

    def failed(self, error: ServiceError) -> kv_pb2.WriteResult:
        return kv_pb2.WriteResult(error=error_to_operation(error))


class _Run(Generic[R]):
    """One batch on its way: results so far, and what is still to be asked."""

    def __init__(self, forwarder: Forwarder, batch: _Batch[R], deadline: Deadline) -> None:
        self._forwarder = forwarder
        self._batch = batch
        self._deadline = deadline
        self._results: list[R | None] = [None] * len(batch.paths)
        self._refused: dict[int, ServiceError] = {}  # by index: what may be asked again
        self.map_revision = 0

    async def results(self) -> list[R]:
        attempts = Attempts(self._deadline)
        pending = list(range(len(self._batch.paths)))
        routing = self._forwarder.routing
        while pending:
            revision = routing.revision
            self._refused = {}
            parts = self._split(pending)
            await asyncio.gather(*(self._ask(target, part) for target, part in parts))
            pending = sorted(self._refused)
            if not pending:
                break
            try:
                await self._forwarder.pause(
                    self._patient(), attempts, revision, write=self._batch.write
                )
            except ServiceError:
                for index, error in self._refused.items():
                    self._results[index] = self._batch.failed(attempts.given_up(error))
                break
        return [result for result in self._results if result is not None]

    def _patient(self) -> ServiceError:
        """The refusal that is worth the longest wait."""
        refusals = list(self._refused.values())
        moving = (error for error in refusals if not isinstance(error, NotServedYet))
        return next(moving, refusals[0])

    def _split(self, pending: list[int]) -> list[tuple[Target, list[int]]]:
        """The operations by node; raises UNKNOWN_TABLE."""
        parts: dict[str, tuple[Target, list[int]]] = {}
        routing = self._forwarder.routing
        try:
            table = routing.table(self._batch.table)
        except NotServedYet as error:
            self._refused = dict.fromkeys(pending, error)
            return []
        for index in pending:
            try:
                target = routing.locate(table, self._batch.paths[index])
            except NotServedYet as error:
                self._refused[index] = error
            else:
                parts.setdefault(target.node, (target, []))[1].append(index)
        return list(parts.values())

    async def _ask(self, target: Target, part: list[int]) -> None:
        batch = self._batch
        try:
            data = await self._forwarder.send(
                target, batch.method, batch.part(part), self._deadline, write=batch.write
            )
        except ServiceError as error:
            for index in part:
                self._fail(index, error)
            return
        answer = batch.take(data)
        if len(answer.results) != len(part):
            message = f"{len(answer.results)} results of node {target.node} for {len(part)} keys"
            raise ServiceError(Reason.INTERNAL, message, target.facts())
        self.map_revision = max(self.map_revision, answer.header.map_revision)
        for index, result in zip(part, answer.results, strict=True):
            refusal = error_from_operation(result.error) if result.HasField("error") else None
            if refusal is not None and may_retry(refusal, write=batch.write):
                self._refused[index] = refusal
            else:
                self._results[index] = result

    def _fail(self, index: int, error: ServiceError) -> None:
        if may_retry(error, write=self._batch.write):
            self._refused[index] = error
        else:
            self._results[index] = self._batch.failed(error)


async def batch_get(forwarder: Forwarder, data: bytes, deadline: Deadline) -> bytes:
    """BatchGet; values past BATCH_BYTES_MAX in all get LIMIT_EXCEEDED, one alone may be larger."""
    batch = _Reads(parse(kv_pb2.BatchGetRequest, data))
    run: _Run[kv_pb2.BatchGetResult] = _Run(forwarder, batch, deadline)
    results = await run.results()
    room = BATCH_BYTES_MAX
    for index, result in enumerate(results if len(results) > 1 else ()):
        size = len(result.record.value)
        if size <= room:
            room -= size
        else:
            message = f"more than {BATCH_BYTES_MAX} bytes in one answer: ask for this key by itself"
            results[index] = batch.failed(ServiceError(Reason.LIMIT_EXCEEDED, message))
    header = kv_pb2.ResponseHeader(map_revision=run.map_revision or forwarder.routing.revision)
    return kv_pb2.BatchGetResponse(header=header, results=results).SerializeToString()


async def batch_write(forwarder: Forwarder, data: bytes, deadline: Deadline) -> bytes:
    batch = _Writes(parse(kv_pb2.BatchWriteRequest, data))
    run: _Run[kv_pb2.WriteResult] = _Run(forwarder, batch, deadline)
    results = await run.results()
    header = kv_pb2.ResponseHeader(map_revision=run.map_revision or forwarder.routing.revision)
    return kv_pb2.BatchWriteResponse(
        header=header, results=results, receipts=batch.receipts
    ).SerializeToString()


async def sync(forwarder: Forwarder, data: bytes, deadline: Deadline) -> bytes:
    """Sync on every node that serves shards of the table.

    The receipts have to name every shard of the map: a node that has taken over a shard since the
    map was read would be left out otherwise.
    """
    request = parse(kv_pb2.SyncRequest, data)
    attempts = Attempts(deadline)
    while True:
        revision = forwarder.routing.revision
        try:
            return await _sync_once(forwarder, request, deadline)
        except ServiceError as error:
            await forwarder.pause(error, attempts, revision, write=False)


async def _sync_once(
    forwarder: Forwarder, request: kv_pb2.SyncRequest, deadline: Deadline
) -> bytes:
    routing = forwarder.routing
    table = routing.table(request.table)
    names = {shard.name for shard in routing.state.map.shards(table) if shard.serving}
    data = request.SerializeToString()
    outcomes = await asyncio.gather(
        *(
            forwarder.send(target, "Sync", data, deadline, write=False)
            for target in routing.primaries(table)
        ),
        return_exceptions=True,
    )
    answers: list[kv_pb2.SyncResponse] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(kv_pb2.SyncResponse.FromString(outcome))
    receipts = {receipt.shard: receipt for answer in answers for receipt in answer.receipts}
    left_out = sorted(names - receipts.keys())
    if left_out:
        message = f"no node has synced {', '.join(left_out)}"
        raise ServiceError(Reason.MOVED, message, {"shard": left_out[0]})
    revision = max((answer.header.map_revision for answer in answers), default=routing.revision)
    header = kv_pb2.ResponseHeader(map_revision=revision)
    response = kv_pb2.SyncResponse(header=header, receipts=receipts.values())
    return response.SerializeToString()
