# Reads.  Any thread, without the GIL and without locks.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .core cimport StoreCore
from .record cimport RecordView
from .status cimport Failure, Status

# Views the key's live record, or STATUS_NOT_FOUND.  Inside a grace period, while the view is used.
cdef Status read_view(
    StoreCore* core, const uint8_t* key, uint32_t key_bytes, RecordView* view, Failure* failure
) noexcept nogil

# The same for many keys at once: found[i] says whether views[i] is set.  STATUS_OK, or what failed.
cdef Status read_views(
    StoreCore* core,
    const uint8_t** keys,
    const uint32_t* key_bytes,
    uint32_t count,
    RecordView* views,
    bint* found,
    Failure* failure,
) noexcept nogil

# Copies the value, `capacity` bytes of it at most; `*value_bytes` is its whole length.  For loops
# without Python; takes care of the grace period.
cdef Status store_get(
    StoreCore* core,
    const uint8_t* key,
    uint32_t key_bytes,
    uint8_t* value,
    uint32_t capacity,
    uint32_t* value_bytes,
    Failure* failure,
) noexcept nogil
