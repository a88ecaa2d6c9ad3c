from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from .arguments cimport change_fill, key_check, operation_fill, scan_fill_request
from .batch cimport write_batch
from .changes cimport changes_apply, changes_read
from .core cimport StoreCore, core_now_ms
from .hashing cimport Path
from .read cimport read_views
from .reclaim cimport reclaim_enter, reclaim_exit
from .record cimport RECORD_DELETE, RecordView
from .scan cimport ScanEnd, ScanRequest, scan_fill
from .status cimport (
    STATUS_CONDITION,
    STATUS_OK,
    Failure,
    Status,
    failure_clear,
    raise_for_status,
)
from .write cimport Operation, Outcome

from .errors import ConditionFailed
from .items import Change, Item, Written

# Arrays for reading `count` keys.
cdef struct Reading:
    uint32_t count
    const uint8_t** keys
    uint32_t* key_bytes
    RecordView* views
    bint* found


cdef object item_of(const RecordView* view, bint keys_only):
    return tuple.__new__(
        Item,
        (
            PyBytes_FromStringAndSize(<const char*> view.key, view.key_bytes),
            b"" if keys_only else value_of(view),
            view.version,
            view.deadline_ms if view.deadline_ms != 0 else None,
        ),
    )


cdef bytes value_of(const RecordView* view):
    return PyBytes_FromStringAndSize(<const char*> view.value, view.value_bytes)


cdef object change_of(const RecordView* view):
    return tuple.__new__(
        Change,
        (
            PyBytes_FromStringAndSize(<const char*> view.key, view.key_bytes),
            None if view.kind == RECORD_DELETE else value_of(view),
            view.version,
            view.deadline_ms if view.deadline_ms != 0 else None,
        ),
    )


# Room for `count` structs, one at least.
cdef void* allocate(size_t count, size_t struct_bytes) except NULL:
    cdef void* memory = malloc((count + 1) * struct_bytes)
    if memory == NULL:
        raise MemoryError()
    return memory


cdef list many_get(StoreCore* core, list keys, bint values_only):
    cdef Reading reading
    cdef uint32_t index
    reading.count = <uint32_t> len(keys)
    reading.keys = NULL
    reading.key_bytes = NULL
    reading.views = NULL
    reading.found = NULL
    try:
        reading.keys = <const uint8_t**> allocate(reading.count, sizeof(uint8_t*))
        reading.key_bytes = <uint32_t*> allocate(reading.count, sizeof(uint32_t))
        reading.views = <RecordView*> allocate(reading.count, sizeof(RecordView))
        reading.found = <bint*> allocate(reading.count, sizeof(bint))
        for index in range(reading.count):
            key_check(keys[index])
            reading.keys[index] = <const uint8_t*> PyBytes_AS_STRING(keys[index])
            reading.key_bytes[index] = <uint32_t> PyBytes_GET_SIZE(keys[index])
        return read(core, &reading, values_only)
    finally:
        free(reading.keys)
        free(reading.key_bytes)
        free(reading.views)
        free(reading.found)


cdef list read(StoreCore* core, Reading* reading, bint values_only):
    cdef Failure failure
    cdef Status status
    cdef uint32_t slot
    cdef uint32_t index
    cdef list answers = []
    failure_clear(&failure)
    with nogil:
        slot = reclaim_enter(&core.reclaim)
        status = read_views(
            core,
            reading.keys,
            reading.key_bytes,
            reading.count,
            reading.views,
            reading.found,
            &failure,
        )
    try:
        if status == STATUS_OK:
            for index in range(reading.count):
                if not reading.found[index]:
                    answers.append(None)
                elif values_only:
                    answers.append(value_of(&reading.views[index]))
                else:
                    answers.append(item_of(&reading.views[index], False))
    finally:
        reclaim_exit(&core.reclaim, slot)
    raise_for_status(status, &failure)
    return answers


cdef tuple many_scan(
    StoreCore* core, bytes cursor, bytes end, object limit, object bytes_max, bint keys_only
):
    cdef ScanRequest request
    cdef ScanEnd reached
    cdef Failure failure
    cdef RecordView* views
    cdef uint32_t count = 0
    cdef uint32_t slot
    cdef uint32_t index
    cdef Status status
    cdef list items = []
    scan_fill_request(&request, cursor, end, limit, bytes_max)
    views = <RecordView*> allocate(request.limit, sizeof(RecordView))
    failure_clear(&failure)
    with nogil:
        slot = reclaim_enter(&core.reclaim)
        status = scan_fill(core, &request, views, &count, &reached, &failure)
    try:
        if status == STATUS_OK:
            for index in range(count):
                items.append(item_of(&views[index], keys_only))
    finally:
        reclaim_exit(&core.reclaim, slot)
        free(views)
    raise_for_status(status, &failure)
    if not reached.more:
        return items, None
    if reached.behind_item:
        return items, cursor_of(reached.path, items[count - 1].key)
    return items, cursor_of(reached.path, b"")


cdef bytes cursor_of(Path path, bytes key):
    return path.high.to_bytes(8, "big") + path.low.to_bytes(8, "big") + key


cdef list many_changes(
    StoreCore* core, uint64_t after_version, uint32_t limit, uint64_t bytes_max
):
    cdef Failure failure
    # `allocate` gives one more: records that are no changes are viewed before they are passed over.
    cdef RecordView* views = <RecordView*> allocate(limit, sizeof(RecordView))
    cdef uint32_t count = 0
    cdef uint32_t slot
    cdef uint32_t index
    cdef Status status
    cdef list changes = []
    failure_clear(&failure)
    with nogil:
        slot = reclaim_enter(&core.reclaim)
        status = changes_read(core, after_version, limit, bytes_max, views, &count, &failure)
    try:
        if status == STATUS_OK:
            for index in range(count):
                changes.append(change_of(&views[index]))
    finally:
        reclaim_exit(&core.reclaim, slot)
        free(views)
    raise_for_status(status, &failure)
    return changes


cdef list many_write(StoreCore* core, list items, bint durable):
    cdef uint32_t count = <uint32_t> len(items)
    cdef Operation* operations = NULL
    cdef Outcome* outcomes = NULL
    cdef uint64_t now_ms = core_now_ms(core)
    cdef uint32_t failed = 0
    cdef uint32_t index
    cdef Outcome refused
    cdef Failure failure
    cdef Status status
    cdef list answers = []
    try:
        operations = <Operation*> allocate(count, sizeof(Operation))
        outcomes = <Outcome*> allocate(count, sizeof(Outcome))
        for index in range(count):
            operation_fill(&operations[index], items[index], now_ms)
        failure_clear(&failure)
        with nogil:
            status = write_batch(
                core, operations, count, durable, outcomes, &failed, &failure
            )
        if status == STATUS_CONDITION:
            refused = outcomes[failed]
            raise ConditionFailed(refused.version if refused.existed else None, failed)
        raise_for_status(status, &failure)
        for index in range(count):
            answers.append(written_of(&outcomes[index]))
        return answers
    finally:
        free(operations)
        free(outcomes)


cdef object written_of(const Outcome* outcome):
    return tuple.__new__(Written, (outcome.version, outcome.existed, outcome.epoch))


cdef Py_ssize_t many_apply(StoreCore* core, list changes) except -1:
    cdef uint32_t count = <uint32_t> len(changes)
    cdef Operation* operations = <Operation*> allocate(count, sizeof(Operation))
    cdef uint32_t applied = 0
    cdef uint32_t index
    cdef Failure failure
    cdef Status status
    try:
        for index in range(count):
            change_fill(&operations[index], changes[index])
        failure_clear(&failure)
        with nogil:
            status = changes_apply(core, operations, count, &applied, &failure)
        raise_for_status(status, &failure)
        return applied
    finally:
        free(operations)
