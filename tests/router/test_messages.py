"""What a router refuses before it forwards anything, at each bound and one past it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deodar.contract.limits import (
    BATCH_BYTES_MAX,
    BATCH_OPERATIONS_MAX,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from deodar.contract.reasons import Reason, ServiceError
from deodar.router.messages import (
    check_batch_count,
    check_key,
    check_value,
    operation_keys,
    parse,
    scan_path,
)
from deodar.v1 import kv_pb2

Put, Delete = kv_pb2.WriteOperation.Put, kv_pb2.WriteOperation.Delete


def put(key: bytes, value: bytes = b"") -> kv_pb2.WriteOperation:
    return kv_pb2.WriteOperation(put=Put(key=key, value=value))


def refused(call: Callable[[], object]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        call()
    assert caught.value.reason is Reason.INVALID_FIELD
    return caught.value


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x12\xff\xff\xff\xff\xff\xff"])
def test_malformed_bytes_name_the_request(data: bytes) -> None:
    error = refused(lambda: parse(kv_pb2.GetRequest, data))
    assert error.metadata == {"field": "request"}
    assert "deodar.v1.GetRequest" in error.message


def test_unknown_fields_are_let_through() -> None:
    data = kv_pb2.GetRequest(key=b"k").SerializeToString() + b"\xa0\x06\x01"
    assert parse(kv_pb2.GetRequest, data).key == b"k"


def test_key_bounds() -> None:
    check_key(b"k")
    check_key(bytes(KEY_BYTES_MAX))
    assert "0 bytes" in refused(lambda: check_key(b"")).message
    message = refused(lambda: check_key(bytes(KEY_BYTES_MAX + 1))).message
    assert "65537" in message
    assert "65536" in message


def test_value_bounds() -> None:
    check_value(b"")
    check_value(bytes(VALUE_BYTES_MAX))
    message = refused(lambda: check_value(bytes(VALUE_BYTES_MAX + 1))).message
    assert str(VALUE_BYTES_MAX + 1) in message


def test_batch_count_bounds() -> None:
    check_batch_count(BATCH_OPERATIONS_MAX, "keys")
    error = refused(lambda: check_batch_count(BATCH_OPERATIONS_MAX + 1, "keys"))
    assert error.metadata == {"field": "keys"}


def test_operations_give_their_keys_in_order() -> None:
    delete = kv_pb2.WriteOperation(delete=Delete(key=b"b"))
    assert operation_keys([put(b"a"), delete, put(b"a")]) == [b"a", b"b", b"a"]


def test_an_operation_names_itself() -> None:
    empty = kv_pb2.WriteOperation()
    assert refused(lambda: operation_keys([put(b"a"), empty])).metadata["field"] == "operations[1]"
    error = refused(lambda: operation_keys([put(b"a"), put(b"")]))
    assert error.metadata["field"] == "operations[1].put.key"
    error = refused(lambda: operation_keys([put(b"a", bytes(VALUE_BYTES_MAX + 1))]))
    assert error.metadata["field"] == "operations[0].put.value"


def test_batch_bytes_bounds() -> None:
    """Keys and values at the bound pass, one more byte does not; one alone may be larger."""
    half = BATCH_BYTES_MAX // 2
    operation_keys([put(b"a", bytes(half - 1)), put(b"b", bytes(half - 1))])
    over = [put(b"a", bytes(half - 1)), put(b"b", bytes(half))]
    assert refused(lambda: operation_keys(over)).metadata == {"field": "operations"}
    operation_keys([put(b"a", bytes(BATCH_BYTES_MAX + 1))])


def test_cursor_of_a_scan() -> None:
    assert scan_path(kv_pb2.ScanRequest()) == 0
    assert scan_path(kv_pb2.ScanRequest(cursor=b"\x80" + bytes(15) + b"key")) == 1 << 127
    error = refused(lambda: scan_path(kv_pb2.ScanRequest(cursor=b"short")))
    assert error.metadata == {"field": "cursor"}
