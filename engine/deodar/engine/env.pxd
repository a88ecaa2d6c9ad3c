# The only door to files and clocks.  A store holds one Env and passes it down; the default calls
# the system, tests pass one that fails, records or reorders.  Every function returns as the system
# call does (>= 0, or -1 with errno in `*error`), restarts after EINTR, and never raises.
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef struct Env:
    void* context                       # owner: whoever made the Env; passed to every function
    int (*open_file)(
        void* context, const char* path, int flags, int mode, int* error
    ) noexcept nogil
    int (*close_file)(void* context, int fd, int* error) noexcept nogil
    int64_t (*file_bytes)(void* context, int fd, int* error) noexcept nogil
    int64_t (*read_at)(
        void* context, int fd, uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
    ) noexcept nogil
    int64_t (*write_at)(
        void* context, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
    ) noexcept nogil
    int (*sync_data)(void* context, int fd, int* error) noexcept nogil
    # Gives `fd` real blocks for the range and extends it; keeps bytes that are there.
    int (*allocate)(
        void* context, int fd, uint64_t offset, uint64_t bytes, int* error
    ) noexcept nogil
    int (*truncate)(void* context, int fd, uint64_t bytes, int* error) noexcept nogil
    int (*rename)(
        void* context, const char* source, const char* target, int* error
    ) noexcept nogil
    int (*unlink)(void* context, const char* path, int* error) noexcept nogil
    int (*sync_directory)(void* context, const char* path, int* error) noexcept nogil
    # Called before each write that a kernel queue (AIO) will carry; a value other than 0 is the
    # errno to fail that write with.  NULL in the default Env.
    int (*before_queued_write)(
        void* context, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset
    ) noexcept nogil
    uint64_t (*boot_ms)(void* context) noexcept nogil      # CLOCK_BOOTTIME, milliseconds
    uint64_t (*wall_ms)(void* context) noexcept nogil      # CLOCK_REALTIME, milliseconds since 1970

# The system's own door.  Constant after import; any thread.
cdef const Env* env_system() noexcept nogil

# Reads exactly `bytes`; a short file is -1 with `*error` = 0.
cdef int env_read_full(
    const Env* env, int fd, uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
) noexcept nogil

# Writes exactly `bytes`, going on after short writes.
cdef int env_write_full(
    const Env* env, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset, int* error
) noexcept nogil

# What `allocate` does where the file system has no fallocate: writes zeros from the end of the
# file (or `offset`, when that is behind it) to the end of the range.
cdef int env_allocate_by_writing(
    const Env* env, int fd, uint64_t offset, uint64_t bytes, int* error
) noexcept nogil
