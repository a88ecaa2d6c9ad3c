from libc.string cimport strncpy

from . import errors


cdef void failure_clear(Failure* failure) noexcept nogil:
    # Not the whole of it: every operation starts here, and its texts are read up to their NULs.
    failure.status = <Status> 0
    failure.error_number = 0
    failure.offset = 0
    failure.format_version = 0
    failure.file[0] = 0
    failure.file[FAILURE_FILE_BYTES - 1] = 0
    failure.rule[0] = 0
    failure.rule[FAILURE_RULE_BYTES - 1] = 0


cdef Status failure_set(
    Failure* failure,
    Status status,
    int error_number,
    const char* file,
    unsigned long long offset,
    const char* rule,
) noexcept nogil:
    if failure == NULL or failure.status != 0:
        return status
    failure.status = status
    failure.error_number = error_number
    failure.offset = offset
    if file != NULL:
        strncpy(failure.file, file, FAILURE_FILE_BYTES - 1)
    if rule != NULL:
        strncpy(failure.rule, rule, FAILURE_RULE_BYTES - 1)
    return status


cdef int raise_for_status(Status status, const Failure* failure) except -1:
    if status == STATUS_OK or status == STATUS_NOT_FOUND:
        return 0
    cdef bytes file = b""
    cdef bytes rule = b""
    cdef unsigned long long offset = 0
    cdef int error_number = 0
    cdef unsigned int format_version = 0
    if failure != NULL and failure.status != 0:
        file = <bytes> failure.file
        rule = <bytes> failure.rule
        offset = failure.offset
        error_number = failure.error_number
        format_version = failure.format_version
    raise errors.from_status(
        <int> status,
        file=file.decode("utf-8", "replace"),
        rule=rule.decode("utf-8", "replace"),
        offset=offset,
        error_number=error_number,
        format_version=format_version,
    )
