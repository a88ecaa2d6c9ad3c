# Writes to disk, many at a time, for the one thread that owns a Disk.
#
# Backends: Linux AIO and io_uring by raw system calls, and `pwrite` where the kernel refuses both
# (seccomp, aio-max-nr used up).  Submitting may block its caller, so only the store's disk threads
# own a Disk; writers hand them bytes through the log's bounded buffer.
#
# D1: disk_write returns only when every operation has completed in full, or one has failed.
# D2: the first failed write or sync is latched in `first_failure`; every later call answers
#     STATUS_READ_ONLY with that cause.  A failed fsync is never retried: the kernel may have
#     dropped the dirty pages (ATC'20 "Can Applications Recover from fsync Failures?").
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .disk_queue cimport DiskQueue
from .env cimport Env
from .status cimport Failure, Status

cdef enum DiskBackend:
    DISK_AUTO = 0
    DISK_AIO = 1
    DISK_PWRITE = 2
    DISK_URING = 3

cdef enum:
    DISK_DEPTH_MAX = 1024
    DISK_PIECE_BYTES = 1048576          # the longest write handed to the kernel at once

cdef struct WriteOperation:
    int fd
    const uint8_t* buffer               # borrowed until disk_write returns
    uint64_t bytes
    uint64_t offset                     # in the file

cdef struct Disk:
    # Set by disk_open, then constant.
    const Env* env
    DiskBackend backend                 # never AUTO
    uint32_t depth                      # operations in flight at most
    DiskQueue queue                     # closed when backend is PWRITE
    # Owned by the disk thread; read by anyone with acquire order.
    uint32_t first_failure              # errno, 0 = none
    uint64_t written_bytes
    uint64_t writes_count
    uint64_t syncs_count

# AUTO takes the first of AIO, URING and PWRITE that the kernel allows; a refusal of what is
# demanded is an error.  The order is that of speed: direct writes of a log and of an image take AIO
# and io_uring the same time within 5 %, but io_uring may hand buffered ones to kernel threads.
# `depth` is 1..DISK_DEPTH_MAX.
cdef Status disk_open(
    Disk* disk, const Env* env, DiskBackend wanted, uint32_t depth, Failure* failure
) noexcept nogil
cdef void disk_close(Disk* disk) noexcept nogil

# Operations longer than 1 MiB are cut.  When files are open with O_DIRECT the caller keeps
# buffer, bytes and offset multiples of PAGE_BYTES.
cdef Status disk_write(
    Disk* disk, const WriteOperation* operations, size_t count, Failure* failure
) noexcept nogil

# fdatasync of `fd`.
cdef Status disk_sync(Disk* disk, int fd, Failure* failure) noexcept nogil
