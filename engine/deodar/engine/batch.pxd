# Batches of writes: all or nothing, in order, in one epoch.
from libc.stdint cimport uint32_t

from .core cimport StoreCore
from .status cimport Failure, Status
from .write cimport Operation, Outcome

# `count` >= 1.  `*failed` is the index of the operation that was refused; with STATUS_CONDITION
# `outcomes[*failed].version` is what is there, 0 = nothing.
cdef Status write_batch(
    StoreCore* core,
    const Operation* operations,
    uint32_t count,
    bint durable,
    Outcome* outcomes,
    uint32_t* failed,
    Failure* failure,
) noexcept nogil
