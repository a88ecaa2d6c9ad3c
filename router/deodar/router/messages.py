"""Requests from bytes, refused before anything is forwarded when they break a public bound."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from deodar.contract.keypath import cursor_path
from deodar.contract.limits import (
    BATCH_BYTES_MAX,
    BATCH_OPERATIONS_MAX,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from deodar.contract.rpc_status import invalid_field
from deodar.v1 import kv_pb2

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    """Raises INVALID_FIELD for bytes that are no such message."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid_field("request", f"not a {kind.DESCRIPTOR.full_name}: {error}") from error


def check_key(key: bytes, field: str = "key") -> None:
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise invalid_field(field, f"{len(key)} bytes, not 1 to {KEY_BYTES_MAX}")


def check_value(value: bytes, field: str = "value") -> None:
    if len(value) > VALUE_BYTES_MAX:
        raise invalid_field(field, f"{len(value)} bytes, more than {VALUE_BYTES_MAX}")


def check_batch_count(count: int, field: str) -> None:
    if count > BATCH_OPERATIONS_MAX:
        raise invalid_field(field, f"{count} of them, more than {BATCH_OPERATIONS_MAX}")


def operation_keys(operations: list[kv_pb2.WriteOperation]) -> list[bytes]:
    """The key of each operation; raises INVALID_FIELD where one breaks a bound, or all together."""
    check_batch_count(len(operations), "operations")
    keys: list[bytes] = []
    size = 0
    for index, operation in enumerate(operations):
        field = f"operations[{index}]"
        kind = operation.WhichOneof("operation")
        if kind == "put":
            keys.append(operation.put.key)
            check_value(operation.put.value, f"{field}.put.value")
            size += len(operation.put.value)
        elif kind == "delete":
            keys.append(operation.delete.key)
        else:
            raise invalid_field(field, "neither a put nor a delete")
        check_key(keys[-1], f"{field}.{kind}.key")
        size += len(keys[-1])
    if size > BATCH_BYTES_MAX and len(operations) > 1:
        message = f"{size} bytes of keys and values, more than {BATCH_BYTES_MAX}"
        raise invalid_field("operations", message)
    return keys


def scan_path(request: kv_pb2.ScanRequest) -> int:
    """Where in the hash space the scan goes on; raises INVALID_FIELD for a bad cursor."""
    try:
        return cursor_path(request.cursor)
    except ValueError as error:
        raise invalid_field("cursor", str(error)) from error
