"""From arguments to request messages: what is wrong is refused here, before anything is sent.

A wrong type raises TypeError, a wrong value `InvalidArgument` naming the argument.  Bounds are
those of `deodar.contract.limits`; a server may be stricter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from deodar.contract import limits
from deodar.contract.reasons import Reason
from deodar.v1 import kv_pb2 as pb

from .errors import InvalidArgument
from .records import Delete, Durability, Put

UINT64_MAX: Final = 2**64 - 1
INT64_MAX: Final = 2**63 - 1

_DURABILITIES: Final[dict[str | None, pb.Durability.ValueType]] = {
    None: pb.DURABILITY_UNSPECIFIED,
    "buffered": pb.DURABILITY_BUFFERED,
    "replicated": pb.DURABILITY_REPLICATED,
    "durable": pb.DURABILITY_DURABLE,
}


def invalid(field: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {message}", Reason.INVALID_FIELD, {"field": field})


def as_bytes(field: str, value: object) -> bytes:
    """`value` when it is bytes, or a copy of a bytearray or memoryview."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = ", encode it first" if isinstance(value, str) else ""
    raise TypeError(f"{field} must be bytes, not {type(value).__name__}{hint}")


def checked_key(key: object) -> bytes:
    data = as_bytes("key", key)
    if not 1 <= len(data) <= limits.KEY_BYTES_MAX:
        raise invalid("key", f"{len(data)} bytes, allowed are 1 to {limits.KEY_BYTES_MAX}")
    return data


def checked_value(value: object) -> bytes:
    data = as_bytes("value", value)
    if len(data) > limits.VALUE_BYTES_MAX:
        raise invalid("value", f"{len(data)} bytes, allowed are 0 to {limits.VALUE_BYTES_MAX}")
    return data


def checked_number(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        raise invalid(field, f"{value} is not between {low} and {high}")
    return value


def optional_number(field: str, value: object, low: int, high: int) -> int | None:
    return None if value is None else checked_number(field, value, low, high)


def checked_table(table: object) -> str:
    if not isinstance(table, str):
        raise TypeError(f"table must be a str, not {type(table).__name__}")
    return table


def checked_durability(durability: object) -> pb.Durability.ValueType:
    if durability is not None and not isinstance(durability, str):
        raise TypeError(f"durability must be a str, not {type(durability).__name__}")
    if durability not in _DURABILITIES:
        raise invalid("durability", f"{durability!r} is not buffered, replicated or durable")
    return _DURABILITIES[durability]


def checked_timeout(timeout: object) -> float:
    """Seconds; more than 0 and finite."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds, not {type(timeout).__name__}")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise invalid("timeout", f"{timeout} is not a number of seconds above 0")
    return float(timeout)


def get_request(key: bytes, table: str) -> pb.GetRequest:
    return pb.GetRequest(table=checked_table(table), key=checked_key(key))


def put_request(put: Put, table: str, durability: Durability | None) -> pb.PutRequest:
    return pb.PutRequest(
        table=checked_table(table), durability=checked_durability(durability), **put_fields(put)
    )


def delete_request(delete: Delete, table: str, durability: Durability | None) -> pb.DeleteRequest:
    return pb.DeleteRequest(
        table=checked_table(table),
        durability=checked_durability(durability),
        **delete_fields(delete),
    )


def increment_request(
    key: bytes, delta: int, table: str, durability: Durability | None
) -> pb.IncrementRequest:
    return pb.IncrementRequest(
        table=checked_table(table),
        key=checked_key(key),
        delta=checked_number("delta", delta, -INT64_MAX - 1, INT64_MAX),
        durability=checked_durability(durability),
    )


def batch_keys(keys: Sequence[bytes]) -> list[bytes]:
    """The keys of a batch read, checked."""
    if isinstance(keys, bytes | bytearray | str):
        raise TypeError("keys must be a list of keys, not one key")
    checked = [checked_key(key) for key in keys]
    _check_count("keys", len(checked))
    return checked


def batch_operations(operations: Sequence[Put | Delete]) -> list[pb.WriteOperation]:
    """The operations of a batch write, checked."""
    built = []
    total_bytes = 0
    for operation in operations:
        if isinstance(operation, Put):
            fields = put_fields(operation)
            total_bytes += len(fields["key"]) + len(fields["value"])
            built.append(pb.WriteOperation(put=pb.WriteOperation.Put(**fields)))
        elif isinstance(operation, Delete):
            fields = delete_fields(operation)
            total_bytes += len(fields["key"])
            built.append(pb.WriteOperation(delete=pb.WriteOperation.Delete(**fields)))
        else:
            raise TypeError(f"operations are Put or Delete, not {type(operation).__name__}")
    _check_count("operations", len(built))
    if len(built) > 1 and total_bytes > limits.BATCH_BYTES_MAX:
        raise invalid(
            "operations",
            f"{total_bytes} bytes of keys and values, allowed are {limits.BATCH_BYTES_MAX}",
        )
    return built


def operation_key(operation: pb.WriteOperation) -> bytes:
    key: bytes = operation.put.key if operation.HasField("put") else operation.delete.key
    return key


def scan_request(
    *, table: str, cursor: bytes | None, limit: int | None, key_prefix: bytes, keys_only: bool
) -> pb.ScanRequest:
    return pb.ScanRequest(
        table=checked_table(table),
        cursor=as_bytes("cursor", cursor or b""),
        limit=0 if limit is None else checked_number("limit", limit, 1, UINT64_MAX),
        key_prefix=as_bytes("key_prefix", key_prefix),
        keys_only=bool(keys_only),
    )


def watch_request(
    *, table: str, key: bytes | None, prefix: bytes | None, position: bytes | None
) -> pb.WatchRequest:
    if key is not None and prefix is not None:
        raise invalid("prefix", "not together with a key")
    request = pb.WatchRequest(
        table=checked_table(table), position=as_bytes("position", position or b"")
    )
    if key is not None:
        request.key = checked_key(key)
    else:
        request.key_prefix = as_bytes("prefix", b"" if prefix is None else prefix)
    return request


def _check_count(field: str, count: int) -> None:
    if count > limits.BATCH_OPERATIONS_MAX:
        raise invalid(field, f"{count} of them, allowed are {limits.BATCH_OPERATIONS_MAX}")


def put_fields(put: Put) -> dict[str, Any]:
    if put.if_absent and put.if_version is not None:
        raise invalid("if_absent", "not together with if_version")
    return {
        "key": checked_key(put.key),
        "value": checked_value(put.value),
        "ttl_ms": optional_number("ttl_ms", put.ttl_ms, 1, limits.TTL_MS_MAX),
        "if_version": optional_number("if_version", put.if_version, 0, UINT64_MAX),
        "if_absent": bool(put.if_absent),
    }


def delete_fields(delete: Delete) -> dict[str, Any]:
    return {
        "key": checked_key(delete.key),
        "if_version": optional_number("if_version", delete.if_version, 0, UINT64_MAX),
    }
