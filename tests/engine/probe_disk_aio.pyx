"""A scripted kernel in the place of Linux AIO, and an `AioQueue` over it."""

import os
from collections.abc import Iterable

from libc.errno cimport errno
from libc.stdint cimport uint32_t

from deodar.engine.disk_aio cimport (
    AioCalls,
    AioQueue,
    aio_close,
    aio_full,
    aio_idle,
    aio_open,
    aio_prepare,
    aio_step,
    io_event,
    iocb,
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


def run(
    object script not None,
    list writes not None,
    *,
    uint32_t depth=4,
    Door door=None,
) -> tuple[int, int]:
    """Bring (descriptor, bytes, offset) writes to disk: (first errno or 0, its descriptor).

    Stops preparing after an error, as `disk_write` does, and returns when the queue is idle.
    """
    global kernel
    cdef AioQueue queue
    cdef int first_error = 0
    cdef int error
    cdef int failed_fd = -1
    cdef int fd = -1
    cdef size_t index = 0
    cdef bytes data
    cdef const Env* env = env_of(door)
    kernel = script
    assert aio_open(&queue, &scripted, depth) == 0
    try:
        while True:
            while first_error == 0 and index < len(writes) and not aio_full(&queue):
                number, data, offset = writes[index]
                aio_prepare(&queue, number, data, len(data), offset)
                index += 1
            if aio_idle(&queue):
                assert queue.free_count == depth
                return first_error, failed_fd
            with nogil:
                error = aio_step(&queue, env, &fd)
            if error != 0 and first_error == 0:
                first_error = error
                failed_fd = fd
            assert queue.free_count + queue.prepared_count + queue.in_flight_count == depth
    finally:
        aio_close(&queue)
        kernel = None
