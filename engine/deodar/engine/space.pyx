from libc.errno cimport EDQUOT, EINVAL, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strlen, strncpy
from posix.fcntl cimport O_CREAT, O_RDWR
from posix.mman cimport (
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_FIXED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    madvise,
    mmap,
    munmap,
)

from .atomics cimport store_release_u8, store_release_u32
from .debug cimport check
from .env cimport Env, env_read_full
from .limits cimport REGION_BYTES_MAX, REGION_BYTES_MIN, SEGMENT_BYTES
from .status cimport (
    STATUS_CORRUPT,
    STATUS_DISK_FULL,
    STATUS_INVALID,
    STATUS_IO_ERROR,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    Failure,
    Status,
    failure_set,
)

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <sys/mman.h>
    """
    enum:
        O_DIRECT
        MADV_HUGEPAGE

cdef enum:
    HUGE_PAGE_BYTES = 2097152
    FILE_NAME_BYTES = 64                # holds "<name>-%06u.segment"
    PATH_BYTES = 4200                   # holds "<directory>/<file name>"


cdef Status space_open(
    Space* space,
    const Env* env,
    const char* directory,
    const char* name,
    uint32_t region_bytes,
    uint64_t reserved_bytes,
    uint32_t region_count,
    bint direct,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    cdef uint32_t segment
    memset(space, 0, sizeof(Space))
    for segment in range(SEGMENTS_MAX):
        space.segment_fds[segment] = -1
    status = arguments_check(directory, name, region_bytes, reserved_bytes, region_count, failure)
    if status != STATUS_OK:
        return status
    space.env = env
    space.region_bytes = region_bytes
    space.regions_per_segment = SEGMENT_BYTES // region_bytes
    space.reserved_bytes = reserved_bytes
    space.direct = direct
    strncpy(space.directory, directory, sizeof(space.directory) - 1)
    strncpy(space.name, name, sizeof(space.name) - 1)
    status = reserve(space, failure)
    if status == STATUS_OK:
        status = segments_open(space, region_count, failure)
    if status != STATUS_OK:
        space_close(space)
        return status
    store_release_u32(&space.region_count, region_count)
    return STATUS_OK


# Nothing is lost when a close fails: what had to be durable was synced before.
cdef void space_close(Space* space) noexcept nogil:
    cdef int error = 0
    cdef uint32_t segment
    cdef int result
    for segment in range(SEGMENTS_MAX):
        if space.segment_fds[segment] >= 0:
            space.env.close_file(space.env.context, space.segment_fds[segment], &error)
            space.segment_fds[segment] = -1
    if space.base != NULL:
        result = munmap(space.base, space.reserved_bytes)
        check(result == 0, "the reserved range is ours until it is closed")
        space.base = NULL
    free(space.residency)
    space.residency = NULL


cdef Status arguments_check(
    const char* directory,
    const char* name,
    uint32_t region_bytes,
    uint64_t reserved_bytes,
    uint32_t region_count,
    Failure* failure,
) noexcept nogil:
    if (
        not REGION_BYTES_MIN <= region_bytes <= REGION_BYTES_MAX
        or region_bytes & (region_bytes - 1) != 0
    ):
        return failure_set(
            failure, STATUS_INVALID, 0, "region_bytes", 0, "a power of two, 256 KiB to 16 MiB"
        )
    if (
        reserved_bytes == 0
        or reserved_bytes % region_bytes != 0
        or reserved_bytes > <uint64_t> SEGMENTS_MAX * SEGMENT_BYTES
    ):
        return failure_set(
            failure, STATUS_INVALID, 0, "reserved_bytes", 0, "whole regions, 1 TiB at most"
        )
    if <uint64_t> region_count * region_bytes > reserved_bytes:
        return failure_set(
            failure, STATUS_INVALID, 0, "reserved_bytes", 0, "less than the regions there are"
        )
    if strlen(directory) >= 4096:
        return failure_set(failure, STATUS_INVALID, 0, "directory", 0, "4095 bytes at most")
    if strlen(name) >= 32:
        return failure_set(failure, STATUS_INVALID, 0, "name", 0, "31 bytes at most")
    return STATUS_OK


# Reserves the addresses at a multiple of the huge page and the residency bytes.
cdef Status reserve(Space* space, Failure* failure) noexcept nogil:
    cdef uint64_t whole = space.reserved_bytes + HUGE_PAGE_BYTES
    cdef uint8_t* start
    cdef uint64_t skipped
    cdef int result
    start = <uint8_t*> mmap(
        NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0
    )
    if start == <uint8_t*> MAP_FAILED:
        return failure_set(failure, STATUS_NO_MEMORY, errno, NULL, 0, "reserve addresses")
    skipped = (HUGE_PAGE_BYTES - <uint64_t> start % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES
    space.base = start + skipped
    if skipped > 0:
        result = munmap(start, skipped)
        check(result == 0, "the front of a fresh mapping can be given back")
    result = munmap(space.base + space.reserved_bytes, HUGE_PAGE_BYTES - skipped)
    check(result == 0, "the end of a fresh mapping can be given back")
    space.residency = <uint8_t*> calloc(space.reserved_bytes // space.region_bytes, 1)
    if space.residency == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, ENOMEM, NULL, 0, "residency of regions")
    return STATUS_OK


cdef uint32_t segments_reserved(const Space* space) noexcept nogil:
    cdef uint64_t regions = space.reserved_bytes // space.region_bytes
    return <uint32_t> (
        (regions + space.regions_per_segment - 1) // space.regions_per_segment
    )


cdef void file_name(const Space* space, uint32_t segment, char* target) noexcept nogil:
    snprintf(target, FILE_NAME_BYTES, "%s-%06u.segment", space.name, segment)


# A failure about the file of `segment`.
cdef Status segment_failed(
    const Space* space,
    uint32_t segment,
    Status status,
    int error,
    uint64_t offset,
    const char* rule,
    Failure* failure,
) noexcept nogil:
    cdef char[FILE_NAME_BYTES] file
    file_name(space, segment, file)
    return failure_set(failure, status, error, file, offset, rule)


# Opens the file of `segment`; with O_CREAT in `flags` it may be new.  0, or an errno.  Where the
# first file refuses O_DIRECT, the space goes on without.
cdef int segment_open(Space* space, uint32_t segment, int flags) noexcept nogil:
    cdef char[FILE_NAME_BYTES] file
    cdef char[PATH_BYTES] path
    cdef int error = 0
    cdef int fd
    file_name(space, segment, file)
    snprintf(path, PATH_BYTES, "%s/%s", space.directory, file)
    flags |= O_RDWR
    fd = space.env.open_file(
        space.env.context, path, flags | O_DIRECT if space.direct else flags, 0o644, &error
    )
    if fd < 0 and error == EINVAL and space.direct and segment == 0:
        space.direct = False
        fd = space.env.open_file(space.env.context, path, flags, 0o644, &error)
    if fd < 0:
        return error
    space.segment_fds[segment] = fd
    return 0


# Opens every file there is, the first ones long enough for `region_count` regions.
cdef Status segments_open(Space* space, uint32_t region_count, Failure* failure) noexcept nogil:
    cdef uint32_t segment
    cdef uint32_t missing = SEGMENTS_MAX
    cdef int64_t needed
    cdef int error
    cdef Status status
    for segment in range(segments_reserved(space)):
        needed = needed_bytes(space, segment, region_count)
        error = segment_open(space, segment, 0)
        if error == ENOENT and needed == 0:
            if missing != SEGMENTS_MAX:
                return STATUS_OK
            missing = segment
            continue
        if error == ENOENT:
            return segment_failed(
                space, segment, STATUS_CORRUPT, error, 0, "a segment file is missing", failure
            )
        if error != 0:
            return segment_failed(space, segment, STATUS_IO_ERROR, error, 0, "open", failure)
        if missing != SEGMENTS_MAX:
            return segment_failed(
                space, missing, STATUS_CORRUPT, 0, 0, "a segment file is missing", failure
            )
        status = length_check(space, segment, needed, failure)
        if status != STATUS_OK:
            return status
    return STATUS_OK


# Bytes that the first `region_count` regions take of the file of `segment`.
cdef int64_t needed_bytes(
    const Space* space, uint32_t segment, uint32_t region_count
) noexcept nogil:
    cdef int64_t regions = (
        <int64_t> region_count - <int64_t> segment * space.regions_per_segment
    )
    if regions <= 0:
        return 0
    return min(regions, <int64_t> space.regions_per_segment) * space.region_bytes


cdef Status length_check(
    const Space* space, uint32_t segment, int64_t needed, Failure* failure
) noexcept nogil:
    cdef int error = 0
    cdef int64_t found = space.env.file_bytes(
        space.env.context, space.segment_fds[segment], &error
    )
    if found < 0:
        return segment_failed(space, segment, STATUS_IO_ERROR, error, 0, "fstat", failure)
    if found < needed:
        return segment_failed(
            space,
            segment,
            STATUS_CORRUPT,
            0,
            <uint64_t> found,
            "the file is shorter than its regions",
            failure,
        )
    return STATUS_OK


cdef Status space_discover(Space* space, Failure* failure) noexcept nogil:
    cdef uint32_t count = space.region_count
    cdef uint32_t segment = count // space.regions_per_segment
    cdef uint32_t whole
    cdef uint32_t regions_max = <uint32_t> (space.reserved_bytes // space.region_bytes)
    cdef int64_t found
    cdef int error = 0
    while segment < segments_reserved(space) and space.segment_fds[segment] >= 0:
        found = space.env.file_bytes(space.env.context, space.segment_fds[segment], &error)
        if found < 0:
            return segment_failed(space, segment, STATUS_IO_ERROR, error, 0, "fstat", failure)
        whole = <uint32_t> min(
            found // space.region_bytes, <int64_t> space.regions_per_segment
        )
        count = max(count, segment * space.regions_per_segment + whole)
        if whole < space.regions_per_segment:
            break
        segment += 1
    store_release_u32(&space.region_count, min(count, regions_max))
    return STATUS_OK


cdef Status space_extend(
    Space* space, uint32_t count, uint32_t* first, Failure* failure
) noexcept nogil:
    cdef uint32_t before = space.region_count
    cdef uint64_t after = <uint64_t> before + count
    cdef uint32_t at = before
    cdef uint32_t step
    cdef Status status = STATUS_OK
    if after * space.region_bytes > space.reserved_bytes:
        return failure_set(
            failure, STATUS_OVER_LIMIT, 0, NULL, 0, "the addresses of the space are used up"
        )
    while at < after and status == STATUS_OK:
        step = regions_in_segment(space, at, <uint32_t> after - at)
        status = regions_allocate(space, at, step, failure)
        at += step
    if status == STATUS_OK:
        status = map_anonymous(space, before, count, failure)
    if status != STATUS_OK:
        give_back(space, before, at)
        return status
    store_release_u32(&space.region_count, <uint32_t> after)
    first[0] = before
    return STATUS_OK


# How many of the `count` regions from `region` on lie in the segment of the first.
cdef uint32_t regions_in_segment(
    const Space* space, uint32_t region, uint32_t count
) noexcept nogil:
    return min(count, space.regions_per_segment - region % space.regions_per_segment)


# Gives regions of one segment their blocks on disk, creating the file when it is not there.
cdef Status regions_allocate(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint64_t address = <uint64_t> region * space.region_bytes
    cdef uint64_t offset = space_file_offset(space, address)
    cdef uint32_t segment = region // space.regions_per_segment
    cdef int error = 0
    cdef Status status
    if space.segment_fds[segment] < 0:
        status = segment_create(space, segment, failure)
        if status != STATUS_OK:
            return status
    if space.env.allocate(
        space.env.context,
        space.segment_fds[segment],
        offset,
        <uint64_t> count * space.region_bytes,
        &error,
    ) < 0:
        return segment_failed(
            space, segment, status_of_errno(error), error, offset, "fallocate", failure
        )
    return STATUS_OK


cdef Status segment_create(Space* space, uint32_t segment, Failure* failure) noexcept nogil:
    cdef int error = segment_open(space, segment, O_CREAT)
    cdef int close_error = 0
    if error == EMFILE or error == ENFILE:
        return segment_failed(
            space, segment, STATUS_OVER_LIMIT, error, 0, "no descriptor is left", failure
        )
    if error != 0:
        return segment_failed(
            space, segment, status_of_errno(error), error, 0, "create", failure
        )
    if space.env.sync_directory(space.env.context, space.directory, &error) < 0:
        space.env.close_file(space.env.context, space.segment_fds[segment], &close_error)
        space.segment_fds[segment] = -1
        return segment_failed(
            space, segment, STATUS_IO_ERROR, error, 0, "fsync of the directory", failure
        )
    return STATUS_OK


cdef inline Status status_of_errno(int error) noexcept nogil:
    return STATUS_DISK_FULL if error == ENOSPC or error == EDQUOT else STATUS_IO_ERROR


# After a failed space_extend: returns the blocks of regions `first`..`end` to the disk.  The space
# is as before either way, since it ends at `region_count`; what a failed truncate leaves behind is
# used by the next space_extend.
cdef void give_back(Space* space, uint32_t first, uint32_t end) noexcept nogil:
    cdef uint32_t region = first
    cdef uint64_t address
    cdef int error = 0
    while region < end:
        address = <uint64_t> region * space.region_bytes
        if space_fd(space, address) >= 0:
            space.env.truncate(
                space.env.context,
                space_fd(space, address),
                space_file_offset(space, address),
                &error,
            )
        region += regions_in_segment(space, region, end - region)


cdef Status space_make_anonymous(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    check(
        <uint64_t> region + count <= space.region_count, "only regions that exist become resident"
    )
    return map_anonymous(space, region, count, failure)


cdef Status space_load(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint32_t at = region
    cdef uint32_t step
    cdef Status status = space_make_anonymous(space, region, count, failure)
    while status == STATUS_OK and at < region + count:
        step = regions_in_segment(space, at, region + count - at)
        status = regions_read(space, at, step, failure)
        at += step
    if status != STATUS_OK:
        space_drop(space, region, count, failure)
    return status


# Reads regions of one segment into their addresses.
cdef Status regions_read(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint64_t address = <uint64_t> region * space.region_bytes
    cdef uint64_t offset = space_file_offset(space, address)
    cdef uint32_t segment = region // space.regions_per_segment
    cdef int error = 0
    if env_read_full(
        space.env,
        space.segment_fds[segment],
        space_at(space, address),
        <uint64_t> count * space.region_bytes,
        offset,
        &error,
    ) == 0:
        return STATUS_OK
    if error == 0:
        return segment_failed(
            space, segment, STATUS_CORRUPT, 0, offset, "the file ends inside a region", failure
        )
    return segment_failed(space, segment, STATUS_IO_ERROR, error, offset, "read", failure)


cdef Status space_map_file(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint32_t at = region
    cdef uint32_t end = region + count
    cdef uint32_t step
    cdef Status status = STATUS_OK
    check(<uint64_t> region + count <= space.region_count, "only regions that exist are mapped")
    while status == STATUS_OK and at < end:
        step = regions_in_segment(space, at, end - at)
        status = map_file(space, at, step, failure)
        at += step
    return status


# Maps regions of one segment from their file.  The length is checked first: a page behind the end
# of a file would kill the process with SIGBUS.
cdef Status map_file(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint64_t address = <uint64_t> region * space.region_bytes
    cdef uint64_t bytes = <uint64_t> count * space.region_bytes
    cdef uint64_t offset = space_file_offset(space, address)
    cdef uint32_t segment = region // space.regions_per_segment
    cdef Status status = length_check(space, segment, <int64_t> (offset + bytes), failure)
    if status != STATUS_OK:
        return status
    if mmap(
        space_at(space, address),
        bytes,
        PROT_READ,
        MAP_PRIVATE | MAP_FIXED,
        space.segment_fds[segment],
        <int64_t> offset,
    ) == MAP_FAILED:
        return map_failed(space, segment, offset, failure)
    residency_set(space, region, count, RESIDENCY_FILE)
    return STATUS_OK


cdef Status space_drop(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint64_t address = <uint64_t> region * space.region_bytes
    check(<uint64_t> region + count <= space.region_count, "only regions that exist are dropped")
    if mmap(
        space_at(space, address),
        <uint64_t> count * space.region_bytes,
        PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
        -1,
        0,
    ) == MAP_FAILED:
        return failure_set(failure, STATUS_NO_MEMORY, errno, NULL, address, "mmap")
    residency_set(space, region, count, RESIDENCY_ABSENT)
    return STATUS_OK


# Fresh zero pages over the addresses of `count` regions.
cdef Status map_anonymous(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint64_t address = <uint64_t> region * space.region_bytes
    cdef uint64_t bytes = <uint64_t> count * space.region_bytes
    if mmap(
        space_at(space, address),
        bytes,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
        -1,
        0,
    ) == MAP_FAILED:
        return failure_set(failure, STATUS_NO_MEMORY, errno, NULL, address, "mmap")
    if bytes >= HUGE_PAGE_BYTES:
        # Advice: a kernel without huge pages refuses it, and small pages do as well.
        madvise(space_at(space, address), bytes, MADV_HUGEPAGE)
    residency_set(space, region, count, RESIDENCY_ANONYMOUS)
    return STATUS_OK


cdef Status map_failed(
    const Space* space, uint32_t segment, uint64_t offset, Failure* failure
) noexcept nogil:
    cdef int error = errno
    cdef Status status = STATUS_NO_MEMORY if error == ENOMEM else STATUS_IO_ERROR
    return segment_failed(space, segment, status, error, offset, "mmap", failure)


cdef void residency_set(
    Space* space, uint32_t region, uint32_t count, Residency residency
) noexcept nogil:
    cdef uint32_t index
    for index in range(region, region + count):
        store_release_u8(&space.residency[index], <uint8_t> residency)
