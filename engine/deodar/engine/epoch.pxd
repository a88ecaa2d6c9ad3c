# The clock of durability (BD+Tree section 3): the disk thread of a store.
#
# An epoch collects records for `epoch_ns` from its first one, or is closed at once when somebody
# waits for it (group commit), the write buffer fills, or a checkpoint wants to freeze the trie.
# Then, under the log's mutex, it gets its SEAL; without the mutex the bytes since the last flush go
# to disk in one batch of writes, each segment file touched is synced, and the epoch is durable.
#
# E1: one flush at a time.  A crash in epoch e therefore finds e - 2 on disk: e - 1 may be in
#     flight.
# E2: after a failed write or sync nothing more is written and the log takes no records; who waits
#     is told.  Readers go on.
# A store in which nothing is written costs no CPU: the thread sleeps on `log.work`.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .disk cimport Disk, DiskBackend, WriteOperation
from .log cimport Log
from .status cimport Failure, Status
from .threads cimport pthread_t

# Called by the disk thread under the mutex, behind a SEAL, when `log.freeze_wanted`.
ctypedef void (*freeze_t)(void* context) noexcept nogil

cdef struct DiskThread:
    # Set by epoch_open, then constant.
    Log* log
    uint64_t epoch_ns
    freeze_t freeze
    void* freeze_context
    # The disk thread's.
    pthread_t thread
    bint running                        # set by epoch_start, cleared by epoch_stop
    Disk disk
    uint8_t* last_page                  # owned: copy of the last page of a flush (L5)
    WriteOperation* operations          # owned
    uint32_t operations_max
    uint64_t flushes_count
    uint64_t replenish_ns               # when extending the space is tried again

cdef Status epoch_open(
    DiskThread* thread,
    Log* log,
    uint64_t epoch_ns,
    DiskBackend backend,
    freeze_t freeze,
    void* freeze_context,
    Failure* failure,
) noexcept nogil
cdef void epoch_close(DiskThread* thread) noexcept nogil
cdef Status epoch_start(DiskThread* thread, Failure* failure) noexcept nogil
# Flushes what is there, unless that failed, and ends the thread.
cdef void epoch_stop(DiskThread* thread) noexcept nogil

# --- Under the mutex, which they give up while they wait ---

# Waits until the write buffer has room.  STATUS_QUEUE_FULL after stall_ns, READ_ONLY after a
# failure.
cdef Status epoch_admit(Log* log, Failure* failure) noexcept nogil

# Wakes the disk thread for the first records of an epoch.
cdef void epoch_note_records(Log* log) noexcept nogil

# Waits until every record of `epoch` appended so far is on disk, and hurries it.  `until_ns` is on
# the monotonic clock, 0 = for ever.  STATUS_TIMEOUT, STATUS_READ_ONLY with the cause.
cdef Status epoch_wait(Log* log, uint64_t epoch, uint64_t until_ns, Failure* failure) noexcept nogil

# STATUS_READ_ONLY with the latched cause, or STATUS_OK.
cdef Status epoch_writable(const Log* log, Failure* failure) noexcept nogil

# The newest epoch that has records.
cdef inline uint64_t epoch_last_used(const Log* log) noexcept nogil:
    return log.epoch if log.epoch_records > 0 else log.epoch - 1
