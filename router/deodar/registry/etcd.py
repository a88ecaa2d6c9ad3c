"""The registry in etcd."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Final

import grpc

from deodar.etcd.v3 import etcd_pb2 as pb

from . import etcd_wire as wire
from .config import RegistryConfig
from .follow import follow
from .interface import (
    Changes,
    Compacted,
    Compare,
    Delete,
    Entry,
    Event,
    LeaseLost,
    Put,
    RegistryUnavailable,
    Snapshot,
)
from .lease import KeptLease, now_ms
from .transaction import check_transaction

# A shard's record is some 200 bytes, so a page is a few hundred KiB.
PAGE_KEYS: Final = 1_000

COMPARE_MOD_REVISION: Final = 2
EVENT_DELETE: Final = 1
# A page of a revision that was compacted meanwhile is read again from the start.
_LIST_ATTEMPTS: Final = 5


def _prefix_end(prefix: bytes) -> bytes:
    """First key behind all keys with the prefix; etcd's word for "no end" is one zero byte."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def _entry(pair: pb.KeyValue) -> Entry:
    return Entry(pair.key.decode(), pair.value, pair.mod_revision, pair.lease)


def _event(event: pb.Event) -> Event:
    pair = event.kv
    value = None if event.type == EVENT_DELETE else pair.value
    return Event(pair.key.decode(), value, pair.mod_revision, pair.lease)


class EtcdRegistry:
    """`Registry` over etcd's own API."""

    kind = "etcd"

    def __init__(self, config: RegistryConfig) -> None:
        """Raises OSError when a certificate file cannot be read."""
        self._wire = wire.EtcdWire(config)
        self._addresses = config.addresses

    @property
    def endpoints(self) -> list[str]:
        return list(self._addresses)

    async def close(self) -> None:
        await self._wire.close()

    async def version(self) -> str:
        """Version of the etcd member that answers."""
        return (await self._wire.read(wire.STATUS, pb.StatusRequest())).version

    async def range(self, prefix: str) -> Snapshot:
        for _ in range(_LIST_ATTEMPTS):
            try:
                return await self._list(prefix.encode())
            except Compacted:
                continue
        raise RegistryUnavailable(f"{prefix}: compacted while it was being read, again and again")

    async def _list(self, prefix: bytes) -> Snapshot:
        """All pages at the revision of the first."""
        end = _prefix_end(prefix)
        start, revision = prefix or b"\0", 0
        entries: list[Entry] = []
        while True:
            request = pb.RangeRequest(key=start, range_end=end, limit=PAGE_KEYS, revision=revision)
            try:
                answer = await self._wire.read(wire.RANGE, request)
            except wire.Refusal as error:
                if error.code is grpc.StatusCode.OUT_OF_RANGE:
                    raise Compacted(str(error)) from error
                raise
            entries.extend(_entry(pair) for pair in answer.kvs)
            revision = revision or answer.header.revision
            if not answer.more:
                return Snapshot(revision, tuple(entries))
            start = answer.kvs[-1].key + b"\0"

    async def get(self, key: str) -> Entry | None:
        answer = await self._wire.read(wire.RANGE, pb.RangeRequest(key=key.encode()))
        return _entry(answer.kvs[0]) if answer.kvs else None

    async def commit(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete]
    ) -> int | None:
        check_transaction(compares, operations)
        request = pb.TxnRequest()
        for compare in compares:
            request.compare.add(
                key=compare.key.encode(),
                target=COMPARE_MOD_REVISION,
                mod_revision=compare.mod_revision,
            )
        for operation in operations:
            key = operation.key.encode()
            if isinstance(operation, Put):
                put = pb.PutRequest(key=key, value=operation.value, lease=operation.lease)
                request.success.add(request_put=put)
            else:
                request.success.add(request_delete_range=pb.DeleteRangeRequest(key=key))
        try:
            answer = await self._wire.write(wire.TXN, request)
        except wire.Refusal as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                raise LeaseLost(str(error)) from error
            raise
        return answer.header.revision if answer.succeeded else None

    async def grant_lease(self, ttl_ms: int) -> KeptLease:
        """etcd counts in seconds and gives at least 2."""
        sent_ms = now_ms()
        # An answer that is lost leaves a lease without keys, which ends by itself.
        request = pb.LeaseGrantRequest(ttl=math.ceil(ttl_ms / 1000))
        answer = await self._wire.read(wire.LEASE_GRANT, request)
        return KeptLease(self, answer.id, answer.ttl * 1000, sent_ms)

    async def keep_lease(self, lease_id: int, timeout_ms: float) -> int:
        request = pb.LeaseKeepAliveRequest(id=lease_id)
        answer = await self._wire.read(wire.LEASE_KEEP_ALIVE, request, timeout_ms=timeout_ms)
        return answer.ttl * 1000

    async def revoke_lease(self, lease_id: int) -> None:
        try:
            await self._wire.read(wire.LEASE_REVOKE, pb.LeaseRevokeRequest(id=lease_id))
        except wire.Refusal as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise

    def watch(self, prefix: str) -> AsyncIterator[Snapshot | Changes]:
        return follow(
            partial(self.range, prefix), partial(self._changes_after, prefix), prefix=prefix
        )

    async def _changes_after(self, prefix: str, revision: int) -> AsyncGenerator[Changes, None]:
        """One stream of changes.  A peer that stays silent when asked for progress is dead."""
        start = prefix.encode()
        create = pb.WatchCreateRequest(
            key=start or b"\0",
            range_end=_prefix_end(start),
            start_revision=revision + 1,
            progress_notify=True,
            fragment=True,
        )
        silence_ms = self._wire.timeout_ms / 2
        async with self._wire.stream(wire.WATCH) as stream:
            await stream.send(pb.WatchRequest(create_request=create))
            pieces: list[Event] = []
            asked = 0
            while True:
                answer = await stream.receive(silence_ms)
                if answer is None:
                    asked += 1
                    if asked > 2:
                        raise RegistryUnavailable(f"etcd is silent on the watch of {prefix}")
                    progress = pb.WatchProgressRequest()
                    await stream.send(pb.WatchRequest(progress_request=progress))
                    continue
                asked = 0
                self._check_watch(prefix, revision, answer)
                pieces.extend(_event(event) for event in answer.events)
                if answer.fragment:
                    continue
                if pieces:
                    revision = pieces[-1].mod_revision
                elif answer.watch_id >= 0 and not answer.created:
                    # Of this watch, so in order with its events.  An answer for the whole stream
                    # may overtake them (etcd before 3.5.8) and is only a sign of life.
                    revision = max(revision, answer.header.revision)
                yield Changes(revision, tuple(pieces))
                pieces = []

    def _check_watch(self, prefix: str, revision: int, answer: pb.WatchResponse) -> None:
        """Raises when an answer ends the watch."""
        if answer.compact_revision:
            raise Compacted(f"etcd keeps {prefix} from revision {answer.compact_revision} on")
        if answer.canceled:
            self._wire.forget_token()
            raise RegistryUnavailable(f"etcd ended the watch of {prefix}: {answer.cancel_reason}")
        if answer.created and answer.header.revision < revision:
            raise Compacted(f"etcd is at revision {answer.header.revision}, not at {revision}")
