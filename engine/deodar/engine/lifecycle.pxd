# Making, opening and closing a store: the order in which parts come up and go down.
#
# The caller holds the lock of the directory and has looked at the names in it; below, files are
# only reached by name.
from libc.stdint cimport uint64_t

from .core cimport Options, StoreCore
from .env cimport Env
from .status cimport Failure, Status

# Zeroed memory for a core, or NULL.
cdef StoreCore* lifecycle_allocate() noexcept nogil
cdef void lifecycle_free(StoreCore* core) noexcept nogil

# Makes an empty store in an empty directory; afterwards it can be opened.  A crash in between
# leaves a session with incarnation 0 (I4).
cdef Status lifecycle_create(
    const Env* env,
    const char* directory,
    const Options* options,
    uint64_t store_id,
    Failure* failure,
) noexcept nogil

# Opens the store whose newest checkpoint is `number`, recovers it, and starts its threads unless it
# is opened read-only.  On failure nothing stays open.
cdef Status lifecycle_open(
    StoreCore* core,
    const Env* env,
    const char* directory,
    const Options* options,
    uint64_t number,
    Failure* failure,
) noexcept nogil

# Stops the threads and releases everything; with `clean`, a last checkpoint lets the next opening
# start without a replay.  Answers what kept the data from getting to disk; a checkpoint that failed
# does not, since the log is there.
cdef Status lifecycle_close(StoreCore* core, bint clean, Failure* failure) noexcept nogil
