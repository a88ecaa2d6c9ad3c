# Space kept aside on disk, so that a checkpoint can be written on a full one: without it nothing
# that compaction evacuates could ever be freed.
#
# The file "RESERVE" holds nothing.  It is given up when a checkpoint meets a full disk, and made
# again after one that succeeded, as far as the disk lets it; a store works without it.
from libc.stdint cimport uint64_t

from .env cimport Env

cdef struct Ballast:
    uint64_t bytes                      # length of the file, 0 = there is none

# Makes the file at least `wanted` bytes long.
cdef void ballast_fill(
    Ballast* ballast, const Env* env, const char* directory, uint64_t wanted
) noexcept nogil

# Gives the space back to the disk; False when there was none.
cdef bint ballast_drop(Ballast* ballast, const Env* env, const char* directory) noexcept nogil
