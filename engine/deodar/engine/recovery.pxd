# Recovery: from the newest checkpoint to the end of the log, before the store has threads.
#
# The table of regions and the trie come from the checkpoint.  Then the log is read from the
# checkpoint's position on, along its LINKs; an epoch's records are collected and count only when
# its SEAL is there (R4).  At the first record that breaks a rule there are two cases:
#
# V1: a SEAL of a later epoch than the one being read lies behind it, in the rest of the region or
#     in any region with a higher sequence; or the log is known to have been longer (I2); or the
#     store was closed (C3): what was once durable is damaged.  STATUS_CORRUPT, and nothing is
#     changed.
# V2: otherwise it is the torn tail of the one flush that was in flight (L3), and the log ends
#     behind the last SEAL.
#
# What is torn stays on disk, behind the end and in regions that are free again, and cannot pass for
# new: appending goes on with epochs and sequences that were never given before (I1), a record
# counts only with the SEAL of its own epoch, and a SEAL of a lost epoch is never a later one.  So
# recovery writes nothing, and a crash during it leaves the same work to do again.
from .checkpoint cimport Checkpoint
from .core cimport StoreCore
from .status cimport Failure, Status

# Fills table of regions, trie, log and `core.recovered_epoch` of a core whose parts are open.
# Regions from the position on become ANONYMOUS, older ones FILE.
cdef Status recovery_run(
    StoreCore* core, const Checkpoint* checkpoint, Failure* failure
) noexcept nogil
