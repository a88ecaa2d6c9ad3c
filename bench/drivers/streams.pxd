# A stream is the operations of one workload, made before the clock starts.
from libc.stdint cimport uint32_t, uint64_t

# An operation is the index of its key (30 bits) and what to do with it (the two bits above).
cdef enum:
    OPERATION_READ = 0                  # the key is there
    OPERATION_WRITE = 0x40000000
    OPERATION_MISS = 0x80000000         # the key is not there
    OPERATION_DELETE = 0xC0000000
    OPERATION_MASK = 0xC0000000
    INDEX_MASK = 0x3FFFFFFF

cdef class Stream:
    cdef:
        uint32_t* operations            # owned
        readonly Py_ssize_t count
