import sys

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from .debug cimport check
from .hashing cimport checksum64
from .limits cimport KEY_BYTES_MAX, RECORD_ALIGNMENT, VALUE_BYTES_MAX

cdef enum:
    CHECKSUM_BYTES = 4                  # of the header, not covered by itself
    DEADLINE_BYTES = 8
    CONTROL_VALUE_BYTES = 16            # of SEAL and LINK


cdef void record_view(const uint8_t* record, RecordView* view) noexcept nogil:
    cdef const RecordHeader* header = <const RecordHeader*> record
    cdef const uint8_t* body = record + RECORD_HEADER_BYTES
    view.kind = <RecordKind> header.kind
    view.flags = header.flags
    view.epoch = header.epoch
    view.version = header.version
    view.deadline_ms = 0
    view.key_bytes = 0
    if header.kind <= RECORD_DELETE:
        view.key_bytes = <uint32_t> header.key_bytes_minus_1 + 1
    view.value_bytes = header.value_bytes
    if header.flags & FLAG_DEADLINE:
        memcpy(&view.deadline_ms, body, DEADLINE_BYTES)
        body += DEADLINE_BYTES
    view.key = body
    view.value = body + view.key_bytes
    view.record_bytes = record_bytes_of(
        view.key_bytes, view.value_bytes, header.flags & FLAG_DEADLINE
    )


cdef void record_encode(
    uint8_t* target, const RecordView* view, uint64_t region_sequence
) noexcept nogil:
    cdef bint has_key = view.kind <= RECORD_DELETE
    check(RECORD_PUT <= view.kind <= RECORD_LINK, "a record has a known kind")
    check(view.value_bytes <= VALUE_BYTES_MAX, "a value fits its bound")
    check(
        1 <= view.key_bytes <= KEY_BYTES_MAX if has_key else view.key_bytes == 0,
        "PUT and DELETE have a key within its bound, SEAL and LINK none",
    )
    check(has_key or view.value_bytes == CONTROL_VALUE_BYTES, "SEAL and LINK have two numbers")
    check(has_key or (view.flags == 0 and view.deadline_ms == 0), "SEAL and LINK have no flags")
    check(
        view.kind != RECORD_DELETE or (view.value_bytes == 0 and view.deadline_ms == 0),
        "a DELETE has neither value nor deadline",
    )
    cdef RecordHeader* header = <RecordHeader*> target
    cdef uint8_t* body = target + RECORD_HEADER_BYTES
    cdef uint32_t padding
    header.key_bytes_minus_1 = <uint16_t> (view.key_bytes - 1) if has_key else 0
    header.kind = <uint8_t> view.kind
    header.flags = view.flags & ~FLAG_DEADLINE
    header.value_bytes = view.value_bytes
    header.epoch = view.epoch
    header.version = view.version
    if view.deadline_ms != 0:
        header.flags |= FLAG_DEADLINE
        memcpy(body, &view.deadline_ms, DEADLINE_BYTES)
        body += DEADLINE_BYTES
    if has_key:
        memcpy(body, view.key, view.key_bytes)
        body += view.key_bytes
    if view.value_bytes != 0:
        memcpy(body, view.value, view.value_bytes)
        body += view.value_bytes
    header.checksum = checksum_of(target, <uint64_t> (body - target), region_sequence)
    padding = <uint32_t> (target - body) & (RECORD_ALIGNMENT - 1)
    memset(body, 0, padding)


cdef bint record_decode(
    const uint8_t* source,
    uint64_t available,
    uint64_t region_sequence,
    RecordView* view,
    const char** rule,
) noexcept nogil:
    cdef RecordHeader header
    cdef RecordView found
    rule[0] = NULL
    if available < RECORD_HEADER_BYTES:
        rule[0] = "R1: a record header ends behind the region"
        return False
    memcpy(&header, source, RECORD_HEADER_BYTES)
    rule[0] = header_rule_broken(&header)
    if rule[0] != NULL:
        return False
    cdef bint deadline = header.flags & FLAG_DEADLINE
    cdef uint32_t key_bytes = 0
    if header.kind <= RECORD_DELETE:
        key_bytes = <uint32_t> header.key_bytes_minus_1 + 1
    cdef uint64_t whole_bytes = record_bytes_of(key_bytes, header.value_bytes, deadline)
    if whole_bytes > available:
        rule[0] = "R1: a record ends behind the region"
        return False
    record_view(source, &found)
    cdef uint64_t plain_bytes = (
        RECORD_HEADER_BYTES
        + (DEADLINE_BYTES if deadline else 0)
        + key_bytes
        + <uint64_t> header.value_bytes
    )
    if checksum_of(source, plain_bytes, region_sequence) != header.checksum:
        rule[0] = "R3: the checksum of a record does not match"
        return False
    if deadline and found.deadline_ms == 0:
        rule[0] = "R6: a deadline is 0"
        return False
    while plain_bytes < whole_bytes:
        if source[plain_bytes] != 0:
            rule[0] = "the padding of a record is not zero"
            return False
        plain_bytes += 1
    view[0] = found
    return True


# The first rule that the header alone breaks, or NULL.
cdef const char* header_rule_broken(const RecordHeader* header) noexcept nogil:
    if not RECORD_PUT <= header.kind <= RECORD_LINK:
        return "a record has an unknown kind"
    if header.flags & ~(FLAG_DEADLINE | FLAG_RELOCATED | FLAG_COPIED):
        return "a record has an unknown flag"
    if header.value_bytes > VALUE_BYTES_MAX:
        return "a value is longer than VALUE_BYTES_MAX"
    if header.kind == RECORD_DELETE:
        if header.value_bytes != 0 or header.flags & FLAG_DEADLINE:
            return "R6: a DELETE has a value or a deadline"
    elif header.kind != RECORD_PUT:
        if header.key_bytes_minus_1 != 0 or header.value_bytes != CONTROL_VALUE_BYTES:
            return "R4, R5: a SEAL or LINK has a key or not two numbers"
        if header.flags != 0:
            return "R6: a SEAL or LINK has flags"
    return NULL


cdef inline uint32_t checksum_of(
    const uint8_t* record, uint64_t plain_bytes, uint64_t region_sequence
) noexcept nogil:
    return <uint32_t> checksum64(
        record + CHECKSUM_BYTES, plain_bytes - CHECKSUM_BYTES, region_sequence
    )


if sys.byteorder != "little":
    raise ImportError("the engine's format is little-endian and this machine is not")
if sizeof(RecordHeader) != RECORD_HEADER_BYTES or sizeof(RegionHeader) != REGION_HEADER_BYTES:
    raise ImportError("the structs of record.pxd do not have the sizes of the format")
if record_bytes_of(0, CONTROL_VALUE_BYTES, False) != LINK_RECORD_BYTES:
    raise ImportError("LINK_RECORD_BYTES is not the size of a LINK")
