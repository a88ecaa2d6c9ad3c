# One store as the loop sees it: five C functions over a session.
from libc.stdint cimport uint8_t, uint64_t

cdef enum Answer:
    ANSWER_FAILED = -1                  # Session.message says why
    ANSWER_ABSENT = 0
    ANSWER_DONE = 1

cdef enum:
    BATCH_KEYS = 64
    MESSAGE_BYTES = 256

# What every session begins with.
cdef struct Session:
    char[256] message                   # NUL-terminated

# Functions a driver fills in.  Keys are KEY_BYTES long.  A value that was read is borrowed from
# the session until its next call, so that a store that can show its memory need not copy.
cdef struct Calls:
    Answer (*put)(
        Session* session, const uint8_t* key, const uint8_t* value, size_t value_bytes
    ) noexcept nogil
    Answer (*get)(
        Session* session, const uint8_t* key, const uint8_t** value, size_t* value_bytes
    ) noexcept nogil
    # `count` <= BATCH_KEYS keys; values[i] = NULL where the key is absent.
    Answer (*get_batch)(
        Session* session,
        const uint8_t** keys,
        size_t count,
        const uint8_t** values,
        size_t* value_bytes,
    ) noexcept nogil
    Answer (*remove)(Session* session, const uint8_t* key) noexcept nogil

# Base of the drivers.  A driver is opened by its constructor, `(path: bytes, keys: int,
# value_bytes: int)`.
cdef class Driver:
    cdef Calls calls
    # A session of the calling thread; raises when it cannot be had.
    cdef Session* session_open(self) except NULL
    cdef int session_close(self, Session* session) except -1
