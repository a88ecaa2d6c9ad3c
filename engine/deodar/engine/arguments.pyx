import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from .disk cimport DISK_AIO, DISK_AUTO, DISK_PWRITE, DISK_URING
from .hashing cimport Path
from .limits cimport (
    KEY_BYTES_MAX,
    REGION_BYTES_MAX,
    REGION_BYTES_MIN,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
)
from .threads cimport monotonic_ns
from .write cimport (
    CONDITION_ABSENT,
    CONDITION_NONE,
    CONDITION_VERSION,
    OPERATION_DELETE,
    OPERATION_PUT,
)

from .errors import InvalidArgument
from .items import Change, Delete, Put

cdef enum:
    PATH_BYTES = 16
    SCAN_ITEMS_MAX = 100000
    TIMEOUT_SECONDS_MAX = 1000000000


cdef int key_check(bytes key) except -1:
    cdef Py_ssize_t key_bytes
    if key is None:
        raise TypeError("a key is bytes, not None")
    key_bytes = PyBytes_GET_SIZE(key)
    if not 1 <= key_bytes <= KEY_BYTES_MAX:
        raise InvalidArgument("key", f"{key_bytes} bytes; 1 to {KEY_BYTES_MAX} are allowed")
    return 0


cdef int value_check(bytes value) except -1:
    cdef Py_ssize_t value_bytes
    if value is None:
        raise TypeError("a value is bytes, not None")
    value_bytes = PyBytes_GET_SIZE(value)
    if value_bytes > VALUE_BYTES_MAX:
        raise InvalidArgument("value", f"{value_bytes} bytes; {VALUE_BYTES_MAX} are allowed")
    return 0


cdef int condition_fill(Operation* operation, object if_version, bint if_absent) except -1:
    operation.condition = CONDITION_NONE
    if if_absent:
        if if_version is not None:
            raise InvalidArgument("if_version", "not together with if_absent")
        operation.condition = CONDITION_ABSENT
    elif if_version is not None:
        operation.condition = CONDITION_VERSION
        operation.if_version = unsigned_of("if_version", if_version)
    return 0


cdef int put_fill(
    Operation* operation,
    bytes key,
    bytes value,
    object ttl_ms,
    object if_version,
    bint if_absent,
    uint64_t now_ms,
) except -1:
    memset(operation, 0, sizeof(Operation))
    key_check(key)
    value_check(value)
    operation.kind = OPERATION_PUT
    key_fill(operation, key)
    operation.value = <const uint8_t*> PyBytes_AS_STRING(value)
    operation.value_bytes = <uint32_t> PyBytes_GET_SIZE(value)
    if ttl_ms is not None:
        if not 1 <= ttl_ms <= <uint64_t> TTL_MS_MAX:
            raise InvalidArgument(
                "ttl_ms", f"{ttl_ms}; 1 to {<uint64_t> TTL_MS_MAX} are allowed"
            )
        operation.deadline_ms = now_ms + <uint64_t> ttl_ms
    return condition_fill(operation, if_version, if_absent)


cdef int key_fill(Operation* operation, bytes key) except -1:
    operation.key = <const uint8_t*> PyBytes_AS_STRING(key)
    operation.key_bytes = <uint32_t> PyBytes_GET_SIZE(key)
    return 0


cdef int delete_fill(Operation* operation, bytes key, object if_version) except -1:
    memset(operation, 0, sizeof(Operation))
    key_check(key)
    operation.kind = OPERATION_DELETE
    key_fill(operation, key)
    return condition_fill(operation, if_version, False)


# Fields are taken by their places, since the tuple keeps what it holds alive; a property of a
# subclass might not.
cdef int operation_fill(Operation* operation, object item, uint64_t now_ms) except -1:
    cdef tuple fields
    if isinstance(item, Put):
        fields = <tuple> item
        return put_fill(
            operation, fields[0], fields[1], fields[2], fields[3], fields[4], now_ms
        )
    if isinstance(item, Delete):
        fields = <tuple> item
        return delete_fill(operation, fields[0], fields[1])
    raise TypeError(f"a batch holds Put and Delete, not {type(item).__name__}")


cdef int change_fill(Operation* operation, object change) except -1:
    cdef tuple fields
    if not isinstance(change, Change):
        raise TypeError(f"expected a Change, not {type(change).__name__}")
    fields = <tuple> change
    key, value, version, deadline_ms = fields
    if value is None:
        delete_fill(operation, key, None)
        if deadline_ms is not None:
            raise InvalidArgument("deadline_ms", "a deletion has none")
    else:
        put_fill(operation, key, value, None, None, False, 0)
        if deadline_ms is not None:
            operation.deadline_ms = unsigned_of("deadline_ms", deadline_ms)
            if operation.deadline_ms == 0:
                raise InvalidArgument("deadline_ms", "0; None means none")
    operation.if_version = unsigned_of("version", version)
    if operation.if_version == 0:
        raise InvalidArgument("version", "0; versions start at 1")
    return 0


cdef bint durable_of(object durability) except -1:
    if durability == "buffered":
        return False
    if durability == "durable":
        return True
    raise InvalidArgument("durability", f"{durability!r}; 'buffered' or 'durable'")


cdef uint32_t count_of(str name, object value, uint32_t most) except 0:
    if not 1 <= value <= most:
        raise InvalidArgument(name, f"{value}; 1 to {most} are allowed")
    return <uint32_t> value


cdef uint64_t unsigned_of(str name, object value) except? 0xFFFFFFFFFFFFFFFF:
    if not 0 <= value < 0xFFFFFFFFFFFFFFFF:
        raise InvalidArgument(name, f"{value} is not an unsigned 64-bit number")
    return <uint64_t> value


cdef uint64_t until_of(object timeout) except? 0xFFFFFFFFFFFFFFFF:
    if timeout is None:
        return 0
    if not 0 <= timeout < TIMEOUT_SECONDS_MAX:
        raise InvalidArgument("timeout", f"{timeout} seconds; 0 to 10**9 are allowed")
    return monotonic_ns() + <uint64_t> (<double> timeout * 1e9)


cdef Path path_of_bytes(const uint8_t* source) noexcept nogil:
    cdef Path path
    cdef int index
    path.high = 0
    path.low = 0
    for index in range(8):
        path.high = path.high << 8 | source[index]
        path.low = path.low << 8 | source[8 + index]
    return path


cdef int scan_fill_request(
    ScanRequest* request, bytes cursor, bytes end, object limit, object bytes_max
) except -1:
    memset(request, 0, sizeof(ScanRequest))
    if cursor is None:
        raise TypeError("a cursor is bytes, not None")
    if len(cursor) != 0:
        if not PATH_BYTES <= len(cursor) <= PATH_BYTES + KEY_BYTES_MAX:
            raise InvalidArgument("cursor", f"{len(cursor)} bytes; not a cursor of a scan")
        request.path = path_of_bytes(<const uint8_t*> PyBytes_AS_STRING(cursor))
        if len(cursor) > PATH_BYTES:
            request.key = <const uint8_t*> PyBytes_AS_STRING(cursor) + PATH_BYTES
            request.key_bytes = <uint32_t> (len(cursor) - PATH_BYTES)
    if end is not None:
        if len(end) != PATH_BYTES:
            raise InvalidArgument("end", f"{len(end)} bytes; a path has 16")
        request.bounded = True
        request.end = path_of_bytes(<const uint8_t*> PyBytes_AS_STRING(end))
    request.limit = count_of("limit", limit, SCAN_ITEMS_MAX)
    request.bytes_max = unsigned_of("bytes_max", bytes_max)
    return 0


cdef int options_fill(
    Options* options,
    object region_bytes,
    object sluggishness,
    object epoch_ms,
    object write_buffer_bytes,
    object stall_ms,
    object checkpoint_log_bytes,
    object memory_bytes,
    bint compaction,
    object disk_backend,
    bint direct_io,
    bint read_only,
) except -1:
    cdef dict backends = {
        "auto": DISK_AUTO, "io_uring": DISK_URING, "aio": DISK_AIO, "pwrite": DISK_PWRITE
    }
    memset(options, 0, sizeof(Options))
    if (
        not REGION_BYTES_MIN <= region_bytes <= REGION_BYTES_MAX
        or region_bytes & (region_bytes - 1) != 0
    ):
        raise InvalidArgument(
            "region_bytes",
            f"{region_bytes}; a power of two from {REGION_BYTES_MIN} to {REGION_BYTES_MAX}",
        )
    if not 1 <= sluggishness <= 16:
        raise InvalidArgument("sluggishness", f"{sluggishness}; 1 to 16 are allowed")
    if not 1 <= epoch_ms <= 1000:
        raise InvalidArgument("epoch_ms", f"{epoch_ms}; 1 to 1000 are allowed")
    if disk_backend not in backends:
        raise InvalidArgument("disk_backend", f"{disk_backend!r}; {', '.join(backends)}")
    options.region_bytes = region_bytes
    options.sluggishness = sluggishness
    options.epoch_ns = <uint64_t> (<double> epoch_ms * 1e6)
    options.write_buffer_bytes = positive_of("write_buffer_bytes", write_buffer_bytes)
    options.stall_ns = unsigned_of("stall_ms", stall_ms) * 1000000
    options.checkpoint_log_bytes = positive_of("checkpoint_log_bytes", checkpoint_log_bytes)
    if memory_bytes is None:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    options.memory_bytes = unsigned_of("memory_bytes", memory_bytes)
    options.backend = backends[disk_backend]
    options.direct = direct_io
    options.compaction = compaction
    options.read_only = read_only
    return 0


cdef uint64_t positive_of(str name, object value) except 0:
    if not 1 <= value < 1 << 62:
        raise InvalidArgument(name, f"{value}; 1 to 2**62 are allowed")
    return <uint64_t> value
