from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from posix.fcntl cimport O_CREAT, O_RDWR

from .env cimport Env

cdef enum:
    PATH_BYTES = 4200


cdef void ballast_fill(
    Ballast* ballast, const Env* env, const char* directory, uint64_t wanted
) noexcept nogil:
    cdef char[PATH_BYTES] path
    cdef int error = 0
    cdef int fd
    cdef bint filled
    if ballast.bytes >= wanted:
        return
    snprintf(path, PATH_BYTES, "%s/RESERVE", directory)
    fd = env.open_file(env.context, path, O_RDWR | O_CREAT, 0o644, &error)
    if fd < 0:
        return
    filled = env.allocate(env.context, fd, 0, wanted, &error) == 0
    if env.close_file(env.context, fd, &error) < 0:
        filled = False
    if filled:
        ballast.bytes = wanted
    elif env.unlink(env.context, path, &error) == 0:
        ballast.bytes = 0


cdef bint ballast_drop(Ballast* ballast, const Env* env, const char* directory) noexcept nogil:
    cdef char[PATH_BYTES] path
    cdef int error = 0
    if ballast.bytes == 0:
        return False
    snprintf(path, PATH_BYTES, "%s/RESERVE", directory)
    if env.unlink(env.context, path, &error) < 0:
        return False
    ballast.bytes = 0
    return True
