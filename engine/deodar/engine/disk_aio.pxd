# Linux AIO by its raw system calls, as a backend of DiskQueue.
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from .disk_queue cimport DiskQueue

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

# 0 or an errno: EAGAIN when fs.aio-max-nr is used up, ENOSYS or EPERM where the kernel or a
# sandbox refuses AIO, ENOMEM.  After an error the queue is closed.
cdef int aio_open(DiskQueue* queue, const AioCalls* calls, uint32_t depth) noexcept nogil

# The kernel's own calls.  Constant after import; any thread.
cdef const AioCalls* aio_system() noexcept nogil
