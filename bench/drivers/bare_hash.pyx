"""The limit of a memory-resident design: an arena of records and one open-addressed hash table.

No persistence, no concurrency control, room for every key reserved beforehand, 4 KiB pages.  It is
not a peer: it says how much of a figure is the memory's.
"""

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, strcpy
from posix.mman cimport (
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    mmap,
    munmap,
)

from bench.drivers.driver cimport (
    ANSWER_ABSENT,
    ANSWER_DONE,
    ANSWER_FAILED,
    Answer,
    Driver,
    Session,
)
from bench.drivers.keyspace cimport KEY_BYTES
from deodar.engine.hashing cimport checksum64

cdef extern from *:
    void __builtin_prefetch(const void* address) noexcept nogil

cdef enum:
    ADDRESS_BITS = 48
    RECORD_HEADER_BYTES = 32            # key and the value's length, padded

cdef uint64_t ADDRESS_MASK = (<uint64_t> 1 << 48) - 1
# A slot whose key was deleted: probes go on behind it.
cdef uint64_t DELETED = 1

cdef struct Record:
    uint8_t[24] key
    uint64_t value_bytes                # the value follows

# B1: a slot is 0, DELETED or tag:16 | pointer:48, the tag being the hash's top 16 bits; a key is
#     in the first slot at or behind `hash & slot_mask` that holds it, with no 0 between.
# B2: at most half of the slots are used.
cdef struct Table:
    uint64_t* slots
    uint64_t slot_mask
    uint8_t* arena
    size_t arena_bytes
    size_t used_bytes

cdef struct TableSession:
    Session head
    Table* table


cdef inline Record* find(
    const Table* table, const uint8_t* key, uint64_t hash, uint64_t* place
) noexcept nogil:
    """The record of `key` and its slot, or NULL and the free slot that ends its probes."""
    cdef uint64_t slot
    cdef uint64_t i = hash & table.slot_mask
    cdef Record* record
    while True:
        slot = table.slots[i]
        if slot == 0:
            place[0] = i
            return NULL
        if (slot ^ hash) >> ADDRESS_BITS == 0 and slot != DELETED:
            record = <Record*> <uintptr_t> (slot & ADDRESS_MASK)
            if memcmp(record.key, key, KEY_BYTES) == 0:
                place[0] = i
                return record
        i = (i + 1) & table.slot_mask


cdef Answer put(
    Session* head, const uint8_t* key, const uint8_t* value, size_t value_bytes
) noexcept nogil:
    cdef Table* table = (<TableSession*> head).table
    cdef uint64_t hash = checksum64(key, KEY_BYTES, 0)
    cdef uint64_t place
    cdef Record* record = find(table, key, hash, &place)
    cdef size_t record_bytes = (sizeof(Record) + value_bytes + 7) & ~(<size_t> 7)
    if record == NULL:
        if table.used_bytes + record_bytes > table.arena_bytes:
            strcpy(head.message, b"the arena is full")
            return ANSWER_FAILED
        record = <Record*> (table.arena + table.used_bytes)
        table.used_bytes += record_bytes
        memcpy(record.key, key, KEY_BYTES)
        record.value_bytes = value_bytes
        table.slots[place] = (hash & ~ADDRESS_MASK) | <uintptr_t> record
    memcpy(<uint8_t*> record + sizeof(Record), value, value_bytes)
    return ANSWER_DONE


cdef Answer get(
    Session* head, const uint8_t* key, const uint8_t** value, size_t* value_bytes
) noexcept nogil:
    cdef uint64_t place
    cdef const Record* record = find(
        (<TableSession*> head).table, key, checksum64(key, KEY_BYTES, 0), &place
    )
    if record == NULL:
        return ANSWER_ABSENT
    value[0] = <const uint8_t*> record + sizeof(Record)
    value_bytes[0] = record.value_bytes
    return ANSWER_DONE


cdef Answer get_batch(
    Session* head, const uint8_t** keys, size_t count, const uint8_t** values, size_t* value_bytes
) noexcept nogil:
    """Slots of the whole batch first, then the records they point at, then the comparisons."""
    cdef const Table* table = (<TableSession*> head).table
    cdef uint64_t[64] hashes
    cdef uint64_t place
    cdef const Record* record
    cdef const uint8_t* guess
    cdef size_t i
    for i in range(count):
        hashes[i] = checksum64(keys[i], KEY_BYTES, 0)
        __builtin_prefetch(&table.slots[hashes[i] & table.slot_mask])
    for i in range(count):
        guess = <const uint8_t*> <uintptr_t> (
            table.slots[hashes[i] & table.slot_mask] & ADDRESS_MASK
        )
        __builtin_prefetch(guess)
        __builtin_prefetch(guess + sizeof(Record))
    for i in range(count):
        record = find(table, keys[i], hashes[i], &place)
        values[i] = NULL
        if record != NULL:
            values[i] = <const uint8_t*> record + sizeof(Record)
            value_bytes[i] = record.value_bytes
    return ANSWER_DONE


cdef Answer remove(Session* head, const uint8_t* key) noexcept nogil:
    cdef Table* table = (<TableSession*> head).table
    cdef uint64_t place
    if find(table, key, checksum64(key, KEY_BYTES, 0), &place) == NULL:
        return ANSWER_ABSENT
    table.slots[place] = DELETED
    return ANSWER_DONE


cdef void* map_zeroed(size_t size_bytes) except NULL:
    cdef void* memory = mmap(
        NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0
    )
    if memory == MAP_FAILED:
        raise OSError(errno, f"mmap of {size_bytes} bytes")
    return memory


cdef class BareHash(Driver):
    """Built for `keys` keys; `path` is not used."""

    writers_max = 1

    cdef Table table

    def __init__(self, bytes path not None, uint64_t keys, size_t value_bytes):
        cdef uint64_t slots = 16
        while slots < 2 * keys:
            slots *= 2
        self.table.slots = <uint64_t*> map_zeroed(slots * sizeof(uint64_t))
        self.table.slot_mask = slots - 1
        self.table.arena_bytes = keys * ((sizeof(Record) + value_bytes + 7) & ~(<size_t> 7))
        self.table.arena = <uint8_t*> map_zeroed(self.table.arena_bytes)
        self.table.used_bytes = 0
        self.calls.put = put
        self.calls.get = get
        self.calls.get_batch = get_batch
        self.calls.remove = remove

    def __dealloc__(self):
        if self.table.slots != NULL:
            munmap(self.table.slots, (self.table.slot_mask + 1) * sizeof(uint64_t))
        if self.table.arena != NULL:
            munmap(self.table.arena, self.table.arena_bytes)

    cdef Session* session_open(self) except NULL:
        cdef TableSession* session = <TableSession*> calloc(1, sizeof(TableSession))
        if session == NULL:
            raise MemoryError
        session.table = &self.table
        return &session.head

    cdef int session_close(self, Session* session) except -1:
        free(session)
        return 0

    def describe(self):
        return "bare hash: XXH3_64, 16-bit tags, half-full table, updates in place, in memory only"

    def close(self):
        pass


def open_driver(bytes path not None, uint64_t keys, size_t value_bytes):
    return BareHash(path, keys, value_bytes)
