from libc.errno cimport EINTR, ENOMEM, ENOSYS, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.mman cimport MAP_FAILED

from .atomics cimport load_acquire_u32, store_release_u32
from .debug cimport check
from .disk_queue cimport DiskQueue, QueueBackend, QueuedWrite, queue_close, queue_open

# io_uring's numbers are the same on every architecture, and older C libraries do not have them.
cdef extern from *:
    """
    #include <linux/io_uring.h>
    #include <signal.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #ifndef __NR_io_uring_setup
    #define __NR_io_uring_setup 425
    #define __NR_io_uring_enter 426
    #define __NR_io_uring_register 427
    #endif
    static inline int uring_setup(unsigned entries, struct io_uring_params* params)
        { return (int)syscall(__NR_io_uring_setup, entries, params); }
    static inline int uring_enter(int fd, unsigned submit, unsigned least, unsigned flags)
        { return (int)syscall(__NR_io_uring_enter, fd, submit, least, flags, NULL, 0); }
    static inline int uring_probe(int fd, struct io_uring_probe* probe, unsigned count)
        { return (int)syscall(__NR_io_uring_register, fd, IORING_REGISTER_PROBE, probe, count); }
    static inline void* uring_map(int fd, size_t bytes, uint64_t offset)
        { return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                      (off_t)offset); }
    """
    int uring_setup(unsigned int entries, io_uring_params* params) noexcept nogil
    int uring_enter(
        int fd, unsigned int submit, unsigned int least, unsigned int flags
    ) noexcept nogil
    int uring_probe(int fd, io_uring_probe* probe, unsigned int count) noexcept nogil
    void* uring_map(int fd, size_t bytes, uint64_t offset) noexcept nogil

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void* address, size_t bytes) noexcept

cdef extern from "<unistd.h>" nogil:
    int close(int fd) noexcept

cdef enum:
    PROBE_OPERATIONS = 256

# DiskQueue.kernel
cdef struct Uring:
    const UringCalls* calls
    int fd                              # -1 = not set up
    uint8_t* rings                      # owned: a mapping that holds both rings
    size_t rings_bytes
    io_uring_sqe* entries               # owned: a mapping
    size_t entries_bytes
    # Places inside `rings`.
    uint32_t* submitted_head            # the kernel's
    uint32_t* submitted_tail
    uint32_t submitted_mask
    uint32_t* submitted                 # indices of `entries`
    uint32_t* completed_head
    uint32_t* completed_tail            # the kernel's
    uint32_t completed_mask
    const io_uring_cqe* completed

cdef UringCalls system
cdef QueueBackend backend


cdef const UringCalls* uring_system() noexcept nogil:
    return &system


cdef int uring_open(DiskQueue* queue, const UringCalls* calls, uint32_t depth) noexcept nogil:
    cdef int error = queue_open(queue, &backend, sizeof(Uring), depth)
    cdef Uring* uring = <Uring*> queue.kernel
    if error != 0:
        return error
    uring.calls = calls
    error = set_up(uring, depth)
    if error != 0:
        queue_close(queue)
    return error


cdef int set_up(Uring* uring, uint32_t depth) noexcept nogil:
    cdef io_uring_params params
    cdef int error
    memset(&params, 0, sizeof(io_uring_params))
    uring.fd = uring.calls.setup(depth, &params)
    if uring.fd < 0:
        return errno
    if not params.features & IORING_FEAT_SINGLE_MMAP:
        return ENOSYS
    error = probe_write(uring)
    if error != 0:
        return error
    return map_rings(uring, &params)


# ENOSYS when the kernel has no IORING_OP_WRITE, or cannot say.
cdef int probe_write(const Uring* uring) noexcept nogil:
    cdef size_t probe_bytes = sizeof(io_uring_probe) + (
        PROBE_OPERATIONS * sizeof(io_uring_probe_op)
    )
    cdef io_uring_probe* probe = <io_uring_probe*> calloc(1, probe_bytes)
    cdef int error = 0
    if probe == NULL:
        return ENOMEM
    if uring.calls.probe(uring.fd, probe, PROBE_OPERATIONS) < 0:
        error = ENOSYS
    elif probe.last_op < IORING_OP_WRITE or not (
        probe.ops[<int> IORING_OP_WRITE].flags & IO_URING_OP_SUPPORTED
    ):
        error = ENOSYS
    free(probe)
    return error


cdef int map_rings(Uring* uring, const io_uring_params* params) noexcept nogil:
    cdef void* mapped
    uring.rings_bytes = max(
        params.sq_off.array + params.sq_entries * sizeof(uint32_t),
        params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe),
    )
    mapped = uring.calls.map(uring.fd, uring.rings_bytes, IORING_OFF_SQ_RING)
    if mapped == MAP_FAILED:
        return errno
    uring.rings = <uint8_t*> mapped
    uring.entries_bytes = params.sq_entries * sizeof(io_uring_sqe)
    mapped = uring.calls.map(uring.fd, uring.entries_bytes, IORING_OFF_SQES)
    if mapped == MAP_FAILED:
        return errno
    uring.entries = <io_uring_sqe*> mapped
    uring.submitted_head = <uint32_t*> (uring.rings + params.sq_off.head)
    uring.submitted_tail = <uint32_t*> (uring.rings + params.sq_off.tail)
    uring.submitted_mask = (<uint32_t*> (uring.rings + params.sq_off.ring_mask))[0]
    uring.submitted = <uint32_t*> (uring.rings + params.sq_off.array)
    uring.completed_head = <uint32_t*> (uring.rings + params.cq_off.head)
    uring.completed_tail = <uint32_t*> (uring.rings + params.cq_off.tail)
    uring.completed_mask = (<uint32_t*> (uring.rings + params.cq_off.ring_mask))[0]
    uring.completed = <const io_uring_cqe*> (uring.rings + params.cq_off.cqes)
    return 0


cdef void uring_close(DiskQueue* queue) noexcept nogil:
    cdef Uring* uring = <Uring*> queue.kernel
    cdef int result = 0
    if uring.entries != NULL:
        result |= uring.calls.unmap(uring.entries, uring.entries_bytes)
    if uring.rings != NULL:
        result |= uring.calls.unmap(uring.rings, uring.rings_bytes)
    if uring.fd >= 0:
        result |= uring.calls.close(uring.fd)
    check(result == 0, "the kernel knows the queue until it is closed")
    free(uring)


# What the kernel left in the ring the last time is written again, from its head on (U1).
cdef int uring_submit(DiskQueue* queue) noexcept nogil:
    cdef Uring* uring = <Uring*> queue.kernel
    cdef uint32_t head = load_acquire_u32(uring.submitted_head)
    cdef uint32_t index
    cdef uint32_t place
    cdef int taken
    for index in range(queue.prepared_count):
        place = (head + index) & uring.submitted_mask
        entry_fill(&uring.entries[place], &queue.writes[queue.prepared[index]])
        uring.entries[place].user_data = queue.prepared[index]
        uring.submitted[place] = place
    store_release_u32(uring.submitted_tail, head + queue.prepared_count)
    taken = uring.calls.enter(uring.fd, queue.prepared_count, 0, 0)
    while taken < 0 and errno == EINTR:
        taken = uring.calls.enter(uring.fd, queue.prepared_count, 0, 0)
    if taken < 0:
        return -errno
    check(
        load_acquire_u32(uring.submitted_head) == head + <uint32_t> taken,
        "the kernel takes entries in order",
    )
    return taken


cdef void entry_fill(io_uring_sqe* entry, const QueuedWrite* write) noexcept nogil:
    memset(entry, 0, sizeof(io_uring_sqe))
    entry.opcode = IORING_OP_WRITE
    entry.fd = write.fd
    entry.addr = <uint64_t> write.buffer
    entry.len = <uint32_t> write.bytes
    entry.off = write.offset


cdef int uring_reap(DiskQueue* queue) noexcept nogil:
    cdef Uring* uring = <Uring*> queue.kernel
    cdef uint32_t head = uring.completed_head[0]
    cdef uint32_t tail = load_acquire_u32(uring.completed_tail)
    cdef const io_uring_cqe* entry
    cdef int count = 0
    while head == tail:
        if (
            uring.calls.enter(uring.fd, 0, 1, IORING_ENTER_GETEVENTS) < 0
            and errno != EINTR
        ):
            return -errno
        tail = load_acquire_u32(uring.completed_tail)
    while head != tail:
        check(<uint32_t> count < queue.in_flight_count, "a write completes once")
        entry = &uring.completed[head & uring.completed_mask]
        queue.completions[count].slot = <uint32_t> entry.user_data
        queue.completions[count].result = entry.res
        count += 1
        head += 1
    store_release_u32(uring.completed_head, head)
    return count


system.setup = uring_setup
system.enter = uring_enter
system.probe = uring_probe
system.map = uring_map
system.unmap = munmap
system.close = close
backend.submit = uring_submit
backend.reap = uring_reap
backend.close = uring_close
