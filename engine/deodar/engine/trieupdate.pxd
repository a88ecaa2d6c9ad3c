# Changes of the trie: splits and merges included.  One writer at a time (store's mutex).
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .hashing cimport Path
from .status cimport Failure, Status
from .trie cimport Trie

# Points `key` at `address`.  `*old_address` = the address it had, 0 when it was absent.
# STATUS_NO_MEMORY, OVER_LIMIT (more than 256 equal paths) and what `verify` says change nothing.
cdef Status trie_upsert(
    Trie* trie,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t address,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil

# Removes `key`, merging what no longer needs a branch.  STATUS_NOT_FOUND, NO_MEMORY (for the list
# of retired blocks, not for blocks) and what `verify` says change nothing.
cdef Status trie_remove(
    Trie* trie,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil

# Replaces the entry of `path` that holds `old_address`; STATUS_NOT_FOUND when there is none.
cdef Status trie_replace(
    Trie* trie, Path path, uint64_t old_address, uint64_t new_address
) noexcept nogil
