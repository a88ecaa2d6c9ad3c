"""Every call of the service, bytes in and bytes out, free of I/O.

Each method checks its arguments at once and returns a plan (see `plan`); the clients differ only
in how they drive it.  Documentation of the calls is with `client.Client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import Message

from deodar.contract.keypath import path_of
from deodar.v1 import admin_pb2, kv_pb2

from . import plan, requests
from .batching import Batch, written_of
from .errors import BatchError, Error
from .plan import Call, Failure, Method, Plan, Send
from .records import Delete, Durability, Item, Put, Written
from .retry import Attempts
from .routing import Routing
from .scanning import ScanState
from .watching import WatchState

DEFAULT_TIMEOUT_S: Final = 10.0


class Core:
    """Builds the plans of one client."""

    def __init__(self, routing: Routing, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.routing = routing
        self._timeout_s = requests.checked_timeout(timeout_s)

    def get(self, key: bytes, table: str, timeout: float | None) -> Plan[bytes | None]:
        request = requests.get_request(key, table)
        return self._get(request, self._attempts(timeout))

    def get_item(self, key: bytes, table: str, timeout: float | None) -> Plan[Item | None]:
        request = requests.get_request(key, table)
        return self._get_item(request, self._attempts(timeout))

    def put(
        self, put: Put, table: str, durability: Durability | None, timeout: float | None
    ) -> Plan[int]:
        request = requests.put_request(put, table, durability)
        return self._put(request, self._attempts(timeout))

    def delete(
        self, delete: Delete, table: str, durability: Durability | None, timeout: float | None
    ) -> Plan[bool]:
        request = requests.delete_request(delete, table, durability)
        return self._delete(request, self._attempts(timeout))

    def increment(
        self,
        key: bytes,
        delta: int,
        table: str,
        durability: Durability | None,
        timeout: float | None,
    ) -> Plan[int]:
        request = requests.increment_request(key, delta, table, durability)
        return self._increment(request, self._attempts(timeout))

    def batch_get(
        self, keys: Sequence[bytes], table: str, timeout: float | None
    ) -> Plan[list[bytes | None]]:
        table = requests.checked_table(table)
        return self._batch_get(requests.batch_keys(keys), table, self._attempts(timeout))

    def batch_write(
        self,
        operations: Sequence[Put | Delete],
        table: str,
        durability: Durability | None,
        timeout: float | None,
    ) -> Plan[list[Written]]:
        template = kv_pb2.BatchWriteRequest(
            table=requests.checked_table(table),
            durability=requests.checked_durability(durability),
        )
        built = requests.batch_operations(operations)
        return self._batch_write(built, template, self._attempts(timeout))

    def sync(self, table: str, timeout: float | None) -> Plan[None]:
        request = kv_pb2.SyncRequest(table=requests.checked_table(table))
        return self._sync(request, self._attempts(timeout))

    def scan(
        self,
        *,
        table: str,
        cursor: bytes | None,
        limit: int | None,
        key_prefix: bytes,
        keys_only: bool,
        timeout: float | None,
    ) -> ScanState:
        request = requests.scan_request(
            table=table, cursor=cursor, limit=limit, key_prefix=key_prefix, keys_only=keys_only
        )
        return ScanState(self.routing, request, self._seconds(timeout))

    def watch(
        self,
        *,
        key: bytes | None,
        prefix: bytes | None,
        table: str,
        position: bytes | None,
        timeout: float | None,
    ) -> WatchState:
        request = requests.watch_request(table=table, key=key, prefix=prefix, position=position)
        return WatchState(self.routing, request, self._seconds(timeout))

    def cluster_status(self, timeout: float | None) -> Plan[admin_pb2.ClusterStatusResponse]:
        request = admin_pb2.ClusterStatusRequest()
        return self._at_router(plan.CLUSTER_STATUS, request, self._attempts(timeout))

    def set_draining(
        self, node: str, draining: bool, timeout: float | None
    ) -> Plan[admin_pb2.SetDrainingResponse]:
        request = admin_pb2.SetDrainingRequest(node=node, draining=draining)
        return self._at_router(plan.SET_DRAINING, request, self._attempts(timeout))

    def move_shard(
        self, request: admin_pb2.MoveShardRequest, timeout: float | None
    ) -> Plan[admin_pb2.MoveShardResponse]:
        return self._at_router(plan.MOVE_SHARD, request, self._attempts(timeout))

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout_s if timeout is None else requests.checked_timeout(timeout)

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self.routing, self._seconds(timeout))

    def _for_key(self, method: Method, request: Any, attempts: Attempts) -> Plan[Any]:
        """The call of one key, at its node or a router, until it is answered."""
        path = path_of(request.key)
        while True:
            target = self.routing.target(request.table, path, newer_than=attempts.newer_than)
            call = Call(target.address, method, request, attempts.remaining_s)
            [outcome] = yield Send((call,))
            if not isinstance(outcome, Failure):
                return outcome
            yield attempts.after(outcome, target)

    def _at_router(self, method: Method, request: Message, attempts: Attempts) -> Plan[Any]:
        while True:
            target = self.routing.router_target()
            call = Call(target.address, method, request, attempts.remaining_s)
            [outcome] = yield Send((call,))
            if not isinstance(outcome, Failure):
                return outcome
            yield attempts.after(outcome, target)

    def _get(self, request: kv_pb2.GetRequest, attempts: Attempts) -> Plan[bytes | None]:
        response = yield from self._for_key(plan.GET, request, attempts)
        return response.record.value if response.found else None

    def _get_item(self, request: kv_pb2.GetRequest, attempts: Attempts) -> Plan[Item | None]:
        response = yield from self._for_key(plan.GET, request, attempts)
        if not response.found:
            return None
        record = response.record
        ttl_ms = record.ttl_ms if record.HasField("ttl_ms") else None
        return Item(request.key, record.value, record.version, ttl_ms)

    def _put(self, request: kv_pb2.PutRequest, attempts: Attempts) -> Plan[int]:
        response = yield from self._for_key(plan.PUT, request, attempts)
        version: int = response.version
        return version

    def _delete(self, request: kv_pb2.DeleteRequest, attempts: Attempts) -> Plan[bool]:
        response = yield from self._for_key(plan.DELETE, request, attempts)
        found: bool = response.found
        return found

    def _increment(self, request: kv_pb2.IncrementRequest, attempts: Attempts) -> Plan[int]:
        response = yield from self._for_key(plan.INCREMENT, request, attempts)
        value: int = response.value
        return value

    def _sync(self, request: kv_pb2.SyncRequest, attempts: Attempts) -> Plan[None]:
        yield from self._at_router(plan.SYNC, request, attempts)

    def _batch_get(
        self, keys: list[bytes], table: str, attempts: Attempts
    ) -> Plan[list[bytes | None]]:
        def request(indices: list[int]) -> Message:
            return kv_pb2.BatchGetRequest(table=table, keys=[keys[i] for i in indices])

        paths = [path_of(key) for key in keys]
        batch = Batch(self.routing, attempts, plan.BATCH_GET, table, paths, request)
        answers = yield from batch.run()
        return _all_or_raise(
            [
                answer
                if isinstance(answer, Error)
                else answer.record.value
                if answer.found
                else None
                for answer in answers
            ]
        )

    def _batch_write(
        self,
        operations: list[kv_pb2.WriteOperation],
        template: kv_pb2.BatchWriteRequest,
        attempts: Attempts,
    ) -> Plan[list[Written]]:
        def request(indices: list[int]) -> Message:
            return kv_pb2.BatchWriteRequest(
                table=template.table,
                durability=template.durability,
                operations=[operations[i] for i in indices],
            )

        paths = [path_of(requests.operation_key(operation)) for operation in operations]
        batch = Batch(self.routing, attempts, plan.BATCH_WRITE, template.table, paths, request)
        answers = yield from batch.run()
        return _all_or_raise(
            [answer if isinstance(answer, Error) else written_of(answer) for answer in answers]
        )


def _all_or_raise(results: list[Any]) -> list[Any]:
    """The results; raises BatchError for some that failed, and the error itself when one call for
    all of them did, so that there is nothing to tell apart."""
    if any(isinstance(result, Error) for result in results):
        if all(result is results[0] for result in results):
            raise results[0]
        raise BatchError(results)
    return results
