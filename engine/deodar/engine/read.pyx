from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from .core cimport StoreCore
from .hashing cimport Path, path_of
from .index cimport index_expired, index_find_live
from .log cimport log_view
from .reclaim cimport reclaim_enter, reclaim_exit
from .record cimport RecordView
from .status cimport STATUS_OK, Failure, Status
from .trie cimport trie_find_batch

cdef enum:
    BATCH_KEYS = 64                     # walked together by trie_find_batch


cdef Status read_view(
    StoreCore* core, const uint8_t* key, uint32_t key_bytes, RecordView* view, Failure* failure
) noexcept nogil:
    return index_find_live(core, path_of(key, key_bytes), key, key_bytes, view, failure)


cdef Status read_views(
    StoreCore* core,
    const uint8_t** keys,
    const uint32_t* key_bytes,
    uint32_t count,
    RecordView* views,
    bint* found,
    Failure* failure,
) noexcept nogil:
    cdef Path[BATCH_KEYS] paths
    cdef uint64_t[BATCH_KEYS] addresses
    cdef uint32_t done = 0
    cdef uint32_t step
    cdef uint32_t index
    cdef Status status
    while done < count:
        step = min(count - done, <uint32_t> BATCH_KEYS)
        for index in range(step):
            paths[index] = path_of(keys[done + index], key_bytes[done + index])
        status = trie_find_batch(
            &core.trie, paths, keys + done, key_bytes + done, step, addresses, failure
        )
        if status != STATUS_OK:
            return status
        for index in range(step):
            found[done + index] = False
            if addresses[index] != 0:
                status = log_view(&core.log, addresses[index], &views[done + index], failure)
                if status != STATUS_OK:
                    return status
                found[done + index] = not index_expired(core, &views[done + index])
        done += step
    return STATUS_OK


cdef Status store_get(
    StoreCore* core,
    const uint8_t* key,
    uint32_t key_bytes,
    uint8_t* value,
    uint32_t capacity,
    uint32_t* value_bytes,
    Failure* failure,
) noexcept nogil:
    cdef uint32_t slot = reclaim_enter(&core.reclaim)
    cdef RecordView view
    cdef Status status = read_view(core, key, key_bytes, &view, failure)
    if status == STATUS_OK:
        value_bytes[0] = view.value_bytes
        memcpy(value, view.value, min(view.value_bytes, capacity))
    reclaim_exit(&core.reclaim, slot)
    return status
