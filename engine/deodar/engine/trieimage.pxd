# Checkpoint images of the trie space: incremental, copy-on-write.
#
# Pages of PAGE_BYTES are written into frames (frames.pxd).  Whoever first needs a FROZEN page - the
# writer to change it, the checkpoint to write it - copies it, so the writer waits for one 4 KiB
# copy at most.
# P1: a frame that a durable checkpoint refers to is never written.
# P2: a page's image is what it held when triespace_freeze ran.
# P3: every page read back is checked against the checksum in the page table.
#
# Why P2 holds.  The writer is one thread at a time (store's mutex), and so is the checkpoint.
# - FROZEN is set under the mutex only.  It is left by a compare-and-swap to COPYING, so exactly one
#   thread copies; the other waits while it sees COPYING.
# - The checkpoint copies, then stores CLEAN with release order.  The writer changes bytes only
#   after it has seen, with acquire order, a state other than FROZEN and COPYING; so all reads of
#   the copy come before the writer's first change.
# - The writer copies into `shadow`, then stores ASIDE with release order, and changes bytes after
#   that in its own program order.  The checkpoint reads `shadow` only after it has seen ASIDE with
#   acquire order.  Nobody else leaves ASIDE before the checkpoint does.
# - CLEAN becomes DIRTY by the writer alone, and the checkpoint looks at each page once, so a page
#   that turns DIRTY behind it waits for the next image; its change came after the freeze.
# - The copy sees all changes from before the freeze: the mutex orders them for the checkpoint
#   thread, and program order for the writer.
from libc.stdint cimport uint64_t

from .disk cimport Disk
from .status cimport Failure, Status
from .triespace cimport TrieSpace

# One page in the page table of a checkpoint; frame 0 is never used, so 0 = page is all zero.
cdef packed struct PageEntry:
    uint64_t frame
    uint64_t checksum                   # XXH3_64 of the page, seeded with the page's number

# --- Checkpoint: freeze under the store's mutex, the rest on the checkpoint thread ---
# Starts an image of the space as it is now.
cdef Status triespace_freeze(TrieSpace* space, Failure* failure) noexcept nogil
# Writes the frozen pages to free frames and syncs the files.  DISK_FULL or an error leaves the last
# image valid and the frozen pages dirty again, as triespace_abandon_image does.
cdef Status triespace_write_image(TrieSpace* space, Disk* disk, Failure* failure) noexcept nogil
# The page table of the image written: `*entries` is borrowed until the next freeze.
cdef uint64_t triespace_page_table(TrieSpace* space, const PageEntry** entries) noexcept nogil
# The image is durable (the checkpoint file that holds its page table is): frees the frames of the
# one before.  Or it is given up: its frames are free again and its pages dirty.  Giving up an image
# that has failed by itself, or that was never begun, does nothing.
cdef void triespace_commit_image(TrieSpace* space) noexcept nogil
cdef void triespace_abandon_image(TrieSpace* space) noexcept nogil

# --- Open ---
# Reads the pages of a page table into a new space and rebuilds what memory alone knows.
# STATUS_CORRUPT names the frame.
cdef Status triespace_load(
    TrieSpace* space, const PageEntry* entries, uint64_t pages, Failure* failure
) noexcept nogil
