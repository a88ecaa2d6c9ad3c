"""`def` faces of `deodar.engine.reclaim`, and a race of readers against a writer that reuses."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from deodar.engine.atomics cimport (
    load_acquire_u32,
    load_acquire_u64,
    store_release_u32,
    store_release_u64,
)
from deodar.engine.reclaim cimport (
    READER_SLOTS,
    Reclaim,
    reclaim_enter,
    reclaim_exit,
    reclaim_open,
    reclaim_retire,
    reclaim_safe,
)

SLOTS = READER_SLOTS


cdef class Periods:
    """One `Reclaim`, all its calls without the GIL."""

    cdef Reclaim reclaim

    def __cinit__(self) -> None:
        reclaim_open(&self.reclaim)

    def enter(self) -> int:
        cdef uint32_t slot
        with nogil:
            slot = reclaim_enter(&self.reclaim)
        return slot

    def exit(self, slot: int) -> None:
        reclaim_exit(&self.reclaim, slot)

    def retire(self) -> int:
        return reclaim_retire(&self.reclaim)

    def safe(self) -> int:
        return reclaim_safe(&self.reclaim)


cdef enum:
    BLOCKS = 64
    WORDS = 32
    FREED = 0xDEAD


cdef class Race:
    """One writer that replaces a published block again and again and overwrites what is safe.

    Blocks are made of equal words; a reader that sees two different words, or FREED, held a block
    that was reused under it.
    """

    cdef Reclaim reclaim
    cdef uint64_t* blocks
    cdef uint64_t[64] retired_at
    cdef uint64_t published             # index of the block that readers follow
    cdef uint32_t stopped

    def __cinit__(self) -> None:
        reclaim_open(&self.reclaim)
        self.blocks = <uint64_t*> calloc(BLOCKS * WORDS, sizeof(uint64_t))
        if self.blocks == NULL:
            raise MemoryError

    def __dealloc__(self) -> None:
        free(self.blocks)

    def stop(self) -> None:
        store_release_u32(&self.stopped, 1)

    def read(self) -> tuple[int, int]:
        """Read until stopped: (reads, reads of a block that changed under the reader)."""
        cdef uint64_t reads = 0
        cdef uint64_t torn = 0
        cdef uint64_t* block
        cdef uint64_t first
        cdef uint32_t slot
        cdef int word
        with nogil:
            while load_acquire_u32(&self.stopped) == 0:
                slot = reclaim_enter(&self.reclaim)
                block = self.blocks + load_acquire_u64(&self.published) * WORDS
                first = load_acquire_u64(block)
                for word in range(WORDS):
                    if load_acquire_u64(block + word) != first or first == FREED:
                        torn += 1
                        break
                reclaim_exit(&self.reclaim, slot)
                reads += 1
        return reads, torn

    def write(self, rounds: int, bint wait = True) -> int:
        """Replace the block `rounds` times; with `wait` false, reuse at once, against the rule."""
        cdef uint64_t stamp
        cdef uint64_t old
        cdef uint64_t value = 1
        cdef uint64_t next_block = 1
        cdef uint64_t left = rounds
        cdef uint64_t waits = 0
        cdef int word
        with nogil:
            while left > 0 and load_acquire_u32(&self.stopped) == 0:
                if wait and self.retired_at[next_block] > reclaim_safe(&self.reclaim):
                    waits += 1
                    continue
                for word in range(WORDS):
                    store_release_u64(self.blocks + next_block * WORDS + word, FREED)
                for word in range(WORDS):
                    store_release_u64(self.blocks + next_block * WORDS + word, value + 0x10000)
                value += 1
                old = self.published
                store_release_u64(&self.published, next_block)
                stamp = reclaim_retire(&self.reclaim)
                self.retired_at[old] = stamp
                next_block = (next_block + 1) % BLOCKS
                left -= 1
        return waits
