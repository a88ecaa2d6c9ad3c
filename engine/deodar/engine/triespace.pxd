# The trie space: anonymous memory that holds branches and leaf blocks, its allocator, and its
# incremental checkpoint images.
#
# Chunks of 64 KiB hold blocks of one size class (16, 32, 64, 128, ... 2048 bytes).  Chunk header,
# the first 1024 bytes (2048 in chunks of 2048-byte blocks): size class (4), used blocks (4), and
# from offset 64 a bitmap of used blocks.  The bitmap is the persistent truth.  Which blocks may be
# handed out is a second bitmap in memory, rebuilt from it at open: a retired block's `used` bit is
# cleared at once, but the block becomes available only after its grace period.  A chunk whose
# blocks are all available serves any size class again, since splits come in waves that leave whole
# classes of leaves empty.
#
# A page of PAGE_BYTES is
#   CLEAN    as in the last image
#   DIRTY    changed since
#   FROZEN   dirty when the running checkpoint began, and unchanged since
#   COPYING  a FROZEN page that one of the two threads is copying
#   ASIDE    was FROZEN; the writer copied it into `shadow` before it changed it
# trieimage.pxd says how images are made of them.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .atomics cimport load_acquire_u8
from .disk cimport WriteOperation
from .env cimport Env
from .frames cimport Frames
from .limits cimport PAGE_BYTES
from .reclaim cimport Reclaim
from .reservation cimport Reservation
from .status cimport Failure, Status

cdef enum:
    CHUNK_BYTES = 65536
    PAGES_PER_CHUNK = 16
    BLOCK_BYTES_MIN = 16
    BLOCK_BYTES_MAX = 2048
    SIZE_CLASSES = 8
    RETIRED_BLOCKS_MAX = 512            # between two calls of triespace_prepare

cdef enum PageState:
    PAGE_CLEAN = 0
    PAGE_DIRTY = 1
    PAGE_ASIDE = 2
    PAGE_FROZEN = 3
    PAGE_COPYING = 4

cdef enum ImageState:
    IMAGE_NONE = 0
    IMAGE_FROZEN = 1
    IMAGE_WRITTEN = 2

# At the start of each chunk, part of its image.
cdef struct ChunkHeader:
    uint32_t size_class                 # blocks of 16 << size_class bytes
    uint32_t used_blocks
    uint8_t[56] padding
    uint64_t[63] used                   # one bit a block: 4032 blocks of 16 bytes at most

# What memory alone knows of a chunk.
cdef struct Chunk:
    uint64_t[63] available              # bits of blocks that may be handed out
    uint32_t available_blocks
    uint32_t first_word                 # no word of `available` before this one has a bit
    uint32_t next                       # chunk of the same list, or NO_CHUNK
    uint32_t previous

# A retired block on its way back.
cdef struct LimboBlock:
    uint64_t address
    uint64_t grace_period

# Private to triespace.pyx but for what the inline functions below read.
cdef struct TrieSpace:
    # Set by triespace_new, then constant.
    Reclaim* reclaim                    # not owned
    Reservation memory                  # the space itself
    Reservation shadow                  # pages copied aside, at the address they have in `memory`
    Reservation page_states             # one byte (PageState) a page
    Reservation durable                 # PageEntry a page: the last image, or zeros
    Reservation image                   # the same but for pages of an image being made
    Reservation chunks                  # Chunk a chunk
    # Changed by the writer; `chunk_count` and `used_bytes` are read by anyone.
    uint64_t chunk_count
    uint64_t used_bytes
    uint32_t[8] partial                 # per size class: list of chunks with available blocks
    uint32_t unassigned                 # list of chunks whose blocks are all available
    LimboBlock* limbo                   # owned: a ring, oldest grace period first
    uint64_t limbo_first
    uint64_t limbo_count
    uint64_t limbo_capacity             # a power of two
    uint32_t retired_since_drain
    # Owned by the checkpoint thread once triespace_freeze has returned.
    ImageState image_state
    uint64_t image_pages
    Frames frames
    uint8_t* batch                      # owned: BATCH_PAGES pages, aligned for direct I/O
    WriteOperation* operations          # owned: BATCH_PAGES
    uint64_t image_bytes_written

cdef struct TrieSpaceStats:
    uint64_t chunks
    uint64_t used_bytes                 # blocks in use
    uint64_t memory_bytes               # chunks * CHUNK_BYTES
    uint64_t pages
    uint64_t dirty_pages
    uint64_t frames                     # frames in files, used or free
    uint64_t image_bytes_written

# Reserves addresses and opens the frame files in `directory`; images create more as they need
# them.  NULL with `failure` set.
cdef TrieSpace* triespace_new(
    const Env* env,
    Reclaim* reclaim,
    const char* directory,
    uint64_t reserved_bytes,
    bint direct,
    Failure* failure,
) noexcept nogil
cdef void triespace_free(TrieSpace* space) noexcept nogil

# Base of the space: block at base + address.  Constant.
cdef inline uint8_t* triespace_base(const TrieSpace* space) noexcept nogil:
    return space.memory.base

# --- Writer ---
# Makes room for RETIRED_BLOCKS_MAX calls of triespace_retire, which cannot fail.  STATUS_NO_MEMORY.
cdef Status triespace_prepare(TrieSpace* space, Failure* failure) noexcept nogil
# A zeroed block of the smallest class that holds `bytes`; 0 when memory or addresses are used up.
# A block never crosses a page.
cdef uint64_t triespace_allocate(TrieSpace* space, uint32_t bytes) noexcept nogil
# Gives back a block that no reader can reach any more from now on (rule G2).
cdef void triespace_retire(TrieSpace* space, uint64_t address, uint32_t bytes) noexcept nogil
# The part of triespace_touch that has work to do.
cdef void triespace_touch_page(TrieSpace* space, uint64_t page) noexcept nogil
# Must come before each change of bytes in the space; copies the page aside if a checkpoint needs
# it.
cdef inline void triespace_touch(TrieSpace* space, uint64_t address) noexcept nogil:
    cdef unsigned char state = load_acquire_u8(space.page_states.base + address // PAGE_BYTES)
    if state != PAGE_DIRTY and state != PAGE_ASIDE:
        triespace_touch_page(space, address // PAGE_BYTES)

# --- For trieimage, at open ---
# Makes the first `chunks` chunks usable, all zero.  False when there is no memory.
cdef bint triespace_extend(TrieSpace* space, uint64_t chunks) noexcept nogil
# Rebuilds what memory alone knows of a chunk from its header.  False when the header is unsound.
cdef bint triespace_adopt_chunk(TrieSpace* space, uint64_t index) noexcept nogil

cdef void triespace_stats(const TrieSpace* space, TrieSpaceStats* stats) noexcept nogil
# `is_used` of a block for trie_check; and the bitmaps against each other, the lists and the limbo.
# Writer excluded.
cdef bint triespace_is_used(
    const TrieSpace* space, uint64_t address, uint32_t bytes
) noexcept nogil
cdef Status triespace_check(const TrieSpace* space, Failure* failure) noexcept nogil
