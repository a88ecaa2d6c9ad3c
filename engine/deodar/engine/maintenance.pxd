# The maintenance thread: checkpoints and compaction, apart from writers and from the disk thread.
#
# A checkpoint: the disk thread, behind a SEAL and under the mutex, freezes the trie and copies the
# table of regions (maintenance_freeze).  Without the mutex, when that epoch is durable, the pages
# of the trie are written, then the file that commits them; then regions that it says are free are
# free. A checkpoint that meets a full disk is given up and tried again; another failure makes the
# store read-only (E2).
from libc.stdint cimport uint64_t

from .core cimport StoreCore
from .status cimport Failure, Status

cdef Status maintenance_start(StoreCore* core, Failure* failure) noexcept nogil
cdef void maintenance_stop(StoreCore* core) noexcept nogil

# freeze_t of the disk thread; also called by open and create, before there are threads.
cdef void maintenance_freeze(void* context) noexcept nogil

# Makes a checkpoint of what was frozen.  The caller is the only one who makes checkpoints (M1).
cdef Status maintenance_commit(StoreCore* core, Failure* failure) noexcept nogil

# Freezes by way of the disk thread, then commits.
cdef Status maintenance_checkpoint(StoreCore* core, Failure* failure) noexcept nogil

# --- Requests, any thread ---
cdef Status maintenance_request_checkpoint(StoreCore* core, Failure* failure) noexcept nogil
# Reclaims what can be: `*freed_bytes` of regions.
cdef Status maintenance_request_compaction(
    StoreCore* core, uint64_t* freed_bytes, Failure* failure
) noexcept nogil
