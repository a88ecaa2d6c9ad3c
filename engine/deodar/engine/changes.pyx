from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from .core cimport PINS_MAX, Pin, StoreCore
from .epoch cimport epoch_admit
from .hashing cimport Path, path_of
from .index cimport index_find
from .log cimport (
    REGION_NONE,
    Log,
    LogMark,
    log_append,
    log_mark,
    log_rollback,
    log_view,
    region_address,
)
from .record cimport (
    FLAG_COPIED,
    FLAG_RELOCATED,
    RECORD_DELETE,
    RECORD_LINK,
    REGION_HEADER_BYTES,
    RecordView,
)
from .status cimport (
    STATUS_LOG_TRIMMED,
    STATUS_NOT_FOUND,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    Failure,
    Status,
    failure_set,
)
from .threads cimport mutex_lock, mutex_unlock
from .write cimport Operation, write_index, write_note, write_view

cdef enum:
    APPLY_STEP = 256                    # changes a hold of the mutex


cdef Status changes_read(
    StoreCore* core,
    uint64_t after_version,
    uint32_t limit,
    uint64_t bytes_max,
    RecordView* views,
    uint32_t* count,
    Failure* failure,
) noexcept nogil:
    cdef uint64_t at = 0
    cdef uint64_t end = 0
    cdef uint64_t seen_bytes = 0
    cdef uint64_t[2] numbers
    cdef RecordView* view
    cdef Status status = locate(core, after_version, &at, &end, failure)
    count[0] = 0
    while status == STATUS_OK and at != end and count[0] < limit and seen_bytes < bytes_max:
        view = &views[count[0]]
        status = log_view(&core.log, at, view, failure)
        if status != STATUS_OK:
            return status
        at += view.record_bytes
        if view.kind == RECORD_LINK:
            memcpy(numbers, view.value, 16)
            at = region_address(&core.log, <uint32_t> numbers[0]) + REGION_HEADER_BYTES
        elif is_change(view) and view.version > after_version:
            seen_bytes += view.key_bytes + <uint64_t> view.value_bytes
            count[0] += 1
    return status


cdef bint is_change(const RecordView* view) noexcept nogil:
    return view.kind <= RECORD_DELETE and view.flags & (FLAG_RELOCATED | FLAG_COPIED) == 0


# Where to begin, and where the log ends now.  Regions between the two stay in place during the
# grace period, even if they are freed meanwhile.
cdef Status locate(
    StoreCore* core, uint64_t after_version, uint64_t* at, uint64_t* end, Failure* failure
) noexcept nogil:
    cdef Log* log = &core.log
    cdef uint32_t region
    cdef uint32_t previous
    cdef Status status = STATUS_OK
    mutex_lock(&log.mutex)
    if after_version < log.log_start:
        status = trimmed(failure)
    elif after_version >= log.last_version:
        at[0] = log.tail
        end[0] = log.tail
    else:
        region = log.active
        previous = log.regions[region].previous
        while previous != REGION_NONE and log.regions[previous].last_version > after_version:
            region = previous
            previous = log.regions[region].previous
        at[0] = region_address(log, region) + REGION_HEADER_BYTES
        end[0] = log.tail
    mutex_unlock(&log.mutex)
    return status


cdef Status trimmed(Failure* failure) noexcept nogil:
    return failure_set(
        failure, STATUS_LOG_TRIMMED, 0, NULL, 0, "the log no longer reaches back that far"
    )


cdef Status changes_apply(
    StoreCore* core,
    const Operation* operations,
    uint32_t count,
    uint32_t* applied,
    Failure* failure,
) noexcept nogil:
    cdef Log* log = &core.log
    cdef uint32_t index = 0
    cdef uint32_t step_end
    cdef Status status = STATUS_OK
    applied[0] = 0
    while status == STATUS_OK and index < count:
        step_end = min(count, index + APPLY_STEP)
        mutex_lock(&log.mutex)
        status = epoch_admit(log, failure)
        while status == STATUS_OK and index < step_end:
            status = apply(core, &operations[index], applied, failure)
            index += 1
        mutex_unlock(&log.mutex)
    return status


cdef Status apply(
    StoreCore* core, const Operation* operation, uint32_t* applied, Failure* failure
) noexcept nogil:
    cdef Log* log = &core.log
    cdef Path path = path_of(operation.key, operation.key_bytes)
    cdef RecordView view
    cdef LogMark mark
    cdef uint64_t address = 0
    cdef uint64_t old_address = 0
    cdef Status status = index_find(
        core, path, operation.key, operation.key_bytes, &view, NULL, failure
    )
    if status == STATUS_OK and view.version >= operation.if_version:
        return STATUS_OK
    if status != STATUS_OK and status != STATUS_NOT_FOUND:
        return status
    write_view(operation, operation.if_version, &view)
    if operation.if_version != log.last_version + 1:
        view.flags = FLAG_COPIED
    log_mark(log, &mark)
    status = log_append(log, &view, view.kind == RECORD_DELETE, &address, failure)
    if status == STATUS_OK:
        status = write_index(core, path, &view, address, &old_address, failure)
        if status == STATUS_NOT_FOUND:
            # A deletion of what is not here: kept for the stream.
            status = STATUS_OK
        elif status != STATUS_OK:
            log_rollback(log, &mark)
    write_note(core, status, operation.key_bytes + <uint64_t> operation.value_bytes)
    if status == STATUS_OK:
        applied[0] += 1
    return status


cdef Status changes_pin(
    StoreCore* core, uint64_t after_version, uint64_t* token, Failure* failure
) noexcept nogil:
    cdef Status status = STATUS_OK
    cdef uint32_t index = 0
    mutex_lock(&core.log.mutex)
    while index < PINS_MAX and core.pins[index].token != 0:
        index += 1
    if after_version < core.log.log_start:
        status = trimmed(failure)
    elif index == PINS_MAX:
        status = failure_set(
            failure, STATUS_OVER_LIMIT, 0, NULL, 0, "256 pins of the log are in use"
        )
    else:
        core.pins_given += 1
        core.pins[index].token = core.pins_given
        core.pins[index].after_version = after_version
        token[0] = core.pins_given
    mutex_unlock(&core.log.mutex)
    return status


cdef Status changes_unpin(StoreCore* core, uint64_t token) noexcept nogil:
    cdef Status status = STATUS_NOT_FOUND
    cdef Pin* pin
    cdef uint32_t index
    mutex_lock(&core.log.mutex)
    for index in range(PINS_MAX):
        pin = &core.pins[index]
        if token != 0 and pin.token == token:
            memset(pin, 0, sizeof(Pin))
            status = STATUS_OK
    mutex_unlock(&core.log.mutex)
    return status
