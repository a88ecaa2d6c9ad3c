# Why a retired block is never read (G1, G2).
#
# The writer unlinks a block (release stores), stamps it with g = `current`, and sets `current` to
# g + 1 with release order.  In reclaim_safe it passes a full fence and then reads every slot.  A
# reader announces a period p in a slot, passes a full fence, and only then loads pointers.
#
# - p > g: the reader saw `current` > g with acquire order, so it sees the unlinking too.
# - p <= g, and reclaim_safe saw the slot: the answer is below p, so the block stays.
# - p <= g, and reclaim_safe did not see the slot: then the writer's fence came before the reader's
#   in the one order of full fences, so every pointer the reader loads afterwards is one that the
#   writer had left in place before its fence, and the block was unlinked by then.
#
# The reader's last loads come before its release store of 0, which reclaim_safe reads with acquire
# order (directly, or through the next reader's compare-and-swap of the slot), so that reuse comes
# after them.  `current` is read again behind the fence only so that a reader that was suspended
# between reading and announcing does not hold back periods that it never saw.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.unistd cimport usleep

from .atomics cimport (
    cas_u64,
    fence_full,
    load_acquire_u64,
    load_relaxed_u64,
    store_release_u64,
)
from .debug cimport check

cdef extern from *:
    """
    /* The slot that a thread tries first: its own, as long as no more than READER_SLOTS threads
       read, so that readers do not share cache lines. */
    static uint32_t deodar_threads_seen = 0;
    static __thread uint32_t deodar_slot_hint = UINT32_MAX;
    static inline uint32_t slot_hint(void) {
        if (deodar_slot_hint == UINT32_MAX)
            deodar_slot_hint = __atomic_fetch_add(&deodar_threads_seen, 1, __ATOMIC_RELAXED) % 128;
        return deodar_slot_hint;
    }
    static inline void slot_hint_set(uint32_t slot) { deodar_slot_hint = slot; }
    """
    uint32_t slot_hint() noexcept nogil
    void slot_hint_set(uint32_t slot) noexcept nogil

cdef enum:
    WAIT_US = 50                        # between two rounds over slots that are all taken


cdef void reclaim_open(Reclaim* reclaim) noexcept nogil:
    memset(reclaim, 0, sizeof(Reclaim))
    reclaim.current = 1


cdef uint32_t reclaim_enter(Reclaim* reclaim) noexcept nogil:
    cdef uint32_t first = slot_hint()
    cdef uint32_t slot = first
    cdef uint64_t period = load_acquire_u64(&reclaim.current)
    cdef uint64_t seen
    while (
        load_relaxed_u64(&reclaim.slots[slot].grace_period) != 0
        or not cas_u64(&reclaim.slots[slot].grace_period, 0, period)
    ):
        slot = (slot + 1) % READER_SLOTS
        if slot == first:
            usleep(WAIT_US)
            period = load_acquire_u64(&reclaim.current)
    if slot != first:
        slot_hint_set(slot)
    while True:
        fence_full()
        seen = load_acquire_u64(&reclaim.current)
        if seen == period:
            return slot
        period = seen
        store_release_u64(&reclaim.slots[slot].grace_period, period)


cdef void reclaim_exit(Reclaim* reclaim, uint32_t slot) noexcept nogil:
    check(slot < READER_SLOTS, "a reader gives back a slot that exists")
    check(
        load_relaxed_u64(&reclaim.slots[slot].grace_period) != 0,
        "a reader gives back a slot that it holds",
    )
    store_release_u64(&reclaim.slots[slot].grace_period, 0)


cdef uint64_t reclaim_retire(Reclaim* reclaim) noexcept nogil:
    cdef uint64_t period = load_relaxed_u64(&reclaim.current)
    store_release_u64(&reclaim.current, period + 1)
    return period


cdef uint64_t reclaim_safe(Reclaim* reclaim) noexcept nogil:
    fence_full()
    cdef uint64_t safe = load_relaxed_u64(&reclaim.current) - 1
    cdef uint64_t announced
    cdef uint32_t slot
    for slot in range(READER_SLOTS):
        announced = load_acquire_u64(&reclaim.slots[slot].grace_period)
        if announced != 0 and announced <= safe:
            safe = announced - 1
    return safe


if sizeof(ReaderSlot) != 64 or sizeof(Reclaim) != 64 * (1 + READER_SLOTS):
    raise ImportError("a reader slot is one cache line of 64 bytes")
