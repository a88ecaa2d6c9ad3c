# The record: what the log, which is the data space, is made of.
#
# Record header, 24 bytes, little-endian.
#   offset bytes field
#        0     4 checksum      low half of XXH3_64, seeded with the region's sequence, of bytes
#                              4.. up to the end of the value
#        4     2 key_bytes - 1 for PUT and DELETE: 0..65535; zero for SEAL and LINK
#        6     1 kind          RECORD_*
#        7     1 flags         FLAG_*; an unknown bit is corruption, not an extension
#        8     4 value_bytes   0..VALUE_BYTES_MAX
#       12     4 epoch         low 32 bits of the epoch the record was appended in
#       16     8 version
# then, with FLAG_DEADLINE, 8 bytes of deadline (milliseconds since 1970), then key, value, and zero
# to a multiple of RECORD_ALIGNMENT.
#
# R1: a record lies in one region, or in one run of regions made for it alone.
# R2: versions rise strictly along the log, except in records with FLAG_RELOCATED or FLAG_COPIED.
#     A RELOCATED record is a live record that compaction appended again: it keeps the version it
#     had, and counts in recovery only while the key's record has that version.  A COPIED record
#     came from another store out of order, or with a gap before it, and keeps the version it had
#     there; it was only written because it was newer than the key's record.  Neither is part of the
#     stream of changes, which starts anew behind a COPIED record.
# R3: the checksum's seed is the sequence of the region, so that bytes left behind by the region's
#     former use, or written to the wrong place, never pass.
# R4: SEAL ends an epoch. Recovery applies an epoch's records only when its SEAL is there.
#     Its value: epoch (8), records in the epoch (8).  Its version: the last version given.
# R5: LINK is the last record of a region; its value: next region's index (8), its sequence (8).
# R6: a DELETE has neither value nor deadline; SEAL and LINK have no flags; a deadline is not 0.
#
# Region header, 64 bytes at the start of each region or run, little-endian.
#   offset bytes field
#        0     8 magic         "DEODARKV"
#        8     4 format_version
#       12     4 region_bytes
#       16     8 store_id
#       24     8 sequence      rises by one along the log; 0 never
#       32     8 first_version no record of this region without those flags has a lower one
#       40     8 region        index of the (first) region
#       48     8 run_regions   1, or the length of the run
#       56     8 checksum      XXH3_64, seed 0, of bytes 0..56
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum RecordKind:
    RECORD_PUT = 1
    RECORD_DELETE = 2
    RECORD_SEAL = 3
    RECORD_LINK = 4

cdef enum RecordFlag:
    FLAG_DEADLINE = 1
    FLAG_RELOCATED = 2
    FLAG_COPIED = 4

cdef enum:
    RECORD_HEADER_BYTES = 24
    REGION_HEADER_BYTES = 64
    LINK_RECORD_BYTES = 40              # header + 16: room kept free at the end of each region

cdef packed struct RecordHeader:
    uint32_t checksum
    uint16_t key_bytes_minus_1
    uint8_t kind
    uint8_t flags
    uint32_t value_bytes
    uint32_t epoch
    uint64_t version

cdef packed struct RegionHeader:
    uint8_t[8] magic
    uint32_t format_version
    uint32_t region_bytes
    uint64_t store_id
    uint64_t sequence
    uint64_t first_version
    uint64_t region
    uint64_t run_regions
    uint64_t checksum

# A decoded record.  Pointers are borrowed from the bytes it was decoded from.
cdef struct RecordView:
    RecordKind kind
    uint8_t flags
    uint32_t epoch
    uint64_t version
    uint64_t deadline_ms                # 0 = none
    const uint8_t* key
    uint32_t key_bytes
    const uint8_t* value
    uint32_t value_bytes
    uint64_t record_bytes               # whole, with padding

# Bytes of a record, header and padding included.
cdef inline uint64_t record_bytes_of(
    uint32_t key_bytes, uint32_t value_bytes, bint deadline
) noexcept nogil:
    cdef uint64_t plain = RECORD_HEADER_BYTES + key_bytes + <uint64_t> value_bytes
    if deadline:
        plain += 8
    return (plain + 7) & ~(<uint64_t> 7)

# The key of a PUT or DELETE record that is known to be good.
cdef inline const uint8_t* record_key(const uint8_t* record, uint32_t* key_bytes) noexcept nogil:
    cdef const RecordHeader* header = <const RecordHeader*> record
    key_bytes[0] = <uint32_t> header.key_bytes_minus_1 + 1
    return record + RECORD_HEADER_BYTES + (8 if header.flags & FLAG_DEADLINE else 0)

# Views a record that is known to be good; checks nothing.
cdef void record_view(const uint8_t* record, RecordView* view) noexcept nogil

# Writes a whole record at `target` (record_bytes_of bytes, 8-aligned) and closes it with its
# checksum.  FLAG_DEADLINE follows from `deadline_ms`, whatever `view.flags` says of it;
# `view.record_bytes` is not read.
cdef void record_encode(
    uint8_t* target, const RecordView* view, uint64_t region_sequence
) noexcept nogil

# Checks every rule above against at most `available` bytes at `source`; False leaves `view` unset
# and `*rule` names what was broken.
cdef bint record_decode(
    const uint8_t* source,
    uint64_t available,
    uint64_t region_sequence,
    RecordView* view,
    const char** rule,
) noexcept nogil
