"""The loop that all stores share, and the base class of their drivers."""

from collections import namedtuple

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from bench.drivers.keyspace cimport (
    POOL_BYTES,
    VALUE_BYTES_MIN,
    key_fill,
    mix64,
    value_fill,
    value_head,
)
from bench.drivers.streams cimport (
    INDEX_MASK,
    OPERATION_DELETE,
    OPERATION_MASK,
    OPERATION_MISS,
    OPERATION_READ,
    OPERATION_WRITE,
    Stream,
)
from deodar.engine.atomics cimport add_acq_rel_u32, load_acquire_u32

Slice = namedtuple("Slice", ["started_ns", "ended_ns", "latencies_ns"])

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    SAMPLE_EVERY = 17                   # operations; odd, so that it does not beat with batches

# Why a loop stopped.
cdef enum Outcome:
    OUTCOME_FINISHED
    OUTCOME_FAILED                      # the store said so
    OUTCOME_MISSING                     # a key that must be there is not
    OUTCOME_UNEXPECTED                  # a key that must not be there is
    OUTCOME_WRONG_VALUE

cdef struct Loop:
    const Calls* calls
    Session* session
    const uint8_t* pool                 # POOL_BYTES + value_bytes random bytes
    uint8_t* value                      # scratch, value_bytes
    size_t value_bytes
    uint8_t generation
    uint32_t* samples                   # latencies in ns
    size_t sample_count
    uint32_t stopped_at                 # the operation that failed


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t> now.tv_sec * 1000000000 + <uint64_t> now.tv_nsec


cdef inline uint32_t elapsed_since(uint64_t started) noexcept nogil:
    """Nanoseconds since `started`, at most what 32 bits hold (4.3 s)."""
    cdef uint64_t elapsed = now_ns() - started
    cdef uint64_t longest = 0xFFFFFFFF
    return <uint32_t> (elapsed if elapsed < longest else longest)


cdef inline bint value_is_right(
    const uint8_t* value, size_t value_bytes, const Loop* loop, uint64_t index, bint exact
) noexcept nogil:
    """Whether it is a value of `index`, of this generation (`exact`) or an earlier one."""
    cdef uint64_t head
    if value_bytes != loop.value_bytes:
        return False
    memcpy(&head, value, 8)
    cdef uint64_t difference = head ^ value_head(index, 0)
    if exact:
        return difference == loop.generation
    return difference <= loop.generation


cdef inline void operation_key(uint8_t* key, uint32_t operation) noexcept nogil:
    key_fill(key, operation & INDEX_MASK, operation & OPERATION_MASK == OPERATION_MISS)


cdef Outcome perform(Loop* loop, uint32_t operation, const uint8_t* key) noexcept nogil:
    """One operation, and the check of what it answered."""
    cdef uint64_t index = operation & INDEX_MASK
    cdef uint32_t kind = operation & OPERATION_MASK
    cdef const uint8_t* value = NULL
    cdef size_t value_bytes = 0
    cdef Answer answer
    if kind == OPERATION_WRITE:
        answer = loop.calls.put(loop.session, key, loop.value, loop.value_bytes)
        return OUTCOME_FINISHED if answer == ANSWER_DONE else OUTCOME_FAILED
    if kind == OPERATION_DELETE:
        answer = loop.calls.remove(loop.session, key)
        if answer == ANSWER_ABSENT:
            return OUTCOME_MISSING
        return OUTCOME_FINISHED if answer == ANSWER_DONE else OUTCOME_FAILED
    answer = loop.calls.get(loop.session, key, &value, &value_bytes)
    if answer == ANSWER_FAILED:
        return OUTCOME_FAILED
    if kind == OPERATION_MISS:
        return OUTCOME_FINISHED if answer == ANSWER_ABSENT else OUTCOME_UNEXPECTED
    if answer == ANSWER_ABSENT:
        return OUTCOME_MISSING
    if not value_is_right(value, value_bytes, loop, index, False):
        return OUTCOME_WRONG_VALUE
    return OUTCOME_FINISHED


cdef Outcome run_one_by_one(Loop* loop, const uint32_t* operations, size_t count) noexcept nogil:
    cdef uint8_t[32] key
    cdef size_t i
    cdef size_t until_sample = 0
    cdef uint64_t started = 0
    cdef uint32_t operation
    cdef Outcome outcome
    for i in range(count):
        operation = operations[i]
        operation_key(key, operation)
        if operation & OPERATION_MASK == OPERATION_WRITE:
            value_fill(
                loop.value, loop.value_bytes, operation & INDEX_MASK, loop.generation, loop.pool
            )
        if until_sample == 0:
            started = now_ns()
            outcome = perform(loop, operation, key)
            loop.samples[loop.sample_count] = elapsed_since(started)
            loop.sample_count += 1
            until_sample = SAMPLE_EVERY
        else:
            outcome = perform(loop, operation, key)
        until_sample -= 1
        if outcome != OUTCOME_FINISHED:
            loop.stopped_at = operation
            return outcome
    return OUTCOME_FINISHED


cdef Outcome run_batches(Loop* loop, const uint32_t* operations, size_t count) noexcept nogil:
    """Reads only, BATCH_KEYS at a time; a latency is that of a whole batch."""
    cdef uint8_t[64][32] keys
    cdef const uint8_t* key_pointers[64]
    cdef const uint8_t* values[64]
    cdef size_t[64] value_bytes
    cdef size_t size, i
    cdef size_t first = 0
    cdef uint64_t started
    cdef Answer answer
    for i in range(<size_t> BATCH_KEYS):
        key_pointers[i] = keys[i]
    while first < count:
        size = count - first
        if size > BATCH_KEYS:
            size = BATCH_KEYS
        for i in range(size):
            operation_key(keys[i], operations[first + i])
        started = now_ns()
        answer = loop.calls.get_batch(loop.session, key_pointers, size, values, value_bytes)
        loop.samples[loop.sample_count] = elapsed_since(started)
        loop.sample_count += 1
        if answer == ANSWER_FAILED:
            loop.stopped_at = operations[first]
            return OUTCOME_FAILED
        for i in range(size):
            if values[i] == NULL:
                loop.stopped_at = operations[first + i]
                return OUTCOME_MISSING
            if not value_is_right(
                values[i], value_bytes[i], loop, operations[first + i] & INDEX_MASK, False
            ):
                loop.stopped_at = operations[first + i]
                return OUTCOME_WRONG_VALUE
        first += size
    return OUTCOME_FINISHED


cdef Outcome run_verification(
    Loop* loop, const uint32_t* operations, size_t count, size_t stride
) noexcept nogil:
    """Every `stride`-th key that was written or deleted must now say so."""
    cdef uint8_t[32] key
    cdef const uint8_t* value
    cdef size_t value_bytes
    cdef uint32_t kind, operation
    cdef Answer answer
    cdef size_t i
    for i in range(count // stride):
        operation = operations[i * stride]
        kind = operation & OPERATION_MASK
        if kind == OPERATION_READ:
            continue
        loop.stopped_at = operation
        operation_key(key, operation)
        answer = loop.calls.get(loop.session, key, &value, &value_bytes)
        if answer == ANSWER_FAILED:
            return OUTCOME_FAILED
        if kind == OPERATION_DELETE:
            if answer != ANSWER_ABSENT:
                return OUTCOME_UNEXPECTED
        elif answer == ANSWER_ABSENT:
            return OUTCOME_MISSING
        elif not value_is_right(value, value_bytes, loop, operation & INDEX_MASK, True):
            return OUTCOME_WRONG_VALUE
    return OUTCOME_FINISHED


cdef int fill_random(uint8_t* pool, size_t pool_bytes) except -1:
    cdef size_t i
    cdef uint64_t word
    for i in range(0, pool_bytes, 8):
        word = mix64(i + 0x5EED)
        memcpy(pool + i, &word, min(<size_t> 8, pool_bytes - i))
    return 0


cdef class Buffers:
    """Memory of one run of the loop."""

    cdef:
        uint8_t* pool
        uint8_t* value
        uint32_t* samples

    def __cinit__(self, size_t value_bytes, size_t samples):
        self.pool = <uint8_t*> malloc(POOL_BYTES + value_bytes)
        self.value = <uint8_t*> malloc(value_bytes)
        self.samples = <uint32_t*> malloc((samples + 1) * sizeof(uint32_t))
        if self.pool == NULL or self.value == NULL or self.samples == NULL:
            raise MemoryError
        fill_random(self.pool, POOL_BYTES + value_bytes)

    def __dealloc__(self):
        free(self.pool)
        free(self.value)
        free(self.samples)


cdef class Gate:
    """Holds threads back until all of them have arrived, without the GIL."""

    cdef:
        uint32_t threads
        uint32_t arrived                # rises by one a thread, by any of them

    def __init__(self, uint32_t threads):
        self.threads = threads

    cdef void arrive(self) noexcept nogil:
        add_acq_rel_u32(&self.arrived, 1)

    cdef void wait(self) noexcept nogil:
        self.arrive()
        while load_acquire_u32(&self.arrived) < self.threads:
            sched_yield()


cdef class Driver:
    """A store under measurement.  Children open it in `__init__` and fill `calls`."""

    # Threads that may write at the same time; a store that has no such bound leaves it.
    writers_max = 1024

    cdef Session* session_open(self) except NULL:
        raise NotImplementedError

    cdef int session_close(self, Session* session) except -1:
        raise NotImplementedError

    def describe(self):
        """Version, build and options of the store, for the report."""
        raise NotImplementedError

    def close(self):
        raise NotImplementedError

    def run(self, Gate gate not None, Stream stream not None, Py_ssize_t first, Py_ssize_t last, *,
            uint8_t generation, size_t value_bytes, bint batched):
        """Operations `first` to `last` of `stream` in the calling thread, timed from when all
        threads have come to `gate`."""
        cdef Buffers buffers
        cdef Loop loop
        try:
            if not 0 <= first <= last <= stream.count:
                raise ValueError(f"operations {first} to {last} of {stream.count}")
            if value_bytes < VALUE_BYTES_MIN:
                raise ValueError(f"values of {value_bytes} bytes cannot be checked")
            buffers = Buffers(value_bytes, <size_t> (last - first))
            loop.session = self.session_open()
        except BaseException:
            gate.arrive()  # the other threads must not wait for this one
            raise
        loop.calls = &self.calls
        loop.pool = buffers.pool
        loop.value = buffers.value
        loop.value_bytes = value_bytes
        loop.generation = generation
        loop.samples = buffers.samples
        loop.sample_count = 0
        cdef uint64_t started, ended
        cdef Outcome outcome
        cdef size_t count = <size_t> (last - first)
        try:
            with nogil:
                gate.wait()
                started = now_ns()
                if batched:
                    outcome = run_batches(&loop, stream.operations + first, count)
                else:
                    outcome = run_one_by_one(&loop, stream.operations + first, count)
                ended = now_ns()
            raise_for_outcome(outcome, &loop)
        finally:
            self.session_close(loop.session)
        return Slice(started, ended, [loop.samples[i] for i in range(loop.sample_count)])

    def verify(self, Stream stream not None, *, uint8_t generation, size_t value_bytes,
               Py_ssize_t count):
        """Read back about `count` of the keys that `stream` wrote or deleted; raise if wrong."""
        cdef size_t stride = <size_t> max(1, stream.count // max(1, count))
        cdef Loop loop
        loop.calls = &self.calls
        loop.value_bytes = value_bytes
        loop.generation = generation
        cdef Outcome outcome
        loop.session = self.session_open()
        try:
            with nogil:
                outcome = run_verification(
                    &loop, stream.operations, <size_t> stream.count, stride
                )
            raise_for_outcome(outcome, &loop)
        finally:
            self.session_close(loop.session)


cdef int raise_for_outcome(Outcome outcome, const Loop* loop) except -1:
    cdef uint64_t index = loop.stopped_at & INDEX_MASK
    if outcome == OUTCOME_FINISHED:
        return 0
    if outcome == OUTCOME_FAILED:
        raise RuntimeError(f"key {index}: {loop.session.message.decode(errors='replace')}")
    if outcome == OUTCOME_MISSING:
        raise RuntimeError(f"key {index} must be there and is not")
    if outcome == OUTCOME_UNEXPECTED:
        raise RuntimeError(f"key {index} must not be there and is")
    raise RuntimeError(f"key {index} has a value that was never written to it")
