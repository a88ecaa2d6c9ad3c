# The lazy-trie (CedrusDB section 3): 256-way branches that exist only where paths have to be told
# apart, and sluggish leaves.
#
# Slots, entries and leaf blocks are laid out as leaf.pxd says.
# A branch is 256 slots, indexed by the path byte of its depth.  The root is a branch at depth 0.
#
# T1: a child slot holds at most `sluggishness` entries before it is split (except at depth 16).
# T2: no branch but the root has fewer than two entries below it.  A branch is merged into a leaf
#     when it is down to half the sluggishness, so that a key that comes and goes does not split and
#     merge for ever.
# T3: entries change by one atomic 8-byte store; a block is published full-formed with release
#     order and unpublished before it is retired, so readers walk without locks inside a grace
#     period.  An entry never moves inside a block.  One writer at a time (store's mutex).
# T4: equal tags do not make equal keys: the key in the record decides.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .hashing cimport Path
from .reclaim cimport Reclaim
from .status cimport Failure, Status
from .triespace cimport TrieSpace

cdef enum:
    TRIE_DEPTH_MAX = 16
    SLUGGISHNESS_DEFAULT = 16

# Called with a record's address before its key is compared; STATUS_OK, or STATUS_CORRUPT with the
# failure filled.  The store checks records of regions that came from a file here; NULL = trust.
ctypedef Status (*verify_t)(void* context, uint64_t address, Failure* failure) noexcept nogil

# How a key's path is found again when records are told apart; tests forge collisions here.
ctypedef Path (*path_of_t)(const uint8_t* key, size_t key_bytes) noexcept nogil

cdef struct Trie:
    TrieSpace* space                    # not owned
    Reclaim* reclaim                    # not owned
    const uint8_t* records              # base of the data space: record at records + address
    verify_t verify                     # NULL = trust
    void* verify_context
    path_of_t path_of                   # NULL = hashing.path_of
    uint32_t sluggishness               # 1..16
    uint64_t root                       # address of the root branch in the trie space
    # Changed by the writer, read by anyone (relaxed).
    uint64_t key_count
    uint64_t branch_count
    uint64_t leaf_count
    uint64_t leaf_slots                 # capacity of all leaf blocks, entries

# Makes an empty trie (allocates the root).  `verify` and `path_of` are NULL until the caller sets
# them.  A trie that was loaded is made by filling in the struct.
cdef Status trie_create(
    Trie* trie,
    TrieSpace* space,
    Reclaim* reclaim,
    const uint8_t* records,
    uint32_t sluggishness,
    Failure* failure,
) noexcept nogil

# --- Readers: any thread, inside reclaim_enter .. reclaim_exit ---

# STATUS_OK and `*address`, STATUS_NOT_FOUND, or what `verify` said.
cdef Status trie_find(
    const Trie* trie,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t* address,
    Failure* failure,
) noexcept nogil

# The same for `count` keys, walked level by level with each next line prefetched;
# addresses[i] = 0 when absent.
cdef Status trie_find_batch(
    const Trie* trie,
    const Path* paths,
    const uint8_t** keys,
    const uint32_t* key_bytes,
    uint32_t count,
    uint64_t* addresses,
    Failure* failure,
) noexcept nogil
