# Linux AIO by its raw system calls: a bounded set of writes in flight, for one thread.
#
# Q1: prepared + in_flight + free slots = depth.
# Q2: the kernel owns slots that are in flight; their buffers are borrowed until aio_step has
#     brought them back, so a queue is closed only when it is idle.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from .env cimport Env

cdef extern from "<linux/aio_abi.h>" nogil:
    cdef struct iocb:
        uint64_t aio_data               # ours: the slot
        uint16_t aio_lio_opcode
        uint32_t aio_fildes
        uint64_t aio_buf
        uint64_t aio_nbytes
        int64_t aio_offset
    cdef struct io_event:
        uint64_t data                   # the aio_data of the write
        int64_t res                     # bytes written, or a negative errno
    enum:
        IOCB_CMD_PWRITE

# The system calls, returning as `syscall` does: >= 0, or -1 with errno set.  glibc has no wrappers
# for them; tests put a scripted kernel in their place.
cdef struct AioCalls:
    int (*setup)(unsigned int depth, unsigned long* context) noexcept nogil
    int (*destroy)(unsigned long context) noexcept nogil
    int (*submit)(unsigned long context, long count, iocb** blocks) noexcept nogil
    int (*getevents)(
        unsigned long context, long least, long most, io_event* events
    ) noexcept nogil

cdef struct AioQueue:
    const AioCalls* calls
    unsigned long context               # the kernel's name of the queue, 0 = closed
    uint32_t depth
    uint32_t prepared_count             # filled, not yet taken by the kernel
    uint32_t in_flight_count
    uint32_t free_count
    iocb* blocks                        # owned, `depth`
    iocb** prepared                     # owned, `depth`: the first `prepared_count`, in order
    uint32_t* free_slots                # owned, `depth`: the first `free_count`
    io_event* events                    # owned, `depth`

# 0 or an errno: EAGAIN when fs.aio-max-nr is used up, ENOSYS or EPERM where the kernel or a
# sandbox refuses AIO, ENOMEM.  After an error the queue is closed.
cdef int aio_open(AioQueue* queue, const AioCalls* calls, uint32_t depth) noexcept nogil

# The kernel's own calls.  Constant after import; any thread.
cdef const AioCalls* aio_system() noexcept nogil

# Only of an idle queue.  Idempotent.
cdef void aio_close(AioQueue* queue) noexcept nogil

cdef inline bint aio_full(const AioQueue* queue) noexcept nogil:
    return queue.free_count == 0

cdef inline bint aio_idle(const AioQueue* queue) noexcept nogil:
    return queue.prepared_count == 0 and queue.in_flight_count == 0

# Adds a write; the queue is not full.
cdef void aio_prepare(
    AioQueue* queue, int fd, const uint8_t* buffer, uint64_t bytes, uint64_t offset
) noexcept nogil

# Hands to the kernel what was prepared, as far as it takes it, then waits for at least one write
# in flight and takes back all that are complete.  A write that came back short is finished through
# `env`.  0, or the errno of the first write that failed and its descriptor; after an error nothing
# is prepared any more.
cdef int aio_step(AioQueue* queue, const Env* env, int* failed_fd) noexcept nogil
