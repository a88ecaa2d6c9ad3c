# The log as a stream of changes: reading it, keeping it, and following another store's.
from libc.stdint cimport uint32_t, uint64_t

from .core cimport StoreCore
from .record cimport RecordView
from .status cimport Failure, Status
from .write cimport Operation

# Views at most `limit` changes with a version above `after_version`, in order (L6), and stops once
# `bytes_max` of keys and values are passed.  STATUS_LOG_TRIMMED when the log no longer reaches
# back. Inside a grace period that lasts while the views are used; takes the mutex for a moment.
cdef Status changes_read(
    StoreCore* core,
    uint64_t after_version,
    uint32_t limit,
    uint64_t bytes_max,
    RecordView* views,
    uint32_t* count,
    Failure* failure,
) noexcept nogil

# Applies changes under their own versions (`Operation.if_version`), in order.  A change is skipped
# when the key's record has its version or a newer one.  Those that follow the last version here
# without a gap continue the stream; others are COPIED records (record.pxd, R2).
cdef Status changes_apply(
    StoreCore* core,
    const Operation* operations,
    uint32_t count,
    uint32_t* applied,
    Failure* failure,
) noexcept nogil

# Keeps the log behind `after_version`.  STATUS_LOG_TRIMMED, or OVER_LIMIT with PINS_MAX pins.
cdef Status changes_pin(
    StoreCore* core, uint64_t after_version, uint64_t* token, Failure* failure
) noexcept nogil
# STATUS_NOT_FOUND when the token is not a pin.
cdef Status changes_unpin(StoreCore* core, uint64_t token) noexcept nogil
