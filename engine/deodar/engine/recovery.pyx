from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from .checkpoint cimport (
    CHECKPOINT_CLEAN,
    Checkpoint,
    CheckpointHeader,
    RegionEntry,
)
from .core cimport StoreCore
from .damage cimport damage_behind, region_header_rule
from .debug cimport check
from .hashing cimport Path, path_of
from .index cimport index_find, index_put, index_remove, index_replace
from .log cimport (
    REGION_ACTIVE,
    REGION_EVACUATED,
    REGION_FREE,
    REGION_INSIDE_RUN,
    REGION_NONE,
    REGION_SEALED,
    SEAL_RECORD_BYTES,
    KvRegion,
    Log,
    LogMark,
    log_corrupt,
    log_mark,
    log_note_version,
    log_rollback,
    region_address,
    region_enter,
    region_leave,
)
from .record cimport (
    FLAG_COPIED,
    FLAG_RELOCATED,
    RECORD_DELETE,
    RECORD_LINK,
    RECORD_PUT,
    RECORD_SEAL,
    REGION_HEADER_BYTES,
    RecordView,
    RegionHeader,
    record_decode,
    record_view,
)
from .space cimport (
    space_at,
    space_discover,
    space_load,
    space_map_file,
)
from .status cimport (
    STATUS_CORRUPT,
    STATUS_NO_MEMORY,
    STATUS_NOT_FOUND,
    STATUS_OK,
    Failure,
    Status,
    failure_set,
)
from .trieimage cimport triespace_load

# The reading of the log: `log` itself stands where the reading stands.
cdef struct Replay:
    StoreCore* core
    Log* log
    uint64_t region_end                 # of the active region or run
    uint64_t* addresses                 # owned: records of the epoch being read
    uint64_t count
    uint64_t capacity
    uint32_t epoch_low                  # of those records
    uint64_t last_epoch                 # of the last SEAL
    LogMark sealed                      # the log behind that SEAL


cdef Status recovery_run(
    StoreCore* core, const Checkpoint* checkpoint, Failure* failure
) noexcept nogil:
    cdef const CheckpointHeader* header = checkpoint.header
    cdef Log* log = &core.log
    cdef Replay replay
    cdef Status status
    memset(&replay, 0, sizeof(Replay))
    replay.core = core
    replay.log = log
    replay.last_epoch = header.sealed_epoch
    status = table_load(core, checkpoint, failure)
    if status == STATUS_OK:
        status = trie_load(core, checkpoint, failure)
    if status == STATUS_OK:
        status = position_open(&replay, header, failure)
    core.recovered_clean = is_clean(core, header)
    if status == STATUS_OK and not core.recovered_clean:
        status = read_log(&replay, failure)
    free(replay.addresses)
    if status != STATUS_OK:
        return status
    core.recovered_epoch = max(replay.last_epoch, header.closed_epoch)
    core.recovered_epoch = max(core.recovered_epoch, core.session.base_epoch)
    core.session.log_epoch = replay.last_epoch
    return STATUS_OK


cdef bint is_clean(const StoreCore* core, const CheckpointHeader* header) noexcept nogil:
    return (
        header.flags & CHECKPOINT_CLEAN != 0
        and header.incarnation == core.session.incarnation
    )


# A place in the list of L1, for sorting.
cdef struct Place:
    uint64_t sequence
    uint32_t region


cdef int place_compare(const void* left, const void* right) noexcept nogil:
    cdef uint64_t one = (<const Place*> left).sequence
    cdef uint64_t other = (<const Place*> right).sequence
    if one == other:
        return 0
    return -1 if one < other else 1


# Fills the table of regions and maps every region before the position's.
cdef Status table_load(
    StoreCore* core, const Checkpoint* checkpoint, Failure* failure
) noexcept nogil:
    cdef Log* log = &core.log
    cdef uint64_t count = checkpoint.header.region_count
    cdef uint32_t places_count = 0
    cdef Place* places = <Place*> malloc((count + 1) * sizeof(Place))
    cdef uint32_t index
    cdef Status status
    if places == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "table of regions")
    for index in range(<uint32_t> count):
        entry_load(&log.regions[index], &checkpoint.regions[index])
        if log.regions[index].state == REGION_FREE:
            log.free_count += 1
        elif log.regions[index].state != REGION_INSIDE_RUN:
            places[places_count].sequence = log.regions[index].sequence
            places[places_count].region = index
            places_count += 1
    qsort(places, places_count, sizeof(Place), place_compare)
    status = list_load(core, places, places_count, failure)
    free(places)
    if status == STATUS_OK:
        status = space_discover(&log.space, failure)
    if status == STATUS_OK:
        log.free_count += log.space.region_count - log.region_count
        log.region_count = log.space.region_count
    return status


cdef void entry_load(KvRegion* region, const RegionEntry* entry) noexcept nogil:
    memset(region, 0, sizeof(KvRegion))
    region.sequence = entry.sequence
    region.live_bytes = entry.live_bytes
    region.used_bytes = entry.used_bytes
    region.last_version = entry.last_version
    region.expiring_bytes = entry.expiring_bytes
    region.last_deadline_ms = entry.last_deadline_ms
    region.run_regions = entry.run_regions
    region.state = entry.state
    region.previous = REGION_NONE
    region.next = REGION_NONE


cdef Status list_load(
    StoreCore* core, const Place* places, uint32_t count, Failure* failure
) noexcept nogil:
    cdef Log* log = &core.log
    cdef KvRegion* entry
    cdef uint32_t index
    cdef Status status
    for index in range(count):
        entry = &log.regions[places[index].region]
        if entry.run_regions == 0 or (
            <uint64_t> places[index].region + entry.run_regions > log.region_count
        ):
            return table_corrupt(places[index].region, failure)
        if index > 0:
            entry.previous = places[index - 1].region
            log.regions[entry.previous].next = places[index].region
        if index + 1 == count:
            break
        if entry.state != REGION_SEALED and entry.state != REGION_EVACUATED:
            return table_corrupt(places[index].region, failure)
        status = space_map_file(
            &log.space, places[index].region, entry.run_regions, failure
        )
        if status != STATUS_OK:
            return status
    if count == 0 or log.regions[places[count - 1].region].state != REGION_ACTIVE:
        return table_corrupt(0, failure)
    log.first = places[0].region
    log.active = places[count - 1].region
    return STATUS_OK


cdef Status table_corrupt(uint32_t region, Failure* failure) noexcept nogil:
    return failure_set(
        failure, STATUS_CORRUPT, 0, "checkpoint", region, "the table of regions is not a log"
    )


cdef Status trie_load(
    StoreCore* core, const Checkpoint* checkpoint, Failure* failure
) noexcept nogil:
    cdef const CheckpointHeader* header = checkpoint.header
    core.trie.root = header.trie_root
    core.trie.key_count = header.key_count
    core.trie.branch_count = header.branch_count
    core.trie.leaf_count = header.leaf_count
    core.trie.leaf_slots = header.leaf_slots
    return triespace_load(core.triespace, checkpoint.pages, header.page_count, failure)


# Puts the log where the checkpoint was taken (C2).
cdef Status position_open(
    Replay* replay, const CheckpointHeader* header, Failure* failure
) noexcept nogil:
    cdef Log* log = replay.log
    cdef KvRegion* active = &log.regions[log.active]
    cdef uint64_t start = region_address(log, log.active)
    cdef uint64_t end = start + <uint64_t> active.run_regions * log.space.region_bytes
    cdef const char* rule = NULL
    cdef Status status
    if (
        active.sequence != header.position_sequence
        or header.position < start + REGION_HEADER_BYTES
        or header.position > end
    ):
        return table_corrupt(log.active, failure)
    status = space_load(&log.space, log.active, active.run_regions, failure)
    if status != STATUS_OK:
        return status
    rule = region_header_rule(
        log, <const RegionHeader*> space_at(&log.space, start), log.active, active.sequence
    )
    if rule != NULL:
        return log_corrupt(log, start, rule, failure)
    status = records_check(log, start + REGION_HEADER_BYTES, header.position, failure)
    if status != STATUS_OK:
        return status
    log.sequence = active.sequence
    log.tail = header.position
    log.limit = end - 2 * SEAL_RECORD_BYTES
    if active.run_regions > 1:
        log.limit = min(log.limit, log.tail)
    log.last_version = header.last_version
    log.log_start = header.log_start
    log.epoch = header.sealed_epoch + 1
    replay.region_end = end
    log_mark(log, &replay.sealed)
    return STATUS_OK


# The active region becomes memory that reads trust, so its records are checked here, up to the SEAL
# before the position (C2).
cdef Status records_check(
    Log* log, uint64_t at, uint64_t position, Failure* failure
) noexcept nogil:
    cdef uint64_t sequence = log.regions[log.active].sequence
    cdef const char* rule = NULL
    cdef RecordView view
    view.kind = RECORD_SEAL
    while at < position:
        if not record_decode(
            space_at(&log.space, at), position - at, sequence, &view, &rule
        ):
            return log_corrupt(log, at, rule, failure)
        at += view.record_bytes
    if view.kind != RECORD_SEAL:
        return log_corrupt(
            log, position, "C2: a checkpoint does not stand behind a SEAL", failure
        )
    return STATUS_OK


# Reads records until one breaks a rule, then decides between V1 and V2.
cdef Status read_log(Replay* replay, Failure* failure) noexcept nogil:
    cdef Log* log = replay.log
    cdef const char* rule = NULL
    cdef RecordView view
    cdef Status status
    while True:
        if not record_decode(
            space_at(&log.space, log.tail),
            replay.region_end - log.tail,
            log.sequence,
            &view,
            &rule,
        ):
            return ending(replay, rule, failure)
        if view.kind == RECORD_LINK:
            status = follow(replay, &view, &rule, failure)
        elif view.kind == RECORD_SEAL:
            status = close_epoch(replay, &view, &rule, failure)
        else:
            status = collect(replay, &view, &rule, failure)
        if status != STATUS_OK:
            return status
        if rule != NULL:
            return ending(replay, rule, failure)


cdef Status ending(Replay* replay, const char* rule, Failure* failure) noexcept nogil:
    cdef Log* log = replay.log
    cdef uint64_t being_read = max(replay.last_epoch, replay.core.session.base_epoch) + 1
    cdef Status status
    if replay.last_epoch < replay.core.session.log_epoch:
        return log_corrupt(log, log.tail, rule, failure)
    status = damage_behind(log, log.tail, replay.region_end, being_read, rule, failure)
    if status == STATUS_OK:
        log_rollback(log, &replay.sealed)
    return status


# R5.  `*rule` is set when the region behind the LINK is not the one it names.
cdef Status follow(
    Replay* replay, const RecordView* view, const char** rule, Failure* failure
) noexcept nogil:
    cdef Log* log = replay.log
    cdef uint64_t[2] numbers
    cdef RegionHeader* header
    cdef uint32_t region
    cdef uint32_t run_regions
    cdef Status status
    memcpy(numbers, view.value, 16)
    if (
        numbers[0] >= log.region_count
        or numbers[1] <= log.sequence
        or log.regions[numbers[0]].state != REGION_FREE
    ):
        rule[0] = "R5: a LINK names a region that cannot follow"
        return STATUS_OK
    region = <uint32_t> numbers[0]
    status = space_load(&log.space, region, 1, failure)
    if status != STATUS_OK:
        return status
    header = <RegionHeader*> space_at(&log.space, region_address(log, region))
    rule[0] = region_header_rule(log, header, region, numbers[1])
    run_regions = <uint32_t> header.run_regions if rule[0] == NULL else 1
    log.tail += view.record_bytes
    region_leave(log)
    log.free_count -= run_regions
    region_enter(log, region, run_regions, numbers[1])
    replay.region_end = log.tail - REGION_HEADER_BYTES + (
        <uint64_t> run_regions * log.space.region_bytes
    )
    if run_regions > 1:
        return space_load(&log.space, region, run_regions, failure)
    return STATUS_OK


# Keeps a PUT or DELETE for the SEAL of its epoch.
cdef Status collect(
    Replay* replay, const RecordView* view, const char** rule, Failure* failure
) noexcept nogil:
    cdef Log* log = replay.log
    cdef uint64_t wanted
    cdef void* grown
    if replay.count > 0 and view.epoch != replay.epoch_low:
        rule[0] = "R4: an epoch has no SEAL before the next one begins"
        return STATUS_OK
    if (
        view.flags & (FLAG_RELOCATED | FLAG_COPIED) == 0
        and view.version <= log.last_version
    ):
        rule[0] = "R2: versions rise along the log"
        return STATUS_OK
    if replay.count == replay.capacity:
        wanted = max(<uint64_t> 1024, 2 * replay.capacity)
        grown = realloc(replay.addresses, wanted * sizeof(uint64_t))
        if grown == NULL:
            return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "records of an epoch")
        replay.addresses = <uint64_t*> grown
        replay.capacity = wanted
    replay.epoch_low = view.epoch
    replay.addresses[replay.count] = log.tail
    replay.count += 1
    log_note_version(log, view)
    log.tail += view.record_bytes
    if log.regions[log.active].run_regions > 1:
        log.limit = log.tail
    return STATUS_OK


# R4: applies the records of an epoch at its SEAL.
cdef Status close_epoch(
    Replay* replay, const RecordView* view, const char** rule, Failure* failure
) noexcept nogil:
    cdef Log* log = replay.log
    cdef uint64_t[2] numbers
    cdef uint64_t index
    cdef Status status
    memcpy(numbers, view.value, 16)
    if (
        numbers[0] <= replay.last_epoch
        or numbers[1] != replay.count
        or view.epoch != <uint32_t> numbers[0]
        or (replay.count > 0 and view.epoch != replay.epoch_low)
        or view.version != log.last_version
    ):
        rule[0] = "R4: a SEAL does not fit the records before it"
        return STATUS_OK
    for index in range(replay.count):
        status = apply(replay.core, replay.addresses[index], failure)
        if status != STATUS_OK:
            return status
    replay.count = 0
    replay.last_epoch = numbers[0]
    log.tail += view.record_bytes
    log.epoch = numbers[0] + 1
    log_mark(log, &replay.sealed)
    return STATUS_OK


# Repeats what the record did to the trie when it was written.
cdef Status apply(StoreCore* core, uint64_t address, Failure* failure) noexcept nogil:
    cdef RecordView view
    cdef RecordView current
    cdef uint64_t old_address = 0
    cdef Path path
    cdef Status status
    record_view(space_at(&core.log.space, address), &view)
    path = path_of(view.key, view.key_bytes)
    if view.flags & FLAG_RELOCATED:
        status = index_find(
            core, path, view.key, view.key_bytes, &current, &old_address, failure
        )
        if status == STATUS_OK and current.version == view.version:
            return index_replace(core, path, old_address, address)
        return STATUS_OK if status == STATUS_NOT_FOUND else status
    if view.kind == RECORD_PUT:
        return index_put(core, path, &view, address, &old_address, failure)
    check(view.kind == RECORD_DELETE, "only PUT and DELETE are collected")
    status = index_remove(core, path, view.key, view.key_bytes, &old_address, failure)
    return STATUS_OK if status == STATUS_NOT_FOUND else status
