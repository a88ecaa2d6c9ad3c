"""The blocking transport: channels by address, and the thread that follows the shard map."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, cast

import grpc

from deodar.contract.rpc_status import FailedCall
from deodar.v1 import admin_pb2, kv_pb2

from .errors import Closed
from .plan import Call, Failure, Method, Outcome, Pause
from .routing import Routing
from .scanning import Stream
from .watching import WatchStream
from .wire import (
    FOLLOW_PAUSE_MAX_S,
    FOLLOW_PAUSE_S,
    OPTIONS,
    READY_S,
    STUBS,
    Leavers,
    Unreached,
    failure_of,
    out_of_time,
    unreached,
)

_READY: Final = grpc.ChannelConnectivity.READY.value[0]
# A call that any of our servers answers; an idle channel connects for it at once.
_KNOCK: Final = "/grpc.health.v1.Health/Check"
_NOT_THERE: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Connection:
    """One channel, and whether it stands."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, OPTIONS)
        self.stubs: dict[str, Any] = {name: stub(self._channel) for name, stub in STUBS.items()}
        self._knock: Any = self._channel.unary_unary(_KNOCK)
        # The state as gRPC's core has it.  The public way to it, `subscribe`, polls from a thread
        # for each channel and holds up the close of the channel by its period.
        core: Any = self._channel._channel  # type: ignore[attr-defined]
        self._state: Any = core.check_connectivity_state

    def wait_ready(self, seconds: float) -> bool:
        """Whether the connection stands; waits while it is being made."""
        if self._state(False) == _READY:
            return True
        try:
            self._knock(b"", timeout=seconds)
        except grpc.RpcError as error:
            return cast(FailedCall, error).code() not in _NOT_THERE
        return True

    def method(self, method: Method) -> Any:
        return getattr(self.stubs[method.service], method.name)

    def close(self) -> None:
        self._channel.close()


class Transport:
    """Drives the plans' sends and pauses.  Any thread.

    gRPC must not be carried over a fork: the first channel is made by the first call, and a
    process that was forked after that is refused.
    """

    def __init__(self, routing: Routing, connections: int) -> None:
        self._routing = routing
        self._connections_each = connections
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._connections: dict[str, list[Connection]] = {}  # guarded by _lock for changes
        self._follower: threading.Thread | None = None  # guarded by _lock
        self._owner_pid = 0  # 0 = no channel yet
        self._map_changed = threading.Condition()
        self._closing = threading.Event()
        self._map_stream: Any = None
        self._leavers = Leavers()

    def send(self, calls: tuple[Call, ...]) -> list[Outcome]:
        try:
            if len(calls) == 1:
                return [self._call(calls[0])]
            started = [self._start(call) for call in calls]
            return [
                future if isinstance(future, Failure) else self._finish(call, future)
                for call, future in zip(calls, started, strict=True)
            ]
        except ValueError as error:  # gRPC's word for a channel that was closed meanwhile
            raise Closed(str(error)) from error

    def pages(self, stream: Stream) -> Iterator[kv_pb2.ScanResponse]:
        """The answers of a Scan; raises grpc.RpcError, or Unreached when nothing was sent."""
        connection = self._connection(stream.target.address)
        try:
            if not connection.wait_ready(min(READY_S, stream.timeout_s)):
                raise Unreached(stream.target.address)
            call = connection.stubs["KV"].Scan(stream.request, timeout=stream.timeout_s)
        except ValueError as error:
            raise Closed(str(error)) from error
        try:
            yield from call
        finally:
            call.cancel()

    def watch(self, stream: WatchStream) -> Any:
        """The call of a Watch, an iterator of answers with `cancel`; raises Unreached when nothing
        was sent."""
        connection = self._connection(stream.target.address)
        try:
            if not connection.wait_ready(min(READY_S, max(stream.timeout_s, 0.0))):
                raise Unreached(stream.target.address)
            return connection.stubs["KV"].Watch(stream.request)
        except ValueError as error:
            raise Closed(str(error)) from error

    def pause(self, pause: Pause) -> None:
        """Waits for a newer map or for the time to pass; raises Closed when closed meanwhile."""
        with self._map_changed:
            self._map_changed.wait_for(
                lambda: self._closing.is_set() or self._routing.map.revision > pause.newer_than,
                pause.seconds,
            )
        self._check_open()

    def close(self) -> None:
        """Ends the thread and all channels; calls under way end with an error.  Idempotent."""
        self._closing.set()
        with self._map_changed:
            self._map_changed.notify_all()
        if os.getpid() != self._owner_pid:
            return  # nothing was opened by this process
        with self._lock:
            connections = [c for group in self._connections.values() for c in group]
            self._connections = {}
            follower, self._follower = self._follower, None
            stream = self._map_stream
        if stream is not None:
            stream.cancel()
        for connection in connections:
            connection.close()
        if follower is not None and follower is not threading.current_thread():
            follower.join()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed("the client is closed")
        if self._owner_pid not in (0, os.getpid()):
            raise Closed("the client was opened before a fork: make one in each process")

    def _connection(self, address: str) -> Connection:
        self._check_open()
        group = self._connections.get(address)
        if group is None:
            with self._lock:
                self._check_open()
                self._owner_pid = os.getpid()
                group = self._connections.get(address)
                if group is None:
                    group = [Connection(address) for _ in range(self._connections_each)]
                    self._connections[address] = group
                if self._follower is None and self._routing.smart:
                    self._follower = threading.Thread(
                        target=self._follow, name="deodar-shard-map", daemon=True
                    )
                    self._follower.start()
        return group[next(self._turn) % len(group)] if len(group) > 1 else group[0]

    def _ready(self, call: Call) -> tuple[Connection, float] | Outcome:
        """The connection for a call and the seconds left for it, or why there is none."""
        begun = time.monotonic()
        connection = self._connection(call.address)
        if call.timeout_s <= 0:
            return out_of_time(call.address)
        if not connection.wait_ready(min(READY_S, call.timeout_s)):
            return unreached(call.address)
        seconds = call.timeout_s - (time.monotonic() - begun)
        return (connection, seconds) if seconds > 0 else out_of_time(call.address)

    def _call(self, call: Call) -> Outcome:
        ready = self._ready(call)
        if not isinstance(ready, tuple):
            return ready
        connection, seconds = ready
        try:
            return connection.method(call.method)(call.request, timeout=seconds)
        except grpc.RpcError as error:
            return failure_of(error, repeatable=call.method.repeatable)

    def _start(self, call: Call) -> Any:
        """A future of the call, or the failure that kept it from being sent."""
        ready = self._ready(call)
        if not isinstance(ready, tuple):
            return ready
        connection, seconds = ready
        return connection.method(call.method).future(call.request, timeout=seconds)

    def _finish(self, call: Call, future: Any) -> Outcome:
        try:
            return future.result()
        except grpc.RpcError as error:
            return failure_of(error, repeatable=call.method.repeatable)
        except grpc.FutureCancelledError as error:
            raise Closed("the client was closed during the call") from error

    def _close_leavers(self) -> None:
        servers, now = self._routing.servers, time.monotonic()
        with self._lock:
            due = self._leavers.due(self._connections, servers, now)
            leaving = [connection for name in due for connection in self._connections.pop(name)]
        for connection in leaving:
            connection.close()

    def _follow(self) -> None:
        """Keeps the routing's map, from one router or another, until closed."""
        pause_s = FOLLOW_PAUSE_S
        while not self._closing.is_set():
            target = self._routing.router_target()
            try:
                connection = self._connection(target.address)
                if connection.wait_ready(READY_S):
                    request = admin_pb2.WatchShardMapRequest()
                    self._map_stream = connection.stubs["Admin"].WatchShardMap(request)
                    for change in self._map_stream:
                        self._routing.update(change)
                        self._close_leavers()
                        with self._map_changed:
                            self._map_changed.notify_all()
                        pause_s = FOLLOW_PAUSE_S
                else:
                    self._routing.avoid(target)
            except grpc.RpcError:
                self._routing.avoid(target)
            except (Closed, ValueError):
                # Closed meanwhile, or a map that cannot be read: routers are asked instead.
                self._routing.avoid(target)
            self._closing.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, FOLLOW_PAUSE_MAX_S)
