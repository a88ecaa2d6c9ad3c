# One open store, as plain memory: what the files above share.
#
# Who may touch what: `options` to `boot_open_ms` are constant while the store is open; the trie,
# the log and `pins` change under `log.mutex`; `maintenance` says for itself.  Readers hold no lock:
# they are inside reclaim_enter .. reclaim_exit.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .ballast cimport Ballast
from .checkpoint cimport CheckpointHeader, RegionEntry
from .disk cimport Disk, DiskBackend
from .env cimport Env
from .epoch cimport DiskThread
from .identity cimport Identity, Session
from .log cimport Log
from .reclaim cimport Reclaim
from .status cimport Failure
from .threads cimport pthread_cond_t, pthread_t
from .trie cimport Trie
from .triespace cimport TrieSpace

cdef enum:
    DIRECTORY_BYTES = 4096
    PINS_MAX = 256

cdef struct Options:
    uint32_t region_bytes               # of a new store
    uint32_t sluggishness               # of a new store
    uint64_t epoch_ns
    uint64_t write_buffer_bytes
    uint64_t stall_ns
    uint64_t checkpoint_log_bytes
    uint64_t memory_bytes
    DiskBackend backend
    bint direct
    bint compaction
    bint read_only

# A part of the log that is kept for somebody.
cdef struct Pin:
    uint64_t token                      # 0 = unused
    uint64_t after_version

# The maintenance thread: checkpoints and compaction.  Guarded by `log.mutex` unless said otherwise.
# M1: one checkpoint at a time, by the maintenance thread (or by open and close, without threads).
# M2: requests are numbered; who asked waits until `served` reaches its number.
cdef struct Maintenance:
    pthread_cond_t work                 # the thread waits here
    pthread_t thread
    bint running
    bint stopping
    Disk disk                           # the maintenance thread's own, for images of the trie
    # Requests.
    uint64_t checkpoint_requested
    uint64_t checkpoint_served
    uint64_t compaction_requested
    uint64_t compaction_served
    uint64_t compaction_freed_bytes     # by the last compaction that was asked for
    Failure failure                     # of the last checkpoint; clear when it succeeded
    bint space_wanted                   # a write met a full disk
    uint64_t retry_ns                   # not before this, for what nobody waits for
    bint checkpoint_due                 # the log since the last one is long
    # The checkpoint being made.
    CheckpointHeader frozen             # as the freeze found things
    RegionEntry* frozen_regions         # owned, `frozen.region_count`
    Failure frozen_failure              # why the freeze failed, or clear
    bint clean                          # the store is closing: nothing follows
    # The last durable checkpoint.
    uint64_t number                     # of the last attempt
    uint64_t committed                  # of the last that is durable
    uint64_t committed_sequence         # its position's region
    uint64_t committed_appended         # log.appended_bytes at its freeze
    Ballast ballast                     # the maintenance thread's
    uint64_t checkpoints_count
    uint64_t checkpoint_bytes           # written: files of checkpoints
    uint64_t relocated_bytes            # copied by compaction
    uint64_t freed_bytes                # regions released, ever
    uint64_t expired_count              # records dropped because their deadline had passed

cdef struct StoreCore:
    Reclaim reclaim                     # first: its slots are cache lines
    Options options
    const Env* env
    char[DIRECTORY_BYTES] directory
    Identity identity
    Session session                     # of this opening
    uint64_t recovered_epoch
    bint recovered_clean                # it had been closed
    uint64_t wall_open_ms
    uint64_t boot_open_ms
    Log log
    DiskThread disk_thread
    TrieSpace* triespace                # owned
    Trie trie
    Maintenance maintenance
    Pin[PINS_MAX] pins
    uint64_t pins_given                 # tokens, ever
    # Counters, added to with relaxed order.
    uint64_t logical_bytes_written      # of keys and values
    uint64_t reads_count
    uint64_t writes_count

# Milliseconds since 1970 on a clock that follows boot time while the store is open, so that setting
# the wall clock neither expires nor revives anything.
cdef inline uint64_t core_now_ms(const StoreCore* core) noexcept nogil:
    return core.wall_open_ms + (core.env.boot_ms(core.env.context) - core.boot_open_ms)
