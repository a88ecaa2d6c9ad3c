from libc.errno cimport EDQUOT, EMFILE, ENFILE, ENOENT, ENOSPC
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR, O_TRUNC

from .debug cimport check
from .env cimport Env, env_read_full, env_write_full
from .hashing cimport checksum64
from .limits cimport FORMAT_VERSION
from .status cimport (
    STATUS_CORRUPT,
    STATUS_DISK_FULL,
    STATUS_FORMAT_VERSION,
    STATUS_IO_ERROR,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    Failure,
    Status,
    failure_set,
)
from .trieimage cimport PageEntry

cdef enum:
    HEADER_BYTES = 152
    TRAILER_BYTES = 8
    FILE_NAME_BYTES = 64
    PATH_BYTES = 4200


cdef void file_name(uint64_t number, char* target) noexcept nogil:
    snprintf(target, FILE_NAME_BYTES, "checkpoint-%016llx", <unsigned long long> number)


cdef void file_path(const char* directory, const char* file, char* target) noexcept nogil:
    snprintf(target, PATH_BYTES, "%s/%s", directory, file)


cdef Status checkpoint_read(
    const Env* env,
    const char* directory,
    uint64_t number,
    uint64_t store_id,
    Checkpoint* checkpoint,
    Failure* failure,
) noexcept nogil:
    cdef char[FILE_NAME_BYTES] file
    cdef uint64_t content_bytes = 0
    cdef Status status
    memset(checkpoint, 0, sizeof(Checkpoint))
    file_name(number, file)
    status = read_content(env, directory, file, &checkpoint.content, &content_bytes, failure)
    if status == STATUS_OK:
        status = content_check(checkpoint, content_bytes, file, number, store_id, failure)
    if status != STATUS_OK:
        checkpoint_free(checkpoint)
    return status


cdef void checkpoint_free(Checkpoint* checkpoint) noexcept nogil:
    free(checkpoint.content)
    memset(checkpoint, 0, sizeof(Checkpoint))


cdef Status read_content(
    const Env* env,
    const char* directory,
    const char* file,
    uint8_t** content,
    uint64_t* content_bytes,
    Failure* failure,
) noexcept nogil:
    cdef char[PATH_BYTES] path
    cdef int error = 0
    cdef int close_error = 0
    cdef int64_t size
    cdef Status status = STATUS_OK
    file_path(directory, file, path)
    cdef int fd = env.open_file(env.context, path, O_RDONLY, 0, &error)
    if fd < 0:
        return failure_set(failure, STATUS_IO_ERROR, error, file, 0, "open")
    size = env.file_bytes(env.context, fd, &error)
    if size < 0:
        status = failure_set(failure, STATUS_IO_ERROR, error, file, 0, "fstat")
    elif size < HEADER_BYTES + TRAILER_BYTES:
        status = failure_set(failure, STATUS_CORRUPT, 0, file, size, "a checkpoint is cut short")
    else:
        content_bytes[0] = <uint64_t> size
        content[0] = <uint8_t*> malloc(content_bytes[0])
        if content[0] == NULL:
            status = failure_set(failure, STATUS_NO_MEMORY, 0, file, 0, "a checkpoint")
        elif env_read_full(env, fd, content[0], content_bytes[0], 0, &error) < 0:
            status = failure_set(failure, STATUS_IO_ERROR, error, file, 0, "read")
    if env.close_file(env.context, fd, &close_error) < 0 and status == STATUS_OK:
        status = failure_set(failure, STATUS_IO_ERROR, close_error, file, 0, "close")
    return status


cdef Status content_check(
    Checkpoint* checkpoint,
    uint64_t content_bytes,
    const char* file,
    uint64_t number,
    uint64_t store_id,
    Failure* failure,
) noexcept nogil:
    cdef const CheckpointHeader* header = <const CheckpointHeader*> checkpoint.content
    cdef uint64_t body_bytes = content_bytes - TRAILER_BYTES
    cdef uint64_t checksum
    if memcmp(header.magic, b"DEODARCP", 8) != 0:
        return corrupt(file, 0, "the file is not a checkpoint", failure)
    if header.format_version != FORMAT_VERSION:
        if failure != NULL and failure.status == 0:
            failure.format_version = header.format_version
        return failure_set(failure, STATUS_FORMAT_VERSION, 0, file, 8, "format version")
    memcpy(&checksum, checkpoint.content + body_bytes, TRAILER_BYTES)
    if checksum != checksum64(checkpoint.content, body_bytes, number):
        return corrupt(file, body_bytes, "the checksum of a checkpoint does not match", failure)
    if header.store_id != store_id or header.number != number:
        return corrupt(file, 16, "a checkpoint of another store or number", failure)
    if body_bytes != body_bytes_of(header):
        return corrupt(file, 128, "a checkpoint is not as long as its counts say", failure)
    checkpoint.header = header
    checkpoint.pages = <const PageEntry*> (checkpoint.content + HEADER_BYTES)
    checkpoint.regions = <const RegionEntry*> (checkpoint.pages + header.page_count)
    return STATUS_OK


cdef Status corrupt(
    const char* file, uint64_t offset, const char* rule, Failure* failure
) noexcept nogil:
    return failure_set(failure, STATUS_CORRUPT, 0, file, offset, rule)


cdef inline uint64_t body_bytes_of(const CheckpointHeader* header) noexcept nogil:
    return (
        HEADER_BYTES
        + header.page_count * sizeof(PageEntry)
        + header.region_count * sizeof(RegionEntry)
    )


cdef Status checkpoint_write(
    const Env* env,
    const char* directory,
    CheckpointHeader* header,
    const PageEntry* pages,
    const RegionEntry* regions,
    Failure* failure,
) noexcept nogil:
    cdef char[FILE_NAME_BYTES] file
    cdef char[FILE_NAME_BYTES + 4] temporary
    cdef char[PATH_BYTES] path
    cdef char[PATH_BYTES] temporary_path
    cdef uint64_t body_bytes = body_bytes_of(header)
    cdef uint8_t* content = <uint8_t*> malloc(body_bytes + TRAILER_BYTES)
    cdef int error = 0
    cdef Status status
    file_name(header.number, file)
    snprintf(temporary, sizeof(temporary), "%s.tmp", file)
    file_path(directory, file, path)
    file_path(directory, temporary, temporary_path)
    if content == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, 0, file, 0, "a checkpoint")
    content_encode(content, body_bytes, header, pages, regions)
    status = write_content(
        env, temporary_path, temporary, content, body_bytes + TRAILER_BYTES, failure
    )
    free(content)
    if status != STATUS_OK:
        return status
    if env.rename(env.context, temporary_path, path, &error) < 0:
        return failed(error, file, "rename", failure)
    # The rename may be on disk or not: even for want of space this is no refusal, after which the
    # frames of the image could be used again, but a failure that ends writing.
    if env.sync_directory(env.context, directory, &error) < 0:
        return failure_set(failure, STATUS_IO_ERROR, error, file, 0, "fsync of the directory")
    return STATUS_OK


cdef void content_encode(
    uint8_t* content,
    uint64_t body_bytes,
    CheckpointHeader* header,
    const PageEntry* pages,
    const RegionEntry* regions,
) noexcept nogil:
    cdef uint64_t pages_bytes = header.page_count * sizeof(PageEntry)
    cdef uint64_t regions_bytes = header.region_count * sizeof(RegionEntry)
    cdef uint64_t checksum
    memcpy(&header.magic, b"DEODARCP", 8)
    header.format_version = FORMAT_VERSION
    header.padding = 0
    memcpy(content, header, HEADER_BYTES)
    if pages_bytes != 0:
        memcpy(content + HEADER_BYTES, pages, pages_bytes)
    if regions_bytes != 0:
        memcpy(content + HEADER_BYTES + pages_bytes, regions, regions_bytes)
    check(
        HEADER_BYTES + pages_bytes + regions_bytes == body_bytes, "a checkpoint is what it counts"
    )
    checksum = checksum64(content, body_bytes, header.number)
    memcpy(content + body_bytes, &checksum, TRAILER_BYTES)


cdef Status write_content(
    const Env* env,
    const char* path,
    const char* file,
    const uint8_t* content,
    uint64_t content_bytes,
    Failure* failure,
) noexcept nogil:
    cdef int error = 0
    cdef int close_error = 0
    cdef const char* call = NULL
    cdef int fd = env.open_file(env.context, path, O_RDWR | O_CREAT | O_TRUNC, 0o644, &error)
    if fd < 0 and (error == EMFILE or error == ENFILE):
        return failure_set(failure, STATUS_OVER_LIMIT, error, file, 0, "no descriptor is left")
    if fd < 0:
        return failed(error, file, "open", failure)
    if env_write_full(env, fd, content, content_bytes, 0, &error) < 0:
        call = "write"
    elif env.sync_data(env.context, fd, &error) < 0:
        call = "fdatasync"
    if env.close_file(env.context, fd, &close_error) < 0 and call == NULL:
        return failed(close_error, file, "close", failure)
    if call != NULL:
        return failed(error, file, call, failure)
    return STATUS_OK


cdef Status failed(
    int error, const char* file, const char* call, Failure* failure
) noexcept nogil:
    cdef bint full = error == ENOSPC or error == EDQUOT
    return failure_set(
        failure, STATUS_DISK_FULL if full else STATUS_IO_ERROR, error, file, 0, call
    )


cdef Status checkpoint_remove(
    const Env* env, const char* directory, uint64_t number, Failure* failure
) noexcept nogil:
    cdef char[FILE_NAME_BYTES] file
    cdef char[PATH_BYTES] path
    cdef int error = 0
    file_name(number, file)
    file_path(directory, file, path)
    if env.unlink(env.context, path, &error) < 0 and error != ENOENT:
        return failure_set(failure, STATUS_IO_ERROR, error, file, 0, "unlink")
    return STATUS_OK


if sizeof(CheckpointHeader) != HEADER_BYTES or sizeof(RegionEntry) != 56:
    raise ImportError("the structs of checkpoint.pxd do not have the sizes of the format")
if sizeof(PageEntry) != 16:
    raise ImportError("a PageEntry has 16 bytes")
