# Result codes of the engine, and the facts that go with a failure.
#
# Every engine function below `store` returns a Status, never raises, and is `noexcept nogil`.
# STATUS_OK is 1, not 0, because a Cython function that fails inside `noexcept` returns 0: a
# forgotten result can then never read as success.

cdef enum Status:
    STATUS_OK = 1
    STATUS_NOT_FOUND = 2        # an answer, not an error: the key is absent
    STATUS_INVALID = 3          # the caller's argument is outside its bounds
    STATUS_CONDITION = 4        # if_version / if_absent did not hold; nothing was written
    STATUS_DISK_FULL = 5        # no space for a new region; reads and the open epoch go on
    STATUS_OVER_LIMIT = 6       # a documented bound, or that of open files, was reached
    STATUS_QUEUE_FULL = 7       # back-pressure: unflushed bytes are at their bound
    STATUS_READ_ONLY = 8        # an earlier write or fsync failed; latched until reopen
    STATUS_CORRUPT = 9          # bytes from disk broke a rule; Failure says which and where
    STATUS_IO_ERROR = 10        # a system call failed; Failure.error_number holds errno
    STATUS_NO_MEMORY = 11
    STATUS_FORMAT_VERSION = 12  # written by another format version
    STATUS_LOCKED = 13          # another process or Store has the directory open
    STATUS_CLOSED = 14
    STATUS_LOG_TRIMMED = 15     # the log no longer reaches back to the version asked for
    STATUS_TIMEOUT = 16

cdef enum:
    FAILURE_FILE_BYTES = 256
    FAILURE_RULE_BYTES = 96

# The facts of one failure.  Owned by the caller; set at most once by `failure_set`, which keeps
# the first cause.
cdef struct Failure:
    Status status
    int error_number                    # errno, 0 when no system call failed
    unsigned long long offset           # byte offset in `file`
    unsigned int format_version         # what was found, for STATUS_FORMAT_VERSION
    char[256] file                      # NUL-terminated name inside the store's directory
    char[96] rule                       # NUL-terminated: the rule that was broken, or the call

# Zeroes `failure`.
cdef void failure_clear(Failure* failure) noexcept nogil

# Fills `failure` unless it already holds a cause, and returns `status` so that a caller can write
# `return failure_set(...)`.  `failure`, `file` and `rule` may be NULL.  Any thread.
cdef Status failure_set(
    Failure* failure,
    Status status,
    int error_number,
    const char* file,
    unsigned long long offset,
    const char* rule,
) noexcept nogil

# Raises the exception of `errors` that belongs to `status`; returns 0 for STATUS_OK and
# STATUS_NOT_FOUND.  The only place in the engine that raises for a Status.
cdef int raise_for_status(Status status, const Failure* failure) except -1
