# Compaction: gives regions back whose records are mostly dead (after FGKV: what does not have to be
# rewritten is not).
#
# A victim is a SEALED region before the last durable checkpoint's position.  One without live
# bytes is EVACUATED without a copy; of a sparse one the live records are appended again with
# FLAG_RELOCATED and the trie is pointed at the copies.  Records whose deadline has passed are
# removed from the trie instead.  EVACUATED regions are freed by the next checkpoint
# (maintenance.pxd).
# K1: the mutex is held for COMPACTION_STEP_BYTES of copies or scanned records at most, and then
#     left alone for as long: a mutex that is given up and taken at once never reaches who waits.
# K2: nothing is lost by a crash in between: until that checkpoint is durable the victim is intact,
#     and a RELOCATED record counts only when its epoch is sealed.
from libc.stdint cimport uint64_t

from .core cimport StoreCore
from .status cimport Failure, Status

cdef enum:
    COMPACTION_STEP_BYTES = 32768
    COMPACTION_PASS_BYTES = 67108864
    SPARSE_PERCENT = 50                 # a region with less of it live is a victim
    DEAD_PERCENT = 25                   # of all regions: less than that is left alone

# Whether enough is dead to work at all.  Under the mutex.
cdef bint compaction_wanted(const StoreCore* core) noexcept nogil

# Evacuates victims, those without live bytes first, until there are none, COMPACTION_PASS_BYTES are
# copied, or the disk is full.  The maintenance thread, which holds the mutex; it is given up
# between steps.
# `*more`: it stopped for the bytes copied.
cdef Status compaction_pass(StoreCore* core, bint* more, Failure* failure) noexcept nogil
