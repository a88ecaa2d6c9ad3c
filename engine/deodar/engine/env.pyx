from libc.errno cimport EINTR, EIO, EOPNOTSUPP, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdio cimport rename
from posix.fcntl cimport O_CLOEXEC, O_DIRECTORY, O_RDONLY, open
from posix.stat cimport fstat, struct_stat
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
from posix.types cimport mode_t, off_t
from posix.unistd cimport close, fdatasync, fsync, ftruncate, unlink

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int fd, int mode, off_t offset, off_t length)

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset)
    ssize_t pwrite(int fd, const void* buffer, size_t bytes, off_t offset)

cdef extern from "<time.h>" nogil:
    enum:
        CLOCK_BOOTTIME

cdef extern from *:
    """
    #define ZEROS_BYTES 65536
    static const uint8_t zeros[ZEROS_BYTES] __attribute__((aligned(4096))) = {0};
    """
    enum:
        ZEROS_BYTES
    const uint8_t[65536] zeros          # aligned for direct I/O

cdef Env system


cdef int system_open(
    void* _context, const char* path, int flags, int mode, int* error
) noexcept nogil:
    cdef int fd = open(path, flags | O_CLOEXEC, <mode_t> mode)
    while fd < 0 and errno == EINTR:
        fd = open(path, flags | O_CLOEXEC, <mode_t> mode)
    if fd < 0:
        error[0] = errno
    return fd


# Linux has released the descriptor when close says EINTR: trying again could close another's.
cdef int system_close(void* _context, int fd, int* error) noexcept nogil:
    if close(fd) < 0 and errno != EINTR:
        error[0] = errno
        return -1
    return 0


cdef int64_t system_file_bytes(void* _context, int fd, int* error) noexcept nogil:
    cdef struct_stat facts
    if fstat(fd, &facts) < 0:
        error[0] = errno
        return -1
    return facts.st_size


cdef int64_t system_read(
    void* _context, int fd, uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
) noexcept nogil:
    cdef ssize_t done = pread(fd, buffer, bytes, <off_t> offset)
    while done < 0 and errno == EINTR:
        done = pread(fd, buffer, bytes, <off_t> offset)
    if done < 0:
        error[0] = errno
    return done


cdef int64_t system_write(
    void* _context, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
) noexcept nogil:
    cdef ssize_t done = pwrite(fd, buffer, bytes, <off_t> offset)
    while done < 0 and errno == EINTR:
        done = pwrite(fd, buffer, bytes, <off_t> offset)
    if done < 0:
        error[0] = errno
    return done


# EINTR before anything was written back may be retried; any other failure may not (disk.pxd, D2).
cdef int system_sync_data(void* _context, int fd, int* error) noexcept nogil:
    cdef int result = fdatasync(fd)
    while result < 0 and errno == EINTR:
        result = fdatasync(fd)
    if result < 0:
        error[0] = errno
    return result


cdef int system_allocate(
    void* _context, int fd, uint64_t offset, uint64_t bytes, int* error
) noexcept nogil:
    cdef int result = fallocate(fd, 0, <off_t> offset, <off_t> bytes)
    while result < 0 and errno == EINTR:
        result = fallocate(fd, 0, <off_t> offset, <off_t> bytes)
    if result < 0 and errno == EOPNOTSUPP:
        return env_allocate_by_writing(&system, fd, offset, bytes, error)
    if result < 0:
        error[0] = errno
    return result


cdef int system_truncate(void* _context, int fd, uint64_t bytes, int* error) noexcept nogil:
    cdef int result = ftruncate(fd, <off_t> bytes)
    while result < 0 and errno == EINTR:
        result = ftruncate(fd, <off_t> bytes)
    if result < 0:
        error[0] = errno
    return result


cdef int system_rename(
    void* _context, const char* source, const char* target, int* error
) noexcept nogil:
    if rename(source, target) < 0:
        error[0] = errno
        return -1
    return 0


cdef int system_unlink(void* _context, const char* path, int* error) noexcept nogil:
    if unlink(path) < 0:
        error[0] = errno
        return -1
    return 0


cdef int system_sync_directory(void* context, const char* path, int* error) noexcept nogil:
    cdef int fd = system_open(context, path, O_RDONLY | O_DIRECTORY, 0, error)
    cdef int result
    if fd < 0:
        return -1
    result = fsync(fd)
    if result < 0:
        error[0] = errno
    cdef int close_error = 0
    if system_close(context, fd, &close_error) < 0 and result == 0:
        error[0] = close_error
        return -1
    return result


cdef uint64_t system_boot_ms(void* _context) noexcept nogil:
    return clock_ms(CLOCK_BOOTTIME)


cdef uint64_t system_wall_ms(void* _context) noexcept nogil:
    return clock_ms(CLOCK_REALTIME)


# 0 when the kernel has no such clock, which the import below refuses.
cdef uint64_t clock_ms(int clock) noexcept nogil:
    cdef timespec now
    if clock_gettime(clock, &now) < 0:
        return 0
    return <uint64_t> now.tv_sec * 1000 + <uint64_t> now.tv_nsec // 1000000


cdef const Env* env_system() noexcept nogil:
    return &system


cdef int env_read_full(
    const Env* env, int fd, uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
) noexcept nogil:
    cdef uint64_t done = 0
    cdef int64_t step
    while done < bytes:
        step = env.read_at(env.context, fd, buffer + done, bytes - done, offset + done, error)
        if step < 0:
            return -1
        if step == 0:
            error[0] = 0
            return -1
        done += <uint64_t> step
    return 0


cdef int env_write_full(
    const Env* env, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
) noexcept nogil:
    cdef uint64_t done = 0
    cdef int64_t step
    while done < bytes:
        step = env.write_at(env.context, fd, buffer + done, bytes - done, offset + done, error)
        if step < 0:
            return -1
        if step == 0:
            error[0] = EIO
            return -1
        done += <uint64_t> step
    return 0


cdef int env_allocate_by_writing(
    const Env* env, int fd, uint64_t offset, uint64_t bytes, int* error
) noexcept nogil:
    cdef int64_t at = env.file_bytes(env.context, fd, error)
    cdef int64_t end = <int64_t> (offset + bytes)
    cdef uint64_t step
    if at < 0:
        return -1
    at = max(at, <int64_t> offset)
    while at < end:
        step = <uint64_t> min(end - at, <int64_t> ZEROS_BYTES)
        if env_write_full(env, fd, zeros, step, <uint64_t> at, error) < 0:
            return -1
        at += <int64_t> step
    return 0


system.context = NULL
system.open_file = system_open
system.close_file = system_close
system.file_bytes = system_file_bytes
system.read_at = system_read
system.write_at = system_write
system.sync_data = system_sync_data
system.allocate = system_allocate
system.truncate = system_truncate
system.rename = system_rename
system.unlink = system_unlink
system.sync_directory = system_sync_directory
system.before_queued_write = NULL
system.boot_ms = system_boot_ms
system.wall_ms = system_wall_ms

if system_boot_ms(NULL) == 0 or system_wall_ms(NULL) == 0:
    raise ImportError("the kernel has no CLOCK_BOOTTIME or CLOCK_REALTIME")
