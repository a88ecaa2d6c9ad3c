from libc.errno cimport EINVAL, EMFILE, ENFILE, ENOENT, ENOSPC
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memset, strlen
from posix.fcntl cimport O_CREAT, O_RDWR

from .atomics cimport store_relaxed_u64
from .debug cimport check
from .disk cimport disk_sync
from .env cimport env_read_full
from .limits cimport PAGE_BYTES
from .status cimport STATUS_CORRUPT, STATUS_DISK_FULL, STATUS_INVALID, STATUS_IO_ERROR
from .status cimport STATUS_NO_MEMORY, STATUS_OK, STATUS_OVER_LIMIT, failure_set

cdef extern from "<fcntl.h>" nogil:
    enum:
        O_DIRECT

cdef extern from "<errno.h>" nogil:
    enum:
        EDQUOT

cdef extern from *:
    int __builtin_ctzll(unsigned long long bits) noexcept nogil

cdef enum:
    NAME_BYTES = 32
    PATH_BYTES = 4096 + 32
    FILE_MODE = 0o600
    WORDS_PER_FILE = FRAMES_PER_FILE // 64


cdef void frame_file_name(uint64_t frame, char* name, size_t name_bytes) noexcept nogil:
    snprintf(name, name_bytes, "trie-%06u.segment", <unsigned int> (frame // FRAMES_PER_FILE))


cdef Status fail(
    Status status, int error, uint64_t frame, const char* rule, Failure* failure
) noexcept nogil:
    cdef char[NAME_BYTES] name
    frame_file_name(frame, name, NAME_BYTES)
    return failure_set(failure, status, error, name, frame_offset(frame), rule)


cdef Status frames_open(
    Frames* frames, const Env* env, const char* directory, bint direct, Failure* failure
) noexcept nogil:
    memset(frames, 0, sizeof(Frames))
    frames.env = env
    frames.direct = direct
    if strlen(directory) >= sizeof(frames.directory):
        return failure_set(failure, STATUS_INVALID, 0, directory, 0, "directory name too long")
    snprintf(frames.directory, sizeof(frames.directory), "%s", directory)
    cdef bint found = True
    cdef Status status = STATUS_OK
    while found and status == STATUS_OK:
        status = add_file(frames, False, &found, failure)
    if status != STATUS_OK:
        frames_close(frames)
    return status


cdef void frames_close(Frames* frames) noexcept nogil:
    cdef uint32_t index
    cdef int error = 0
    for index in range(frames.file_count):
        # A failed close loses nothing: an image counts only after frames_sync.
        frames.env.close_file(frames.env.context, frames.files[index].fd, &error)
    free(frames.files)
    free(frames.used)
    memset(frames, 0, sizeof(Frames))


# Opens the next file; with `create` it is made, otherwise `*found` says whether there is one.
cdef Status add_file(Frames* frames, bint create, bint* found, Failure* failure) noexcept nogil:
    cdef uint32_t index = frames.file_count
    cdef uint64_t first_frame = <uint64_t> index * FRAMES_PER_FILE
    cdef int error = 0
    cdef int fd
    found[0] = False
    if not reserve_file(frames):
        return fail(STATUS_NO_MEMORY, 0, first_frame, "memory for the frame table", failure)
    fd = open_file(frames, first_frame, create, &error)
    if fd < 0 and error == ENOENT and not create:
        return STATUS_OK
    if fd < 0:
        if error == EMFILE or error == ENFILE:
            return fail(STATUS_OVER_LIMIT, error, first_frame, "no descriptor is left", failure)
        return fail(STATUS_IO_ERROR, error, first_frame, "open", failure)
    frames.files[index].fd = fd
    frames.files[index].written = False
    frames.file_count = index + 1
    frames.directory_synced = False
    found[0] = True
    return STATUS_OK


cdef int open_file(
    Frames* frames, uint64_t first_frame, bint create, int* error
) noexcept nogil:
    cdef const Env* env = frames.env
    cdef char[NAME_BYTES] name
    cdef char[PATH_BYTES] path
    cdef int flags = O_RDWR | (O_CREAT if create else 0)
    cdef int fd = -1
    frame_file_name(first_frame, name, NAME_BYTES)
    snprintf(path, PATH_BYTES, "%s/%s", frames.directory, name)
    if frames.direct:
        fd = env.open_file(env.context, path, flags | O_DIRECT, FILE_MODE, error)
    if not frames.direct or (fd < 0 and error[0] == EINVAL):
        fd = env.open_file(env.context, path, flags, FILE_MODE, error)
    return fd


# Room in the tables for one more file; its frames are free.
cdef bint reserve_file(Frames* frames) noexcept nogil:
    cdef uint64_t count = <uint64_t> frames.file_count + 1
    cdef void* files = realloc(frames.files, count * sizeof(FrameFile))
    if files == NULL:
        return False
    frames.files = <FrameFile*> files
    cdef void* used = realloc(frames.used, count * WORDS_PER_FILE * sizeof(uint64_t))
    if used == NULL:
        return False
    frames.used = <uint64_t*> used
    memset(
        frames.used + frames.file_count * WORDS_PER_FILE, 0, WORDS_PER_FILE * sizeof(uint64_t)
    )
    if frames.file_count == 0:
        frames.used[0] = 1              # F1
    return True


cdef Status grow(Frames* frames, Failure* failure) noexcept nogil:
    cdef uint64_t frame = frames.count
    cdef bint made
    cdef int error = 0
    cdef Status status
    cdef const Env* env = frames.env
    if frame // FRAMES_PER_FILE >= frames.file_count:
        if frames.file_count == FRAME_FILES_MAX:
            return fail(STATUS_OVER_LIMIT, 0, frame, "number of frame files", failure)
        status = add_file(frames, True, &made, failure)
        if status != STATUS_OK:
            return status
    if env.allocate(
        env.context,
        frames.files[frame // FRAMES_PER_FILE].fd,
        frame_offset(frame),
        <uint64_t> GROWTH_FRAMES * PAGE_BYTES,
        &error,
    ) < 0:
        if error == ENOSPC or error == EDQUOT:
            return fail(STATUS_DISK_FULL, error, frame, "fallocate", failure)
        return fail(STATUS_IO_ERROR, error, frame, "fallocate", failure)
    store_relaxed_u64(&frames.count, frame + GROWTH_FRAMES)
    return STATUS_OK


cdef Status frames_take(Frames* frames, uint64_t* frame, Failure* failure) noexcept nogil:
    cdef uint64_t word
    cdef Status status
    while True:
        for word in range(frames.first_word, frames.count // 64):
            if frames.used[word] != <uint64_t> -1:
                frames.first_word = word
                frame[0] = word * 64 + <uint64_t> __builtin_ctzll(~frames.used[word])
                frames.used[word] |= <uint64_t> 1 << (frame[0] % 64)
                return STATUS_OK
        frames.first_word = frames.count // 64
        status = grow(frames, failure)
        if status != STATUS_OK:
            return status


cdef Status frames_claim(Frames* frames, uint64_t frame, Failure* failure) noexcept nogil:
    cdef uint64_t bit = <uint64_t> 1 << (frame % 64)
    if frame // FRAMES_PER_FILE >= frames.file_count:
        return fail(STATUS_CORRUPT, 0, frame, "page table refers to a missing file", failure)
    if frames.used[frame // 64] & bit:
        return fail(STATUS_CORRUPT, 0, frame, "page table refers to a frame twice", failure)
    frames.used[frame // 64] |= bit
    if frame >= frames.count:
        store_relaxed_u64(
            &frames.count, frame // GROWTH_FRAMES * GROWTH_FRAMES + GROWTH_FRAMES
        )
    return STATUS_OK


cdef void frames_give_back(Frames* frames, uint64_t frame) noexcept nogil:
    cdef uint64_t bit = <uint64_t> 1 << (frame % 64)
    check(frame != 0 and frame < frames.count, "F1: a frame given back exists")
    check(frames.used[frame // 64] & bit, "F2: a frame given back was in use")
    frames.used[frame // 64] &= ~bit
    frames.first_word = min(frames.first_word, frame // 64)


cdef int frames_fd_to_write(Frames* frames, uint64_t frame) noexcept nogil:
    check(frame != 0 and frame < frames.count, "F1: a frame written exists")
    cdef FrameFile* file = &frames.files[frame // FRAMES_PER_FILE]
    file.written = True
    return file.fd


cdef Status frames_read(
    Frames* frames, uint64_t frame, uint64_t count, uint8_t* target, Failure* failure
) noexcept nogil:
    cdef int error = 0
    check(
        frame // FRAMES_PER_FILE == (frame + count - 1) // FRAMES_PER_FILE,
        "a run of frames lies in one file",
    )
    if env_read_full(
        frames.env,
        frames.files[frame // FRAMES_PER_FILE].fd,
        target,
        count * PAGE_BYTES,
        frame_offset(frame),
        &error,
    ) < 0:
        if error == 0:
            return fail(STATUS_CORRUPT, 0, frame, "frame beyond the end of its file", failure)
        return fail(STATUS_IO_ERROR, error, frame, "read", failure)
    return STATUS_OK


cdef Status frames_sync(Frames* frames, Disk* disk, Failure* failure) noexcept nogil:
    cdef const Env* env = frames.env
    cdef uint32_t index
    cdef int error = 0
    cdef Status status
    # Also for files found at open: the process that made them may have died before it came here.
    if not frames.directory_synced and frames.file_count != 0:
        if env.sync_directory(env.context, frames.directory, &error) < 0:
            status = STATUS_IO_ERROR
            if error == EMFILE or error == ENFILE:
                # Not even opened, so nothing was lost; the next image tries again.
                status = STATUS_OVER_LIMIT
            return failure_set(
                failure, status, error, frames.directory, 0, "sync of the directory"
            )
        frames.directory_synced = True
    for index in range(frames.file_count):
        if not frames.files[index].written:
            continue
        status = disk_sync(disk, frames.files[index].fd, failure)
        if status != STATUS_OK:
            return status
        frames.files[index].written = False
    return STATUS_OK
