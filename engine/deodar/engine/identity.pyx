from libc.errno cimport EDQUOT, ENOSPC
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy, memset
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR, O_TRUNC

from .env cimport Env, env_read_full, env_write_full
from .hashing cimport checksum64
from .limits cimport FORMAT_VERSION, PAGE_BYTES
from .status cimport (
    STATUS_CORRUPT,
    STATUS_DISK_FULL,
    STATUS_FORMAT_VERSION,
    STATUS_INVALID,
    STATUS_IO_ERROR,
    STATUS_OK,
    Failure,
    Status,
    failure_set,
)

cdef enum:
    IDENTITY_BYTES = 40
    SESSION_BYTES = 56
    FILE_BYTES = 3 * PAGE_BYTES
    PATH_BYTES = 4200


cdef Status identity_create(
    const Env* env,
    const char* directory,
    uint64_t store_id,
    uint32_t region_bytes,
    uint32_t sluggishness,
    Failure* failure,
) noexcept nogil:
    cdef uint8_t[FILE_BYTES] content
    cdef Identity* identity = <Identity*> content
    cdef char[PATH_BYTES] temporary
    cdef char[PATH_BYTES] path
    cdef int error = 0
    cdef Status status
    memset(content, 0, FILE_BYTES)
    memcpy(&identity.magic, b"DEODARST", 8)
    identity.format_version = FORMAT_VERSION
    identity.region_bytes = region_bytes
    identity.store_id = store_id
    identity.sluggishness = sluggishness
    identity.checksum = checksum64(identity, IDENTITY_BYTES - 8, 0)
    snprintf(temporary, PATH_BYTES, "%s/STORE.tmp", directory)
    snprintf(path, PATH_BYTES, "%s/STORE", directory)
    status = write_part(
        env, temporary, O_RDWR | O_CREAT | O_TRUNC, content, FILE_BYTES, 0, failure
    )
    if status != STATUS_OK:
        return status
    if env.rename(env.context, temporary, path, &error) < 0:
        return failed(error, "rename", failure)
    if env.sync_directory(env.context, directory, &error) < 0:
        return failed(error, "fsync of the directory", failure)
    return STATUS_OK


cdef Status identity_read(
    const Env* env, const char* directory, Identity* identity, Session* session, Failure* failure
) noexcept nogil:
    cdef uint8_t[FILE_BYTES] content
    cdef char[PATH_BYTES] path
    cdef int error = 0
    cdef int close_error = 0
    cdef int result
    cdef int fd
    snprintf(path, PATH_BYTES, "%s/STORE", directory)
    fd = env.open_file(env.context, path, O_RDONLY, 0, &error)
    if fd < 0:
        return failed(error, "open", failure)
    memset(content, 0, FILE_BYTES)
    result = env_read_full(env, fd, content, FILE_BYTES, 0, &error)
    if env.close_file(env.context, fd, &close_error) < 0:
        return failed(close_error, "close", failure)
    if result < 0 and error != 0:
        return failed(error, "read", failure)
    memcpy(identity, content, IDENTITY_BYTES)
    if memcmp(identity.magic, b"DEODARST", 8) != 0:
        return failure_set(failure, STATUS_INVALID, 0, "STORE", 0, "not a Deodar store")
    if identity.format_version != FORMAT_VERSION:
        if failure != NULL and failure.status == 0:
            failure.format_version = identity.format_version
        return failure_set(failure, STATUS_FORMAT_VERSION, 0, "STORE", 8, "format version")
    if result < 0:
        return corrupt(0, "the file is shorter than three pages", failure)
    if identity.checksum != checksum64(identity, IDENTITY_BYTES - 8, 0):
        return corrupt(32, "the checksum of the identity does not match", failure)
    return newest_session(content, session, failure)


cdef Status newest_session(
    const uint8_t* content, Session* session, Failure* failure
) noexcept nogil:
    cdef Session[2] slots
    cdef Session unused
    cdef int index
    memset(&unused, 0, SESSION_BYTES)
    memset(session, 0, SESSION_BYTES)
    for index in range(2):
        memcpy(&slots[index], content + (index + 1) * PAGE_BYTES, SESSION_BYTES)
        if memcmp(&slots[index], &unused, SESSION_BYTES) == 0:
            continue
        if slots[index].checksum != session_checksum(&slots[index]):
            return corrupt(
                (index + 1) * PAGE_BYTES, "the checksum of a session does not match", failure
            )
        if slots[index].incarnation % 2 != <uint64_t> index:
            return corrupt((index + 1) * PAGE_BYTES, "a session is in the wrong slot", failure)
        if slots[index].incarnation > session.incarnation:
            session[0] = slots[index]
    return STATUS_OK


cdef inline uint64_t session_checksum(const Session* session) noexcept nogil:
    return checksum64(session, SESSION_BYTES - 8, session.incarnation)


cdef Status session_write(
    const Env* env, const char* directory, Session* session, Failure* failure
) noexcept nogil:
    cdef char[PATH_BYTES] path
    cdef uint64_t offset = (1 + session.incarnation % 2) * PAGE_BYTES
    snprintf(path, PATH_BYTES, "%s/STORE", directory)
    session.padding = 0
    session.checksum = session_checksum(session)
    return write_part(
        env, path, O_RDWR, <const uint8_t*> session, SESSION_BYTES, offset, failure
    )


# Writes and syncs a part of a file.
cdef Status write_part(
    const Env* env,
    const char* path,
    int flags,
    const uint8_t* content,
    uint64_t content_bytes,
    uint64_t offset,
    Failure* failure,
) noexcept nogil:
    cdef int error = 0
    cdef int close_error = 0
    cdef const char* call = NULL
    cdef int fd = env.open_file(env.context, path, flags, 0o644, &error)
    if fd < 0:
        return failed(error, "open", failure)
    if env_write_full(env, fd, content, content_bytes, offset, &error) < 0:
        call = "write"
    elif env.sync_data(env.context, fd, &error) < 0:
        call = "fdatasync"
    if env.close_file(env.context, fd, &close_error) < 0 and call == NULL:
        return failed(close_error, "close", failure)
    if call != NULL:
        return failed(error, call, failure)
    return STATUS_OK


cdef Status failed(int error, const char* call, Failure* failure) noexcept nogil:
    cdef bint full = error == ENOSPC or error == EDQUOT
    return failure_set(
        failure, STATUS_DISK_FULL if full else STATUS_IO_ERROR, error, "STORE", 0, call
    )


cdef Status corrupt(uint64_t offset, const char* rule, Failure* failure) noexcept nogil:
    return failure_set(failure, STATUS_CORRUPT, 0, "STORE", offset, rule)


if sizeof(Identity) != IDENTITY_BYTES or sizeof(Session) != SESSION_BYTES:
    raise ImportError("the structs of identity.pxd do not have the sizes of the format")
