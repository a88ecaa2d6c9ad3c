"""Which failures are tried again, where, and which reach the caller: the plans, driven by a script.

No server and no transport: each test plays both, and sees every call that a plan makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import deodar
from deodar.client.core import Core
from deodar.client.plan import Call, Failure, Pause, Plan, Send
from deodar.client.routing import Routing
from deodar.client.wire import out_of_time, unreached
from deodar.contract.keypath import path_of
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import error_to_operation
from deodar.v1 import kv_pb2
from tests.client.test_routing import FIRST, N1, N2, SECOND, full_map


class Play:
    """Drives a plan: `answer` gives the outcome of each call; keeps what was asked of it."""

    def __init__(self, routing: Routing, answer: Callable[[Call], Any]) -> None:
        self.routing = routing
        self.answer = answer
        self.calls: list[Call] = []
        self.pauses: list[Pause] = []

    def run(self, plan: Plan[Any]) -> Any:
        try:
            step = next(plan)
            while True:
                assert len(self.calls) < 1000, "endless"
                if isinstance(step, Send):
                    self.calls += step.calls
                    step = plan.send([self.answer(call) for call in step.calls])
                else:
                    self.pauses.append(step)
                    step = plan.send([])
        except StopIteration as end:
            return end.value

    @property
    def addresses(self) -> list[str]:
        return [call.address for call in self.calls]


def said(reason: Reason) -> Failure:
    return Failure(ServiceError(reason, "why"), by_server=True)


def lost(*, repeatable: bool) -> Failure:
    reason = Reason.NODE_UNREACHABLE if repeatable else Reason.OUTCOME_UNKNOWN
    return Failure(ServiceError(reason, "UNAVAILABLE: socket closed"), by_server=False)


def key_of(node: str) -> bytes:
    """A key that `full_map` gives to a node."""
    wanted = 0 if node == N1 else 1
    return next(
        key for number in range(99) if path_of(key := f"k{number}".encode()) >> 127 == wanted
    )


@pytest.fixture
def routing() -> Routing:
    routing = Routing([FIRST, SECOND], smart=True)
    routing.update(full_map())
    return routing


FOUND = kv_pb2.GetResponse(found=True, record=kv_pb2.Record(value=b"v", version=3))
KEY = key_of(N1)


def script(outcomes: Sequence[Any]) -> Callable[[Call], Any]:
    rest = list(outcomes)
    return lambda _call: rest.pop(0)


def get(routing: Routing, outcomes: Sequence[Any], timeout: float = 5.0) -> tuple[Any, Play]:
    play = Play(routing, script(outcomes))
    return play.run(Core(routing).get(KEY, "", timeout)), play


def put(routing: Routing, outcomes: Sequence[Any], timeout: float = 5.0) -> tuple[Any, Play]:
    play = Play(routing, script(outcomes))
    plan = Core(routing).put(deodar.Put(KEY, b"v"), "", None, timeout)
    return play.run(plan), play


def test_a_call_goes_straight_to_its_node(routing: Routing) -> None:
    value, play = get(routing, [FOUND])
    assert value == b"v"
    assert play.addresses == [N1]
    assert 4.5 < play.calls[0].timeout_s <= 5.0


@pytest.mark.parametrize("reason", [Reason.MOVED, Reason.SHARD_MOVING, Reason.SHUTTING_DOWN])
def test_elsewhere_is_asked_of_a_router_until_the_map_is_newer(
    routing: Routing, reason: Reason
) -> None:
    version, play = put(routing, [said(reason), said(reason), kv_pb2.PutResponse(version=9)])
    assert version == 9
    assert play.addresses == [N1, FIRST, FIRST]
    assert all(pause.newer_than == 5 for pause in play.pauses)
    assert play.pauses[0].seconds > 0


def test_a_newer_map_leads_straight_to_the_node_again(routing: Routing) -> None:
    def answer(_call: Call) -> Any:
        if routing.map.revision == 5:
            routing.update(full_map(6))
            return said(Reason.MOVED)
        return FOUND

    play = Play(routing, answer)
    assert play.run(Core(routing).get(KEY, "", 5.0)) == b"v"
    assert play.addresses == [N1, N1]


def test_a_node_that_is_not_reached_is_passed_by(routing: Routing) -> None:
    version, play = put(routing, [unreached(N1), kv_pb2.PutResponse(version=9)])
    assert version == 9
    assert play.addresses == [N1, FIRST]
    assert play.pauses[0].seconds == 0
    _, play = put(routing, [kv_pb2.PutResponse(version=10)])
    assert play.addresses == [FIRST]


def test_a_lost_read_is_made_again_by_a_router(routing: Routing) -> None:
    value, play = get(routing, [lost(repeatable=True), FOUND])
    assert value == b"v"
    assert play.addresses == [N1, FIRST]


def test_a_lost_write_is_never_made_again(routing: Routing) -> None:
    with pytest.raises(deodar.OutcomeUnknown):
        put(routing, [lost(repeatable=False)])
    with pytest.raises(deodar.OutcomeUnknown):
        put(routing, [said(Reason.OUTCOME_UNKNOWN)])


@pytest.mark.parametrize(
    "reason",
    [
        Reason.OVERLOADED,
        Reason.DISK_FULL,
        Reason.SHARD_UNAVAILABLE,
        Reason.NODE_UNREACHABLE,
        Reason.CONDITION_FAILED,
        Reason.CORRUPTION,
        Reason.INTERNAL,
        Reason.UNKNOWN_TABLE,
    ],
)
def test_a_servers_other_words_are_the_answer(routing: Routing, reason: Reason) -> None:
    with pytest.raises(deodar.Error) as caught:
        put(routing, [said(reason)])
    assert caught.value.reason is reason


def test_the_next_router_is_asked(routing: Routing) -> None:
    routing.smart = False
    version, play = put(
        routing, [unreached(FIRST), unreached(SECOND), kv_pb2.PutResponse(version=2)]
    )
    assert version == 2
    assert play.addresses == [FIRST, SECOND, FIRST]


def test_without_any_router_a_call_ends_soon(
    routing: Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deodar.client.retry.CONNECT_S", 0.0)
    routing.smart = False
    with pytest.raises(deodar.NodeUnreachable):
        put(routing, [unreached(FIRST)])


def test_the_deadline_ends_the_attempts_and_nothing_was_done(routing: Routing) -> None:
    play = Play(routing, lambda _call: said(Reason.SHARD_MOVING))
    with pytest.raises(deodar.ShardUnavailable) as caught:
        play.run(Core(routing).put(deodar.Put(KEY, b""), "", None, 0.015))
    assert caught.value.metadata["cause"] == "SHARD_MOVING"
    with pytest.raises(deodar.DeadlineExceeded):
        put(routing, [out_of_time(N1)])


def test_pauses_grow_and_have_jitter(routing: Routing) -> None:
    def answer(_call: Call) -> Any:
        return FOUND if len(play.pauses) == 6 else said(Reason.MOVED)

    play = Play(routing, answer)
    play.run(Core(routing).get(KEY, "", 60.0))
    seconds = [pause.seconds for pause in play.pauses]
    assert seconds[5] > seconds[0]
    assert max(seconds) <= 0.5


class Shards:
    """Two nodes and a router with one dictionary behind them; keys of `moved` are elsewhere."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.log: list[tuple[str, bytes, bytes]] = []
        self.failing: dict[str, Failure] = {}
        self.failing_keys: dict[bytes, Reason] = {}

    def __call__(self, call: Call) -> Any:
        if call.address in self.failing:
            return self.failing.pop(call.address)
        request: Any = call.request
        if call.method.name == "BatchGet":
            return kv_pb2.BatchGetResponse(results=[self._read(key) for key in request.keys])
        return kv_pb2.BatchWriteResponse(
            results=[self._write(call.address, item.put) for item in request.operations]
        )

    def _read(self, key: bytes) -> kv_pb2.BatchGetResult:
        if key in self.failing_keys:
            error = ServiceError(self.failing_keys[key], "why")
            return kv_pb2.BatchGetResult(error=error_to_operation(error))
        value = self.data.get(key)
        if value is None:
            return kv_pb2.BatchGetResult()
        return kv_pb2.BatchGetResult(found=True, record=kv_pb2.Record(value=value))

    def _write(self, address: str, put: Any) -> kv_pb2.WriteResult:
        if put.key in self.failing_keys:
            error = ServiceError(self.failing_keys.pop(put.key), "why")
            return kv_pb2.WriteResult(error=error_to_operation(error))
        self.log.append((address, put.key, put.value))
        self.data[put.key] = put.value
        return kv_pb2.WriteResult(version=len(self.log))


KEYS = [f"key-{number}".encode() for number in range(20)]


def write(play: Play, puts: Sequence[deodar.Put], timeout: float = 5.0) -> Any:
    return play.run(Core(play.routing).batch_write(puts, "", None, timeout))


def test_batches_are_split_and_put_together(routing: Routing) -> None:
    shards = Shards()
    play = Play(routing, shards)
    results = write(play, [deodar.Put(key, key) for key in KEYS])
    assert [shards.log[result.version - 1][1] for result in results] == KEYS
    assert sorted(play.addresses) == [N1, N2]
    asked = [KEYS[3], KEYS[0], b"absent", KEYS[3], KEYS[19]]
    got = play.run(Core(routing).batch_get(asked, "", 5.0))
    assert got == [KEYS[3], KEYS[0], None, KEYS[3], KEYS[19]]
    assert play.run(Core(routing).batch_get([], "", 5.0)) == []


def test_writes_of_one_key_keep_their_order(routing: Routing) -> None:
    shards = Shards()
    shards.failing = {N1: said(Reason.MOVED)}
    play = Play(routing, shards)
    write(play, [deodar.Put(key, b"%d" % turn) for turn in range(3) for key in KEYS])
    for key in KEYS:
        assert [value for _, name, value in shards.log if name == key] == [b"0", b"1", b"2"]


def test_only_what_was_not_done_is_sent_again(routing: Routing) -> None:
    shards = Shards()
    shards.failing_keys = {KEYS[4]: Reason.MOVED, KEYS[7]: Reason.SHARD_MOVING}
    play = Play(routing, shards)
    write(play, [deodar.Put(key, key) for key in KEYS])
    assert sorted(key for _, key, _ in shards.log) == sorted(KEYS)
    assert {address for address, key, _ in shards.log if key in (KEYS[4], KEYS[7])} == {FIRST}


def test_a_batch_that_is_lost_at_one_node_is_unknown_there_alone(routing: Routing) -> None:
    shards = Shards()
    shards.failing = {N2: lost(repeatable=False)}
    play = Play(routing, shards)
    with pytest.raises(deodar.BatchError) as caught:
        write(play, [deodar.Put(key, key) for key in KEYS])
    there = {i for i, key in enumerate(KEYS) if path_of(key) >> 127 == 1}
    assert set(caught.value.failures) == there
    assert all(isinstance(caught.value.results[i], deodar.OutcomeUnknown) for i in there)
    assert len(shards.log) == len(KEYS) - len(there)


def test_a_key_that_cannot_be_read_is_never_absent(routing: Routing) -> None:
    shards = Shards()
    shards.data = {KEYS[0]: b"v"}
    shards.failing_keys = {KEYS[1]: Reason.SHARD_UNAVAILABLE}
    play = Play(routing, shards)
    with pytest.raises(deodar.BatchError) as caught:
        play.run(Core(routing).batch_get([KEYS[0], KEYS[1], b"absent"], "", 5.0))
    value, error, absent = caught.value.results
    assert (value, absent) == (b"v", None)
    assert isinstance(error, deodar.ShardUnavailable)


def test_keys_that_did_not_fit_into_the_answer_are_asked_again(routing: Routing) -> None:
    class Narrow(Shards):
        """Answers with two values at most."""

        def __call__(self, call: Call) -> Any:
            answer = super().__call__(call)
            full = ServiceError(Reason.LIMIT_EXCEEDED, "ask again")
            for result in answer.results[2:]:
                result.CopyFrom(kv_pb2.BatchGetResult(error=error_to_operation(full)))
            return answer

    shards = Narrow()
    shards.data = {key: key for key in KEYS}
    play = Play(routing, shards)
    assert play.run(Core(routing).batch_get(KEYS, "", 5.0)) == KEYS
    assert not play.pauses
    shards.failing_keys = dict.fromkeys(KEYS, Reason.LIMIT_EXCEEDED)
    with pytest.raises(deodar.BatchError):
        play.run(Core(routing).batch_get(KEYS, "", 5.0))


def test_an_answer_of_another_length_is_a_fault(routing: Routing) -> None:
    play = Play(routing, lambda _call: kv_pb2.BatchGetResponse())
    with pytest.raises(deodar.BatchError) as caught:
        play.run(Core(routing).batch_get(KEYS, "", 5.0))
    assert caught.value.reason is Reason.INTERNAL


def test_a_batch_that_is_refused_as_one_raises_the_error_itself(routing: Routing) -> None:
    routing.smart = False
    play = Play(routing, lambda _call: said(Reason.UNKNOWN_TABLE))
    with pytest.raises(deodar.NotFound):
        play.run(Core(routing).batch_get(KEYS, "", 5.0))
