"""A scripted kernel in the place of Linux AIO, and of io_uring, and a `DiskQueue` over it."""

import os
from collections.abc import Iterable

from libc.errno cimport ENOMEM, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from deodar.engine.disk_aio cimport AioCalls, aio_open, io_event, iocb
from deodar.engine.disk_queue cimport (
    DiskQueue,
    queue_close,
    queue_full,
    queue_idle,
    queue_prepare,
    queue_step,
)
from deodar.engine.disk_uring cimport (
    IO_URING_OP_SUPPORTED,
    IORING_FEAT_SINGLE_MMAP,
    IORING_OFF_SQ_RING,
    IORING_OP_WRITE,
    UringCalls,
    io_uring_cqe,
    io_uring_params,
    io_uring_probe,
    io_uring_sqe,
    uring_open,
)
from deodar.engine.env cimport Env
from tests.engine.probe_env cimport Door, env_of


class Kernel:
    """Answers the calls from three scripts; behind their ends it does what it is asked.

    submits: n = takes n writes at most, -n = fails with errno n.
    results: n = n bytes of the write and no more, -n = errno n.
    reaps: n = n completions at most, -n = fails with errno n.
    """

    def __init__(
        self,
        submits: Iterable[int] = (),
        results: Iterable[int] = (),
        reaps: Iterable[int] = (),
    ) -> None:
        self.submits = iter(submits)
        self.results = iter(results)
        self.reaps = iter(reaps)
        self.in_flight: list[tuple[int, int, bytes, int]] = []
        self.calls: list[tuple[str, int]] = []

    def submit(self, writes: list[tuple[int, int, bytes, int]]) -> int:
        answer = next(self.submits, len(writes))
        self.calls.append(("submit", answer))
        if answer > 0:
            self.in_flight += writes[:answer]
        return min(answer, len(writes))

    def reap(self, least: int, most: int) -> int | list[tuple[int, int]]:
        answer = next(self.reaps, most)
        self.calls.append(("reap", answer))
        if answer < 0:
            return answer
        assert 1 <= least <= len(self.in_flight) <= most, "waits for what is in flight"
        events = []
        for slot, fd, data, offset in self.in_flight[:answer]:
            result = min(next(self.results, len(data)), len(data))
            if result > 0:
                assert os.pwrite(fd, data[:result], offset) == result
            events.append((slot, result))
        del self.in_flight[:answer]
        return events


# One queue at a time runs over a scripted kernel.
cdef object kernel = None
cdef AioCalls scripted


cdef int fake_setup(unsigned int depth, unsigned long* context) noexcept nogil:
    context[0] = depth
    return 0


cdef int fake_destroy(unsigned long _context) noexcept nogil:
    return 0


# errno is set without the GIL, since releasing it may change errno.
cdef int fake_submit(unsigned long _context, long count, iocb** blocks) noexcept nogil:
    cdef int answer = scripted_submit(count, blocks)
    if answer < 0:
        (&errno)[0] = -answer
        return -1
    return answer


cdef int scripted_submit(long count, iocb** blocks) noexcept with gil:
    cdef long index
    cdef iocb* block
    writes = []
    for index in range(count):
        block = blocks[index]
        data = (<const unsigned char*> block.aio_buf)[: block.aio_nbytes]
        writes.append((block.aio_data, block.aio_fildes, data, block.aio_offset))
    return kernel.submit(writes)


cdef int fake_getevents(
    unsigned long _context, long least, long most, io_event* events
) noexcept nogil:
    cdef int answer = scripted_getevents(least, most, events)
    if answer < 0:
        (&errno)[0] = -answer
        return -1
    return answer


cdef int scripted_getevents(long least, long most, io_event* events) noexcept with gil:
    answer = kernel.reap(least, most)
    if isinstance(answer, int):
        return answer
    for index, (slot, result) in enumerate(answer):
        events[index].data = slot
        events[index].res = result
    return len(answer)


scripted.setup = fake_setup
scripted.destroy = fake_destroy
scripted.submit = fake_submit
scripted.getevents = fake_getevents


# The same for io_uring: two rings in plain memory, which `enter` alone moves.
cdef enum:
    RING_FD = 1000000
    COMPLETED_AT = 64
    ARRAY_AT = 128
    ENTRIES_MAX = 64                    # of the submission ring

cdef struct Ring:
    uint8_t* rings
    io_uring_sqe* entries
    uint32_t count                      # of `entries`
    uint32_t maps_left                  # calls of `map` that succeed
    uint32_t features
    uint32_t operations                 # that the probe names
    int probe_error

cdef UringCalls scripted_uring
cdef Ring ring


cdef int ring_setup(unsigned int depth, io_uring_params* params) noexcept nogil:
    ring.count = 1
    while ring.count < depth:
        ring.count *= 2
    ring.rings = <uint8_t*> calloc(1, 8192)
    ring.entries = <io_uring_sqe*> calloc(ring.count, sizeof(io_uring_sqe))
    params.features = ring.features
    params.sq_entries = ring.count
    params.cq_entries = 2 * ring.count
    params.sq_off.head = 0
    params.sq_off.tail = 4
    params.sq_off.ring_mask = 8
    params.sq_off.array = ARRAY_AT
    params.cq_off.head = COMPLETED_AT
    params.cq_off.tail = COMPLETED_AT + 4
    params.cq_off.ring_mask = COMPLETED_AT + 8
    params.cq_off.cqes = ARRAY_AT + 4 * ENTRIES_MAX
    word(8)[0] = ring.count - 1
    word(COMPLETED_AT + 8)[0] = 2 * ring.count - 1
    # The indices of a ring that has been in use for long are about to wrap.
    word(0)[0] = 0xFFFFFFFE
    word(4)[0] = 0xFFFFFFFE
    word(COMPLETED_AT)[0] = 0xFFFFFFFD
    word(COMPLETED_AT + 4)[0] = 0xFFFFFFFD
    return RING_FD


cdef uint32_t* word(int offset) noexcept nogil:
    return <uint32_t*> (ring.rings + offset)


cdef int ring_enter(
    int _fd, unsigned int offered, unsigned int least, unsigned int _flags
) noexcept nogil:
    cdef int answer = ring_submit(offered) if offered > 0 else ring_reap(least)
    if answer < 0:
        (&errno)[0] = -answer
        return -1
    return answer


cdef int ring_submit(unsigned int offered) noexcept with gil:
    cdef uint32_t head = word(0)[0]
    cdef uint32_t tail = word(4)[0]
    cdef io_uring_sqe* entry
    writes = []
    assert tail - head == offered <= ring.count
    while head != tail:
        entry = &ring.entries[word(ARRAY_AT)[head & (ring.count - 1)]]
        assert entry.opcode == IORING_OP_WRITE
        data = (<const unsigned char*> entry.addr)[: entry.len]
        writes.append((entry.user_data, entry.fd, data, entry.off))
        head += 1
    answer = kernel.submit(writes)
    if answer > 0:
        word(0)[0] += <uint32_t> answer
    return answer


cdef int ring_reap(unsigned int least) noexcept with gil:
    cdef io_uring_cqe* completed = <io_uring_cqe*> (ring.rings + ARRAY_AT + 4 * ENTRIES_MAX)
    cdef io_uring_cqe* entry
    answer = kernel.reap(least, len(kernel.in_flight))
    if isinstance(answer, int):
        return answer
    for slot, result in answer:
        entry = &completed[word(COMPLETED_AT + 4)[0] & (2 * ring.count - 1)]
        entry.user_data = slot
        entry.res = result
        word(COMPLETED_AT + 4)[0] += 1
    return 0


cdef int ring_probe(int _fd, io_uring_probe* probe, unsigned int _count) noexcept nogil:
    cdef uint32_t operation
    if ring.probe_error != 0:
        (&errno)[0] = ring.probe_error
        return -1
    probe.last_op = <uint8_t> (ring.operations - 1)
    for operation in range(ring.operations):
        probe.ops[operation].flags = IO_URING_OP_SUPPORTED
    return 0


cdef void* ring_map(int _fd, size_t _size, uint64_t offset) noexcept nogil:
    if ring.maps_left == 0:
        (&errno)[0] = ENOMEM
        return <void*> -1
    ring.maps_left -= 1
    return ring.rings if offset == IORING_OFF_SQ_RING else <uint8_t*> ring.entries


cdef int ring_unmap(void* _address, size_t _size) noexcept nogil:
    return 0


cdef int ring_close(int _fd) noexcept nogil:
    free(ring.rings)
    free(ring.entries)
    ring.rings = NULL
    ring.entries = NULL
    return 0


scripted_uring.setup = ring_setup
scripted_uring.enter = ring_enter
scripted_uring.probe = ring_probe
scripted_uring.map = ring_map
scripted_uring.unmap = ring_unmap
scripted_uring.close = ring_close


def open_ring(
    *, uint32_t maps=2, bint single_map=True, uint32_t operations=64, int probe_error=0
) -> tuple[int, bool]:
    """Open and close a queue over a kernel with these abilities: (errno or 0, all given back)."""
    cdef DiskQueue queue
    ring.maps_left = maps
    ring.features = IORING_FEAT_SINGLE_MMAP if single_map else 0
    ring.operations = operations
    ring.probe_error = probe_error
    cdef int error = uring_open(&queue, &scripted_uring, 4)
    queue_close(&queue)
    return error, ring.rings == NULL


cdef int open_queue(DiskQueue* queue, bint uring, uint32_t depth) noexcept:
    if not uring:
        return aio_open(queue, &scripted, depth)
    ring.maps_left = 2
    ring.features = IORING_FEAT_SINGLE_MMAP
    ring.operations = 64
    ring.probe_error = 0
    return uring_open(queue, &scripted_uring, depth)


def run(
    object script not None,
    list writes not None,
    *,
    bint uring=False,
    uint32_t depth=4,
    Door door=None,
) -> tuple[int, int]:
    """Bring (descriptor, bytes, offset) writes to disk: (first errno or 0, its descriptor).

    Stops preparing after an error, as `disk_write` does, and returns when the queue is idle.
    """
    global kernel
    cdef DiskQueue queue
    cdef int first_error = 0
    cdef int error
    cdef int failed_fd = -1
    cdef int fd = -1
    cdef size_t index = 0
    cdef bytes data
    cdef const Env* env = env_of(door)
    kernel = script
    assert open_queue(&queue, uring, depth) == 0
    try:
        while True:
            while first_error == 0 and index < len(writes) and not queue_full(&queue):
                number, data, offset = writes[index]
                queue_prepare(&queue, number, data, len(data), offset)
                index += 1
            if queue_idle(&queue):
                assert queue.free_count == depth
                return first_error, failed_fd
            with nogil:
                error = queue_step(&queue, env, &fd)
            if error != 0 and first_error == 0:
                first_error = error
                failed_fd = fd
            assert queue.free_count + queue.prepared_count + queue.in_flight_count == depth
    finally:
        queue_close(&queue)
        kernel = None
