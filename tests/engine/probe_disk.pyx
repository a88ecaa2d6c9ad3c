"""`def` faces of `deodar.engine.disk` for the tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from libc.errno cimport errno
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from deodar.engine.disk cimport (
    DISK_AIO,
    DISK_AUTO,
    DISK_PWRITE,
    DISK_URING,
    Disk,
    DiskBackend,
    WriteOperation,
    disk_close,
    disk_open,
    disk_sync,
    disk_write,
)
from deodar.engine.disk_aio cimport AioCalls, aio_system
from deodar.engine.disk_uring cimport UringCalls, io_uring_params, uring_system
from deodar.engine.status cimport Failure, Status, failure_clear, raise_for_status
from tests.engine.probe_env cimport Door, env_of

AUTO, URING, AIO, PWRITE = DISK_AUTO, DISK_URING, DISK_AIO, DISK_PWRITE

cdef int aio_refusal = 0
cdef int uring_refusal = 0


cdef int refused_aio(unsigned int _depth, unsigned long* _context) noexcept nogil:
    (&errno)[0] = aio_refusal
    return -1


cdef int refused_uring(unsigned int _entries, io_uring_params* _params) noexcept nogil:
    (&errno)[0] = uring_refusal
    return -1


@contextmanager
def refusing(*, int aio=0, int uring=0) -> Iterator[None]:
    """A kernel that refuses to set queues up, with these errnos (0 = does not refuse)."""
    global aio_refusal, uring_refusal
    cdef AioCalls* aio_calls = <AioCalls*> aio_system()
    cdef UringCalls* uring_calls = <UringCalls*> uring_system()
    cdef AioCalls aio_before = aio_calls[0]
    cdef UringCalls uring_before = uring_calls[0]
    aio_refusal = aio
    uring_refusal = uring
    if aio != 0:
        aio_calls.setup = refused_aio
    if uring != 0:
        uring_calls.setup = refused_uring
    try:
        yield
    finally:
        aio_calls[0] = aio_before
        uring_calls[0] = uring_before


cdef class Writer:
    """One `Disk`."""

    cdef Disk disk
    cdef readonly Door door

    def __init__(self, int backend=DISK_AUTO, uint32_t depth=8, Door door=None) -> None:
        cdef Failure failure
        cdef Status status
        failure_clear(&failure)
        self.door = door
        status = disk_open(&self.disk, env_of(door), <DiskBackend> backend, depth, &failure)
        raise_for_status(status, &failure)

    def __dealloc__(self) -> None:
        disk_close(&self.disk)

    def close(self) -> None:
        disk_close(&self.disk)

    @property
    def backend(self) -> int:
        return self.disk.backend

    @property
    def first_failure(self) -> int:
        return self.disk.first_failure

    @property
    def counters(self) -> tuple[int, int, int]:
        """(bytes written, writes, syncs)."""
        return self.disk.written_bytes, self.disk.writes_count, self.disk.syncs_count

    def write(self, operations: list[tuple[int, object, int]]) -> None:
        """Write (descriptor, buffer, offset) each, all at once."""
        cdef Failure failure
        cdef Status status
        cdef size_t count = len(operations)
        cdef size_t index
        cdef const unsigned char[::1] view
        cdef list pinned = []
        cdef WriteOperation* batch = <WriteOperation*> calloc(count + 1, sizeof(WriteOperation))
        if batch == NULL:
            raise MemoryError
        failure_clear(&failure)
        try:
            for index in range(count):
                fd, buffer, offset = operations[index]
                view = buffer
                pinned.append(view)
                batch[index].fd = fd
                batch[index].buffer = &view[0] if len(view) > 0 else NULL
                batch[index].bytes = len(view)
                batch[index].offset = offset
            with nogil:
                status = disk_write(&self.disk, batch, count, &failure)
        finally:
            free(batch)
        raise_for_status(status, &failure)

    def sync(self, int fd) -> None:
        cdef Failure failure
        cdef Status status
        failure_clear(&failure)
        with nogil:
            status = disk_sync(&self.disk, fd, &failure)
        raise_for_status(status, &failure)
