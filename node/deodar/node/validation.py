"""What a request must be like, checked before anything is changed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from deodar.contract.keypath import cursor_path
from deodar.contract.limits import (
    BATCH_BYTES_MAX,
    BATCH_OPERATIONS_MAX,
    DEFAULT_TABLE,
    KEY_BYTES_MAX,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
)
from deodar.contract.reasons import Reason, ServiceError
from deodar.contract.rpc_status import invalid_field
from deodar.v1 import kv_pb2

PutFields = kv_pb2.PutRequest | kv_pb2.WriteOperation.Put


def now_ms() -> int:
    """Milliseconds since 1970, as deadlines are counted."""
    return time.time_ns() // 1_000_000


def table_name(table: str) -> str:
    return table or DEFAULT_TABLE


def check_key(key: bytes, field: str = "key") -> None:
    if not key:
        raise invalid_field(field, "is empty")
    if len(key) > KEY_BYTES_MAX:
        raise invalid_field(field, f"has {len(key)} bytes, at most {KEY_BYTES_MAX} are allowed")


def check_put(put: PutFields, where: str = "") -> None:
    """Key, value, expiry and conditions of a put; `where` leads the names of fields."""
    check_key(put.key, f"{where}key")
    if len(put.value) > VALUE_BYTES_MAX:
        raise invalid_field(
            f"{where}value", f"has {len(put.value)} bytes, at most {VALUE_BYTES_MAX} are allowed"
        )
    if put.HasField("ttl_ms") and not 1 <= put.ttl_ms <= TTL_MS_MAX:
        raise invalid_field(f"{where}ttl_ms", f"is {put.ttl_ms}, must be from 1 to {TTL_MS_MAX}")
    if put.if_absent and put.HasField("if_version"):
        raise invalid_field(f"{where}if_absent", "excludes if_version")


def check_keys(keys: Sequence[bytes]) -> None:
    """The keys of a BatchGet."""
    if len(keys) > BATCH_OPERATIONS_MAX:
        raise invalid_field(
            "keys", f"has {len(keys)} keys, at most {BATCH_OPERATIONS_MAX} are allowed"
        )
    for index, key in enumerate(keys):
        if not key or len(key) > KEY_BYTES_MAX:
            check_key(key, f"keys[{index}]")


def check_operations(operations: Sequence[kv_pb2.WriteOperation]) -> None:
    """The operations of a BatchWrite."""
    if len(operations) > BATCH_OPERATIONS_MAX:
        raise invalid_field(
            "operations",
            f"has {len(operations)} operations, at most {BATCH_OPERATIONS_MAX} are allowed",
        )
    size = 0
    for index, operation in enumerate(operations):
        where = f"operations[{index}]."
        match operation.WhichOneof("operation"):
            case "put":
                check_put(operation.put, f"{where}put.")
                size += len(operation.put.key) + len(operation.put.value)
            case "delete":
                check_key(operation.delete.key, f"{where}delete.key")
                size += len(operation.delete.key)
            case _:
                raise invalid_field(f"{where}operation", "is neither a put nor a delete")
    if size > BATCH_BYTES_MAX and len(operations) > 1:
        raise invalid_field(
            "operations",
            f"have {size} bytes of keys and values, at most {BATCH_BYTES_MAX} are allowed",
        )


def check_cursor(cursor: bytes) -> int:
    """The path at which the cursor stands."""
    try:
        return cursor_path(cursor)
    except ValueError as error:
        raise invalid_field("cursor", str(error)) from error


def check_durability(asked: int, default: int) -> bool:
    """Whether the acknowledgement waits for the disk.

    `default` is the table's.  Raises NOT_ENOUGH_REPLICAS for a level that takes replicas: tables
    have one copy.
    """
    level = asked or default
    if level == kv_pb2.DURABILITY_DURABLE:
        return True
    if level in (kv_pb2.DURABILITY_UNSPECIFIED, kv_pb2.DURABILITY_BUFFERED):
        return False
    if level == kv_pb2.DURABILITY_REPLICATED:
        raise ServiceError(Reason.NOT_ENOUGH_REPLICAS, "the table has no replicas")
    raise invalid_field("durability", f"has no level {level}")
