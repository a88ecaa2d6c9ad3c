# W2 for a batch: first every condition is decided against what is there and what the batch itself
# writes before; then all records are appended; then all are indexed.  Only the last step changes
# what readers see, and it can fail only where memory ends or a record on disk is damaged; then what
# was indexed is put back.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from .core cimport StoreCore
from .epoch cimport epoch_admit, epoch_wait
from .hashing cimport Path, path_of
from .index cimport index_find_live, index_put, index_remove
from .log cimport Log, LogMark, log_append, log_mark, log_next_version, log_rollback
from .record cimport RecordView, record_view
from .space cimport space_at
from .status cimport (
    STATUS_NO_MEMORY,
    STATUS_NOT_FOUND,
    STATUS_OK,
    Failure,
    Status,
    failure_clear,
    failure_set,
)
from .threads cimport mutex_lock, mutex_unlock
from .write cimport (
    CONDITION_NONE,
    OPERATION_DELETE,
    OPERATION_PUT,
    Operation,
    Outcome,
    write_condition,
    write_index,
    write_note,
    write_view,
    write_was_live,
)

# What is known of one operation of a batch.
cdef struct Step:
    Path path
    uint64_t version                    # 0: nothing is written
    uint64_t address
    uint64_t old_address

# A batch at work.  `latest` is an open hash table over keys: the last operation so far that writes
# each of them, as its index + 1.
cdef struct Batch:
    StoreCore* core
    const Operation* operations
    uint32_t count
    Step* steps                         # owned, `count`
    uint32_t* latest                    # owned, `latest_mask` + 1 >= 2 * count
    uint32_t latest_mask


cdef Status write_batch(
    StoreCore* core,
    const Operation* operations,
    uint32_t count,
    bint durable,
    Outcome* outcomes,
    uint32_t* failed,
    Failure* failure,
) noexcept nogil:
    cdef Batch batch
    cdef Status status = batch_open(&batch, core, operations, count, failure)
    failed[0] = 0
    memset(outcomes, 0, count * sizeof(Outcome))
    if status == STATUS_OK:
        mutex_lock(&core.log.mutex)
        status = epoch_admit(&core.log, failure)
        if status == STATUS_OK:
            status = run(&batch, outcomes, failed, failure)
        if status == STATUS_OK and durable:
            status = epoch_wait(&core.log, outcomes[0].epoch, 0, failure)
        mutex_unlock(&core.log.mutex)
    free(batch.steps)
    free(batch.latest)
    return status


cdef Status batch_open(
    Batch* batch,
    StoreCore* core,
    const Operation* operations,
    uint32_t count,
    Failure* failure,
) noexcept nogil:
    cdef uint32_t slots = 16
    cdef uint32_t index
    while slots < 2 * count:
        slots *= 2
    batch.core = core
    batch.operations = operations
    batch.count = count
    batch.latest_mask = slots - 1
    batch.steps = <Step*> calloc(count, sizeof(Step))
    batch.latest = <uint32_t*> calloc(slots, sizeof(uint32_t))
    if batch.steps == NULL or batch.latest == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "a batch")
    for index in range(count):
        batch.steps[index].path = path_of(operations[index].key, operations[index].key_bytes)
    return STATUS_OK


cdef Status run(
    Batch* batch, Outcome* outcomes, uint32_t* failed, Failure* failure
) noexcept nogil:
    cdef Log* log = &batch.core.log
    cdef LogMark mark
    cdef uint64_t logical_bytes = 0
    cdef uint32_t index
    cdef Status status = decide(batch, outcomes, failed, failure)
    if status != STATUS_OK:
        return status
    log_mark(log, &mark)
    status = append_all(batch, failed, failure)
    if status == STATUS_OK:
        status = index_all(batch, outcomes, failed, failure)
    if status != STATUS_OK:
        log_rollback(log, &mark)
        write_note(batch.core, status, 0)
        return status
    for index in range(batch.count):
        outcomes[index].version = batch.steps[index].version
        outcomes[index].epoch = log.epoch
        if batch.steps[index].version != 0:
            logical_bytes += batch.operations[index].key_bytes
            logical_bytes += batch.operations[index].value_bytes
    if log.epoch_records > mark.epoch_records:
        write_note(batch.core, STATUS_OK, logical_bytes)
    return STATUS_OK


# Decides each operation in order and gives versions to those that write.
cdef Status decide(
    Batch* batch, Outcome* outcomes, uint32_t* failed, Failure* failure
) noexcept nogil:
    cdef uint64_t next_version = log_next_version(&batch.core.log)
    cdef const Operation* operation
    cdef uint64_t version = 0
    cdef uint32_t index
    cdef Status found
    cdef Status status
    for index in range(batch.count):
        failed[0] = index
        operation = &batch.operations[index]
        if operation.condition != CONDITION_NONE or operation.kind == OPERATION_DELETE:
            found = find(batch, index, &version, failure)
            if found != STATUS_OK and found != STATUS_NOT_FOUND:
                return found
            if operation.condition != CONDITION_NONE:
                status = write_condition(operation, found, version, &outcomes[index])
                if status != STATUS_OK:
                    return status
            if operation.kind == OPERATION_DELETE and found == STATUS_NOT_FOUND:
                continue
        batch.steps[index].version = next_version
        next_version += 1
        latest_slot(batch, index)[0] = index + 1
    return STATUS_OK


# Whether the key of an operation has a live record when its turn comes, and the version.
cdef Status find(
    Batch* batch, uint32_t index, uint64_t* version, Failure* failure
) noexcept nogil:
    cdef const Operation* operation = &batch.operations[index]
    cdef uint32_t earlier = latest_slot(batch, index)[0]
    cdef RecordView view
    cdef Status status
    if earlier != 0:
        version[0] = batch.steps[earlier - 1].version
        if batch.operations[earlier - 1].kind == OPERATION_DELETE:
            return STATUS_NOT_FOUND
        return STATUS_OK
    status = index_find_live(
        batch.core,
        batch.steps[index].path,
        operation.key,
        operation.key_bytes,
        &view,
        failure,
    )
    if status == STATUS_OK:
        version[0] = view.version
    return status


# The slot of the operation's key: that of an earlier operation on it, or an empty one.
cdef uint32_t* latest_slot(Batch* batch, uint32_t index) noexcept nogil:
    cdef uint32_t at = <uint32_t> batch.steps[index].path.low & batch.latest_mask
    while batch.latest[at] != 0 and not same_key(batch, batch.latest[at] - 1, index):
        at = (at + 1) & batch.latest_mask
    return &batch.latest[at]


cdef bint same_key(const Batch* batch, uint32_t left, uint32_t right) noexcept nogil:
    cdef const Operation* one = &batch.operations[left]
    cdef const Operation* other = &batch.operations[right]
    return one.key_bytes == other.key_bytes and memcmp(one.key, other.key, one.key_bytes) == 0


cdef Status append_all(Batch* batch, uint32_t* failed, Failure* failure) noexcept nogil:
    cdef bint only_deletes = True
    cdef RecordView view
    cdef uint32_t index
    cdef Status status
    for index in range(batch.count):
        if batch.operations[index].kind == OPERATION_PUT:
            only_deletes = False
    for index in range(batch.count):
        if batch.steps[index].version == 0:
            continue
        failed[0] = index
        write_view(&batch.operations[index], batch.steps[index].version, &view)
        status = log_append(
            &batch.core.log, &view, only_deletes, &batch.steps[index].address, failure
        )
        if status != STATUS_OK:
            return status
    return STATUS_OK


cdef Status index_all(
    Batch* batch, Outcome* outcomes, uint32_t* failed, Failure* failure
) noexcept nogil:
    cdef RecordView view
    cdef Step* step
    cdef uint32_t index
    cdef Status status
    for index in range(batch.count):
        step = &batch.steps[index]
        if step.version == 0:
            continue
        failed[0] = index
        record_view(space_at(&batch.core.log.space, step.address), &view)
        status = write_index(
            batch.core, step.path, &view, step.address, &step.old_address, failure
        )
        if status != STATUS_OK:
            put_back(batch, index)
            return status
        outcomes[index].existed = write_was_live(batch.core, step.old_address)
    return STATUS_OK


# Undoes the first `count` operations in the index, last first.  When even that fails, memory and
# log have parted: nothing more is written, and a restart goes back to the log.
cdef void put_back(Batch* batch, uint32_t count) noexcept nogil:
    cdef StoreCore* core = batch.core
    cdef RecordView view
    cdef uint64_t replaced = 0
    cdef Failure failure
    cdef Step* step
    cdef uint32_t index = count
    cdef Status status
    failure_clear(&failure)
    while index > 0:
        index -= 1
        step = &batch.steps[index]
        if step.version == 0:
            continue
        if step.old_address != 0:
            record_view(space_at(&core.log.space, step.old_address), &view)
            status = index_put(core, step.path, &view, step.old_address, &replaced, &failure)
        else:
            record_view(space_at(&core.log.space, step.address), &view)
            status = index_remove(
                core, step.path, view.key, view.key_bytes, &replaced, &failure
            )
        if status != STATUS_OK:
            core.log.failure = failure
            return
