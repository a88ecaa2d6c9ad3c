# The log, which is the data space: records appended once, in kv_regions that LINK records chain.
#
# L1: the regions of the log form a list in rising order of sequence; the last one is active and
#     takes records at `tail`.  Every other one ends with a LINK to its successor, as it was when
#     written.
# L2: `tail` <= `limit` before each record; behind `limit` there is room for one SEAL and one LINK,
#     so that an epoch can always be sealed, on a full disk too.
# L3: at most one sealed epoch is not yet durable: log_seal only when `sealed_epoch` is
#     `durable_epoch`.  Hence a crash tears one epoch only.
# L4: live_bytes of a region = bytes of its records that the trie points at.
# L5: bytes behind `sealed_address` never reach the disk: the last page is written from a copy that
#     is zero behind the SEAL.
# L6: everything with a version above `log_start` is in the log, in order of versions, in records
#     with neither FLAG_RELOCATED nor FLAG_COPIED.
#
# A region is FREE, ACTIVE, SEALED (ended by a LINK), EVACUATED (nothing in it is live, but the last
# durable checkpoint may point into it) or DOOMED (the checkpoint `doomed_by` says it is free; it is
# free once that is durable and no reader is inside).
# A record longer than a region has a run of regions of its own: one entry, at the first region's
# index, with `run_regions` > 1; the entries of the others are zero but for the state.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .env cimport Env
from .record cimport RecordView
from .space cimport Space
from .status cimport Failure, Status
from .threads cimport pthread_cond_t, pthread_mutex_t

cdef enum RegionState:
    REGION_FREE = 0
    REGION_ACTIVE = 1
    REGION_SEALED = 2
    REGION_EVACUATED = 3
    REGION_DOOMED = 4
    REGION_INSIDE_RUN = 5               # of a run, not its first

cdef enum:
    REGION_NONE = 0xFFFFFFFF
    SEAL_RECORD_BYTES = 40
    RESERVE_REGIONS = 1                 # kept free for deletes and compaction on a full disk

cdef struct KvRegion:
    uint64_t sequence                   # 0 = FREE
    uint64_t live_bytes
    uint64_t used_bytes                 # from the region header to the end of the LINK; set at LINK
    uint64_t last_version               # highest version up to its end; set at LINK
    uint64_t expiring_bytes             # of live_bytes, in records with a deadline
    uint64_t last_deadline_ms           # of the records appended with one
    uint64_t retired                    # grace period of its evacuation (reclaim.pxd)
    uint64_t doomed_by                  # number of a checkpoint
    uint32_t state                      # RegionState
    uint32_t run_regions
    uint32_t previous                   # in the list, REGION_NONE at its ends
    uint32_t next

cdef struct Log:
    # Set by log_open, then constant.
    const Env* env
    uint64_t store_id
    uint32_t region_shift               # region_bytes = 1 << region_shift
    uint32_t regions_max
    uint64_t write_buffer_bytes
    uint64_t stall_ns
    uint64_t memory_bytes_max           # of ANONYMOUS regions; what is more becomes FILE
    # Guarded by `mutex`; readers of the trie look at `space.base`, residency and sequences only.
    pthread_mutex_t mutex
    pthread_cond_t work                 # the disk thread waits here
    pthread_cond_t progress             # durable_epoch, flushed_bytes, failure or freeze moved
    Space space
    KvRegion* regions                   # owned: regions_max entries, zero pages until used
    uint32_t region_count               # entries in use, FREE ones included
    uint32_t free_count
    uint32_t free_hint                  # no FREE region below
    bint growth_stopped                 # as if the disk were full
    uint64_t memory_bytes               # of ANONYMOUS regions in the list
    uint32_t unload_next                # in the list; every region before it is FILE
    uint32_t first                      # ends of the list of L1
    uint32_t active
    uint64_t sequence                   # of the active region
    uint64_t base_sequence              # a new region's sequence is at least this
    uint64_t tail
    uint64_t limit
    uint64_t epoch                      # the open epoch
    uint64_t epoch_records              # records in it, LINKs not counted
    uint64_t last_version
    uint64_t base_version               # the next version given here is at least this
    uint64_t log_start
    uint64_t appended_bytes             # since open
    # The sealed end: what the next flush brings to disk.
    uint64_t sealed_epoch
    uint32_t sealed_region
    uint64_t sealed_address
    uint64_t sealed_bytes               # appended_bytes there
    # The flushed end.
    uint64_t durable_epoch
    uint32_t flushed_region
    uint64_t flushed_address
    uint64_t flushed_bytes
    # Requests to the disk thread.
    uint64_t noted_epoch                # it was woken for this one
    uint64_t hurry_epoch                # epochs up to this one are closed at once
    bint freeze_wanted                  # call `freeze` right behind a SEAL, under the mutex
    bint stopping
    # The first failed write or sync, or what else made the store read-only; latched.
    Failure failure

# Where the log stood; for rollback within one hold of the mutex.
cdef struct LogMark:
    uint32_t active
    uint64_t tail
    uint64_t limit
    uint64_t epoch_records
    uint64_t last_version
    uint64_t log_start
    uint64_t appended_bytes

# Opens the data space of `region_count` regions; the list is empty.
cdef Status log_open(
    Log* log,
    const Env* env,
    const char* directory,
    uint32_t region_bytes,
    uint32_t region_count,
    bint direct,
    uint64_t store_id,
    Failure* failure,
) noexcept nogil
cdef void log_close(Log* log) noexcept nogil

# Everything below: under the mutex.

# Starts the log of a new store: its first region, whose header is made durable.
cdef Status log_begin(Log* log, Failure* failure) noexcept nogil

# Appends a record in the open epoch; fills `view.epoch`.  `reserve` = may use the reserve of a full
# disk.  STATUS_DISK_FULL, OVER_LIMIT or NO_MEMORY change nothing.
cdef Status log_append(
    Log* log, RecordView* view, bint reserve, uint64_t* address, Failure* failure
) noexcept nogil

# The version of the next write of this store.
cdef inline uint64_t log_next_version(const Log* log) noexcept nogil:
    if log.last_version < log.base_version:
        return log.base_version
    return log.last_version + 1

# Follows the version of a record that is appended or replayed (R2, L6).
cdef void log_note_version(Log* log, const RecordView* view) noexcept nogil

cdef void log_mark(const Log* log, LogMark* mark) noexcept nogil
cdef void log_rollback(Log* log, const LogMark* mark) noexcept nogil

# Ends the open epoch (R4) and opens the next.  L3.
cdef void log_seal(Log* log) noexcept nogil

cdef inline uint64_t log_unflushed(const Log* log) noexcept nogil:
    return log.appended_bytes - log.flushed_bytes

cdef inline uint32_t region_of(const Log* log, uint64_t address) noexcept nogil:
    return <uint32_t> (address >> log.region_shift)

cdef inline uint64_t region_address(const Log* log, uint32_t region) noexcept nogil:
    return <uint64_t> region << log.region_shift

# Appends an entry for a region (or run) to the list, makes it the active one and moves tail and
# limit.
cdef void region_enter(
    Log* log, uint32_t region, uint32_t run_regions, uint64_t sequence
) noexcept nogil
# Ends the active region at `tail`, behind its LINK.
cdef void region_leave(Log* log) noexcept nogil
# Takes the last region out of the list again: REGION_FREE, and the one before is active.
cdef void region_undo(Log* log) noexcept nogil

# Gives a DOOMED region back.
cdef void region_release(Log* log, uint32_t region) noexcept nogil
# Exchanges memory for mappings of the file (S3), oldest flushed regions first, until the bound
# holds; a few regions a call.
cdef Status region_unload(Log* log, Failure* failure) noexcept nogil
# Counts what recovery has made resident.
cdef void region_count_memory(Log* log) noexcept nogil
# Extends the space until the reserve is whole, as far as the disk lets it.
cdef void region_replenish(Log* log) noexcept nogil

# --- Any thread, inside a grace period or under the mutex ---

# Views the record at `address`, after checking place and checksum when its region came from disk.
cdef Status log_view(
    const Log* log, uint64_t address, RecordView* view, Failure* failure
) noexcept nogil
# verify_t of the trie; `context` is the Log.
cdef Status log_verify(void* context, uint64_t address, Failure* failure) noexcept nogil
# STATUS_CORRUPT with the file and offset of a logical address.
cdef Status log_corrupt(
    const Log* log, uint64_t address, const char* rule, Failure* failure
) noexcept nogil
