from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from .core cimport StoreCore
from .disk cimport DISK_AIO, DISK_URING, Disk, DiskBackend
from .log cimport (
    REGION_ACTIVE,
    REGION_DOOMED,
    REGION_EVACUATED,
    REGION_FREE,
    REGION_SEALED,
    Log,
    log_unflushed,
)
from .threads cimport mutex_lock, mutex_unlock
from .triespace cimport TrieSpaceStats, triespace_stats

cdef struct RegionCounts:
    uint32_t[6] by_state                # index: RegionState
    uint64_t live_bytes


cdef dict stats_of(StoreCore* core):
    cdef Log* log = &core.log
    cdef TrieSpaceStats space
    cdef RegionCounts regions
    cdef const Disk* log_disk = &core.disk_thread.disk
    cdef const Disk* image_disk = &core.maintenance.disk
    memset(&space, 0, sizeof(TrieSpaceStats))
    with nogil:
        mutex_lock(&log.mutex)
        count_regions(log, &regions)
        triespace_stats(core.triespace, &space)
        mutex_unlock(&log.mutex)
    return {
        "keys": core.trie.key_count,
        "live_bytes": regions.live_bytes,
        "disk_bytes": <uint64_t> log.region_count * log.space.region_bytes + (
            space.frames * 4096
        ),
        "last_version": log.last_version,
        "epoch": log.epoch,
        "durable_epoch": log.durable_epoch,
        "unflushed_bytes": log_unflushed(log),
        "logical_bytes_written": core.logical_bytes_written,
        "log_bytes_appended": log.appended_bytes,
        "log_bytes_written": log_disk.written_bytes,
        "image_bytes_written": space.image_bytes_written,
        "writes": core.writes_count,
        "flushes": core.disk_thread.flushes_count,
        "syncs": log_disk.syncs_count + image_disk.syncs_count,
        "checkpoints": core.maintenance.checkpoints_count,
        "relocated_bytes": core.maintenance.relocated_bytes,
        "freed_bytes": core.maintenance.freed_bytes,
        "expired_reclaimed": core.maintenance.expired_count,
        "memory_bytes": log.memory_bytes,
        "memory_bytes_max": log.memory_bytes_max,
        "region_bytes": log.space.region_bytes,
        "regions": log.region_count,
        "regions_free": regions.by_state[<int> REGION_FREE],
        "regions_active": regions.by_state[<int> REGION_ACTIVE],
        "regions_sealed": regions.by_state[<int> REGION_SEALED],
        "regions_evacuated": regions.by_state[<int> REGION_EVACUATED]
        + regions.by_state[<int> REGION_DOOMED],
        "trie_branches": core.trie.branch_count,
        "trie_leaves": core.trie.leaf_count,
        "trie_leaf_slots": core.trie.leaf_slots,
        "trie_used_bytes": space.used_bytes,
        "trie_memory_bytes": space.memory_bytes,
        "trie_pages": space.pages,
        "trie_dirty_pages": space.dirty_pages,
        "disk_backend": backend_name(log_disk.backend),
        "disk_queue_depth": log_disk.depth,
        "disk_writes": log_disk.writes_count + image_disk.writes_count,
        "disk_bytes_written": log_disk.written_bytes + image_disk.written_bytes,
        "direct_io": int(log.space.direct),
        "read_only": int(log.failure.status != 0),
    }


cdef str backend_name(DiskBackend backend):
    if backend == DISK_URING:
        return "io_uring"
    return "aio" if backend == DISK_AIO else "pwrite"


cdef void count_regions(const Log* log, RegionCounts* counts) noexcept nogil:
    cdef uint32_t index
    memset(counts, 0, sizeof(RegionCounts))
    for index in range(log.region_count):
        counts.by_state[log.regions[index].state] += 1
        counts.live_bytes += log.regions[index].live_bytes
