from libc.errno cimport EAGAIN, EBUSY, ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from .debug cimport check
from .env cimport Env, env_write_full


cdef int queue_open(
    DiskQueue* queue, const QueueBackend* backend, size_t kernel_bytes, uint32_t depth
) noexcept nogil:
    cdef uint32_t slot
    memset(queue, 0, sizeof(DiskQueue))
    queue.depth = depth
    queue.free_count = depth
    queue.writes = <QueuedWrite*> calloc(depth, sizeof(QueuedWrite))
    queue.prepared = <uint32_t*> calloc(depth, sizeof(uint32_t))
    queue.free_slots = <uint32_t*> calloc(depth, sizeof(uint32_t))
    queue.completions = <Completion*> calloc(depth, sizeof(Completion))
    if (
        queue.writes == NULL
        or queue.prepared == NULL
        or queue.free_slots == NULL
        or queue.completions == NULL
    ):
        queue_close(queue)
        return ENOMEM
    # Last, so that a backend closes only what it was given.
    queue.backend = backend
    queue.kernel = calloc(1, kernel_bytes)
    if queue.kernel == NULL:
        queue_close(queue)
        return ENOMEM
    for slot in range(depth):
        queue.free_slots[slot] = depth - 1 - slot
    return 0


cdef void queue_close(DiskQueue* queue) noexcept nogil:
    check(queue.in_flight_count == 0, "Q2: a queue is closed when it is idle")
    if queue.kernel != NULL:
        queue.backend.close(queue)
    free(queue.writes)
    free(queue.prepared)
    free(queue.free_slots)
    free(queue.completions)
    memset(queue, 0, sizeof(DiskQueue))


cdef void queue_prepare(
    DiskQueue* queue, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset
) noexcept nogil:
    check(queue.free_count > 0, "Q1: a write needs a free slot")
    queue.free_count -= 1
    cdef uint32_t slot = queue.free_slots[queue.free_count]
    cdef QueuedWrite* write = &queue.writes[slot]
    write.fd = fd
    write.buffer = buffer
    write.bytes = bytes
    write.offset = offset
    queue.prepared[queue.prepared_count] = slot
    queue.prepared_count += 1


cdef int queue_step(DiskQueue* queue, const Env* env, int* failed_fd) noexcept nogil:
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
            release_slot(queue, queue.prepared[queue.prepared_count - 1])
            queue.prepared_count -= 1
    return error


cdef void release_slot(DiskQueue* queue, uint32_t slot) noexcept nogil:
    queue.free_slots[queue.free_count] = slot
    queue.free_count += 1


# Takes the first `count` slots out of the prepared ones.
cdef void forget_prepared(DiskQueue* queue, uint32_t count) noexcept nogil:
    check(count <= queue.prepared_count, "the kernel takes what it was offered")
    queue.prepared_count -= count
    memmove(queue.prepared, &queue.prepared[count], queue.prepared_count * sizeof(uint32_t))


# Submits once.  The kernel may take fewer than it was given; the rest stays prepared.  EAGAIN and
# EBUSY mean that completions have to be taken back first; with none in flight that would never
# pass, so one write is made here and now instead.
cdef int submit(DiskQueue* queue, const Env* env, int* failed_fd) noexcept nogil:
    cdef int taken
    cdef uint32_t slot
    if queue.prepared_count == 0:
        return 0
    taken = queue.backend.submit(queue)
    if taken > 0:
        forget_prepared(queue, <uint32_t> taken)
        queue.in_flight_count += <uint32_t> taken
        return 0
    slot = queue.prepared[0]
    if taken < 0 and taken != -EAGAIN and taken != -EBUSY:
        failed_fd[0] = queue.writes[slot].fd
        return -taken
    if queue.in_flight_count > 0:
        return 0
    failed_fd[0] = queue.writes[slot].fd
    forget_prepared(queue, 1)
    release_slot(queue, slot)
    return finish(env, &queue.writes[slot], 0)


# Waits for one completion and takes all there are.  Returns the first errno among them.
cdef int reap(DiskQueue* queue, const Env* env, int* failed_fd) noexcept nogil:
    cdef int first_error = 0
    cdef int error
    cdef int index
    cdef const QueuedWrite* write
    cdef int count = queue.backend.reap(queue)
    if count < 0:
        # The queue and its arrays are ours and alive: no other errno has a cause in the world.
        check(False, "completions of an open queue can be taken")
        return -count
    for index in range(count):
        write = &queue.writes[queue.completions[index].slot]
        error = completion_error(env, write, queue.completions[index].result)
        if error != 0 and first_error == 0:
            first_error = error
            failed_fd[0] = write.fd
        release_slot(queue, queue.completions[index].slot)
    queue.in_flight_count -= <uint32_t> count
    return first_error


cdef int completion_error(
    const Env* env, const QueuedWrite* write, int64_t result
) noexcept nogil:
    if result < 0:
        return <int> -result
    if <uint64_t> result == write.bytes:
        return 0
    return finish(env, write, <uint64_t> result)


# Writes what is behind the first `done` bytes of a write, through the door: 0 or an errno.
cdef int finish(const Env* env, const QueuedWrite* write, uint64_t done) noexcept nogil:
    cdef int error = 0
    cdef int result = env_write_full(
        env, write.fd, write.buffer + done, write.bytes - done, write.offset + done, &error
    )
    return error if result < 0 else 0
