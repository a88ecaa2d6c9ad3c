from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memset

from .core cimport StoreCore
from .hashing cimport Path, checksum64, path_compare
from .index cimport index_expired
from .log cimport log_view
from .reclaim cimport reclaim_enter, reclaim_exit
from .record cimport RecordView
from .status cimport STATUS_OK, Failure, Status
from .triewalk cimport TrieEntry, trie_walk

cdef enum:
    WALK_ENTRIES = 512                  # the least that trie_walk takes
    WALKS_MAX = 64                      # a page: expired records do not make it endless


cdef Status scan_fill(
    StoreCore* core,
    const ScanRequest* request,
    RecordView* views,
    uint32_t* count,
    ScanEnd* end,
    Failure* failure,
) noexcept nogil:
    cdef TrieEntry[WALK_ENTRIES] entries
    cdef Path path = request.path
    cdef Path next_path
    cdef uint32_t entries_count = 0
    cdef uint32_t walks = 0
    cdef uint64_t bytes_left = request.bytes_max
    cdef bint full = False
    cdef Status status
    count[0] = 0
    memset(end, 0, sizeof(ScanEnd))
    end.more = True
    while walks < WALKS_MAX:
        walks += 1
        status = trie_walk(
            &core.trie,
            path,
            entries,
            WALK_ENTRIES,
            &entries_count,
            &next_path,
            &end.more,
            failure,
        )
        if status == STATUS_OK:
            status = take(
                core, request, entries, entries_count, views, count, &bytes_left, end, &full,
                failure,
            )
        if status != STATUS_OK or full or not end.more:
            return status
        path = next_path
    end.behind_item = False
    end.path = path
    return STATUS_OK


# Takes the entries that the request asks for; `*full` when the page ends inside them.
cdef Status take(
    StoreCore* core,
    const ScanRequest* request,
    const TrieEntry* entries,
    uint32_t entries_count,
    RecordView* views,
    uint32_t* count,
    uint64_t* bytes_left,
    ScanEnd* end,
    bint* full,
    Failure* failure,
) noexcept nogil:
    cdef RecordView* view
    cdef uint32_t index
    cdef uint64_t item_bytes
    cdef Status status
    for index in range(entries_count):
        if request.bounded and path_compare(entries[index].path, request.end) >= 0:
            end.more = False
            return STATUS_OK
        if count[0] == request.limit:
            full[0] = True
            end.more = True
            return STATUS_OK
        view = &views[count[0]]
        status = log_view(&core.log, entries[index].address, view, failure)
        if status != STATUS_OK:
            return status
        if not is_behind(request, entries[index].path, view) or index_expired(core, view):
            continue
        item_bytes = view.key_bytes + <uint64_t> view.value_bytes
        if count[0] > 0 and item_bytes > bytes_left[0]:
            full[0] = True
            end.more = True
            return STATUS_OK
        bytes_left[0] -= min(item_bytes, bytes_left[0])
        count[0] += 1
        end.behind_item = True
        end.path = entries[index].path
    return STATUS_OK


cdef bint is_behind(
    const ScanRequest* request, Path path, const RecordView* view
) noexcept nogil:
    cdef int order
    if request.key == NULL or path_compare(path, request.path) != 0:
        return True
    order = memcmp(view.key, request.key, min(view.key_bytes, request.key_bytes))
    return order > 0 or (order == 0 and view.key_bytes > request.key_bytes)


cdef Status scan_digest(
    StoreCore* core, uint64_t alive_at_ms, uint64_t* keys, uint64_t* digest, Failure* failure
) noexcept nogil:
    cdef TrieEntry[WALK_ENTRIES] entries
    cdef RecordView view
    cdef Path path
    cdef uint32_t count = 0
    cdef uint32_t index
    cdef uint32_t slot
    cdef bint more = True
    cdef Status status = STATUS_OK
    keys[0] = 0
    digest[0] = 0
    memset(&path, 0, sizeof(Path))
    while more and status == STATUS_OK:
        slot = reclaim_enter(&core.reclaim)
        status = trie_walk(
            &core.trie, path, entries, WALK_ENTRIES, &count, &path, &more, failure
        )
        index = 0
        while status == STATUS_OK and index < count:
            status = log_view(&core.log, entries[index].address, &view, failure)
            if status == STATUS_OK and (view.deadline_ms == 0 or view.deadline_ms > alive_at_ms):
                keys[0] += 1
                digest[0] ^= item_digest(&view)
            index += 1
        reclaim_exit(&core.reclaim, slot)
    return status


# The hash of each part seeds that of the next, so that no two items share their bytes.
cdef uint64_t item_digest(const RecordView* view) noexcept nogil:
    cdef uint64_t[2] numbers
    cdef uint64_t digest
    numbers[0] = view.version
    numbers[1] = view.deadline_ms
    digest = checksum64(numbers, sizeof(numbers), 0)
    digest = checksum64(view.key, view.key_bytes, digest)
    return checksum64(view.value, view.value_bytes, digest)
