from libc.errno cimport ENOSPC
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from .debug cimport check
from .env cimport Env, env_write_full
from .hashing cimport checksum64
from .limits cimport FORMAT_VERSION, PAGE_BYTES, RECORD_ALIGNMENT, SEGMENT_BYTES
from .record cimport (
    FLAG_COPIED,
    FLAG_RELOCATED,
    LINK_RECORD_BYTES,
    RECORD_LINK,
    RECORD_SEAL,
    REGION_HEADER_BYTES,
    RecordKind,
    RecordView,
    RegionHeader,
    record_bytes_of,
    record_decode,
    record_encode,
    record_view,
)
from .space cimport (
    RESIDENCY_ABSENT,
    RESIDENCY_ANONYMOUS,
    RESIDENCY_FILE,
    SEGMENTS_MAX,
    space_at,
    space_close,
    space_drop,
    space_extend,
    space_fd,
    space_file_offset,
    space_make_anonymous,
    space_map_file,
    space_open,
)
from .status cimport (
    STATUS_CORRUPT,
    STATUS_DISK_FULL,
    STATUS_IO_ERROR,
    STATUS_NO_MEMORY,
    STATUS_OK,
    Failure,
    Status,
    failure_clear,
    failure_set,
)
from .threads cimport condition_close, condition_open, mutex_close, mutex_open

cdef enum:
    UNLOADS_MAX = 8                     # exchanges of regions a flush: some 100 us each
    TAIL_RESERVE_BYTES = SEAL_RECORD_BYTES + LINK_RECORD_BYTES      # L2


cdef Status log_open(
    Log* log,
    const Env* env,
    const char* directory,
    uint32_t region_bytes,
    uint32_t region_count,
    bint direct,
    uint64_t store_id,
    Failure* failure,
) noexcept nogil:
    cdef uint64_t reserved_bytes = <uint64_t> SEGMENTS_MAX * SEGMENT_BYTES
    cdef Status status
    memset(log, 0, sizeof(Log))
    status = space_open(
        &log.space, env, directory, "data", region_bytes, reserved_bytes, region_count, direct,
        failure,
    )
    if status != STATUS_OK:
        return status
    log.env = env
    log.store_id = store_id
    while (<uint64_t> 1 << log.region_shift) < region_bytes:
        log.region_shift += 1
    log.regions_max = <uint32_t> (reserved_bytes // region_bytes)
    log.region_count = region_count
    log.first = REGION_NONE
    log.active = REGION_NONE
    log.unload_next = REGION_NONE
    log.regions = <KvRegion*> calloc(log.regions_max, sizeof(KvRegion))
    if log.regions == NULL:
        space_close(&log.space)
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "table of regions")
    mutex_open(&log.mutex)
    condition_open(&log.work)
    condition_open(&log.progress)
    return STATUS_OK


cdef void log_close(Log* log) noexcept nogil:
    condition_close(&log.progress)
    condition_close(&log.work)
    mutex_close(&log.mutex)
    free(log.regions)
    log.regions = NULL
    space_close(&log.space)


cdef Status log_begin(Log* log, Failure* failure) noexcept nogil:
    cdef uint32_t region
    cdef int error = 0
    cdef Status status = space_extend(&log.space, 1, &region, failure)
    if status != STATUS_OK:
        return status
    log.region_count = log.space.region_count
    region_enter(log, region, 1, 1)
    header_encode(log)
    if env_write_full(
        log.env,
        space_fd(&log.space, 0),
        space_at(&log.space, region_address(log, region)),
        PAGE_BYTES,
        space_file_offset(&log.space, region_address(log, region)),
        &error,
    ) < 0 or log.env.sync_data(log.env.context, space_fd(&log.space, 0), &error) < 0:
        status = STATUS_DISK_FULL if error == ENOSPC else STATUS_IO_ERROR
        return failure_set(failure, status, error, "data-000000.segment", 0, "write")
    return STATUS_OK


cdef Status log_append(
    Log* log, RecordView* view, bint reserve, uint64_t* address, Failure* failure
) noexcept nogil:
    cdef uint64_t record_bytes = record_bytes_of(
        view.key_bytes, view.value_bytes, view.deadline_ms != 0
    )
    cdef Status status
    if log.tail + record_bytes > log.limit:
        status = link(log, record_bytes, reserve, failure)
        if status != STATUS_OK:
            return status
    view.epoch = <uint32_t> log.epoch
    record_encode(space_at(&log.space, log.tail), view, log.sequence)
    address[0] = log.tail
    log.tail += record_bytes
    log.appended_bytes += record_bytes
    log.epoch_records += 1
    if log.regions[log.active].run_regions > 1:
        log.limit = log.tail
    log_note_version(log, view)
    return STATUS_OK


cdef void log_note_version(Log* log, const RecordView* view) noexcept nogil:
    if view.flags & FLAG_RELOCATED:
        return
    if view.flags & FLAG_COPIED:
        log.last_version = max(log.last_version, view.version)
        log.log_start = log.last_version
        return
    check(view.version > log.last_version, "R2: versions rise along the log")
    log.last_version = view.version


# Ends the active region with a LINK to a region, or run, that holds a record of `record_bytes`.
cdef Status link(
    Log* log, uint64_t record_bytes, bint reserve, Failure* failure
) noexcept nogil:
    cdef uint64_t region_bytes = log.space.region_bytes
    cdef uint64_t whole = REGION_HEADER_BYTES + record_bytes + TAIL_RESERVE_BYTES
    cdef uint32_t run_regions = <uint32_t> ((whole + region_bytes - 1) // region_bytes)
    cdef uint32_t region = 0
    cdef uint64_t sequence = max(log.sequence + 1, log.base_sequence)
    cdef uint64_t[2] numbers
    cdef RecordView view
    cdef Status status = region_take(log, run_regions, reserve, &region, failure)
    if status != STATUS_OK:
        return status
    numbers[0] = region
    numbers[1] = sequence
    control_view(&view, RECORD_LINK, numbers)
    view.epoch = <uint32_t> log.epoch
    view.version = log.last_version
    record_encode(space_at(&log.space, log.tail), &view, log.sequence)
    log.tail += LINK_RECORD_BYTES
    log.appended_bytes += LINK_RECORD_BYTES
    region_leave(log)
    region_enter(log, region, run_regions, sequence)
    header_encode(log)
    return STATUS_OK


# A SEAL or LINK with its two numbers; `numbers` is borrowed.
cdef void control_view(
    RecordView* view, RecordKind kind, const uint64_t* numbers
) noexcept nogil:
    memset(view, 0, sizeof(RecordView))
    view.kind = kind
    view.value = <const uint8_t*> numbers
    view.value_bytes = 16


# The header of the active region, in memory.
cdef void header_encode(Log* log) noexcept nogil:
    cdef RegionHeader* header = <RegionHeader*> space_at(
        &log.space, region_address(log, log.active)
    )
    memcpy(&header.magic, b"DEODARKV", 8)
    header.format_version = FORMAT_VERSION
    header.region_bytes = log.space.region_bytes
    header.store_id = log.store_id
    header.sequence = log.sequence
    header.first_version = log.last_version + 1
    header.region = log.active
    header.run_regions = log.regions[log.active].run_regions
    header.checksum = checksum64(header, REGION_HEADER_BYTES - 8, 0)


cdef void log_mark(const Log* log, LogMark* mark) noexcept nogil:
    mark.active = log.active
    mark.tail = log.tail
    mark.limit = log.limit
    mark.epoch_records = log.epoch_records
    mark.last_version = log.last_version
    mark.log_start = log.log_start
    mark.appended_bytes = log.appended_bytes


# Bytes that were appended stay in memory behind the tail; L5 keeps them off the disk.
cdef void log_rollback(Log* log, const LogMark* mark) noexcept nogil:
    while log.active != mark.active:
        region_undo(log)
    log.tail = mark.tail
    log.limit = mark.limit
    log.epoch_records = mark.epoch_records
    log.last_version = mark.last_version
    log.log_start = mark.log_start
    log.appended_bytes = mark.appended_bytes


cdef void log_seal(Log* log) noexcept nogil:
    cdef uint64_t[2] numbers
    cdef RecordView view
    check(log.sealed_epoch == log.durable_epoch, "L3: one sealed epoch waits for its flush")
    check(log.epoch_records > 0, "an epoch without records has no SEAL")
    numbers[0] = log.epoch
    numbers[1] = log.epoch_records
    control_view(&view, RECORD_SEAL, numbers)
    view.epoch = <uint32_t> log.epoch
    view.version = log.last_version
    record_encode(space_at(&log.space, log.tail), &view, log.sequence)
    log.tail += SEAL_RECORD_BYTES
    log.appended_bytes += SEAL_RECORD_BYTES
    log.sealed_epoch = log.epoch
    log.sealed_region = log.active
    log.sealed_address = log.tail
    log.sealed_bytes = log.appended_bytes
    log.epoch += 1
    log.epoch_records = 0


cdef void region_enter(
    Log* log, uint32_t region, uint32_t run_regions, uint64_t sequence
) noexcept nogil:
    cdef KvRegion* entry = &log.regions[region]
    cdef uint64_t start = region_address(log, region)
    cdef uint32_t inside
    check(entry.state == REGION_FREE, "a region is free before it is used")
    memset(entry, 0, sizeof(KvRegion))
    entry.sequence = sequence
    entry.state = REGION_ACTIVE
    entry.run_regions = run_regions
    entry.previous = log.active
    entry.next = REGION_NONE
    for inside in range(region + 1, region + run_regions):
        log.regions[inside].state = REGION_INSIDE_RUN
    log.memory_bytes += <uint64_t> run_regions * log.space.region_bytes
    if log.unload_next == REGION_NONE:
        log.unload_next = region
    if log.active == REGION_NONE:
        log.first = region
    else:
        log.regions[log.active].next = region
    log.active = region
    log.sequence = sequence
    log.tail = start + REGION_HEADER_BYTES
    log.limit = (
        start + <uint64_t> run_regions * log.space.region_bytes - TAIL_RESERVE_BYTES
    )


cdef void region_leave(Log* log) noexcept nogil:
    cdef KvRegion* entry = &log.regions[log.active]
    entry.used_bytes = log.tail - region_address(log, log.active)
    entry.last_version = log.last_version
    entry.state = REGION_SEALED


cdef void region_undo(Log* log) noexcept nogil:
    cdef uint32_t region = log.active
    cdef uint32_t previous = log.regions[region].previous
    check(previous != REGION_NONE, "the first region of the log stays")
    if log.unload_next == region:
        log.unload_next = previous
    region_forget(log, region)
    log.active = previous
    log.regions[previous].next = REGION_NONE
    log.regions[previous].state = REGION_ACTIVE
    log.sequence = log.regions[previous].sequence


cdef void region_release(Log* log, uint32_t region) noexcept nogil:
    cdef KvRegion* entry = &log.regions[region]
    check(entry.state == REGION_DOOMED, "only doomed regions are released")
    check(region != log.active, "the active region stays")
    if entry.previous == REGION_NONE:
        log.first = entry.next
    else:
        log.regions[entry.previous].next = entry.next
    log.regions[entry.next].previous = entry.previous
    if log.unload_next == region:
        log.unload_next = entry.next
    region_forget(log, region)


# Makes the entries of a region or run FREE.  Memory that the system does not take back here is
# taken over by the next use.
cdef void region_forget(Log* log, uint32_t region) noexcept nogil:
    cdef uint32_t run_regions = log.regions[region].run_regions
    cdef Failure ignored
    failure_clear(&ignored)
    if log.space.residency[region] == RESIDENCY_ANONYMOUS:
        log.memory_bytes -= <uint64_t> run_regions * log.space.region_bytes
    memset(&log.regions[region], 0, run_regions * sizeof(KvRegion))
    log.free_count += run_regions
    log.free_hint = min(log.free_hint, region)
    if space_drop(&log.space, region, run_regions, &ignored) != STATUS_OK:
        check(log.space.residency[region] != RESIDENCY_ABSENT, "what is not dropped is resident")


# Finds `count` FREE regions in a row, lowest first, or extends the space by them; they are
# ANONYMOUS.
cdef Status region_take(
    Log* log, uint32_t count, bint reserve, uint32_t* region, Failure* failure
) noexcept nogil:
    cdef uint32_t kept = 0 if reserve else RESERVE_REGIONS
    cdef Status status
    cdef uint32_t index
    if log.free_count >= count + kept and find_free(log, count, region):
        for index in range(region[0], region[0] + count):
            if log.space.residency[index] != RESIDENCY_ANONYMOUS:
                status = space_make_anonymous(&log.space, index, 1, failure)
                if status != STATUS_OK:
                    return status
        log.free_count -= count
        return STATUS_OK
    if log.growth_stopped:
        return failure_set(failure, STATUS_DISK_FULL, ENOSPC, NULL, 0, "the disk is full")
    status = space_extend(&log.space, count, region, failure)
    if status == STATUS_OK:
        log.region_count = log.space.region_count
    return status


# True with the first of `count` FREE regions in a row.
cdef bint find_free(Log* log, uint32_t count, uint32_t* region) noexcept nogil:
    cdef uint32_t index
    cdef uint32_t found = 0
    for index in range(log.free_hint, log.region_count):
        found = found + 1 if log.regions[index].state == REGION_FREE else 0
        if found == count:
            region[0] = index + 1 - count
            if count == 1:
                log.free_hint = index + 1
            return True
    return False


cdef Status region_unload(Log* log, Failure* failure) noexcept nogil:
    cdef uint32_t steps = 0
    cdef KvRegion* entry
    cdef Status status
    while (
        log.memory_bytes > log.memory_bytes_max
        and steps < UNLOADS_MAX
        and log.unload_next != log.flushed_region
    ):
        entry = &log.regions[log.unload_next]
        status = space_map_file(&log.space, log.unload_next, entry.run_regions, failure)
        if status != STATUS_OK:
            return status
        log.memory_bytes -= <uint64_t> entry.run_regions * log.space.region_bytes
        log.unload_next = entry.next
        steps += 1
    return STATUS_OK


cdef void region_count_memory(Log* log) noexcept nogil:
    cdef uint32_t region = log.first
    log.memory_bytes = 0
    log.unload_next = REGION_NONE
    while region != REGION_NONE:
        if log.space.residency[region] == RESIDENCY_ANONYMOUS:
            log.memory_bytes += (
                <uint64_t> log.regions[region].run_regions * log.space.region_bytes
            )
            if log.unload_next == REGION_NONE:
                log.unload_next = region
        region = log.regions[region].next


cdef void region_replenish(Log* log) noexcept nogil:
    cdef uint32_t region = 0
    cdef Failure refused
    failure_clear(&refused)
    while log.free_count < RESERVE_REGIONS:
        if space_extend(&log.space, 1, &region, &refused) != STATUS_OK:
            return
        log.region_count = log.space.region_count
        log.free_count += 1
        log.free_hint = min(log.free_hint, region)


cdef Status log_view(
    const Log* log, uint64_t address, RecordView* view, Failure* failure
) noexcept nogil:
    cdef uint32_t region = region_of(log, address)
    cdef const char* rule = NULL
    if region < log.regions_max and log.space.residency[region] == RESIDENCY_ANONYMOUS:
        record_view(space_at(&log.space, address), view)
        return STATUS_OK
    rule = checked_view(log, address, region, view)
    if rule != NULL:
        return log_corrupt(log, address, rule, failure)
    return STATUS_OK


cdef Status log_verify(void* context, uint64_t address, Failure* failure) noexcept nogil:
    cdef const Log* log = <const Log*> context
    cdef uint32_t region = region_of(log, address)
    cdef const char* rule
    cdef RecordView view
    if region < log.regions_max and log.space.residency[region] == RESIDENCY_ANONYMOUS:
        return STATUS_OK
    rule = checked_view(log, address, region, &view)
    if rule != NULL:
        return log_corrupt(log, address, rule, failure)
    return STATUS_OK


# NULL with the view of a record in a FILE region, or the rule that is broken.
cdef const char* checked_view(
    const Log* log, uint64_t address, uint32_t region, RecordView* view
) noexcept nogil:
    cdef const char* rule = NULL
    cdef const KvRegion* entry
    cdef uint64_t end
    if region >= log.regions_max or address % RECORD_ALIGNMENT != 0:
        return "an entry of the trie points outside the log"
    while log.regions[region].state == REGION_INSIDE_RUN:
        # Where the SEAL and the LINK of a run are.
        region -= 1
    entry = &log.regions[region]
    if entry.sequence == 0 or log.space.residency[region] != RESIDENCY_FILE:
        return "an entry of the trie points into a free region"
    end = region_address(log, region) + <uint64_t> entry.run_regions * log.space.region_bytes
    if record_decode(space_at(&log.space, address), end - address, entry.sequence, view, &rule):
        return NULL
    return rule


cdef Status log_corrupt(
    const Log* log, uint64_t address, const char* rule, Failure* failure
) noexcept nogil:
    cdef char[64] file
    snprintf(file, sizeof(file), "data-%06u.segment", <unsigned int> (address // SEGMENT_BYTES))
    return failure_set(failure, STATUS_CORRUPT, 0, file, address % SEGMENT_BYTES, rule)


if <int> SEAL_RECORD_BYTES != <int> LINK_RECORD_BYTES:
    raise ImportError("SEAL and LINK are of one size")
