# Walks over the trie in hash order.  Any thread, inside reclaim_enter .. reclaim_exit.
#
# W1: a key that exists throughout a walk is collected once; one that comes, goes or is replaced
#     meanwhile, at most once.
from libc.stdint cimport uint32_t, uint64_t

from .hashing cimport Path
from .status cimport Failure, Status
from .trie cimport Trie

# One entry of a walk in hash order.
cdef struct TrieEntry:
    Path path
    uint64_t address

# Collects entries with path >= `from_path` (in (path, key) order) until `capacity` is reached,
# always whole leaves, so that equal paths are never cut apart: fewer than `capacity` may come back,
# and `*next_path` / `*more` say where to go on.  `capacity` >= 512 holds any leaf.
cdef Status trie_walk(
    const Trie* trie,
    Path from_path,
    TrieEntry* entries,
    uint32_t capacity,
    uint32_t* count,
    Path* next_path,
    bint* more,
    Failure* failure,
) noexcept nogil
