# Who a store is, and which numbers it may give: the file "STORE".
#
# Little-endian; three pages of 4096 bytes.
#   offset bytes field
#        0     8 magic          "DEODARST"
#        8     4 format_version
#       12     4 region_bytes
#       16     8 store_id       random
#       24     4 sluggishness
#       28     4 padding        zero
#       32     8 checksum       XXH3_64, seed 0, of bytes 0..32
#     4096    56 session slot 0
#     8192    56 session slot 1
# Session slot, all zero until used:
#        0     8 incarnation    openings for writing; the slot is incarnation % 2
#        8     8 log_epoch
#       16     8 base_epoch
#       24     8 base_version
#       32     8 base_sequence
#       40     8 padding        zero
#       48     8 checksum       XXH3_64, seed incarnation, of bytes 0..48
#
# A crash forgets up to two epochs, but somebody may remember them: a client holds a receipt for an
# epoch or a version, and pages of the lost flush are still on disk.  So each opening first writes
# down where its numbers begin, above all that an earlier session can have given.
#
# I1: no epoch, version or sequence of region is ever given twice, whatever was lost.
# I2: everything up to `log_epoch` was in the log when the session began: if recovery does not get
#     there, the log is damaged, not torn.
# I3: a slot is 56 bytes in one sector, so it is written whole or not at all; the slot of the
#     session before is not touched.
# I4: incarnation 0 means that the store was never completely made.
from libc.stdint cimport uint32_t, uint64_t

from .env cimport Env
from .status cimport Failure, Status

cdef packed struct Identity:
    unsigned char[8] magic
    uint32_t format_version
    uint32_t region_bytes
    uint64_t store_id
    uint32_t sluggishness
    uint32_t padding
    uint64_t checksum

cdef packed struct Session:
    uint64_t incarnation
    uint64_t log_epoch
    uint64_t base_epoch
    uint64_t base_version
    uint64_t base_sequence
    uint64_t padding
    uint64_t checksum

# Writes the file of a new store (as "STORE.tmp", then renamed) with no session.
cdef Status identity_create(
    const Env* env,
    const char* directory,
    uint64_t store_id,
    uint32_t region_bytes,
    uint32_t sluggishness,
    Failure* failure,
) noexcept nogil

# STATUS_INVALID when the file is not one of ours, FORMAT_VERSION, CORRUPT, IO_ERROR.  `session` is
# the newest; incarnation 0 when there is none.
cdef Status identity_read(
    const Env* env, const char* directory, Identity* identity, Session* session, Failure* failure
) noexcept nogil

# Fills the checksum and writes `session` durably.
cdef Status session_write(
    const Env* env, const char* directory, Session* session, Failure* failure
) noexcept nogil
