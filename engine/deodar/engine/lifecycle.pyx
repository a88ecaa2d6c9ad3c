from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset, strlen, strncpy

from .checkpoint cimport Checkpoint, checkpoint_free, checkpoint_read
from .core cimport DIRECTORY_BYTES, Maintenance, Options, StoreCore
from .disk cimport disk_close, disk_open
from .env cimport Env
from .epoch cimport epoch_close, epoch_open, epoch_start, epoch_stop, epoch_wait
from .identity cimport Session, identity_create, identity_read, session_write
from .log cimport (
    Log,
    log_begin,
    log_close,
    log_open,
    log_verify,
    region_count_memory,
    region_replenish,
)
from .maintenance cimport (
    maintenance_checkpoint,
    maintenance_commit,
    maintenance_freeze,
    maintenance_start,
    maintenance_stop,
)
from .reclaim cimport reclaim_open
from .recovery cimport recovery_run
from .space cimport space_at
from .status cimport (
    STATUS_INVALID,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_READ_ONLY,
    Failure,
    Status,
    failure_clear,
    failure_set,
)
from .threads cimport condition_close, condition_open, mutex_lock, mutex_unlock
from .trie cimport Trie, trie_create
from .triespace cimport triespace_free, triespace_new

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t bytes)

cdef enum:
    TRIE_RESERVED_BYTES = 274877906944  # 256 GiB of addresses: a trie of some 10^10 keys
    CACHE_LINE_BYTES = 64
    DISK_DEPTH = 32
    # How far a session that follows a crash skips, above all that the lost flush can have held.
    EPOCHS_SKIPPED = 2                  # E1
    VERSIONS_SKIPPED = 4294967296       # a write buffer holds fewer records
    SEQUENCES_SKIPPED = 1048576         # and fewer regions


cdef StoreCore* lifecycle_allocate() noexcept nogil:
    cdef StoreCore* core = NULL
    if posix_memalign(<void**> &core, CACHE_LINE_BYTES, sizeof(StoreCore)) != 0:
        return NULL
    memset(core, 0, sizeof(StoreCore))
    return core


cdef void lifecycle_free(StoreCore* core) noexcept nogil:
    free(core)


cdef Status lifecycle_create(
    const Env* env,
    const char* directory,
    const Options* options,
    uint64_t store_id,
    Failure* failure,
) noexcept nogil:
    cdef StoreCore* core = lifecycle_allocate()
    cdef Status status
    if core == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "a store")
    status = identity_create(
        env, directory, store_id, options.region_bytes, options.sluggishness, failure
    )
    if status == STATUS_OK:
        status = parts_open(core, env, directory, options, 0, failure)
    if status == STATUS_OK:
        status = first_checkpoint(core, failure)
        parts_close(core)
    lifecycle_free(core)
    return status


cdef Status first_checkpoint(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Log* log = &core.log
    cdef Status status = log_begin(log, failure)
    if status != STATUS_OK:
        return status
    log.epoch = 1
    status = trie_create(
        &core.trie,
        core.triespace,
        &core.reclaim,
        space_at(&log.space, 0),
        core.identity.sluggishness,
        failure,
    )
    if status != STATUS_OK:
        return status
    core.session.incarnation = 1
    core.maintenance.clean = True
    maintenance_freeze(core)
    if core.maintenance.frozen_failure.status != 0:
        failure[0] = core.maintenance.frozen_failure
        return failure.status
    status = maintenance_commit(core, failure)
    if status != STATUS_OK:
        return status
    return session_write(core.env, core.directory, &core.session, failure)


cdef Status lifecycle_open(
    StoreCore* core,
    const Env* env,
    const char* directory,
    const Options* options,
    uint64_t number,
    Failure* failure,
) noexcept nogil:
    cdef Checkpoint checkpoint
    cdef Status status = identity_read(
        env, directory, &core.identity, &core.session, failure
    )
    if status != STATUS_OK:
        return status
    status = checkpoint_read(
        env, directory, number, core.identity.store_id, &checkpoint, failure
    )
    if status != STATUS_OK:
        return status
    status = parts_open(
        core, env, directory, options, <uint32_t> checkpoint.header.region_count, failure
    )
    if status != STATUS_OK:
        checkpoint_free(&checkpoint)
        return status
    core.maintenance.number = number
    core.maintenance.committed = number
    core.maintenance.committed_sequence = checkpoint.header.position_sequence
    trie_attach(core)
    status = recovery_run(core, &checkpoint, failure)
    checkpoint_free(&checkpoint)
    if status == STATUS_OK:
        status = session_open(core, failure)
    if status == STATUS_OK and not options.read_only:
        status = threads_start(core, failure)
    if status != STATUS_OK:
        parts_close(core)
    return status


# Everything that holds memory or files, in order; on failure nothing stays open.
cdef Status parts_open(
    StoreCore* core,
    const Env* env,
    const char* directory,
    const Options* options,
    uint32_t region_count,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    if strlen(directory) >= DIRECTORY_BYTES:
        return failure_set(failure, STATUS_INVALID, 0, "path", 0, "the path is too long")
    core.env = env
    core.options = options[0]
    strncpy(core.directory, directory, DIRECTORY_BYTES - 1)
    core.wall_open_ms = env.wall_ms(env.context)
    core.boot_open_ms = env.boot_ms(env.context)
    reclaim_open(&core.reclaim)
    status = identity_read(env, directory, &core.identity, &core.session, failure)
    if status != STATUS_OK:
        return status
    status = log_open(
        &core.log,
        env,
        directory,
        core.identity.region_bytes,
        region_count,
        options.direct,
        core.identity.store_id,
        failure,
    )
    if status != STATUS_OK:
        return status
    core.log.write_buffer_bytes = options.write_buffer_bytes
    core.log.stall_ns = options.stall_ns
    core.log.memory_bytes_max = options.memory_bytes
    status = disks_open(core, failure)
    if status != STATUS_OK:
        log_close(&core.log)
    return status


cdef Status disks_open(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef Status status = epoch_open(
        &core.disk_thread,
        &core.log,
        core.options.epoch_ns,
        core.options.backend,
        maintenance_freeze,
        core,
        failure,
    )
    if status != STATUS_OK:
        return status
    status = disk_open(
        &maintenance.disk, core.env, core.options.backend, DISK_DEPTH, failure
    )
    if status != STATUS_OK:
        epoch_close(&core.disk_thread)
        return status
    core.triespace = triespace_new(
        core.env,
        &core.reclaim,
        core.directory,
        <uint64_t> TRIE_RESERVED_BYTES,
        core.options.direct,
        failure,
    )
    if core.triespace == NULL:
        disk_close(&maintenance.disk)
        epoch_close(&core.disk_thread)
        return failure.status
    condition_open(&maintenance.work)
    return STATUS_OK


cdef void parts_close(StoreCore* core) noexcept nogil:
    condition_close(&core.maintenance.work)
    free(core.maintenance.frozen_regions)
    core.maintenance.frozen_regions = NULL
    triespace_free(core.triespace)
    core.triespace = NULL
    disk_close(&core.maintenance.disk)
    epoch_close(&core.disk_thread)
    log_close(&core.log)


# The trie over what recovery will load.
cdef void trie_attach(StoreCore* core) noexcept nogil:
    cdef Trie* trie = &core.trie
    memset(trie, 0, sizeof(Trie))
    trie.space = core.triespace
    trie.reclaim = &core.reclaim
    trie.records = space_at(&core.log.space, 0)
    trie.verify = log_verify
    trie.verify_context = &core.log
    trie.sluggishness = core.identity.sluggishness


# I1: fixes the numbers of this opening and writes them down.
cdef Status session_open(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Session* session = &core.session
    cdef Log* log = &core.log
    session.incarnation += 1
    session.base_epoch = core.recovered_epoch
    if not core.recovered_clean:
        session.base_epoch += EPOCHS_SKIPPED
        session.base_version = <uint64_t> VERSIONS_SKIPPED + max(
            session.base_version, log.last_version + 1
        )
        session.base_sequence = <uint64_t> SEQUENCES_SKIPPED + max(
            session.base_sequence, log.sequence + 1
        )
    log.epoch = session.base_epoch + 1
    log.base_version = session.base_version
    log.base_sequence = session.base_sequence
    log.sealed_epoch = session.base_epoch
    log.sealed_region = log.active
    log.sealed_address = log.tail
    log.durable_epoch = session.base_epoch
    log.flushed_region = log.active
    log.flushed_address = log.tail
    region_count_memory(log)
    if core.options.read_only:
        failure_set(
            &log.failure, STATUS_READ_ONLY, 0, "store", 0, "the store was opened read-only"
        )
        return STATUS_OK
    return session_write(core.env, core.directory, session, failure)


cdef Status threads_start(StoreCore* core, Failure* failure) noexcept nogil:
    cdef Status status
    region_replenish(&core.log)
    status = epoch_start(&core.disk_thread, failure)
    if status != STATUS_OK:
        return status
    status = maintenance_start(core, failure)
    if status != STATUS_OK:
        epoch_stop(&core.disk_thread)
    return status


cdef Status lifecycle_close(StoreCore* core, bint clean, Failure* failure) noexcept nogil:
    cdef Status status = STATUS_OK
    cdef Failure unmade
    maintenance_stop(core)
    if not core.options.read_only and clean:
        mutex_lock(&core.log.mutex)
        status = epoch_wait(&core.log, core.log.epoch, 0, failure)
        core.maintenance.clean = True
        mutex_unlock(&core.log.mutex)
        if status == STATUS_OK:
            failure_clear(&unmade)
            maintenance_checkpoint(core, &unmade)
    epoch_stop(&core.disk_thread)
    parts_close(core)
    return status
