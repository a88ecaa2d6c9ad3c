from libc.errno cimport EROFS
from libc.stdint cimport int64_t, uint8_t, uint64_t
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY

from .env cimport Env, env_system

cdef Env reading


cdef int open_for_reading(
    void* context, const char* path, int flags, int mode, int* error
) noexcept nogil:
    flags &= ~(O_CREAT | O_TRUNC | O_RDWR | O_WRONLY)
    return env_system().open_file(context, path, flags | O_RDONLY, mode, error)


cdef int64_t refuse_write(
    void* _context, int _fd, const uint8_t* _buffer, uint64_t _bytes, uint64_t _offset, int* error
) noexcept nogil:
    error[0] = EROFS
    return -1


cdef int refuse_sync(void* _context, int _fd, int* error) noexcept nogil:
    error[0] = EROFS
    return -1


cdef int refuse_allocate(
    void* _context, int _fd, uint64_t _offset, uint64_t _bytes, int* error
) noexcept nogil:
    error[0] = EROFS
    return -1


cdef int refuse_truncate(void* _context, int _fd, uint64_t _bytes, int* error) noexcept nogil:
    error[0] = EROFS
    return -1


cdef int refuse_rename(
    void* _context, const char* _source, const char* _target, int* error
) noexcept nogil:
    error[0] = EROFS
    return -1


cdef int refuse_path(void* _context, const char* _path, int* error) noexcept nogil:
    error[0] = EROFS
    return -1


cdef int refuse_queued(
    void* _context, int _fd, const uint8_t* _buffer, uint64_t _bytes, uint64_t _offset
) noexcept nogil:
    return EROFS


cdef const Env* env_reading() noexcept nogil:
    return &reading


reading = env_system()[0]
reading.open_file = open_for_reading
reading.write_at = refuse_write
reading.sync_data = refuse_sync
reading.allocate = refuse_allocate
reading.truncate = refuse_truncate
reading.rename = refuse_rename
reading.unlink = refuse_path
reading.sync_directory = refuse_path
reading.before_queued_write = refuse_queued
