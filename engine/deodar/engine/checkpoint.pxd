# Checkpoint files: an image of the trie, the state of every region, and the place in the log behind
# which a restart replays.
#
# "checkpoint-%016x" (its number), little-endian:
#   header (CheckpointHeader, 152 bytes), page table of the trie space (PageEntry each), table of
#   regions (RegionEntry each, 56 bytes), XXH3_64 of all that, seeded with the number.
# It is written under the name with ".tmp" behind it, synced, renamed, and the directory is synced;
# only then are older ones removed, and are frames and regions reused that it does not refer to.
#
# C1: the newest checkpoint is the only one that counts.  If it is damaged the store does not open:
#     an older one may point into regions that have been used anew.
# C2: the record before `position` is the SEAL of `sealed_epoch`, unless the region begins there.
# C3: CHECKPOINT_CLEAN counts while `incarnation` is the newest session's: then the log ends at
#     `position`.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .env cimport Env
from .status cimport Failure, Status
from .trieimage cimport PageEntry

cdef enum CheckpointFlag:
    CHECKPOINT_CLEAN = 1

cdef packed struct CheckpointHeader:
    uint8_t[8] magic                    # "DEODARCP"
    uint32_t format_version
    uint32_t flags
    uint64_t store_id
    uint64_t number                     # rises by one with each attempt
    uint64_t incarnation
    uint64_t position                   # logical address behind the last record covered
    uint64_t position_sequence          # of its region
    uint64_t sealed_epoch               # of the last SEAL in the log
    uint64_t closed_epoch               # of the last epoch closed, with or without records
    uint64_t last_version
    uint64_t log_start                  # L6
    uint64_t trie_root
    uint64_t key_count
    uint64_t branch_count
    uint64_t leaf_count
    uint64_t leaf_slots
    uint64_t page_count
    uint64_t region_count
    uint64_t padding                    # zero

# One region as it is free, or begins a run, or is inside one: see KvRegion in log.pxd.
cdef packed struct RegionEntry:
    uint64_t sequence
    uint64_t live_bytes
    uint64_t used_bytes
    uint64_t last_version
    uint64_t expiring_bytes
    uint64_t last_deadline_ms
    uint32_t run_regions
    uint32_t state

# A checkpoint read back.  `content` is owned (checkpoint_free); the others point into it.
cdef struct Checkpoint:
    uint8_t* content
    const CheckpointHeader* header
    const PageEntry* pages
    const RegionEntry* regions

# Reads and checks the file; its contents are sound afterwards in themselves.
cdef Status checkpoint_read(
    const Env* env,
    const char* directory,
    uint64_t number,
    uint64_t store_id,
    Checkpoint* checkpoint,
    Failure* failure,
) noexcept nogil
cdef void checkpoint_free(Checkpoint* checkpoint) noexcept nogil

# Writes the file durably under its final name.  Fills magic and format_version.  STATUS_DISK_FULL
# or an error leaves at most a ".tmp" behind.
cdef Status checkpoint_write(
    const Env* env,
    const char* directory,
    CheckpointHeader* header,
    const PageEntry* pages,
    const RegionEntry* regions,
    Failure* failure,
) noexcept nogil

# Removes the file of `number`; it is no error when it is not there.
cdef Status checkpoint_remove(
    const Env* env, const char* directory, uint64_t number, Failure* failure
) noexcept nogil
