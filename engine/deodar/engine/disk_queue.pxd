# A bounded set of writes in flight, for one thread; io_uring and Linux AIO are its two backends.
#
# Q1: prepared + in_flight + free slots = depth.
# Q2: the kernel owns slots that are in flight; their buffers are borrowed until queue_step has
#     brought them back, so a queue is closed only when it is idle.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from .env cimport Env

cdef struct QueuedWrite:
    const uint8_t* buffer               # borrowed until the write has come back
    uint64_t bytes
    uint64_t offset                     # in the file
    int fd

cdef struct Completion:
    uint32_t slot
    int64_t result                      # bytes written, or a negative errno

cdef struct DiskQueue

# What a backend does with the kernel.  Both calls restart after EINTR and answer a negative errno.
cdef struct QueueBackend:
    # Offers the prepared slots to the kernel, first one first: how many it took.
    int (*submit)(DiskQueue* queue) noexcept nogil
    # Waits for at least one write in flight; fills `completions`: how many.
    int (*reap)(DiskQueue* queue) noexcept nogil
    # Releases `kernel`.
    void (*close)(DiskQueue* queue) noexcept nogil

cdef struct DiskQueue:
    const QueueBackend* backend
    void* kernel                        # owned by the backend, NULL = closed
    uint32_t depth
    uint32_t prepared_count             # filled, not yet taken by the kernel
    uint32_t in_flight_count
    uint32_t free_count
    QueuedWrite* writes                 # owned, `depth`: by slot
    uint32_t* prepared                  # owned, `depth`: the first `prepared_count`, in order
    uint32_t* free_slots                # owned, `depth`: the first `free_count`
    Completion* completions             # owned, `depth`

# For backends: a queue whose `kernel` is `kernel_bytes` of zeros, made by calloc.  0 or ENOMEM, and
# then it is closed.
cdef int queue_open(
    DiskQueue* queue, const QueueBackend* backend, size_t kernel_bytes, uint32_t depth
) noexcept nogil

# Only of an idle queue.  Idempotent; a queue of zero bytes is closed.
cdef void queue_close(DiskQueue* queue) noexcept nogil

cdef inline bint queue_full(const DiskQueue* queue) noexcept nogil:
    return queue.free_count == 0

cdef inline bint queue_idle(const DiskQueue* queue) noexcept nogil:
    return queue.prepared_count == 0 and queue.in_flight_count == 0

# Adds a write; the queue is not full.
cdef void queue_prepare(
    DiskQueue* queue, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset
) noexcept nogil

# Hands to the kernel what was prepared, as far as it takes it, then waits for at least one write
# in flight and takes back all that are complete.  A write that came back short is finished through
# `env`.  0, or the errno of the first write that failed and its descriptor; after an error nothing
# is prepared any more.
cdef int queue_step(DiskQueue* queue, const Env* env, int* failed_fd) noexcept nogil
