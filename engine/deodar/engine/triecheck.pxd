# Every invariant of the trie, checked from the root down.
from libc.stdint cimport uint64_t

from .status cimport Failure, Status
from .trie cimport Trie

# What `check` and `stats` show.
cdef struct TrieStats:
    uint64_t keys
    uint64_t branches
    uint64_t leaves
    uint64_t leaf_slots
    uint64_t path_length_sum            # branches passed, summed over keys
    uint64_t depth_max

# Walks everything and checks T1, T2, tags and positions against each record's key, the counters,
# and that every block is allocated and used once.  STATUS_CORRUPT with the rule in `failure`, and
# the block's address as offset, for the first breach.  Writer excluded (store's mutex held).
cdef Status trie_check(const Trie* trie, TrieStats* stats, Failure* failure) noexcept nogil
