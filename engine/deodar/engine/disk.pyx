from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memset, strrchr
from posix.unistd cimport readlink

from .atomics cimport add_relaxed_u64, load_acquire_u32, store_release_u32
from .debug cimport check
from .disk_aio cimport aio_open, aio_system
from .disk_queue cimport queue_close, queue_full, queue_idle, queue_prepare, queue_step
from .disk_uring cimport uring_open, uring_system
from .env cimport Env, env_write_full
from .status cimport (
    STATUS_INVALID,
    STATUS_IO_ERROR,
    STATUS_OK,
    STATUS_READ_ONLY,
    Failure,
    Status,
    failure_set,
)

# A place in the operations of one disk_write.
cdef struct Cursor:
    const WriteOperation* operations
    size_t count
    size_t index
    uint64_t done                       # bytes of operations[index] already handed out


cdef Status disk_open(
    Disk* disk, const Env* env, DiskBackend wanted, uint32_t depth, Failure* failure
) noexcept nogil:
    cdef int error
    memset(disk, 0, sizeof(Disk))
    if not 1 <= depth <= DISK_DEPTH_MAX:
        return failure_set(failure, STATUS_INVALID, 0, "depth", depth, "1..1024 writes in flight")
    disk.env = env
    disk.depth = depth
    if wanted == DISK_AIO or wanted == DISK_AUTO:
        error = aio_open(&disk.queue, aio_system(), depth)
        if error == 0:
            disk.backend = DISK_AIO
            return STATUS_OK
        if wanted == DISK_AIO:
            return failure_set(failure, STATUS_IO_ERROR, error, NULL, 0, "io_setup")
    if wanted == DISK_URING or wanted == DISK_AUTO:
        error = uring_open(&disk.queue, uring_system(), depth)
        if error == 0:
            disk.backend = DISK_URING
            return STATUS_OK
        if wanted == DISK_URING:
            return failure_set(failure, STATUS_IO_ERROR, error, NULL, 0, "io_uring_setup")
    disk.backend = DISK_PWRITE
    return STATUS_OK


cdef void disk_close(Disk* disk) noexcept nogil:
    queue_close(&disk.queue)


cdef Status disk_write(
    Disk* disk, const WriteOperation* operations, size_t count, Failure* failure
) noexcept nogil:
    cdef Cursor cursor
    cdef int failed_fd = -1
    cdef int error
    if load_acquire_u32(&disk.first_failure) != 0:
        return latched(disk, failure)
    cursor.operations = operations
    cursor.count = count
    cursor.index = 0
    cursor.done = 0
    if disk.backend == DISK_PWRITE:
        error = write_in_turn(disk, &cursor, &failed_fd)
    else:
        error = write_queued(disk, &cursor, &failed_fd)
    if error != 0:
        return latch(disk, error, failed_fd, "write", failure)
    return STATUS_OK


cdef Status disk_sync(Disk* disk, int fd, Failure* failure) noexcept nogil:
    cdef int error = 0
    if load_acquire_u32(&disk.first_failure) != 0:
        return latched(disk, failure)
    if disk.env.sync_data(disk.env.context, fd, &error) < 0:
        return latch(disk, error, fd, "fdatasync", failure)
    add_relaxed_u64(&disk.syncs_count, 1)
    return STATUS_OK


# The next write of at most DISK_PIECE_BYTES; False at the end.
cdef bint next_piece(Cursor* cursor, WriteOperation* piece) noexcept nogil:
    cdef const WriteOperation* operation
    while cursor.index < cursor.count:
        operation = &cursor.operations[cursor.index]
        if cursor.done < operation.bytes:
            piece.fd = operation.fd
            piece.buffer = operation.buffer + cursor.done
            piece.offset = operation.offset + cursor.done
            piece.bytes = min(operation.bytes - cursor.done, <uint64_t> DISK_PIECE_BYTES)
            cursor.done += piece.bytes
            return True
        cursor.index += 1
        cursor.done = 0
    return False


cdef void count_write(Disk* disk, uint64_t bytes) noexcept nogil:
    add_relaxed_u64(&disk.written_bytes, bytes)
    add_relaxed_u64(&disk.writes_count, 1)


# One write after the other.  0, or the errno of the first that failed.
cdef int write_in_turn(Disk* disk, Cursor* cursor, int* failed_fd) noexcept nogil:
    cdef WriteOperation piece
    cdef int error = 0
    while next_piece(cursor, &piece):
        if env_write_full(
            disk.env, piece.fd, piece.buffer, piece.bytes, piece.offset, &error
        ) < 0:
            failed_fd[0] = piece.fd
            return error
        count_write(disk, piece.bytes)
    return 0


# Keeps the queue full until all is written.  After a failure nothing more is submitted, but what
# is in flight is waited for, since its buffers are borrowed.
cdef int write_queued(Disk* disk, Cursor* cursor, int* failed_fd) noexcept nogil:
    cdef WriteOperation piece
    cdef int first_error = 0
    cdef int error
    cdef int fd = -1
    while True:
        while first_error == 0 and not queue_full(&disk.queue) and next_piece(cursor, &piece):
            first_error = refused(disk.env, &piece)
            if first_error != 0:
                failed_fd[0] = piece.fd
            else:
                queue_prepare(&disk.queue, piece.fd, piece.buffer, piece.bytes, piece.offset)
                count_write(disk, piece.bytes)
        if queue_idle(&disk.queue):
            return first_error
        error = queue_step(&disk.queue, disk.env, &fd)
        if error != 0 and first_error == 0:
            first_error = error
            failed_fd[0] = fd


# The errno that the Env wants this queued write to fail with, or 0.
cdef int refused(const Env* env, const WriteOperation* piece) noexcept nogil:
    if env.before_queued_write == NULL:
        return 0
    return env.before_queued_write(
        env.context, piece.fd, piece.buffer, piece.bytes, piece.offset
    )


# D2: keeps the first failure for good.
cdef Status latch(
    Disk* disk, int error, int fd, const char* call, Failure* failure
) noexcept nogil:
    cdef char[64] link
    cdef char[4096] path
    cdef ssize_t path_bytes
    cdef const char* name = NULL
    check(error > 0, "a failed call says why")
    store_release_u32(&disk.first_failure, <uint32_t> error)
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd)
    path_bytes = readlink(link, path, sizeof(path) - 1)
    if path_bytes > 0:
        path[path_bytes] = 0
        name = strrchr(path, c"/")
    return failure_set(
        failure, STATUS_IO_ERROR, error, name + 1 if name != NULL else NULL, 0, call
    )


cdef Status latched(Disk* disk, Failure* failure) noexcept nogil:
    return failure_set(
        failure,
        STATUS_READ_ONLY,
        <int> load_acquire_u32(&disk.first_failure),
        NULL,
        0,
        "an earlier write or sync failed",
    )
