# Writes: put, delete and increment (batches: batch.pxd).  Any thread, without the GIL; they take
# the log's mutex.
#
# W1: a write is appended and indexed within one hold of the mutex, so no SEAL falls inside a batch.
# W2: whatever refuses a write leaves log and trie as they were.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .core cimport StoreCore
from .hashing cimport Path
from .record cimport RecordView
from .status cimport Failure, Status

cdef enum OperationKind:
    OPERATION_PUT = 1
    OPERATION_DELETE = 2

cdef enum Condition:
    CONDITION_NONE = 0
    CONDITION_ABSENT = 1                # there is no live record
    CONDITION_VERSION = 2               # the live record has `if_version`

# One write.  Pointers are borrowed for the call.
cdef struct Operation:
    OperationKind kind
    Condition condition
    const uint8_t* key
    uint32_t key_bytes                  # 1..KEY_BYTES_MAX, checked by the caller
    uint32_t value_bytes                # 0..VALUE_BYTES_MAX, checked by the caller
    const uint8_t* value
    uint64_t deadline_ms                # 0 = none
    uint64_t if_version

# What it did; with STATUS_CONDITION `version` is the live record's, 0 = there is none.
cdef struct Outcome:
    uint64_t version                    # 0: a delete that found nothing
    uint64_t epoch
    bint existed                        # a live record was there before

cdef enum IncrementRefusal:
    INCREMENT_DONE = 0
    INCREMENT_NOT_A_NUMBER = 1
    INCREMENT_OUT_OF_RANGE = 2

cdef Status write_one(
    StoreCore* core, const Operation* operation, bint durable, Outcome* outcome, Failure* failure
) noexcept nogil

# Adds to a signed 64-bit number in decimal ASCII, as str() writes it; absent = 0; the deadline
# stays.
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
) noexcept nogil

# The plain put of a loop without Python: no condition, no deadline, buffered.
cdef Status store_put(
    StoreCore* core,
    const uint8_t* key,
    uint32_t key_bytes,
    const uint8_t* value,
    uint32_t value_bytes,
    Outcome* outcome,
    Failure* failure,
) noexcept nogil
cdef Status store_delete(
    StoreCore* core, const uint8_t* key, uint32_t key_bytes, Outcome* outcome, Failure* failure
) noexcept nogil

# --- Under the mutex, for what else appends ---

# Counts, and wakes whoever a longer log concerns.
cdef void write_note(StoreCore* core, Status status, uint64_t logical_bytes) noexcept nogil

# STATUS_OK, or STATUS_CONDITION with the version that is there.  `found` is what the search for the
# live record said, `version` its version when there is one.
cdef Status write_condition(
    const Operation* operation, Status found, uint64_t version, Outcome* outcome
) noexcept nogil

# The record of an operation under a version.
cdef void write_view(
    const Operation* operation, uint64_t version, RecordView* view
) noexcept nogil

# Makes the trie follow a PUT or DELETE record; `*old_address` = 0 when there was none.
cdef Status write_index(
    StoreCore* core,
    Path path,
    const RecordView* view,
    uint64_t address,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil

# Whether a record that was replaced had not expired; False for address 0.
cdef bint write_was_live(StoreCore* core, uint64_t old_address) noexcept nogil
