from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memset

from .core cimport Maintenance, StoreCore
from .epoch cimport epoch_admit, epoch_note_records, epoch_wait
from .hashing cimport Path, path_of
from .index cimport index_expired, index_find_live, index_put, index_remove
from .log cimport (
    Log,
    LogMark,
    log_append,
    log_mark,
    log_next_version,
    log_rollback,
)
from .record cimport RECORD_DELETE, RECORD_PUT, RecordView, record_view
from .space cimport space_at
from .status cimport (
    STATUS_CONDITION,
    STATUS_DISK_FULL,
    STATUS_INVALID,
    STATUS_NOT_FOUND,
    STATUS_OK,
    Failure,
    Status,
)
from .threads cimport condition_signal, mutex_lock, mutex_unlock

cdef enum:
    NUMBER_BYTES_MAX = 20               # of a signed 64-bit number in decimal


cdef void write_note(StoreCore* core, Status status, uint64_t logical_bytes) noexcept nogil:
    cdef Maintenance* maintenance = &core.maintenance
    cdef Log* log = &core.log
    if status == STATUS_OK:
        core.writes_count += 1
        core.logical_bytes_written += logical_bytes
        epoch_note_records(log)
        if (
            log.appended_bytes - maintenance.committed_appended > core.options.checkpoint_log_bytes
            and not maintenance.checkpoint_due
        ):
            maintenance.checkpoint_due = True
            condition_signal(&maintenance.work)
    elif status == STATUS_DISK_FULL and not maintenance.space_wanted:
        maintenance.space_wanted = True
        condition_signal(&maintenance.work)


cdef Status write_one(
    StoreCore* core, const Operation* operation, bint durable, Outcome* outcome, Failure* failure
) noexcept nogil:
    cdef Path path = path_of(operation.key, operation.key_bytes)
    cdef Status status
    memset(outcome, 0, sizeof(Outcome))
    mutex_lock(&core.log.mutex)
    status = epoch_admit(&core.log, failure)
    if status == STATUS_OK:
        if operation.kind == OPERATION_PUT:
            status = put(core, path, operation, outcome, failure)
        else:
            status = delete(core, path, operation, outcome, failure)
    if status == STATUS_OK and durable:
        status = epoch_wait(&core.log, outcome.epoch, 0, failure)
    mutex_unlock(&core.log.mutex)
    return STATUS_OK if status == STATUS_NOT_FOUND else status


cdef Status put(
    StoreCore* core,
    Path path,
    const Operation* operation,
    Outcome* outcome,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    cdef RecordView view
    if operation.condition != CONDITION_NONE:
        status = index_find_live(
            core, path, operation.key, operation.key_bytes, &view, failure
        )
        status = write_condition(operation, status, view.version, outcome)
        if status != STATUS_OK:
            return status
    write_view(operation, log_next_version(&core.log), &view)
    status = append_and_index(core, path, &view, outcome, failure)
    write_note(core, status, operation.key_bytes + <uint64_t> operation.value_bytes)
    return status


cdef Status delete(
    StoreCore* core,
    Path path,
    const Operation* operation,
    Outcome* outcome,
    Failure* failure,
) noexcept nogil:
    cdef RecordView view
    cdef Status status = index_find_live(
        core, path, operation.key, operation.key_bytes, &view, failure
    )
    if operation.condition != CONDITION_NONE:
        status = write_condition(operation, status, view.version, outcome)
    if status != STATUS_OK:
        outcome.epoch = core.log.epoch
        return status
    write_view(operation, log_next_version(&core.log), &view)
    status = append_and_index(core, path, &view, outcome, failure)
    write_note(core, status, operation.key_bytes)
    return status


cdef Status write_condition(
    const Operation* operation, Status found, uint64_t version, Outcome* outcome
) noexcept nogil:
    cdef bint held
    if found != STATUS_OK and found != STATUS_NOT_FOUND:
        return found
    if operation.condition == CONDITION_ABSENT:
        held = found == STATUS_NOT_FOUND
    else:
        held = found == STATUS_OK and version == operation.if_version
    if held:
        return STATUS_OK
    outcome.version = version if found == STATUS_OK else 0
    outcome.existed = found == STATUS_OK
    return STATUS_CONDITION


cdef void write_view(
    const Operation* operation, uint64_t version, RecordView* view
) noexcept nogil:
    memset(view, 0, sizeof(RecordView))
    view.kind = RECORD_PUT if operation.kind == OPERATION_PUT else RECORD_DELETE
    view.version = version
    view.deadline_ms = operation.deadline_ms
    view.key = operation.key
    view.key_bytes = operation.key_bytes
    view.value = operation.value
    view.value_bytes = operation.value_bytes


# W2 for one record.
cdef Status append_and_index(
    StoreCore* core, Path path, RecordView* view, Outcome* outcome, Failure* failure
) noexcept nogil:
    cdef Log* log = &core.log
    cdef LogMark mark
    cdef uint64_t address = 0
    cdef uint64_t old_address = 0
    cdef Status status
    log_mark(log, &mark)
    status = log_append(log, view, view.kind == RECORD_DELETE, &address, failure)
    if status != STATUS_OK:
        return status
    status = write_index(core, path, view, address, &old_address, failure)
    if status != STATUS_OK:
        log_rollback(log, &mark)
        return status
    outcome.version = view.version
    outcome.epoch = log.epoch
    outcome.existed = write_was_live(core, old_address)
    return STATUS_OK


cdef Status write_index(
    StoreCore* core,
    Path path,
    const RecordView* view,
    uint64_t address,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil:
    if view.kind == RECORD_PUT:
        return index_put(core, path, view, address, old_address, failure)
    return index_remove(core, path, view.key, view.key_bytes, old_address, failure)


cdef bint write_was_live(StoreCore* core, uint64_t old_address) noexcept nogil:
    cdef RecordView old
    if old_address == 0:
        return False
    record_view(space_at(&core.log.space, old_address), &old)
    return not index_expired(core, &old)


cdef Status write_increment(
    StoreCore* core,
    const uint8_t* key,
    uint32_t key_bytes,
    int64_t delta,
    bint durable,
    int64_t* result,
    IncrementRefusal* refusal,
    Outcome* outcome,
    Failure* failure,
) noexcept nogil:
    cdef Path path = path_of(key, key_bytes)
    cdef Status status
    memset(outcome, 0, sizeof(Outcome))
    refusal[0] = INCREMENT_DONE
    mutex_lock(&core.log.mutex)
    status = epoch_admit(&core.log, failure)
    if status == STATUS_OK:
        status = increment(
            core, path, key, key_bytes, delta, result, refusal, outcome, failure
        )
    if status == STATUS_OK and durable:
        status = epoch_wait(&core.log, outcome.epoch, 0, failure)
    mutex_unlock(&core.log.mutex)
    return status


cdef Status increment(
    StoreCore* core,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    int64_t delta,
    int64_t* result,
    IncrementRefusal* refusal,
    Outcome* outcome,
    Failure* failure,
) noexcept nogil:
    cdef Operation operation
    cdef RecordView view
    cdef char[NUMBER_BYTES_MAX + 1] digits
    cdef int64_t number = 0
    cdef Status status = index_find_live(core, path, key, key_bytes, &view, failure)
    memset(&operation, 0, sizeof(Operation))
    if status == STATUS_OK:
        if not parse_number(view.value, view.value_bytes, &number):
            refusal[0] = INCREMENT_NOT_A_NUMBER
            return STATUS_INVALID
        operation.deadline_ms = view.deadline_ms
    elif status != STATUS_NOT_FOUND:
        return status
    if (delta > 0 and number > INT64_MAX - delta) or (delta < 0 and number < INT64_MIN - delta):
        refusal[0] = INCREMENT_OUT_OF_RANGE
        return STATUS_INVALID
    result[0] = number + delta
    operation.kind = OPERATION_PUT
    operation.key = key
    operation.key_bytes = key_bytes
    operation.value = <const uint8_t*> digits
    operation.value_bytes = <uint32_t> snprintf(
        digits, sizeof(digits), "%lld", <long long> result[0]
    )
    return put(core, path, &operation, outcome, failure)


# True for what "%lld" writes, and nothing else.
cdef bint parse_number(
    const uint8_t* text, uint32_t text_bytes, int64_t* number
) noexcept nogil:
    cdef bint negative = text_bytes > 0 and text[0] == c"-"
    cdef uint32_t at = 1 if negative else 0
    cdef uint64_t bound = <uint64_t> INT64_MAX + (1 if negative else 0)
    cdef uint64_t magnitude = 0
    cdef uint32_t digit
    if at == text_bytes or text_bytes > NUMBER_BYTES_MAX:
        return False
    if text[at] == c"0" and text_bytes > 1:
        return False
    while at < text_bytes:
        if not c"0" <= text[at] <= c"9":
            return False
        digit = text[at] - c"0"
        if magnitude > (bound - digit) // 10:
            return False
        magnitude = magnitude * 10 + digit
        at += 1
    number[0] = <int64_t> (0 - magnitude if negative else magnitude)
    return True


cdef Status store_put(
    StoreCore* core,
    const uint8_t* key,
    uint32_t key_bytes,
    const uint8_t* value,
    uint32_t value_bytes,
    Outcome* outcome,
    Failure* failure,
) noexcept nogil:
    cdef Operation operation
    memset(&operation, 0, sizeof(Operation))
    operation.kind = OPERATION_PUT
    operation.key = key
    operation.key_bytes = key_bytes
    operation.value = value
    operation.value_bytes = value_bytes
    return write_one(core, &operation, False, outcome, failure)


cdef Status store_delete(
    StoreCore* core, const uint8_t* key, uint32_t key_bytes, Outcome* outcome, Failure* failure
) noexcept nogil:
    cdef Operation operation
    memset(&operation, 0, sizeof(Operation))
    operation.kind = OPERATION_DELETE
    operation.key = key
    operation.key_bytes = key_bytes
    return write_one(core, &operation, False, outcome, failure)
