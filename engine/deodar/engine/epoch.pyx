from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from .disk cimport (
    DiskBackend,
    WriteOperation,
    disk_close,
    disk_open,
    disk_sync,
    disk_write,
)
from .limits cimport PAGE_BYTES
from .log cimport (
    KvRegion,
    Log,
    log_seal,
    log_unflushed,
    region_address,
    region_replenish,
    region_unload,
)
from .space cimport space_at, space_fd, space_file_offset
from .status cimport (
    STATUS_IO_ERROR,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_QUEUE_FULL,
    STATUS_READ_ONLY,
    STATUS_TIMEOUT,
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

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t bytes)

cdef enum:
    DISK_DEPTH = 32                     # writes of 1 MiB in flight
    REPLENISH_NS = 1000000000           # between attempts to make the reserve whole on a full disk


cdef Status epoch_open(
    DiskThread* thread,
    Log* log,
    uint64_t epoch_ns,
    DiskBackend backend,
    freeze_t freeze,
    void* freeze_context,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    memset(thread, 0, sizeof(DiskThread))
    thread.log = log
    thread.epoch_ns = epoch_ns
    thread.freeze = freeze
    thread.freeze_context = freeze_context
    status = disk_open(&thread.disk, log.env, backend, DISK_DEPTH, failure)
    if status != STATUS_OK:
        return status
    if posix_memalign(<void**> &thread.last_page, PAGE_BYTES, PAGE_BYTES) != 0:
        thread.last_page = NULL
        disk_close(&thread.disk)
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "a page of the disk thread")
    return STATUS_OK


cdef void epoch_close(DiskThread* thread) noexcept nogil:
    free(thread.operations)
    free(thread.last_page)
    disk_close(&thread.disk)


cdef Status epoch_start(DiskThread* thread, Failure* failure) noexcept nogil:
    cdef int error = thread_start(&thread.thread, disk_thread_main, thread)
    if error != 0:
        return failure_set(failure, STATUS_IO_ERROR, error, NULL, 0, "pthread_create")
    thread.running = True
    return STATUS_OK


cdef void epoch_stop(DiskThread* thread) noexcept nogil:
    if not thread.running:
        return
    mutex_lock(&thread.log.mutex)
    thread.log.stopping = True
    condition_signal(&thread.log.work)
    mutex_unlock(&thread.log.mutex)
    thread_join(thread.thread)
    thread.running = False


cdef void* disk_thread_main(void* argument) noexcept nogil:
    cdef DiskThread* thread = <DiskThread*> argument
    cdef Log* log = thread.log
    mutex_lock(&log.mutex)
    while True:
        if log.failure.status == 0 and (log.epoch_records > 0 or log.freeze_wanted):
            collect(thread)
            flush(thread)
        elif log.stopping:
            break
        else:
            condition_wait(&log.work, &log.mutex)
    mutex_unlock(&log.mutex)
    return NULL


# Lets the open epoch collect records until it is old enough or somebody is in a hurry.
cdef void collect(DiskThread* thread) noexcept nogil:
    cdef Log* log = thread.log
    cdef uint64_t until = monotonic_ns() + thread.epoch_ns
    while (
        log.hurry_epoch < log.epoch
        and not log.freeze_wanted
        and not log.stopping
        and log_unflushed(log) <= log.write_buffer_bytes // 2
    ):
        if not condition_wait_until(&log.work, &log.mutex, until):
            return


# Closes the open epoch and brings it to disk.  Entered and left with the mutex, which is free while
# the disk works.
cdef void flush(DiskThread* thread) noexcept nogil:
    cdef Log* log = thread.log
    cdef Failure failure
    cdef Status status = STATUS_OK
    cdef uint32_t count = 0
    failure_clear(&failure)
    if log.epoch_records > 0:
        log_seal(log)
    if log.freeze_wanted:
        thread.freeze(thread.freeze_context)
        log.freeze_wanted = False
        condition_broadcast(&log.progress)
    if log.sealed_epoch == log.durable_epoch:
        return
    status = prepare(thread, &count, &failure)
    mutex_unlock(&log.mutex)
    if status == STATUS_OK:
        status = disk_write(&thread.disk, thread.operations, count, &failure)
    if status == STATUS_OK:
        status = sync_files(thread, count, &failure)
    mutex_lock(&log.mutex)
    if status == STATUS_OK:
        thread.flushes_count += 1
        log.durable_epoch = log.sealed_epoch
        log.flushed_region = log.sealed_region
        log.flushed_address = log.sealed_address
        log.flushed_bytes = log.sealed_bytes
        replenish(thread)
        status = region_unload(log, &failure)
    if status != STATUS_OK:
        log.failure = failure
    condition_broadcast(&log.progress)


# A full disk is asked again once a second, not once an epoch.
cdef void replenish(DiskThread* thread) noexcept nogil:
    cdef uint64_t now = monotonic_ns()
    if now >= thread.replenish_ns:
        thread.replenish_ns = now + REPLENISH_NS
        region_replenish(thread.log)


# Lists the writes from the flushed end to the sealed end.  The last page is copied, so that what
# writers append behind the SEAL meanwhile stays off the disk (L5).
cdef Status prepare(DiskThread* thread, uint32_t* count, Failure* failure) noexcept nogil:
    cdef Log* log = thread.log
    cdef uint64_t start = log.flushed_address & ~(<uint64_t> PAGE_BYTES - 1)
    cdef uint64_t last_page = log.sealed_address & ~(<uint64_t> PAGE_BYTES - 1)
    cdef uint32_t tail_bytes = <uint32_t> (log.sealed_address - last_page)
    cdef uint32_t region = log.flushed_region
    cdef const KvRegion* entry
    cdef Status status
    while region != log.sealed_region:
        entry = &log.regions[region]
        status = add_range(
            thread, start, region_address(log, region) + entry.used_bytes, count, failure
        )
        if status != STATUS_OK:
            return status
        region = entry.next
        start = region_address(log, region)
    status = add_range(thread, start, last_page, count, failure)
    if status != STATUS_OK or tail_bytes == 0:
        return status
    memcpy(thread.last_page, space_at(&log.space, last_page), tail_bytes)
    memset(thread.last_page + tail_bytes, 0, PAGE_BYTES - tail_bytes)
    return add_write(thread, thread.last_page, last_page, PAGE_BYTES, count, failure)


# Adds the pages of start..end, cut where a segment file ends.
cdef Status add_range(
    DiskThread* thread, uint64_t start, uint64_t end, uint32_t* count, Failure* failure
) noexcept nogil:
    cdef Log* log = thread.log
    cdef uint64_t segment_bytes = (
        <uint64_t> log.space.region_bytes * log.space.regions_per_segment
    )
    cdef uint64_t piece
    cdef Status status
    end = (end + PAGE_BYTES - 1) & ~(<uint64_t> PAGE_BYTES - 1)
    while start < end:
        piece = min(end - start, segment_bytes - start % segment_bytes)
        status = add_write(thread, space_at(&log.space, start), start, piece, count, failure)
        if status != STATUS_OK:
            return status
        start += piece
    return STATUS_OK


cdef Status add_write(
    DiskThread* thread,
    const uint8_t* buffer,
    uint64_t address,
    uint64_t write_bytes,
    uint32_t* count,
    Failure* failure,
) noexcept nogil:
    cdef Log* log = thread.log
    cdef WriteOperation* operation
    cdef uint32_t wanted
    cdef void* grown
    if count[0] == thread.operations_max:
        wanted = max(<uint32_t> 64, 2 * thread.operations_max)
        grown = realloc(thread.operations, wanted * sizeof(WriteOperation))
        if grown == NULL:
            return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "list of writes")
        thread.operations = <WriteOperation*> grown
        thread.operations_max = wanted
    operation = &thread.operations[count[0]]
    operation.fd = space_fd(&log.space, address)
    operation.buffer = buffer
    operation.bytes = write_bytes
    operation.offset = space_file_offset(&log.space, address)
    count[0] += 1
    return STATUS_OK


# Syncs each file written once.  Few files are touched by a flush, so they are looked for in line.
cdef Status sync_files(DiskThread* thread, uint32_t count, Failure* failure) noexcept nogil:
    cdef uint32_t index
    cdef uint32_t before
    cdef Status status
    for index in range(count):
        before = 0
        while thread.operations[before].fd != thread.operations[index].fd:
            before += 1
        if before == index:
            status = disk_sync(&thread.disk, thread.operations[index].fd, failure)
            if status != STATUS_OK:
                return status
    return STATUS_OK


cdef Status epoch_writable(const Log* log, Failure* failure) noexcept nogil:
    if log.failure.status == 0:
        return STATUS_OK
    return failure_set(
        failure,
        STATUS_READ_ONLY,
        log.failure.error_number,
        log.failure.file,
        log.failure.offset,
        log.failure.rule,
    )


cdef Status epoch_admit(Log* log, Failure* failure) noexcept nogil:
    cdef Status status = epoch_writable(log, failure)
    cdef uint64_t until
    if status != STATUS_OK or log_unflushed(log) <= log.write_buffer_bytes:
        return status
    until = monotonic_ns() + log.stall_ns
    condition_signal(&log.work)
    while log_unflushed(log) > log.write_buffer_bytes:
        if not condition_wait_until(&log.progress, &log.mutex, until):
            return failure_set(
                failure, STATUS_QUEUE_FULL, 0, NULL, 0, "the write buffer stayed full"
            )
        status = epoch_writable(log, failure)
        if status != STATUS_OK:
            return status
    return STATUS_OK


cdef void epoch_note_records(Log* log) noexcept nogil:
    if log.noted_epoch != log.epoch:
        log.noted_epoch = log.epoch
        condition_signal(&log.work)


cdef Status epoch_wait(
    Log* log, uint64_t epoch, uint64_t until_ns, Failure* failure
) noexcept nogil:
    cdef Status status
    epoch = min(epoch, epoch_last_used(log))
    while log.durable_epoch < epoch:
        status = epoch_writable(log, failure)
        if status != STATUS_OK:
            return status
        if log.hurry_epoch < epoch:
            log.hurry_epoch = epoch
            condition_signal(&log.work)
        if until_ns == 0:
            condition_wait(&log.progress, &log.mutex)
        elif not condition_wait_until(&log.progress, &log.mutex, until_ns):
            return STATUS_TIMEOUT
    return STATUS_OK
