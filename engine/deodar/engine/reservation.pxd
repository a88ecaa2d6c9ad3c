# An array in reserved addresses: it grows in place, so that no pointer into it ever moves and other
# threads may read it while its owner extends it.
#
# V1: bytes 0..usable_bytes of `base` can be read and written, and were zero when they became
#     usable; the rest up to `reserved_bytes` faults.
from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    HUGE_PAGE_BYTES = 2097152           # 2 MiB

cdef struct Reservation:
    # Set by reservation_open, then constant.
    uint8_t* mapping                    # owned: mmap
    uint64_t mapping_bytes
    uint8_t* base                       # inside `mapping`, aligned as asked for
    uint64_t reserved_bytes
    # Changed by the one thread that extends.
    uint64_t usable_bytes

# Reserves addresses for `bytes`; with `huge`, aligned to HUGE_PAGE_BYTES and offered to the kernel
# for huge pages.  False when there are none (errno says why).  A closed Reservation is all zero.
cdef bint reservation_open(Reservation* reservation, uint64_t bytes, bint huge) noexcept nogil
cdef void reservation_close(Reservation* reservation) noexcept nogil

# Makes at least the first `bytes` usable.  False when there is no memory or no address left;
# nothing is changed then.
cdef bint reservation_extend(Reservation* reservation, uint64_t bytes) noexcept nogil

# Gives the memory of the first `bytes`, which are usable, back to the system; they read as zero
# afterwards.  Any thread.  False when the system refuses: then they keep what they held.
cdef bint reservation_clear(Reservation* reservation, uint64_t bytes) noexcept nogil
