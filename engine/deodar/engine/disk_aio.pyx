from libc.errno cimport EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from .debug cimport check
from .disk_queue cimport DiskQueue, QueueBackend, queue_close, queue_open

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

# DiskQueue.kernel
cdef struct Aio:
    const AioCalls* calls
    unsigned long context               # the kernel's name of the queue, 0 = not set up
    iocb* blocks                        # owned, by slot
    iocb** offered                      # owned
    io_event* events                    # owned

cdef AioCalls system
cdef QueueBackend backend


cdef const AioCalls* aio_system() noexcept nogil:
    return &system


cdef int aio_open(DiskQueue* queue, const AioCalls* calls, uint32_t depth) noexcept nogil:
    cdef int error = queue_open(queue, &backend, sizeof(Aio), depth)
    cdef Aio* aio = <Aio*> queue.kernel
    if error != 0:
        return error
    aio.calls = calls
    aio.blocks = <iocb*> calloc(depth, sizeof(iocb))
    aio.offered = <iocb**> calloc(depth, sizeof(iocb*))
    aio.events = <io_event*> calloc(depth, sizeof(io_event))
    if aio.blocks == NULL or aio.offered == NULL or aio.events == NULL:
        error = ENOMEM
    elif calls.setup(depth, &aio.context) < 0:
        error = errno
        aio.context = 0
    if error != 0:
        queue_close(queue)
    return error


cdef void aio_close(DiskQueue* queue) noexcept nogil:
    cdef Aio* aio = <Aio*> queue.kernel
    cdef int result = 0
    if aio.context != 0:
        result = aio.calls.destroy(aio.context)
        check(result == 0, "the kernel knows the queue until it is closed")
    free(aio.blocks)
    free(aio.offered)
    free(aio.events)
    free(aio)


cdef int aio_submit(DiskQueue* queue) noexcept nogil:
    cdef Aio* aio = <Aio*> queue.kernel
    cdef uint32_t index
    cdef int taken
    for index in range(queue.prepared_count):
        aio.offered[index] = &aio.blocks[queue.prepared[index]]
        block_fill(aio.offered[index], queue, queue.prepared[index])
    taken = aio.calls.submit(aio.context, queue.prepared_count, aio.offered)
    while taken < 0 and errno == EINTR:
        taken = aio.calls.submit(aio.context, queue.prepared_count, aio.offered)
    return -errno if taken < 0 else taken


cdef void block_fill(iocb* block, const DiskQueue* queue, uint32_t slot) noexcept nogil:
    memset(block, 0, sizeof(iocb))
    block.aio_data = slot
    block.aio_lio_opcode = IOCB_CMD_PWRITE
    block.aio_fildes = <uint32_t> queue.writes[slot].fd
    block.aio_buf = <uint64_t> queue.writes[slot].buffer
    block.aio_nbytes = queue.writes[slot].bytes
    block.aio_offset = <int64_t> queue.writes[slot].offset


cdef int aio_reap(DiskQueue* queue) noexcept nogil:
    cdef Aio* aio = <Aio*> queue.kernel
    cdef int index
    cdef int count = aio.calls.getevents(aio.context, 1, queue.in_flight_count, aio.events)
    while count < 0 and errno == EINTR:
        count = aio.calls.getevents(aio.context, 1, queue.in_flight_count, aio.events)
    if count < 0:
        return -errno
    for index in range(count):
        queue.completions[index].slot = <uint32_t> aio.events[index].data
        queue.completions[index].result = aio.events[index].res
    return count


system.setup = io_setup
system.destroy = io_destroy
system.submit = io_submit
system.getevents = io_getevents
backend.submit = aio_submit
backend.reap = aio_reap
backend.close = aio_close
