# When memory that a reader may still hold is freed: grace periods (epoch-based reclamation).
#
# Readers announce the current grace period in a slot of their own and clear it when done; a block
# retired in period g may be reused once no slot holds a period <= g.
# G1: a reader holds no pointer into a space outside reclaim_enter .. reclaim_exit.
# G2: what is retired is unreachable for readers that enter afterwards.
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    READER_SLOTS = 128                  # readers inside at one moment; one more waits for a slot

cdef struct ReaderSlot:
    uint64_t grace_period               # 0 = free
    uint64_t[7] padding                 # one cache line a slot

cdef struct Reclaim:
    uint64_t current                    # the period that readers announce; starts at 1
    uint64_t[7] padding
    ReaderSlot[128] slots

cdef void reclaim_open(Reclaim* reclaim) noexcept nogil

# Returns the slot to give back to reclaim_exit.  Any thread, not nested.
cdef uint32_t reclaim_enter(Reclaim* reclaim) noexcept nogil
cdef void reclaim_exit(Reclaim* reclaim, uint32_t slot) noexcept nogil

# The period to stamp a retired block with; starts the next period.  Writer only.
cdef uint64_t reclaim_retire(Reclaim* reclaim) noexcept nogil

# Blocks stamped with a period lower than or equal to the answer may be reused.  Writer only.
cdef uint64_t reclaim_safe(Reclaim* reclaim) noexcept nogil
