from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from .debug cimport check
from .env cimport Env, env_write_full

cdef extern from *:
    """
    #include <linux/aio_abi.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static inline int io_setup(unsigned depth, unsigned long* context)
        { return (int)syscall(SYS_io_setup, depth, context); }
    static inline int io_destroy(unsigned long context)
        { return (int)syscall(SYS_io_destroy, context); }
    static inline int io_submit(unsigned long context, long count, struct iocb** blocks)
        { return (int)syscall(SYS_io_submit, context, count, blocks); }
    static inline int io_getevents(unsigned long context, long least, long most,
                                   struct io_event* events)
        { return (int)syscall(SYS_io_getevents, context, least, most, events, NULL); }
    """
    int io_setup(unsigned int depth, unsigned long* context) noexcept nogil
    int io_destroy(unsigned long context) noexcept nogil
    int io_submit(unsigned long context, long count, iocb** blocks) noexcept nogil
    int io_getevents(unsigned long context, long least, long most, io_event* events) noexcept nogil

cdef AioCalls system


cdef const AioCalls* aio_system() noexcept nogil:
    return &system


cdef int aio_open(AioQueue* queue, const AioCalls* calls, uint32_t depth) noexcept nogil:
    cdef uint32_t slot
    cdef int error
    memset(queue, 0, sizeof(AioQueue))
    queue.calls = calls
    queue.depth = depth
    queue.free_count = depth
    queue.blocks = <iocb*> calloc(depth, sizeof(iocb))
    queue.prepared = <iocb**> calloc(depth, sizeof(iocb*))
    queue.free_slots = <uint32_t*> calloc(depth, sizeof(uint32_t))
    queue.events = <io_event*> calloc(depth, sizeof(io_event))
    if (
        queue.blocks == NULL
        or queue.prepared == NULL
        or queue.free_slots == NULL
        or queue.events == NULL
    ):
        aio_close(queue)
        return ENOMEM
    for slot in range(depth):
        queue.free_slots[slot] = depth - 1 - slot
    if calls.setup(depth, &queue.context) < 0:
        error = errno
        queue.context = 0
        aio_close(queue)
        return error
    return 0


cdef void aio_close(AioQueue* queue) noexcept nogil:
    cdef int result = 0
    check(queue.in_flight_count == 0, "Q2: a queue is closed when it is idle")
    if queue.context != 0:
        result = queue.calls.destroy(queue.context)
        check(result == 0, "the kernel knows the queue until it is closed")
    free(queue.blocks)
    free(queue.prepared)
    free(queue.free_slots)
    free(queue.events)
    memset(queue, 0, sizeof(AioQueue))


cdef void aio_prepare(
    AioQueue* queue, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset
) noexcept nogil:
    check(queue.free_count > 0, "Q1: a write needs a free slot")
    queue.free_count -= 1
    cdef uint32_t slot = queue.free_slots[queue.free_count]
    cdef iocb* block = &queue.blocks[slot]
    memset(block, 0, sizeof(iocb))
    block.aio_data = slot
    block.aio_lio_opcode = IOCB_CMD_PWRITE
    block.aio_fildes = <uint32_t> fd
    block.aio_buf = <uint64_t> buffer
    block.aio_nbytes = bytes
    block.aio_offset = <int64_t> offset
    queue.prepared[queue.prepared_count] = block
    queue.prepared_count += 1


cdef int aio_step(AioQueue* queue, const Env* env, int* failed_fd) noexcept nogil:
    cdef int error = submit(queue, env, failed_fd)
    cdef int late_error = 0
    cdef int late_fd = -1
    if queue.in_flight_count > 0:
        late_error = reap(queue, env, &late_fd)
    if error == 0 and late_error != 0:
        error = late_error
        failed_fd[0] = late_fd
    if error != 0:
        while queue.prepared_count > 0:
            take_prepared(queue, queue.prepared_count - 1)
    return error


# Gives the slot of a prepared write back without submitting it.
cdef void take_prepared(AioQueue* queue, uint32_t index) noexcept nogil:
    cdef iocb* block = queue.prepared[index]
    queue.prepared_count -= 1
    memmove(
        &queue.prepared[index],
        &queue.prepared[index + 1],
        (queue.prepared_count - index) * sizeof(iocb*),
    )
    queue.free_slots[queue.free_count] = <uint32_t> block.aio_data
    queue.free_count += 1


# Submits once.  The kernel may take fewer than it was given; the rest stays prepared.  EAGAIN means
# that completions have to be taken back first; with none in flight it would never pass, so one
# write is made here and now instead.
cdef int submit(AioQueue* queue, const Env* env, int* failed_fd) noexcept nogil:
    cdef int taken
    cdef int error
    cdef iocb* block
    if queue.prepared_count == 0:
        return 0
    taken = queue.calls.submit(queue.context, queue.prepared_count, queue.prepared)
    while taken < 0 and errno == EINTR:
        taken = queue.calls.submit(queue.context, queue.prepared_count, queue.prepared)
    if taken > 0:
        queue.prepared_count -= <uint32_t> taken
        queue.in_flight_count += <uint32_t> taken
        memmove(
            queue.prepared, &queue.prepared[taken], queue.prepared_count * sizeof(iocb*)
        )
        return 0
    if taken < 0 and errno != EAGAIN:
        failed_fd[0] = <int> queue.prepared[0].aio_fildes
        return errno
    if queue.in_flight_count > 0:
        return 0
    block = queue.prepared[0]
    error = finish(env, block, 0)
    failed_fd[0] = <int> block.aio_fildes
    take_prepared(queue, 0)
    return error


# Waits for one completion and takes all there are.  Returns the first errno among them.
cdef int reap(AioQueue* queue, const Env* env, int* failed_fd) noexcept nogil:
    cdef int first_error = 0
    cdef int error
    cdef int count
    cdef int index
    cdef iocb* block
    count = queue.calls.getevents(queue.context, 1, queue.in_flight_count, queue.events)
    while count < 0 and errno == EINTR:
        count = queue.calls.getevents(queue.context, 1, queue.in_flight_count, queue.events)
    if count < 0:
        # The context and the array are ours and alive: no other errno has a cause in the world.
        check(False, "io_getevents of an open queue works")
        return errno
    for index in range(count):
        block = &queue.blocks[queue.events[index].data]
        error = completion_error(env, block, queue.events[index].res)
        if error != 0 and first_error == 0:
            first_error = error
            failed_fd[0] = <int> block.aio_fildes
        queue.free_slots[queue.free_count] = <uint32_t> block.aio_data
        queue.free_count += 1
    queue.in_flight_count -= <uint32_t> count
    return first_error


# `result` is bytes written, or a negative errno.
cdef int completion_error(const Env* env, const iocb* block, int64_t result) noexcept nogil:
    if result < 0:
        return <int> -result
    if <uint64_t> result == block.aio_nbytes:
        return 0
    return finish(env, block, <uint64_t> result)


# Writes what is behind the first `done` bytes of a write, through the door: 0 or an errno.
cdef int finish(const Env* env, const iocb* block, uint64_t done) noexcept nogil:
    cdef int error = 0
    cdef int result = env_write_full(
        env,
        <int> block.aio_fildes,
        <const uint8_t*> block.aio_buf + done,
        block.aio_nbytes - done,
        <uint64_t> block.aio_offset + done,
        &error,
    )
    return error if result < 0 else 0


system.setup = io_setup
system.destroy = io_destroy
system.submit = io_submit
system.getevents = io_getevents
