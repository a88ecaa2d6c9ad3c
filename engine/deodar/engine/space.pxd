# A logical space: one reserved range of addresses, cut into regions that live in segment files
# (CedrusDB section 4.1).  Logical address = byte offset from `base`, so a resident dereference is
# one add.
#
# S1: region r is at `base + r * region_bytes`, and in file `r / regions_per_segment` at offset
#     `(r % regions_per_segment) * region_bytes`.
# S2: a region is ABSENT (no access), ANONYMOUS (our memory, writable, what the disk threads write
#     from) or FILE (private read-only mapping of its bytes on disk).
# S3: ANONYMOUS becomes FILE only when all its bytes are durable; the exchange is one mmap over the
#     address and readers may hold pointers across it.
# Segment files are "<name>-%06u.segment".  Regions are preallocated on disk before they are used,
# so that a full disk is met here and not in the middle of an epoch.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .env cimport Env
from .status cimport Failure, Status

cdef enum Residency:
    RESIDENCY_ABSENT = 0
    RESIDENCY_ANONYMOUS = 1
    RESIDENCY_FILE = 2

cdef enum:
    SEGMENTS_MAX = 4096                 # 1 TiB of 256 MiB segments a space

cdef struct Space:
    # Set by space_open, then constant.
    const Env* env
    uint8_t* base                       # owned: reserved by mmap(PROT_NONE)
    uint64_t reserved_bytes
    uint32_t region_bytes
    uint32_t regions_per_segment
    bint direct                         # segment files are open with O_DIRECT
    char[4096] directory
    char[32] name
    # Changed by the writer under the store's mutex; read by anyone.
    uint32_t region_count               # regions that exist in files: 0..region_count-1
    int[4096] segment_fds               # -1 = not open
    uint8_t* residency                  # owned: one Residency a region

# Opens the segment files that exist, and refuses a gap or a file shorter than `region_count`
# regions need (STATUS_CORRUPT).  `region_count` is what the checkpoint or identity file says.
# Nothing is resident yet.  `direct` is a wish: falls back to buffered files where refused.
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
) noexcept nogil
cdef void space_close(Space* space) noexcept nogil

# Adds `count` regions at the end, preallocated on disk and ANONYMOUS (zero); `*first` is the first.
# A new segment file is followed by a sync of the directory.  STATUS_DISK_FULL changes nothing.
cdef Status space_extend(
    Space* space, uint32_t count, uint32_t* first, Failure* failure
) noexcept nogil

# Regions that the files hold beyond what a checkpoint knew (found by size at recovery): raises
# `region_count` up to whole regions on disk; they are ABSENT.
cdef Status space_discover(Space* space, Failure* failure) noexcept nogil

# Makes `count` existing regions ANONYMOUS and zero (to be written anew).
cdef Status space_make_anonymous(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil

# Makes `count` existing regions ANONYMOUS with their bytes read from disk (the log's tail).
cdef Status space_load(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil

# Makes `count` regions FILE.
cdef Status space_map_file(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil

# Makes `count` regions ABSENT and gives their memory back.
cdef Status space_drop(
    Space* space, uint32_t region, uint32_t count, Failure* failure
) noexcept nogil

# File and offset of a logical address (rule S1).
cdef inline int space_fd(const Space* space, uint64_t address) noexcept nogil:
    return space.segment_fds[address // space.region_bytes // space.regions_per_segment]

cdef inline uint64_t space_file_offset(const Space* space, uint64_t address) noexcept nogil:
    return address % (<uint64_t> space.region_bytes * space.regions_per_segment)

cdef inline uint8_t* space_at(const Space* space, uint64_t address) noexcept nogil:
    return space.base + address
