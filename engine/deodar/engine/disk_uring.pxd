# io_uring by its raw system calls, as a backend of DiskQueue.
#
# U1: only this thread moves the tail of the submission ring and the head of the completion ring
#     (release); only the kernel moves the other two (acquire).  Without a polling thread of the
#     kernel, which is never asked for, it reads the submission ring inside `enter` alone.
# U2: the completion ring has at least twice `depth` entries, so it never overflows.
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from .disk_queue cimport DiskQueue

cdef extern from "<linux/io_uring.h>" nogil:
    cdef struct io_sqring_offsets:
        uint32_t head
        uint32_t tail
        uint32_t ring_mask
        uint32_t ring_entries
        uint32_t array
    cdef struct io_cqring_offsets:
        uint32_t head
        uint32_t tail
        uint32_t ring_mask
        uint32_t ring_entries
        uint32_t cqes
    cdef struct io_uring_params:
        uint32_t sq_entries
        uint32_t cq_entries
        uint32_t features
        io_sqring_offsets sq_off
        io_cqring_offsets cq_off
    cdef struct io_uring_sqe:
        uint8_t opcode
        int32_t fd
        uint64_t off
        uint64_t addr
        uint32_t len
        uint64_t user_data              # ours: the slot
    cdef struct io_uring_cqe:
        uint64_t user_data              # of the write
        int32_t res                     # bytes written, or a negative errno
    cdef struct io_uring_probe_op:
        uint8_t op
        uint16_t flags
    cdef struct io_uring_probe:
        uint8_t last_op
        uint8_t ops_len
        io_uring_probe_op[256] ops
    enum:
        IORING_OP_WRITE
        IORING_OFF_SQ_RING
        IORING_OFF_SQES
        IORING_ENTER_GETEVENTS
        IORING_FEAT_SINGLE_MMAP
        IORING_REGISTER_PROBE
        IO_URING_OP_SUPPORTED

# The system calls, returning as the system does: >= 0, or -1 with errno set; `map` answers
# MAP_FAILED.  Tests put a scripted kernel in their place.
cdef struct UringCalls:
    int (*setup)(unsigned int entries, io_uring_params* params) noexcept nogil
    int (*enter)(int fd, unsigned int submit, unsigned int least, unsigned int flags) noexcept nogil
    int (*probe)(int fd, io_uring_probe* probe, unsigned int count) noexcept nogil
    void* (*map)(int fd, size_t bytes, uint64_t offset) noexcept nogil
    int (*unmap)(void* address, size_t bytes) noexcept nogil
    int (*close)(int fd) noexcept nogil

# 0 or an errno: ENOSYS where the kernel has no io_uring or not the operations used here (before
# 5.6), EPERM where the machine or a sandbox refuses it, ENOMEM when the memory that may be locked
# is used up (before 5.12), EMFILE.  After an error the queue is closed.
cdef int uring_open(DiskQueue* queue, const UringCalls* calls, uint32_t depth) noexcept nogil

# The kernel's own calls.  Constant after import; any thread.
cdef const UringCalls* uring_system() noexcept nogil
