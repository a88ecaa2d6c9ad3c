"""`def` faces of `deodar.engine.status` for the tests."""

from libc.stdint cimport uint64_t

from deodar.engine.status cimport (
    STATUS_CLOSED,
    STATUS_CONDITION,
    STATUS_CORRUPT,
    STATUS_DISK_FULL,
    STATUS_FORMAT_VERSION,
    STATUS_INVALID,
    STATUS_IO_ERROR,
    STATUS_LOCKED,
    STATUS_LOG_TRIMMED,
    STATUS_NO_MEMORY,
    STATUS_NOT_FOUND,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    STATUS_QUEUE_FULL,
    STATUS_READ_ONLY,
    STATUS_TIMEOUT,
    Failure,
    Status,
    failure_clear,
    failure_set,
    raise_for_status,
)

CODES = {
    "OK": STATUS_OK,
    "NOT_FOUND": STATUS_NOT_FOUND,
    "INVALID": STATUS_INVALID,
    "CONDITION": STATUS_CONDITION,
    "DISK_FULL": STATUS_DISK_FULL,
    "OVER_LIMIT": STATUS_OVER_LIMIT,
    "QUEUE_FULL": STATUS_QUEUE_FULL,
    "READ_ONLY": STATUS_READ_ONLY,
    "CORRUPT": STATUS_CORRUPT,
    "IO_ERROR": STATUS_IO_ERROR,
    "NO_MEMORY": STATUS_NO_MEMORY,
    "FORMAT_VERSION": STATUS_FORMAT_VERSION,
    "LOCKED": STATUS_LOCKED,
    "CLOSED": STATUS_CLOSED,
    "LOG_TRIMMED": STATUS_LOG_TRIMMED,
    "TIMEOUT": STATUS_TIMEOUT,
}


def raised(
    str name not None,
    *,
    bytes file=b"",
    bytes rule=b"",
    uint64_t offset=0,
    int error_number=0,
    unsigned int format_version=0,
) -> None:
    """Raise what belongs to the status, with these facts."""
    cdef Failure failure
    cdef Status status = <Status> <int> CODES[name]
    failure_clear(&failure)
    failure_set(&failure, status, error_number, file, offset, rule)
    failure.format_version = format_version
    raise_for_status(status, &failure)


def raise_code(int code) -> None:
    """Raise for a bare number, without a failure."""
    raise_for_status(<Status> code, NULL)


def set_twice(bytes first not None, bytes second not None) -> tuple[bytes, bytes]:
    """(file, rule) after two failures."""
    cdef Failure failure
    failure_clear(&failure)
    failure_set(&failure, STATUS_CORRUPT, 0, first, 0, b"first rule")
    failure_set(&failure, STATUS_IO_ERROR, 5, second, 9, b"second rule")
    return failure.file, failure.rule
