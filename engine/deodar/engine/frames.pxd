# Frames: the places on disk that pages of the trie space are written to, PAGE_BYTES each, in the
# files "trie-%06u.segment" of FRAMES_PER_FILE frames.
#
# F1: frame 0 is never used.
# F2: a frame is handed out only while it is free, lowest first, so that an image lies in few long
#     runs and files do not grow while there are holes.
# F3: files grow by fallocate, GROWTH_FRAMES at a time, so that a full disk is met before a frame is
#     handed out and not when it is written.
# Only the checkpoint thread (and the opener before it) uses Frames; `count` is read by anyone.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .disk cimport Disk
from .env cimport Env
from .status cimport Failure, Status

cdef enum:
    FRAMES_PER_FILE = 65536             # 256 MiB
    GROWTH_FRAMES = 256                 # 1 MiB
    FRAME_FILES_MAX = 65536             # 16 TiB

cdef struct FrameFile:
    int fd                              # owned
    bint written                        # since the last frames_sync

cdef struct Frames:
    # Set by frames_open, then constant.
    const Env* env                      # not owned
    char[4096] directory
    bint direct                         # files are wanted with O_DIRECT
    # Owned by the checkpoint thread.
    FrameFile* files                    # owned
    uint32_t file_count
    bint directory_synced               # the names of all `files` are durable
    uint64_t* used                      # owned: one bit a frame of `files`
    uint64_t first_word                 # no frame of a word of `used` before this one is free
    uint64_t count                      # frames in files, used or free; multiple of GROWTH_FRAMES

# Opens the frame files that exist.  `direct` is a wish: files that refuse O_DIRECT are buffered.
cdef Status frames_open(
    Frames* frames, const Env* env, const char* directory, bint direct, Failure* failure
) noexcept nogil
cdef void frames_close(Frames* frames) noexcept nogil

# Takes a free frame, growing the files when there is none.
cdef Status frames_take(Frames* frames, uint64_t* frame, Failure* failure) noexcept nogil

# Takes exactly `frame`, which an image on disk refers to.  STATUS_CORRUPT when there is no such
# frame, or when it is taken already.
cdef Status frames_claim(Frames* frames, uint64_t frame, Failure* failure) noexcept nogil
cdef void frames_give_back(Frames* frames, uint64_t frame) noexcept nogil

# Descriptor and file offset of a frame.  frames_fd_to_write marks the file for frames_sync.
cdef int frames_fd_to_write(Frames* frames, uint64_t frame) noexcept nogil
cdef inline uint64_t frame_offset(uint64_t frame) noexcept nogil:
    return frame % FRAMES_PER_FILE * 4096

# Reads `count` frames that follow each other in one file, counted from `frame`.
cdef Status frames_read(
    Frames* frames, uint64_t frame, uint64_t count, uint8_t* target, Failure* failure
) noexcept nogil

# Syncs every file written since the last call, and the directory when it holds a new file.
cdef Status frames_sync(Frames* frames, Disk* disk, Failure* failure) noexcept nogil

# The name inside the directory of the file that holds `frame`, for failures.
cdef void frame_file_name(uint64_t frame, char* name, size_t name_bytes) noexcept nogil
