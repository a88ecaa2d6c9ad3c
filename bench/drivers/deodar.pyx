"""Deodar's engine with its defaults, through the C functions that its own Python face calls."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strncpy

from bench.drivers.driver cimport (
    ANSWER_ABSENT,
    ANSWER_DONE,
    ANSWER_FAILED,
    BATCH_KEYS,
    MESSAGE_BYTES,
    Answer,
    Driver,
    Session,
)
from bench.drivers.keyspace cimport KEY_BYTES
from deodar.engine.core cimport StoreCore
from deodar.engine.read cimport read_view, read_views
from deodar.engine.reclaim cimport reclaim_enter, reclaim_exit
from deodar.engine.record cimport RecordView
from deodar.engine.status cimport STATUS_NOT_FOUND, STATUS_OK, Failure, Status, failure_clear
from deodar.engine.store cimport Store
from deodar.engine.write cimport Outcome, store_delete, store_put

from importlib.metadata import version

from deodar.engine import log

cdef struct StoreSession:
    Session head
    StoreCore* core                     # not owned
    bint reading                        # inside a grace period, for what the last call showed
    uint32_t reader
    uint32_t[64] key_bytes              # KEY_BYTES, each
    RecordView[64] views
    bint[64] found


cdef Answer failed(Session* head, const Failure* failure) noexcept nogil:
    strncpy(head.message, failure.rule, MESSAGE_BYTES - 1)
    return ANSWER_FAILED


cdef inline void stop_reading(StoreSession* session) noexcept nogil:
    if session.reading:
        reclaim_exit(&session.core.reclaim, session.reader)
        session.reading = False


cdef inline void start_reading(StoreSession* session) noexcept nogil:
    stop_reading(session)
    session.reader = reclaim_enter(&session.core.reclaim)
    session.reading = True


cdef Answer put(
    Session* head, const uint8_t* key, const uint8_t* value, size_t value_bytes
) noexcept nogil:
    cdef StoreSession* session = <StoreSession*> head
    cdef Outcome outcome
    cdef Failure failure
    stop_reading(session)
    failure_clear(&failure)
    cdef Status status = store_put(
        session.core, key, KEY_BYTES, value, <uint32_t> value_bytes, &outcome, &failure
    )
    return ANSWER_DONE if status == STATUS_OK else failed(head, &failure)


cdef Answer get(
    Session* head, const uint8_t* key, const uint8_t** value, size_t* value_bytes
) noexcept nogil:
    cdef StoreSession* session = <StoreSession*> head
    cdef RecordView view
    cdef Failure failure
    failure_clear(&failure)
    start_reading(session)
    cdef Status status = read_view(session.core, key, KEY_BYTES, &view, &failure)
    if status == STATUS_NOT_FOUND:
        return ANSWER_ABSENT
    if status != STATUS_OK:
        return failed(head, &failure)
    value[0] = view.value
    value_bytes[0] = view.value_bytes
    return ANSWER_DONE


cdef Answer get_batch(
    Session* head, const uint8_t** keys, size_t count, const uint8_t** values, size_t* value_bytes
) noexcept nogil:
    cdef StoreSession* session = <StoreSession*> head
    cdef Failure failure
    cdef size_t i
    failure_clear(&failure)
    start_reading(session)
    cdef Status status = read_views(
        session.core,
        keys,
        session.key_bytes,
        <uint32_t> count,
        session.views,
        session.found,
        &failure,
    )
    if status != STATUS_OK:
        return failed(head, &failure)
    for i in range(count):
        values[i] = session.views[i].value if session.found[i] else NULL
        value_bytes[i] = session.views[i].value_bytes
    return ANSWER_DONE


cdef Answer remove(Session* head, const uint8_t* key) noexcept nogil:
    cdef StoreSession* session = <StoreSession*> head
    cdef Outcome outcome
    cdef Failure failure
    stop_reading(session)
    failure_clear(&failure)
    cdef Status status = store_delete(session.core, key, KEY_BYTES, &outcome, &failure)
    if status != STATUS_OK:
        return failed(head, &failure)
    return ANSWER_DONE if outcome.existed else ANSWER_ABSENT


cdef class Deodar(Driver):
    """A store in the directory `path`."""

    cdef Store store

    def __init__(self, bytes path not None, uint64_t keys, size_t value_bytes):
        self.store = Store.open(path.decode())
        self.calls.put = put
        self.calls.get = get
        self.calls.get_batch = get_batch
        self.calls.remove = remove

    cdef Session* session_open(self) except NULL:
        cdef StoreSession* session = <StoreSession*> calloc(1, sizeof(StoreSession))
        cdef size_t i
        if session == NULL:
            raise MemoryError
        session.core = self.store.core
        for i in range(<size_t> BATCH_KEYS):
            session.key_bytes[i] = KEY_BYTES
        return &session.head

    cdef int session_close(self, Session* session) except -1:
        stop_reading(<StoreSession*> session)
        free(session)
        return 0

    def describe(self):
        # What the assertion macro prints is in the library only when it is on.
        with open(log.__file__, "rb") as library:
            debug = " (built with assertions)" if b"invariant broken" in library.read() else ""
        return f"Deodar {version('deodar')}: defaults, buffered writes{debug}"

    def close(self):
        self.store.close()


def open_driver(bytes path not None, uint64_t keys, size_t value_bytes):
    return Deodar(path, keys, value_bytes)
