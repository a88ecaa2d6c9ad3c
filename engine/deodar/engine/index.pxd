# What ties the trie to the log: the trie points at the live record of each key, and the live bytes
# of each region follow (L4).
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .core cimport StoreCore
from .hashing cimport Path
from .record cimport RecordView
from .status cimport Failure, Status

# Finds and views the key's record, expired ones too; `*address` may be NULL.  STATUS_NOT_FOUND.
# Inside a grace period or under the mutex.
cdef Status index_find(
    StoreCore* core,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    RecordView* view,
    uint64_t* address,
    Failure* failure,
) noexcept nogil

# True when the record's deadline has passed.
cdef bint index_expired(const StoreCore* core, const RecordView* view) noexcept nogil

# index_find, but an expired record is STATUS_NOT_FOUND.
cdef Status index_find_live(
    StoreCore* core,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    RecordView* view,
    Failure* failure,
) noexcept nogil

# --- Under the mutex ---

# Points the key of the record at `address` there.  `*old_address` = where it pointed, 0 = nowhere.
cdef Status index_put(
    StoreCore* core,
    Path path,
    const RecordView* view,
    uint64_t address,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil

# Removes the key.  STATUS_NOT_FOUND changes nothing.
cdef Status index_remove(
    StoreCore* core,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil

# Points an entry that holds `old_address` at the copy of the record at `new_address`.
cdef Status index_replace(
    StoreCore* core, Path path, uint64_t old_address, uint64_t new_address
) noexcept nogil
