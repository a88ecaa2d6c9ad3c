"""What tests of a running service need on its wire: stubs, keys of a chosen shard, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from deodar.contract.keypath import Prefix, path_of
from deodar.contract.reasons import Reason
from deodar.contract.rpc_status import channel_options, error_from_rpc
from deodar.v1 import admin_pb2, admin_pb2_grpc, kv_pb2_grpc


class Service(NamedTuple):
    """Stubs of one server, and its channel for what stubs cannot say."""

    channel: grpc.Channel
    kv: kv_pb2_grpc.KVStub
    admin: admin_pb2_grpc.AdminStub


@contextmanager
def connected(endpoint: str) -> Iterator[Service]:
    with grpc.insecure_channel(endpoint, options=channel_options()) as channel:
        yield Service(channel, kv_pb2_grpc.KVStub(channel), admin_pb2_grpc.AdminStub(channel))


class Failure(NamedTuple):
    code: grpc.StatusCode
    reason: Reason
    message: str
    metadata: dict[str, str]


def failure(call: Callable[[], Any]) -> Failure:
    """The error of a call that has to fail with a reason of ours."""
    try:
        answer = call()
    except grpc.RpcError as raised:
        error = error_from_rpc(raised)
        code = raised.code()
        assert error.rule.code == code.value[0], f"{code} does not go with {error.reason}: {error}"
        return Failure(code, error.reason, error.message, error.metadata)
    raise AssertionError(f"the call did not fail: {str(answer)[:200]}")


def shard_name(shard: admin_pb2.ShardStatus) -> str:
    prefix = Prefix.from_bytes(shard.shard.prefix, shard.shard.prefix_bits)
    return f"{shard.shard.table}/{prefix}"


def keys_of_shard(shard: admin_pb2.ShardStatus) -> Iterator[bytes]:
    """Keys k0, k1, ... that live in the shard, without end."""
    prefix = Prefix.from_bytes(shard.shard.prefix, shard.shard.prefix_bits)
    keys = (b"k%d" % number for number in itertools.count())
    return (key for key in keys if prefix.contains(path_of(key)))


def keys_of_node(status: admin_pb2.ClusterStatusResponse, node: str) -> Iterator[bytes]:
    """Keys k0, k1, ... that live on the node, without end."""
    prefixes = [
        Prefix.from_bytes(shard.shard.prefix, shard.shard.prefix_bits)
        for shard in status.shards
        if shard.shard.primary == node
    ]
    assert prefixes, f"node {node} has no shard"
    keys = (b"k%d" % number for number in itertools.count())
    return (key for key in keys if any(prefix.contains(path_of(key)) for prefix in prefixes))
