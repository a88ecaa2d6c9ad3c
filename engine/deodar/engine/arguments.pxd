# Arguments of the face, checked and turned into C; every bound of limits.pxd that a caller can
# break is checked here.  With the GIL.  Pointers are borrowed from the objects given.
from libc.stdint cimport uint32_t, uint64_t

from .core cimport Options
from .scan cimport ScanRequest
from .write cimport Operation

cdef int key_check(bytes key) except -1
cdef int value_check(bytes value) except -1

cdef int put_fill(
    Operation* operation,
    bytes key,
    bytes value,
    object ttl_ms,
    object if_version,
    bint if_absent,
    uint64_t now_ms,
) except -1
cdef int delete_fill(Operation* operation, bytes key, object if_version) except -1
# One operation of a batch, a Put or a Delete.
cdef int operation_fill(Operation* operation, object item, uint64_t now_ms) except -1
# A Change, with its version in `if_version`.
cdef int change_fill(Operation* operation, object change) except -1

cdef bint durable_of(object durability) except -1
cdef uint32_t count_of(str name, object value, uint32_t most) except 0
cdef uint64_t unsigned_of(str name, object value) except? 0xFFFFFFFFFFFFFFFF
# Nanoseconds on the monotonic clock after which to give up; 0 for None.
cdef uint64_t until_of(object timeout) except? 0xFFFFFFFFFFFFFFFF

cdef int scan_fill_request(
    ScanRequest* request, bytes cursor, bytes end, object limit, object bytes_max
) except -1

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
) except -1
