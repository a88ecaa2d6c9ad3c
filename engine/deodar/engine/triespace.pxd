# The trie space: anonymous memory that holds branches and leaf blocks, its allocator, and its
# incremental checkpoint images.
#
# Chunks of 64 KiB hold blocks of one size class (16, 32, 64, 128, ... 2048 bytes).  Chunk header,
# the first 1024 bytes (2048 in chunks of 2048-byte blocks): size class (4), used blocks (4), and
# from offset 64 a bitmap of used blocks.  The bitmap is the persistent truth; free blocks are handed
# out from stacks in memory that are rebuilt from it at open.  A retired block's bit is cleared at
# once, but the block reaches a stack only after its grace period.
#
# Images.  Pages of PAGE_BYTES are written copy-on-write into frames of the files
# "trie-%06u.segment" (65,536 frames each).  A page is CLEAN, DIRTY, FROZEN (dirty when the running
# checkpoint began) or COPYING; whoever first needs a FROZEN page - the writer to change it, the
# checkpoint to write it - copies it, so the writer waits for one 4 KiB copy at most.
# P1: a frame that a durable checkpoint refers to is never written.
# P2: a page's image is what it held when triespace_freeze ran.
# P3: every page read back is checked against the checksum in the page table.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .disk cimport Disk
from .env cimport Env
from .reclaim cimport Reclaim
from .status cimport Failure, Status

cdef enum:
    CHUNK_BYTES = 65536
    BLOCK_BYTES_MIN = 16
    BLOCK_BYTES_MAX = 2048

# One page in the page table of a checkpoint; frame 0 is never used, so 0 = page is all zero.
cdef packed struct PageEntry:
    uint64_t frame
    uint64_t checksum                   # XXH3_64 of the page, seeded with the page's number

cdef struct TrieSpace:                # private to triespace.pyx: reached through the functions below
    uint64_t unused

cdef struct TrieSpaceStats:
    uint64_t chunks
    uint64_t used_bytes                 # blocks in use
    uint64_t memory_bytes               # chunks * CHUNK_BYTES
    uint64_t pages
    uint64_t dirty_pages
    uint64_t frames                     # frames in files, used or free
    uint64_t image_bytes_written

# Reserves addresses and opens or creates the frame files in `directory`.  NULL with `failure` set.
cdef TrieSpace* triespace_new(const Env* env, Reclaim* reclaim, const char* directory, uint64_t reserved_bytes, bint direct, Failure* failure) noexcept nogil
cdef void triespace_free(TrieSpace* space) noexcept nogil

# Base of the space: block at base + address.  Constant.
cdef uint8_t* triespace_base(const TrieSpace* space) noexcept nogil

# --- Writer ---
# A zeroed block of the smallest class that holds `bytes`; 0 when memory or addresses are used up.
cdef uint64_t triespace_allocate(TrieSpace* space, uint32_t bytes) noexcept nogil
# Gives back a block that no reader can reach any more from now on (rule G2).
cdef void triespace_retire(TrieSpace* space, uint64_t address, uint32_t bytes) noexcept nogil
# Must come before each change of bytes in the space; copies the page aside if a checkpoint needs it.
cdef void triespace_touch(TrieSpace* space, uint64_t address) noexcept nogil

# --- Checkpoint: freeze under the store's mutex, the rest on the checkpoint thread ---
# Starts an image of the space as it is now.
cdef Status triespace_freeze(TrieSpace* space, Failure* failure) noexcept nogil
# Writes the frozen pages to free frames and syncs the files.  DISK_FULL or an error leaves the last
# image valid and the frozen pages dirty again.
cdef Status triespace_write_image(TrieSpace* space, Disk* disk, Failure* failure) noexcept nogil
# The page table of the image written: `*entries` is borrowed until the next freeze.
cdef uint64_t triespace_page_table(TrieSpace* space, const PageEntry** entries) noexcept nogil
# The image is durable (the checkpoint file that holds its page table is): frees the frames of the
# one before.  Or it is given up: its frames are free again and its pages dirty.
cdef void triespace_commit_image(TrieSpace* space) noexcept nogil
cdef void triespace_abandon_image(TrieSpace* space) noexcept nogil

# --- Open ---
# Reads the pages of a page table and rebuilds the free stacks.  STATUS_CORRUPT names the page.
cdef Status triespace_load(TrieSpace* space, const PageEntry* entries, uint64_t pages, Failure* failure) noexcept nogil

cdef void triespace_stats(const TrieSpace* space, TrieSpaceStats* stats) noexcept nogil
# Checks bitmaps against stacks and limbo; `is_used` of a block for trie_check.
cdef bint triespace_is_used(const TrieSpace* space, uint64_t address, uint32_t bytes) noexcept nogil
cdef Status triespace_check(const TrieSpace* space, Failure* failure) noexcept nogil
