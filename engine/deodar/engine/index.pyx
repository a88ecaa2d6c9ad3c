from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .core cimport StoreCore, core_now_ms
from .debug cimport check
from .hashing cimport Path
from .log cimport KvRegion, Log, log_view, region_of
from .record cimport RecordView, record_view
from .space cimport space_at
from .status cimport STATUS_NOT_FOUND, STATUS_OK, Failure, Status
from .trie cimport trie_find
from .trieupdate cimport trie_remove, trie_replace, trie_upsert


cdef Status index_find(
    StoreCore* core,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    RecordView* view,
    uint64_t* address,
    Failure* failure,
) noexcept nogil:
    cdef uint64_t found = 0
    cdef Status status = trie_find(&core.trie, path, key, key_bytes, &found, failure)
    if status != STATUS_OK:
        return status
    if address != NULL:
        address[0] = found
    return log_view(&core.log, found, view, failure)


cdef bint index_expired(const StoreCore* core, const RecordView* view) noexcept nogil:
    return view.deadline_ms != 0 and view.deadline_ms <= core_now_ms(core)


cdef Status index_find_live(
    StoreCore* core,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    RecordView* view,
    Failure* failure,
) noexcept nogil:
    cdef Status status = index_find(core, path, key, key_bytes, view, NULL, failure)
    if status == STATUS_OK and index_expired(core, view):
        return STATUS_NOT_FOUND
    return status


cdef Status index_put(
    StoreCore* core,
    Path path,
    const RecordView* view,
    uint64_t address,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    old_address[0] = 0
    status = trie_upsert(
        &core.trie, path, view.key, view.key_bytes, address, old_address, failure
    )
    if status == STATUS_OK:
        live_add(&core.log, address)
        if old_address[0] != 0:
            live_drop(&core.log, old_address[0])
    return status


cdef Status index_remove(
    StoreCore* core,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    old_address[0] = 0
    status = trie_remove(&core.trie, path, key, key_bytes, old_address, failure)
    if status == STATUS_OK:
        live_drop(&core.log, old_address[0])
    return status


cdef Status index_replace(
    StoreCore* core, Path path, uint64_t old_address, uint64_t new_address
) noexcept nogil:
    cdef Status status = trie_replace(&core.trie, path, old_address, new_address)
    if status == STATUS_OK:
        live_add(&core.log, new_address)
        live_drop(&core.log, old_address)
    return status


# Records that the trie points at were checked when they came from disk.
cdef void live_add(Log* log, uint64_t address) noexcept nogil:
    cdef KvRegion* region = &log.regions[region_of(log, address)]
    cdef RecordView view
    record_view(space_at(&log.space, address), &view)
    region.live_bytes += view.record_bytes
    if view.deadline_ms != 0:
        region.expiring_bytes += view.record_bytes
        region.last_deadline_ms = max(region.last_deadline_ms, view.deadline_ms)


cdef void live_drop(Log* log, uint64_t address) noexcept nogil:
    cdef KvRegion* region = &log.regions[region_of(log, address)]
    cdef RecordView view
    record_view(space_at(&log.space, address), &view)
    check(region.live_bytes >= view.record_bytes, "L4: live bytes are those of live records")
    region.live_bytes -= view.record_bytes
    if view.deadline_ms != 0:
        region.expiring_bytes -= view.record_bytes
