from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset
from posix.mman cimport (
    MADV_DONTNEED,
    MADV_HUGEPAGE,
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    madvise,
    mmap,
    mprotect,
    munmap,
)

from .debug cimport check
from .limits cimport PAGE_BYTES


cdef inline uint64_t round_up(uint64_t bytes, uint64_t unit) noexcept nogil:
    return (bytes + unit - 1) // unit * unit


cdef bint reservation_open(Reservation* reservation, uint64_t bytes, bint huge) noexcept nogil:
    memset(reservation, 0, sizeof(Reservation))
    cdef uint64_t alignment = HUGE_PAGE_BYTES if huge else PAGE_BYTES
    cdef uint64_t rounded = round_up(bytes, PAGE_BYTES)
    cdef uint64_t mapped = rounded + alignment - PAGE_BYTES
    cdef void* mapping = mmap(
        NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0
    )
    if mapping == MAP_FAILED:
        return False
    reservation.mapping = <uint8_t*> mapping
    reservation.mapping_bytes = mapped
    reservation.base = <uint8_t*> round_up(<uint64_t> mapping, alignment)
    reservation.reserved_bytes = rounded
    if huge:
        # A wish: a kernel that refuses it is slower, not wrong.
        madvise(reservation.base, rounded, MADV_HUGEPAGE)
    return True


cdef void reservation_close(Reservation* reservation) noexcept nogil:
    if reservation.mapping == NULL:
        return
    cdef int result = munmap(reservation.mapping, reservation.mapping_bytes)
    check(result == 0, "a reservation unmaps exactly what it mapped")
    memset(reservation, 0, sizeof(Reservation))


cdef bint reservation_extend(Reservation* reservation, uint64_t bytes) noexcept nogil:
    cdef uint64_t wanted = round_up(bytes, PAGE_BYTES)
    cdef uint64_t usable = reservation.usable_bytes
    if wanted <= usable:
        return True
    if wanted > reservation.reserved_bytes:
        return False
    if mprotect(reservation.base + usable, wanted - usable, PROT_READ | PROT_WRITE) != 0:
        return False
    reservation.usable_bytes = wanted
    return True


cdef bint reservation_clear(Reservation* reservation, uint64_t bytes) noexcept nogil:
    return bytes == 0 or madvise(reservation.base, bytes, MADV_DONTNEED) == 0
