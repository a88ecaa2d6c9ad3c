# Slots and packed leaves: how the trie's 8-byte words are put together.
#
# A slot is 8 bytes:
#   0                                   empty
#   tag:16 | kind:2 | address:46        otherwise
# SLOT_RECORD: address is a record's in the data space, tag the path's tag (hashing.path_tag).
# SLOT_LEAF:   address is a leaf block's in the trie space, tag its capacity (2, 4, 8 or 16
#              entries, doubled further only at depth 16, where equal paths cannot be split).
# SLOT_BRANCH: address is a branch's in the trie space; tag is the number of its non-empty slots,
#              kept for deletion only.
# A leaf block is `capacity` entries of the form SLOT_RECORD, or 0; entries are not ordered.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from .atomics cimport load_acquire_u64
from .hashing cimport Path, path_tag
from .record cimport record_key
from .status cimport STATUS_NOT_FOUND, STATUS_OK, Failure, Status
from .trie cimport Trie

cdef enum SlotKind:
    SLOT_RECORD = 1
    SLOT_LEAF = 2
    SLOT_BRANCH = 3

cdef enum:
    SLOT_ADDRESS_BITS = 46
    SLOT_BYTES = 8
    LEAF_CAPACITY_MIN = 2
    LEAF_CAPACITY_MAX = 256             # 2 KiB; only at depth 16

cdef inline uint64_t slot_make(unsigned int tag, SlotKind kind, uint64_t address) noexcept nogil:
    return <uint64_t> tag << 48 | <uint64_t> kind << SLOT_ADDRESS_BITS | address

cdef inline unsigned int slot_tag(uint64_t slot) noexcept nogil:
    return <unsigned int> (slot >> 48)

cdef inline unsigned int slot_kind(uint64_t slot) noexcept nogil:
    return <unsigned int> (slot >> SLOT_ADDRESS_BITS) & 3

cdef inline uint64_t slot_address(uint64_t slot) noexcept nogil:
    return slot & ((<uint64_t> 1 << SLOT_ADDRESS_BITS) - 1)

# The top 18 bits of each entry that may be the path's: one comparison for tag and kind.
cdef inline uint64_t needle_of(Path path) noexcept nogil:
    return <uint64_t> path_tag(path) << 2 | SLOT_RECORD

cdef inline bint slot_matches(uint64_t slot, uint64_t needle) noexcept nogil:
    return slot >> SLOT_ADDRESS_BITS == needle

# The smallest capacity that holds `count` entries.
cdef inline uint32_t leaf_capacity_for(uint32_t count) noexcept nogil:
    cdef uint32_t capacity = LEAF_CAPACITY_MIN
    while capacity < count:
        capacity *= 2
    return capacity

# STATUS_OK when the record at `address` has this key, STATUS_NOT_FOUND when it has another.
cdef inline Status record_compare(
    const Trie* trie, uint64_t address, const uint8_t* key, uint32_t key_bytes, Failure* failure
) noexcept nogil:
    cdef Status status
    cdef uint32_t stored_bytes
    if trie.verify != NULL:
        status = trie.verify(trie.verify_context, address, failure)
        if status != STATUS_OK:
            return status
    cdef const uint8_t* stored = record_key(trie.records + address, &stored_bytes)
    if stored_bytes == key_bytes and memcmp(stored, key, key_bytes) == 0:
        return STATUS_OK
    return STATUS_NOT_FOUND

# Index of the first entry from `start` on whose tag fits, or `capacity`.
cdef inline uint32_t leaf_next(
    const uint64_t* entries, uint32_t capacity, uint32_t start, uint64_t needle, uint64_t* entry
) noexcept nogil:
    cdef uint32_t index
    for index in range(start, capacity):
        entry[0] = load_acquire_u64(&entries[index])
        if slot_matches(entry[0], needle):
            return index
    return capacity

# The entry of `key` among `capacity` of them from `start` on.
cdef inline Status leaf_search(
    const Trie* trie,
    const uint64_t* entries,
    uint32_t capacity,
    uint32_t start,
    uint64_t needle,
    const uint8_t* key,
    uint32_t key_bytes,
    uint32_t* index,
    uint64_t* entry,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    entry[0] = 0
    index[0] = leaf_next(entries, capacity, start, needle, entry)
    while index[0] < capacity:
        status = record_compare(trie, slot_address(entry[0]), key, key_bytes, failure)
        if status != STATUS_NOT_FOUND:
            return status
        index[0] = leaf_next(entries, capacity, index[0] + 1, needle, entry)
    return STATUS_NOT_FOUND
