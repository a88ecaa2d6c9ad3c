from libc.stdint cimport uint32_t, uint64_t

from .core cimport StoreCore, core_now_ms
from .epoch cimport epoch_admit, epoch_note_records
from .hashing cimport Path, path_of
from .index cimport index_expired, index_find, index_remove, index_replace
from .log cimport (
    REGION_EVACUATED,
    REGION_NONE,
    REGION_SEALED,
    KvRegion,
    Log,
    LogMark,
    log_append,
    log_corrupt,
    log_mark,
    log_rollback,
    region_address,
)
from .reclaim cimport reclaim_retire
from .record cimport (
    FLAG_RELOCATED,
    RECORD_PUT,
    REGION_HEADER_BYTES,
    RecordView,
    record_decode,
)
from .space cimport space_at
from .status cimport STATUS_NOT_FOUND, STATUS_OK, Failure, Status
from .threads cimport condition_wait_until, monotonic_ns


# Live bytes of a region, without those that are known to have expired.
cdef uint64_t wanted_bytes(const KvRegion* entry, uint64_t now_ms) noexcept nogil:
    if entry.expiring_bytes > 0 and entry.last_deadline_ms <= now_ms:
        return entry.live_bytes - entry.expiring_bytes
    return entry.live_bytes


# Bytes that a region takes of the disk.
cdef uint64_t taken_bytes(const Log* log, const KvRegion* entry) noexcept nogil:
    return <uint64_t> entry.run_regions * log.space.region_bytes


cdef bint is_victim(
    const StoreCore* core, const KvRegion* entry, uint64_t now_ms
) noexcept nogil:
    cdef uint64_t wanted = wanted_bytes(entry, now_ms)
    if (
        entry.state != REGION_SEALED
        or entry.sequence >= core.maintenance.committed_sequence
    ):
        return False
    if entry.run_regions > 1:
        return wanted == 0
    return wanted * 100 < taken_bytes(&core.log, entry) * SPARSE_PERCENT


cdef bint compaction_wanted(const StoreCore* core) noexcept nogil:
    cdef const Log* log = &core.log
    cdef const KvRegion* entry
    cdef uint64_t now_ms = core_now_ms(core)
    cdef uint64_t taken = 0
    cdef uint64_t wanted = 0
    cdef bint victims = False
    cdef uint32_t region = log.first
    while region != REGION_NONE:
        entry = &log.regions[region]
        if entry.state == REGION_SEALED:
            taken += taken_bytes(log, entry)
            wanted += wanted_bytes(entry, now_ms)
            victims = victims or is_victim(core, entry, now_ms)
        region = entry.next
    return victims and (taken - wanted) * 100 > taken * DEAD_PERCENT


cdef Status compaction_pass(StoreCore* core, bint* more, Failure* failure) noexcept nogil:
    cdef Log* log = &core.log
    cdef uint64_t now_ms = core_now_ms(core)
    cdef uint64_t copied_before = core.maintenance.relocated_bytes
    cdef uint32_t region = log.first
    cdef KvRegion* entry
    cdef Status status
    more[0] = False
    while region != REGION_NONE:
        entry = &log.regions[region]
        if entry.live_bytes == 0 and is_victim(core, entry, now_ms):
            retire(core, entry)
        region = entry.next
    region = log.first
    while region != REGION_NONE and not core.maintenance.stopping:
        entry = &log.regions[region]
        if is_victim(core, entry, now_ms):
            status = evacuate(core, region, failure)
            if status != STATUS_OK:
                return status
            if entry.live_bytes == 0:
                retire(core, entry)
            if core.maintenance.relocated_bytes - copied_before > COMPACTION_PASS_BYTES:
                more[0] = True
                return STATUS_OK
        region = entry.next
    return STATUS_OK


cdef void retire(StoreCore* core, KvRegion* entry) noexcept nogil:
    entry.state = REGION_EVACUATED
    entry.retired = reclaim_retire(&core.reclaim)


# Moves what is live out of a region.  Only this thread frees regions, so the region stays while the
# mutex is given up.
cdef Status evacuate(
    StoreCore* core, uint32_t region, Failure* failure
) noexcept nogil:
    cdef Log* log = &core.log
    cdef KvRegion* entry = &log.regions[region]
    cdef uint64_t at = region_address(log, region) + REGION_HEADER_BYTES
    cdef uint64_t end = region_address(log, region) + entry.used_bytes
    cdef uint64_t step_end
    cdef uint64_t step_started
    cdef const char* rule = NULL
    cdef RecordView view
    cdef Status status
    while at < end and entry.live_bytes > 0 and not core.maintenance.stopping:
        step_end = at + COMPACTION_STEP_BYTES
        step_started = monotonic_ns()
        while at < end and at < step_end:
            if not record_decode(
                space_at(&log.space, at), end - at, entry.sequence, &view, &rule
            ):
                return log_corrupt(log, at, rule, failure)
            if view.kind == RECORD_PUT:
                status = move(core, at, &view, failure)
                if status != STATUS_OK:
                    return status
            at += view.record_bytes
        condition_wait_until(
            &core.maintenance.work, &log.mutex, 2 * monotonic_ns() - step_started
        )
        status = epoch_admit(log, failure)
        if status != STATUS_OK:
            return status
    return STATUS_OK


# Copies a record if the trie points at it; removes it instead when its deadline has passed.
cdef Status move(
    StoreCore* core, uint64_t address, RecordView* view, Failure* failure
) noexcept nogil:
    cdef Log* log = &core.log
    cdef Path path = path_of(view.key, view.key_bytes)
    cdef RecordView current
    cdef LogMark mark
    cdef uint64_t current_address = 0
    cdef uint64_t copy = 0
    cdef Status status = index_find(
        core, path, view.key, view.key_bytes, &current, &current_address, failure
    )
    if status == STATUS_NOT_FOUND or (status == STATUS_OK and current_address != address):
        return STATUS_OK
    if status != STATUS_OK:
        return status
    if index_expired(core, view):
        core.maintenance.expired_count += 1
        return index_remove(
            core, path, view.key, view.key_bytes, &current_address, failure
        )
    log_mark(log, &mark)
    view.flags = FLAG_RELOCATED
    status = log_append(log, view, True, &copy, failure)
    if status == STATUS_OK:
        status = index_replace(core, path, address, copy)
        if status != STATUS_OK:
            log_rollback(log, &mark)
            return status
        core.maintenance.relocated_bytes += view.record_bytes
        epoch_note_records(log)
    return status
