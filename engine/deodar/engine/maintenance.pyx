from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from .ballast cimport ballast_drop, ballast_fill
from .checkpoint cimport (
    CHECKPOINT_CLEAN,
    CheckpointHeader,
    RegionEntry,
    checkpoint_remove,
    checkpoint_write,
)
from .compaction cimport compaction_pass, compaction_wanted
from .core cimport PINS_MAX, Maintenance, StoreCore
from .epoch cimport epoch_wait, epoch_writable
from .log cimport (
    REGION_DOOMED,
    REGION_EVACUATED,
    REGION_FREE,
    REGION_NONE,
    KvRegion,
    Log,
    region_release,
)
from .reclaim cimport reclaim_safe
from .status cimport (
    STATUS_DISK_FULL,
    STATUS_IO_ERROR,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    Failure,
    Status,
    failure_clear,
    failure_set,
)
from .threads cimport (
    condition_broadcast,
    condition_signal,
    condition_wait,
    condition_wait_until,
    monotonic_ns,
    mutex_lock,
    mutex_unlock,
    thread_join,
    thread_start,
)
from .trieimage cimport (
    PageEntry,
    triespace_abandon_image,
    triespace_commit_image,
    triespace_freeze,
    triespace_page_table,
    triespace_write_image,
)

cdef enum:
    RETRY_NS = 1000000000               # between attempts that met a full disk
    BALLAST_BYTES_MIN = 2097152         # the trie's files grow by 1 MiB
    EXPIRY_NS = 30000000000             # between looks for expired regions in an idle store


cdef Status maintenance_start(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef int error = thread_start(&maintenance.thread, maintenance_main, core)
    if error != 0:
        return failure_set(failure, STATUS_IO_ERROR, error, NULL, 0, "pthread_create")
    maintenance.running = True
    return STATUS_OK


cdef void maintenance_stop(StoreCore* core) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    if not maintenance.running:
        return
    mutex_lock(&core.log.mutex)
    maintenance.stopping = True
    condition_signal(&maintenance.work)
    mutex_unlock(&core.log.mutex)
    thread_join(maintenance.thread)
    maintenance.running = False


cdef void* maintenance_main(void* argument) noexcept nogil:
    cdef StoreCore* core = <StoreCore*> argument
    cdef Maintenance* maintenance = &core.maintenance
    cdef Log* log = &core.log
    mutex_lock(&log.mutex)
    while not maintenance.stopping:
        if maintenance.compaction_requested > maintenance.compaction_served:
            serve_compaction(core)
        elif maintenance.checkpoint_requested > maintenance.checkpoint_served:
            serve_checkpoint(core)
        elif log.failure.status != 0:
            condition_wait(&maintenance.work, &log.mutex)
        elif maintenance.checkpoint_due or maintenance.space_wanted:
            if monotonic_ns() >= maintenance.retry_ns:
                work_unasked(core)
            else:
                condition_wait_until(&maintenance.work, &log.mutex, maintenance.retry_ns)
        elif core.options.compaction and expiring(log):
            if not condition_wait_until(
                &maintenance.work, &log.mutex, monotonic_ns() + <uint64_t> EXPIRY_NS
            ):
                maintenance.space_wanted = compaction_wanted(core)
        else:
            condition_wait(&maintenance.work, &log.mutex)
    condition_broadcast(&log.progress)
    mutex_unlock(&log.mutex)
    return NULL


# Whether any record has a deadline.
cdef bint expiring(const Log* log) noexcept nogil:
    cdef uint32_t region = log.first
    while region != REGION_NONE:
        if log.regions[region].expiring_bytes > 0:
            return True
        region = log.regions[region].next
    return False


# The functions below are entered and left with the mutex.

# What a long log or a full disk asks for.
cdef void work_unasked(StoreCore* core) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef bint for_space = maintenance.space_wanted
    cdef Failure failure
    cdef Status status
    failure_clear(&failure)
    maintenance.space_wanted = False
    status = checkpoint(core, &failure)
    if status == STATUS_OK and core.options.compaction and compaction_wanted(core):
        status = reclaim_space(core, &failure)
    if status != STATUS_OK or for_space:
        maintenance.retry_ns = monotonic_ns() + <uint64_t> RETRY_NS


# Compacts in passes, each with a checkpoint that frees what it evacuated, as long as that helps: on
# a full disk a pass can only copy as much as the one before has freed.
cdef Status reclaim_space(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef uint64_t freed_before
    cdef bint more = True
    cdef Status compacted
    cdef Status status = STATUS_OK
    while more and not maintenance.stopping:
        freed_before = maintenance.freed_bytes
        failure_clear(failure)
        compacted = compaction_pass(core, &more, failure)
        if compacted != STATUS_OK and compacted != STATUS_DISK_FULL:
            return compacted
        if not evacuated(&core.log):
            return compacted
        failure_clear(failure)
        status = checkpoint(core, failure)
        if status != STATUS_OK or maintenance.freed_bytes == freed_before:
            return status
        more = more or compacted == STATUS_DISK_FULL
    return status


cdef bint evacuated(const Log* log) noexcept nogil:
    cdef uint32_t region = log.first
    while region != REGION_NONE:
        if log.regions[region].state == REGION_EVACUATED:
            return True
        region = log.regions[region].next
    return False


cdef void serve_checkpoint(StoreCore* core) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef uint64_t request = maintenance.checkpoint_requested
    cdef Failure failure
    failure_clear(&failure)
    checkpoint(core, &failure)
    maintenance.failure = failure
    maintenance.checkpoint_served = request
    condition_broadcast(&core.log.progress)


# The checkpoint lets compaction see what is old.
cdef void serve_compaction(StoreCore* core) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef uint64_t request = maintenance.compaction_requested
    cdef uint64_t freed_before = maintenance.freed_bytes
    cdef Failure failure
    cdef Status status
    failure_clear(&failure)
    status = checkpoint(core, &failure)
    if status == STATUS_OK:
        status = reclaim_space(core, &failure)
    if status == STATUS_OK:
        failure_clear(&failure)
    maintenance.failure = failure
    maintenance.compaction_freed_bytes = maintenance.freed_bytes - freed_before
    maintenance.compaction_served = request
    condition_broadcast(&core.log.progress)


# With the ballast, if it has to be: while it is given up, no write may take the space.
cdef Status checkpoint(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef Log* log = &core.log
    cdef Status status
    mutex_unlock(&log.mutex)
    status = maintenance_checkpoint(core, failure)
    if status == STATUS_DISK_FULL:
        mutex_lock(&log.mutex)
        log.growth_stopped = True
        mutex_unlock(&log.mutex)
        if ballast_drop(&maintenance.ballast, core.env, core.directory):
            failure_clear(failure)
            status = maintenance_checkpoint(core, failure)
    if status == STATUS_OK:
        ballast_fill(&maintenance.ballast, core.env, core.directory, ballast_bytes(core))
    mutex_lock(&log.mutex)
    log.growth_stopped = False
    return status


# For one checkpoint file and some growth of the files of the trie.
cdef uint64_t ballast_bytes(const StoreCore* core) noexcept nogil:
    cdef const CheckpointHeader* header = &core.maintenance.frozen
    return BALLAST_BYTES_MIN + 2 * (
        header.page_count * sizeof(PageEntry) + header.region_count * sizeof(RegionEntry)
    )


cdef void maintenance_freeze(void* context) noexcept nogil:
    cdef StoreCore* core = <StoreCore*> context
    cdef Maintenance* maintenance = &core.maintenance
    cdef CheckpointHeader* header = &maintenance.frozen
    cdef Log* log = &core.log
    cdef Failure* failure = &maintenance.frozen_failure
    cdef void* grown
    failure_clear(failure)
    maintenance.number += 1
    grown = realloc(
        maintenance.frozen_regions, (log.region_count + 1) * sizeof(RegionEntry)
    )
    if grown == NULL:
        failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "table of regions")
        return
    maintenance.frozen_regions = <RegionEntry*> grown
    if triespace_freeze(core.triespace, failure) != STATUS_OK:
        return
    doom(core)
    memset(header, 0, sizeof(CheckpointHeader))
    header.flags = CHECKPOINT_CLEAN if maintenance.clean else 0
    header.store_id = core.identity.store_id
    header.number = maintenance.number
    header.incarnation = core.session.incarnation
    header.position = log.tail
    header.position_sequence = log.sequence
    header.sealed_epoch = core.session.log_epoch
    if log.sealed_epoch > core.session.base_epoch:
        header.sealed_epoch = log.sealed_epoch
    header.closed_epoch = log.epoch - 1
    header.last_version = log.last_version
    header.log_start = log.log_start
    header.trie_root = core.trie.root
    header.key_count = core.trie.key_count
    header.branch_count = core.trie.branch_count
    header.leaf_count = core.trie.leaf_count
    header.leaf_slots = core.trie.leaf_slots
    header.region_count = used_regions(log)
    maintenance.committed_appended = log.appended_bytes
    maintenance.checkpoint_due = False
    table_copy(log, maintenance.frozen_regions)


# Regions up to the last one in use.  Those behind it have a length on disk that no sync has made
# certain; they are found again by it.
cdef uint32_t used_regions(const Log* log) noexcept nogil:
    cdef uint32_t count = log.region_count
    while count > 0 and log.regions[count - 1].state == REGION_FREE:
        count -= 1
    return count


# Decides which evacuated regions are free once this checkpoint is durable: those that nobody's pin
# keeps.  From now on the log is not promised before their end.
cdef void doom(StoreCore* core) noexcept nogil:
    cdef Log* log = &core.log
    cdef uint64_t kept_after = <uint64_t> -1
    cdef KvRegion* entry
    cdef uint32_t region = log.first
    cdef uint32_t index
    for index in range(PINS_MAX):
        if core.pins[index].token != 0:
            kept_after = min(kept_after, core.pins[index].after_version)
    while region != REGION_NONE:
        entry = &log.regions[region]
        if entry.state == REGION_EVACUATED and entry.last_version <= kept_after:
            entry.state = REGION_DOOMED
            entry.doomed_by = core.maintenance.number
            log.log_start = max(log.log_start, entry.last_version)
        region = entry.next


# The table as it is once this checkpoint is durable: doomed regions are free.
cdef void table_copy(const Log* log, RegionEntry* entries) noexcept nogil:
    cdef const KvRegion* region
    cdef RegionEntry* entry
    cdef uint32_t index = 0
    cdef uint32_t inside
    cdef uint32_t count = used_regions(log)
    while index < count:
        region = &log.regions[index]
        entry = &entries[index]
        memset(entry, 0, sizeof(RegionEntry))
        if region.state == REGION_DOOMED:
            for inside in range(1, region.run_regions):
                memset(&entries[index + inside], 0, sizeof(RegionEntry))
            index += region.run_regions
            continue
        entry.sequence = region.sequence
        entry.live_bytes = region.live_bytes
        entry.used_bytes = region.used_bytes
        entry.last_version = region.last_version
        entry.expiring_bytes = region.expiring_bytes
        entry.last_deadline_ms = region.last_deadline_ms
        entry.run_regions = region.run_regions
        entry.state = region.state
        index += 1


cdef Status maintenance_checkpoint(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef Log* log = &core.log
    cdef Status status = STATUS_OK
    mutex_lock(&log.mutex)
    log.freeze_wanted = True
    condition_signal(&log.work)
    while status == STATUS_OK and log.freeze_wanted:
        status = epoch_writable(log, failure)
        if status == STATUS_OK:
            condition_wait(&log.progress, &log.mutex)
    log.freeze_wanted = False
    if status == STATUS_OK and maintenance.frozen_failure.status != 0:
        failure[0] = maintenance.frozen_failure
        status = failure.status
    elif status == STATUS_OK:
        status = epoch_wait(log, maintenance.frozen.closed_epoch, 0, failure)
        if status != STATUS_OK:
            triespace_abandon_image(core.triespace)
    mutex_unlock(&log.mutex)
    if status != STATUS_OK:
        return status
    return maintenance_commit(core, failure)


cdef Status maintenance_commit(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef uint64_t replaced = maintenance.committed
    cdef Status status = write_image(core, failure)
    mutex_lock(&core.log.mutex)
    if status == STATUS_OK:
        maintenance.committed = maintenance.frozen.number
        maintenance.committed_sequence = maintenance.frozen.position_sequence
        maintenance.checkpoints_count += 1
        release(core)
    elif status == STATUS_DISK_FULL or status == STATUS_OVER_LIMIT:
        # Refused, not failed: it may be tried again.
        maintenance.checkpoint_due = True
    elif core.log.failure.status == 0:
        core.log.failure = failure[0]
        condition_broadcast(&core.log.progress)
    mutex_unlock(&core.log.mutex)
    if status == STATUS_OK and replaced != 0:
        return checkpoint_remove(core.env, core.directory, replaced, failure)
    return status


# The pages of the trie, then the file that commits them; not under the mutex.
cdef Status write_image(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef const PageEntry* pages = NULL
    cdef Status status = triespace_write_image(core.triespace, &maintenance.disk, failure)
    if status == STATUS_OK:
        maintenance.frozen.page_count = triespace_page_table(core.triespace, &pages)
        status = checkpoint_write(
            core.env,
            core.directory,
            &maintenance.frozen,
            pages,
            maintenance.frozen_regions,
            failure,
        )
    if status != STATUS_OK:
        triespace_abandon_image(core.triespace)
        return status
    triespace_commit_image(core.triespace)
    return STATUS_OK


# Gives back the doomed regions that no reader can be inside any more, one a hold of the mutex,
# since the system takes its time to take memory back.
cdef void release(StoreCore* core) noexcept nogil:
    cdef Log* log = &core.log
    cdef uint64_t safe = reclaim_safe(&core.reclaim)
    cdef uint32_t region
    while True:
        region = releasable(core, safe)
        if region == REGION_NONE:
            return
        core.maintenance.freed_bytes += (
            <uint64_t> log.regions[region].run_regions * log.space.region_bytes
        )
        region_release(log, region)
        mutex_unlock(&log.mutex)
        mutex_lock(&log.mutex)


cdef uint32_t releasable(const StoreCore* core, uint64_t safe) noexcept nogil:
    cdef const Log* log = &core.log
    cdef const KvRegion* entry
    cdef uint32_t region = log.first
    while region != REGION_NONE:
        entry = &log.regions[region]
        if (
            entry.state == REGION_DOOMED
            and entry.doomed_by <= core.maintenance.committed
            and entry.retired <= safe
        ):
            return region
        region = entry.next
    return REGION_NONE


cdef Status maintenance_request_checkpoint(
    StoreCore* core, Failure* failure
) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef uint64_t request
    cdef Status status
    mutex_lock(&core.log.mutex)
    status = epoch_writable(&core.log, failure)
    if status == STATUS_OK:
        maintenance.checkpoint_requested += 1
        request = maintenance.checkpoint_requested
        condition_signal(&maintenance.work)
        while maintenance.checkpoint_served < request:
            condition_wait(&core.log.progress, &core.log.mutex)
        status = last_failure(core, failure)
    mutex_unlock(&core.log.mutex)
    return status


cdef Status maintenance_request_compaction(
    StoreCore* core, uint64_t* freed_bytes, Failure* failure
) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef uint64_t request
    cdef Status status
    mutex_lock(&core.log.mutex)
    status = epoch_writable(&core.log, failure)
    if status == STATUS_OK:
        maintenance.compaction_requested += 1
        request = maintenance.compaction_requested
        condition_signal(&maintenance.work)
        while maintenance.compaction_served < request:
            condition_wait(&core.log.progress, &core.log.mutex)
        freed_bytes[0] = maintenance.compaction_freed_bytes
        status = last_failure(core, failure)
    mutex_unlock(&core.log.mutex)
    return status


cdef Status last_failure(const StoreCore* core, Failure* failure) noexcept nogil:
    if core.maintenance.failure.status == 0:
        return STATUS_OK
    failure[0] = core.maintenance.failure
    return failure.status
