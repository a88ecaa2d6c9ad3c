# Scans in hash order, which is (path, key) order.  Any thread, inside a grace period that lasts
# while the views are used.
#
# N1: a scan position is a place in hash space, not in memory: what exists throughout is found
#     exactly once, whatever is split, merged, moved or compacted between two pages.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .core cimport StoreCore
from .hashing cimport Path
from .record cimport RecordView
from .status cimport Failure, Status

cdef struct ScanRequest:
    Path path                           # from this path on,
    const uint8_t* key                  # and there only keys behind this one, when it is not NULL
    uint32_t key_bytes
    bint bounded
    Path end                            # with `bounded`: only paths before this one
    uint32_t limit                      # of items, at least 1
    uint64_t bytes_max                  # of keys and values; one item is given even if it is longer

# Where a page ended.
cdef struct ScanEnd:
    bint more                           # False: there is nothing behind it
    bint behind_item                    # go on behind the last item, whose path this is
    Path path                           # or from this path on

# Fills at most `limit` of `views` with live records.
cdef Status scan_fill(
    StoreCore* core,
    const ScanRequest* request,
    RecordView* views,
    uint32_t* count,
    ScanEnd* end,
    Failure* failure,
) noexcept nogil

# Keys alive at a moment (milliseconds since 1970), and the XOR over them of XXH3_64 of key, value,
# version and deadline.  Takes care of grace periods; a store that is being written gives a digest
# of no one moment.
cdef Status scan_digest(
    StoreCore* core, uint64_t alive_at_ms, uint64_t* keys, uint64_t* digest, Failure* failure
) noexcept nogil
