# Telling a torn tail from damage in the middle (V1, V2 in recovery.pxd), by what lies behind it.
from libc.stdint cimport uint32_t, uint64_t

from .log cimport Log
from .record cimport RegionHeader
from .status cimport Failure, Status

# NULL, or the rule that the header of a region breaks.
cdef const char* region_header_rule(
    const Log* log, const RegionHeader* header, uint32_t region, uint64_t sequence
) noexcept nogil

# STATUS_CORRUPT at `address`, where `rule` was broken, when a valid SEAL of an epoch after
# `being_read` lies behind it: before `region_end`, or in a region outside the log so far whose
# header has a higher sequence than the active one.  STATUS_OK when there is none.
cdef Status damage_behind(
    Log* log,
    uint64_t address,
    uint64_t region_end,
    uint64_t being_read,
    const char* rule,
    Failure* failure,
) noexcept nogil
