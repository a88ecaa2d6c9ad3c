from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from .env cimport env_read_full
from .hashing cimport checksum64
from .limits cimport FORMAT_VERSION, PAGE_BYTES, RECORD_ALIGNMENT
from .log cimport (
    REGION_FREE,
    SEAL_RECORD_BYTES,
    Log,
    log_corrupt,
    region_address,
)
from .record cimport (
    RECORD_SEAL,
    REGION_HEADER_BYTES,
    RecordHeader,
    RecordView,
    RegionHeader,
    record_decode,
)
from .space cimport space_at, space_fd, space_file_offset
from .status cimport (
    STATUS_IO_ERROR,
    STATUS_NO_MEMORY,
    STATUS_OK,
    Failure,
    Status,
    failure_set,
)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t bytes)


cdef const char* region_header_rule(
    const Log* log, const RegionHeader* header, uint32_t region, uint64_t sequence
) noexcept nogil:
    if not header_is_sound(log, header, region):
        return "the header of a region is damaged"
    if header.sequence != sequence:
        return "a region has another sequence than the log says"
    return NULL


cdef bint header_is_sound(
    const Log* log, const RegionHeader* header, uint32_t region
) noexcept nogil:
    return (
        memcmp(header.magic, b"DEODARKV", 8) == 0
        and header.checksum == checksum64(header, REGION_HEADER_BYTES - 8, 0)
        and header.format_version == FORMAT_VERSION
        and header.region_bytes == log.space.region_bytes
        and header.store_id == log.store_id
        and header.region == region
        and header.run_regions >= 1
        and region + header.run_regions <= log.space.region_count
    )


cdef Status damage_behind(
    Log* log,
    uint64_t address,
    uint64_t region_end,
    uint64_t being_read,
    const char* rule,
    Failure* failure,
) noexcept nogil:
    cdef RegionHeader* page = NULL
    cdef uint32_t region
    cdef bint found = False
    cdef Status status = STATUS_OK
    if later_seal(
        space_at(&log.space, address), region_end - address, log.sequence, being_read
    ):
        return log_corrupt(log, address, rule, failure)
    if posix_memalign(<void**> &page, PAGE_BYTES, PAGE_BYTES) != 0:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "a page to read")
    for region in range(log.space.region_count):
        if log.regions[region].state != REGION_FREE:
            continue
        status = read_regions(log, region, PAGE_BYTES, <uint8_t*> page, failure)
        if status != STATUS_OK:
            break
        if header_is_sound(log, page, region) and page.sequence > log.sequence:
            status = region_has_later(log, page, being_read, &found, failure)
            if status != STATUS_OK or found:
                break
    free(page)
    if status == STATUS_OK and found:
        return log_corrupt(log, address, rule, failure)
    return status


# Reads a region or run aside and looks for a later SEAL in it.
cdef Status region_has_later(
    Log* log,
    const RegionHeader* header,
    uint64_t being_read,
    bint* found,
    Failure* failure,
) noexcept nogil:
    cdef uint64_t run_bytes = header.run_regions * log.space.region_bytes
    cdef uint64_t sequence = header.sequence
    cdef uint8_t* content = NULL
    cdef Status status
    if posix_memalign(<void**> &content, PAGE_BYTES, run_bytes) != 0:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "a region to read")
    status = read_regions(log, <uint32_t> header.region, run_bytes, content, failure)
    if status == STATUS_OK:
        found[0] = later_seal(content, run_bytes, sequence, being_read)
    free(content)
    return status


# Reads `count_bytes` from the start of a region on, over the ends of segment files.
cdef Status read_regions(
    Log* log, uint32_t region, uint64_t count_bytes, uint8_t* content, Failure* failure
) noexcept nogil:
    cdef uint64_t segment_bytes = (
        <uint64_t> log.space.region_bytes * log.space.regions_per_segment
    )
    cdef uint64_t address = region_address(log, region)
    cdef uint64_t end = address + count_bytes
    cdef uint64_t piece
    cdef int error = 0
    while address < end:
        piece = min(end - address, segment_bytes - address % segment_bytes)
        if env_read_full(
            log.env,
            space_fd(&log.space, address),
            content,
            piece,
            space_file_offset(&log.space, address),
            &error,
        ) < 0:
            return failure_set(failure, STATUS_IO_ERROR, error, "data", address, "read")
        address += piece
        content += piece
    return STATUS_OK


# Whether a valid SEAL of an epoch after `being_read` lies in `available` bytes.  Records are
# aligned, and few places look like the header of a SEAL, so few checksums are computed.
cdef bint later_seal(
    const uint8_t* start, uint64_t available, uint64_t sequence, uint64_t being_read
) noexcept nogil:
    cdef uint64_t at = 0
    cdef const RecordHeader* header
    cdef const char* rule = NULL
    cdef RecordView view
    cdef uint64_t epoch
    while at + SEAL_RECORD_BYTES <= available:
        header = <const RecordHeader*> (start + at)
        if header.kind == RECORD_SEAL and header.value_bytes == 16:
            if record_decode(start + at, available - at, sequence, &view, &rule):
                memcpy(&epoch, view.value, 8)
                if epoch > being_read:
                    return True
        at += RECORD_ALIGNMENT
    return False
