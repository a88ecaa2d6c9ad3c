"""`def` faces of `deodar.engine.record` for the tests."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from deodar.engine.record cimport (
    FLAG_COPIED,
    FLAG_DEADLINE,
    FLAG_RELOCATED,
    LINK_RECORD_BYTES,
    RECORD_DELETE,
    RECORD_HEADER_BYTES,
    RECORD_LINK,
    RECORD_PUT,
    RECORD_SEAL,
    REGION_HEADER_BYTES,
    RecordHeader,
    RecordKind,
    RecordView,
    RegionHeader,
    record_bytes_of,
    record_decode,
    record_encode,
    record_key,
    record_view,
)

PUT, DELETE, SEAL, LINK = RECORD_PUT, RECORD_DELETE, RECORD_SEAL, RECORD_LINK
DEADLINE, RELOCATED = FLAG_DEADLINE, FLAG_RELOCATED
LINK_BYTES = LINK_RECORD_BYTES


def encode(
    int kind,
    bytes key not None,
    bytes value not None,
    *,
    version: int = 0,
    epoch: int = 0,
    deadline_ms: int = 0,
    flags: int = 0,
    sequence: int = 1,
) -> bytes:
    """A whole record."""
    cdef RecordView view
    view.kind = <RecordKind> kind
    view.flags = flags
    view.epoch = epoch
    view.version = version
    view.deadline_ms = deadline_ms
    view.key = key
    view.key_bytes = len(key)
    view.value = value
    view.value_bytes = len(value)
    cdef uint64_t whole = record_bytes_of(view.key_bytes, view.value_bytes, deadline_ms != 0)
    cdef bytearray target = bytearray(b"\xa5" * whole)
    record_encode(target, &view, sequence)
    return bytes(target)


cdef dict facts(const RecordView* view):
    return {
        "kind": view.kind,
        "flags": view.flags,
        "epoch": view.epoch,
        "version": view.version,
        "deadline_ms": view.deadline_ms,
        "key": view.key[: view.key_bytes],
        "value": view.value[: view.value_bytes],
        "record_bytes": view.record_bytes,
    }


def decode(bytes source not None, *, sequence: int = 1) -> dict[str, object] | str:
    """The record at the start of `source`, or the rule that it breaks.

    The bytes lie at the end of their own allocation, so that AddressSanitizer sees a read behind.
    """
    cdef RecordView view
    cdef const char* rule = NULL
    cdef size_t available = len(source)
    cdef uint8_t* copy = <uint8_t*> malloc(available if available > 0 else 1)
    if copy == NULL:
        raise MemoryError
    memcpy(copy, <const uint8_t*> source, available)
    try:
        if record_decode(copy, available, sequence, &view, &rule):
            return facts(&view)
        return (<bytes> rule).decode()
    finally:
        free(copy)


def view(bytes source not None) -> dict[str, object]:
    """A record that is known to be good."""
    cdef RecordView found
    record_view(source, &found)
    return facts(&found)


def key_of(bytes source not None) -> bytes:
    cdef uint32_t key_bytes
    cdef const uint8_t* key = record_key(source, &key_bytes)
    return key[:key_bytes]


def layout() -> dict[str, int]:
    """Sizes and offsets of the structs in files."""
    cdef RecordHeader record
    cdef RegionHeader region
    cdef char* a = <char*> &record
    cdef char* b = <char*> &region
    return {
        "RecordHeader": sizeof(RecordHeader),
        "RecordHeader.checksum": <char*> &record.checksum - a,
        "RecordHeader.key_bytes_minus_1": <char*> &record.key_bytes_minus_1 - a,
        "RecordHeader.kind": <char*> &record.kind - a,
        "RecordHeader.flags": <char*> &record.flags - a,
        "RecordHeader.value_bytes": <char*> &record.value_bytes - a,
        "RecordHeader.epoch": <char*> &record.epoch - a,
        "RecordHeader.version": <char*> &record.version - a,
        "RegionHeader": sizeof(RegionHeader),
        "RegionHeader.magic": <char*> &region.magic - b,
        "RegionHeader.format_version": <char*> &region.format_version - b,
        "RegionHeader.region_bytes": <char*> &region.region_bytes - b,
        "RegionHeader.store_id": <char*> &region.store_id - b,
        "RegionHeader.sequence": <char*> &region.sequence - b,
        "RegionHeader.first_version": <char*> &region.first_version - b,
        "RegionHeader.region": <char*> &region.region - b,
        "RegionHeader.run_regions": <char*> &region.run_regions - b,
        "RegionHeader.checksum": <char*> &region.checksum - b,
        "RECORD_HEADER_BYTES": RECORD_HEADER_BYTES,
        "REGION_HEADER_BYTES": REGION_HEADER_BYTES,
        "LINK_RECORD_BYTES": LINK_RECORD_BYTES,
        "RECORD_PUT": RECORD_PUT,
        "RECORD_DELETE": RECORD_DELETE,
        "RECORD_SEAL": RECORD_SEAL,
        "RECORD_LINK": RECORD_LINK,
        "FLAG_DEADLINE": FLAG_DEADLINE,
        "FLAG_RELOCATED": FLAG_RELOCATED,
        "FLAG_COPIED": FLAG_COPIED,
    }
