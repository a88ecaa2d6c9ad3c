# Branches and what hangs below them: made in private before they are published, and given back
# after they are unpublished.  Writer only.
from libc.stdint cimport uint32_t, uint64_t

from .hashing cimport Path
from .status cimport Failure, Status
from .trie cimport Trie
from .triespace cimport triespace_base

cdef enum:
    BRANCH_SLOTS = 256
    BRANCH_BYTES = 2048

# An entry and the path it was found to have.
cdef struct Item:
    uint64_t entry
    Path path

# The slots of a branch, or the entries of a leaf.
cdef inline uint64_t* block_at(const Trie* trie, uint64_t address) noexcept nogil:
    return <uint64_t*> (triespace_base(trie.space) + address)

# `path` with its byte at `depth`, which is zero, set to `byte`.
cdef inline Path path_with_byte(Path path, unsigned int depth, unsigned int byte) noexcept nogil:
    if depth < 8:
        path.high |= <uint64_t> byte << (56 - 8 * depth)
    else:
        path.low |= <uint64_t> byte << (56 - 8 * (depth - 8))
    return path

# Fills in the path of every item from its record's key, which is verified first.
cdef Status items_hash(
    const Trie* trie, Item* items, uint32_t count, Failure* failure
) noexcept nogil

# An empty branch; 0 when there is no memory.
cdef uint64_t branch_allocate(Trie* trie) noexcept nogil

# A leaf block with the `count` entries given and room for `capacity`; 0 when there is no memory.
cdef uint64_t leaf_allocate(
    Trie* trie, const uint64_t* entries, uint32_t count, uint32_t capacity
) noexcept nogil
cdef void leaf_retire(Trie* trie, uint64_t slot) noexcept nogil

# What a slot that leads to depth `depth` has to hold for `count` >= 1 items whose paths share
# `depth` bytes: a record, a leaf, or branches made only as far as paths have to be told apart
# (CedrusDB section 3.2).  Sorts the items.  False, with nothing left allocated, when there is no
# memory.
cdef bint subtrie_build(
    Trie* trie, Item* items, uint32_t count, unsigned int depth, uint64_t* slot
) noexcept nogil

# Collects the entries below `slot`; gives up at the first beyond `limit` and answers limit + 1.
cdef uint32_t subtrie_collect(
    const Trie* trie, uint64_t slot, uint64_t* entries, uint32_t limit
) noexcept nogil

# Gives back every block below and including what `slot` points to, which no reader can reach.
cdef void subtrie_retire(Trie* trie, uint64_t slot) noexcept nogil
