from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from .atomics cimport (
    cas_u8,
    load_acquire_u8,
    load_relaxed_u64,
    spin_pause,
    store_relaxed_u64,
    store_release_u8,
)
from .debug cimport check
from .frames cimport frames_close, frames_open
from .reclaim cimport reclaim_retire, reclaim_safe
from .reservation cimport (
    HUGE_PAGE_BYTES,
    reservation_close,
    reservation_extend,
    reservation_open,
)
from .status cimport STATUS_CORRUPT, STATUS_NO_MEMORY, STATUS_OK, failure_set
from .trieimage cimport PageEntry

cdef extern from *:
    int __builtin_ctzll(unsigned long long bits) noexcept nogil
    int __builtin_popcountll(unsigned long long bits) noexcept nogil

cdef enum:
    NO_CHUNK = 0xFFFFFFFF
    WORDS_PER_CHUNK = 63
    GROWTH_CHUNKS = HUGE_PAGE_BYTES // CHUNK_BYTES
    LIMBO_CAPACITY_MIN = 4096
    DRAIN_EVERY = 128                   # retirements; looking at every reader slot is not free


cdef TrieSpace* triespace_new(
    const Env* env,
    Reclaim* reclaim,
    const char* directory,
    uint64_t reserved_bytes,
    bint direct,
    Failure* failure,
) noexcept nogil:
    cdef TrieSpace* space = <TrieSpace*> calloc(1, sizeof(TrieSpace))
    if space == NULL:
        failure_set(failure, STATUS_NO_MEMORY, 0, directory, 0, "memory for the trie space")
        return NULL
    space.reclaim = reclaim
    cdef uint32_t size_class
    for size_class in range(SIZE_CLASSES):
        space.partial[size_class] = NO_CHUNK
    space.unassigned = NO_CHUNK
    if not reserve(space, reserved_bytes):
        failure_set(failure, STATUS_NO_MEMORY, errno, directory, 0, "addresses of the trie space")
        triespace_free(space)
        return NULL
    if frames_open(&space.frames, env, directory, direct, failure) != STATUS_OK:
        triespace_free(space)
        return NULL
    return space


cdef bint reserve(TrieSpace* space, uint64_t reserved_bytes) noexcept nogil:
    cdef uint64_t chunks = (reserved_bytes + CHUNK_BYTES - 1) // CHUNK_BYTES
    cdef uint64_t pages = chunks * PAGES_PER_CHUNK
    return (
        chunks < NO_CHUNK
        and reservation_open(&space.memory, chunks * CHUNK_BYTES, True)
        and reservation_open(&space.shadow, chunks * CHUNK_BYTES, False)
        and reservation_open(&space.page_states, pages, False)
        and reservation_open(&space.durable, pages * sizeof(PageEntry), False)
        and reservation_open(&space.image, pages * sizeof(PageEntry), False)
        and reservation_open(&space.chunks, chunks * sizeof(Chunk), False)
    )


cdef void triespace_free(TrieSpace* space) noexcept nogil:
    if space == NULL:
        return
    if space.frames.env != NULL:
        frames_close(&space.frames)
    reservation_close(&space.memory)
    reservation_close(&space.shadow)
    reservation_close(&space.page_states)
    reservation_close(&space.durable)
    reservation_close(&space.image)
    reservation_close(&space.chunks)
    free(space.limbo)
    free(space.batch)
    free(space.operations)
    free(space)


# --- Chunks and blocks ---


cdef inline uint32_t size_class_of(uint32_t bytes) noexcept nogil:
    cdef uint32_t size_class = 0
    while (<uint32_t> BLOCK_BYTES_MIN << size_class) < bytes:
        size_class += 1
    return size_class


cdef inline uint32_t header_bytes_of(uint32_t size_class) noexcept nogil:
    return 2048 if size_class == SIZE_CLASSES - 1 else 1024


cdef inline uint32_t blocks_of(uint32_t size_class) noexcept nogil:
    return (CHUNK_BYTES - header_bytes_of(size_class)) >> (4 + size_class)


cdef inline Chunk* chunk_at(const TrieSpace* space, uint64_t index) noexcept nogil:
    return <Chunk*> space.chunks.base + index


cdef inline ChunkHeader* header_at(const TrieSpace* space, uint64_t index) noexcept nogil:
    return <ChunkHeader*> (space.memory.base + index * CHUNK_BYTES)


cdef inline uint32_t block_index(uint64_t address, uint32_t size_class) noexcept nogil:
    return (<uint32_t> (address % CHUNK_BYTES) - header_bytes_of(size_class)) >> (4 + size_class)


cdef void list_add(TrieSpace* space, uint32_t* head, uint32_t index) noexcept nogil:
    cdef Chunk* chunk = chunk_at(space, index)
    chunk.previous = NO_CHUNK
    chunk.next = head[0]
    if head[0] != NO_CHUNK:
        chunk_at(space, head[0]).previous = index
    head[0] = index


cdef void list_remove(TrieSpace* space, uint32_t* head, uint32_t index) noexcept nogil:
    cdef Chunk* chunk = chunk_at(space, index)
    if chunk.previous == NO_CHUNK:
        check(head[0] == index, "a chunk without a predecessor leads its list")
        head[0] = chunk.next
    else:
        chunk_at(space, chunk.previous).next = chunk.next
    if chunk.next != NO_CHUNK:
        chunk_at(space, chunk.next).previous = chunk.previous


# Makes `count` chunks usable in every array; zero chunks, zero states, zero entries.
cdef bint extend(TrieSpace* space, uint64_t count) noexcept nogil:
    cdef uint64_t chunks = (count + GROWTH_CHUNKS - 1) // GROWTH_CHUNKS * GROWTH_CHUNKS
    if chunks * CHUNK_BYTES > space.memory.reserved_bytes:
        chunks = count
    cdef uint64_t pages = chunks * PAGES_PER_CHUNK
    return (
        reservation_extend(&space.chunks, chunks * sizeof(Chunk))
        and reservation_extend(&space.image, pages * sizeof(PageEntry))
        and reservation_extend(&space.durable, pages * sizeof(PageEntry))
        and reservation_extend(&space.page_states, pages)
        and reservation_extend(&space.shadow, chunks * CHUNK_BYTES)
        and reservation_extend(&space.memory, chunks * CHUNK_BYTES)
    )


# Finds or makes a chunk for `size_class` and leads the class's list with it.
cdef bint assign_chunk(TrieSpace* space, uint32_t size_class) noexcept nogil:
    cdef uint32_t index = space.unassigned
    if index != NO_CHUNK:
        list_remove(space, &space.unassigned, index)
    else:
        if not extend(space, space.chunk_count + 1):
            return False
        index = <uint32_t> space.chunk_count
        store_relaxed_u64(&space.chunk_count, space.chunk_count + 1)
    cdef ChunkHeader* header = header_at(space, index)
    triespace_touch(space, <uint64_t> index * CHUNK_BYTES)
    check(header.used_blocks == 0, "a chunk changes its size class only when it is empty")
    header.size_class = size_class
    set_available(chunk_at(space, index), header)
    list_add(space, &space.partial[size_class], index)
    return True


# Everything that is not used is available: for chunks without blocks in limbo.
cdef void set_available(Chunk* chunk, const ChunkHeader* header) noexcept nogil:
    cdef uint32_t blocks = blocks_of(header.size_class)
    cdef uint32_t word
    memset(chunk.available, 0, sizeof(chunk.available))
    for word in range(blocks // 64):
        chunk.available[word] = ~header.used[word]
    if blocks % 64 != 0:
        word = blocks // 64
        chunk.available[word] = ~header.used[word] & (((<uint64_t> 1) << (blocks % 64)) - 1)
    chunk.available_blocks = blocks - header.used_blocks
    chunk.first_word = 0


cdef uint64_t triespace_allocate(TrieSpace* space, uint32_t bytes) noexcept nogil:
    check(0 < bytes <= BLOCK_BYTES_MAX, "a block has 1 to BLOCK_BYTES_MAX bytes")
    cdef uint32_t size_class = size_class_of(bytes)
    cdef uint32_t* head = &space.partial[size_class]
    if head[0] == NO_CHUNK and space.limbo_count != 0:
        drain_limbo(space)
    if head[0] == NO_CHUNK and not assign_chunk(space, size_class):
        return 0
    cdef uint32_t index = head[0]
    cdef Chunk* chunk = chunk_at(space, index)
    cdef ChunkHeader* header = header_at(space, index)
    cdef uint32_t word = chunk.first_word
    while chunk.available[word] == 0:
        word += 1
    cdef uint32_t bit = <uint32_t> __builtin_ctzll(chunk.available[word])
    chunk.first_word = word
    chunk.available[word] &= ~(<uint64_t> 1 << bit)
    chunk.available_blocks -= 1
    if chunk.available_blocks == 0:
        list_remove(space, head, index)
    cdef uint64_t start = <uint64_t> index * CHUNK_BYTES
    cdef uint64_t address = (
        start + header_bytes_of(size_class) + (<uint64_t> (word * 64 + bit) << (4 + size_class))
    )
    triespace_touch(space, start)
    header.used[word] |= <uint64_t> 1 << bit
    header.used_blocks += 1
    triespace_touch(space, address)
    memset(space.memory.base + address, 0, <size_t> BLOCK_BYTES_MIN << size_class)
    store_relaxed_u64(
        &space.used_bytes, space.used_bytes + (<uint64_t> BLOCK_BYTES_MIN << size_class)
    )
    return address


cdef Status triespace_prepare(TrieSpace* space, Failure* failure) noexcept nogil:
    if space.limbo_count + RETIRED_BLOCKS_MAX <= space.limbo_capacity:
        return STATUS_OK
    cdef uint64_t capacity = max(space.limbo_capacity * 2, <uint64_t> LIMBO_CAPACITY_MIN)
    cdef LimboBlock* limbo = <LimboBlock*> realloc(space.limbo, capacity * sizeof(LimboBlock))
    cdef uint64_t wrapped
    if limbo == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "memory for retired blocks")
    if space.limbo_first + space.limbo_count > space.limbo_capacity:
        # The ring's wrapped part goes behind its first part.
        wrapped = space.limbo_first + space.limbo_count - space.limbo_capacity
        memcpy(limbo + space.limbo_capacity, limbo, wrapped * sizeof(LimboBlock))
    space.limbo = limbo
    space.limbo_capacity = capacity
    return STATUS_OK


cdef void triespace_retire(TrieSpace* space, uint64_t address, uint32_t bytes) noexcept nogil:
    check(triespace_is_used(space, address, bytes), "a retired block is in use")
    check(space.limbo_count < space.limbo_capacity, "triespace_prepare came first")
    cdef uint32_t size_class = size_class_of(bytes)
    cdef uint64_t index = address // CHUNK_BYTES
    cdef uint32_t block = block_index(address, size_class)
    cdef ChunkHeader* header = header_at(space, index)
    triespace_touch(space, index * CHUNK_BYTES)
    header.used[block // 64] &= ~(<uint64_t> 1 << (block % 64))
    header.used_blocks -= 1
    store_relaxed_u64(
        &space.used_bytes, space.used_bytes - (<uint64_t> BLOCK_BYTES_MIN << size_class)
    )
    cdef uint64_t last = (space.limbo_first + space.limbo_count) & (space.limbo_capacity - 1)
    space.limbo[last].address = address
    space.limbo[last].grace_period = reclaim_retire(space.reclaim)
    space.limbo_count += 1
    space.retired_since_drain += 1
    if space.retired_since_drain >= DRAIN_EVERY:
        drain_limbo(space)


# Makes available what no reader can hold any more.  The block's size class is still that of its
# chunk, which cannot change while one of its blocks is in limbo.
cdef void drain_limbo(TrieSpace* space) noexcept nogil:
    cdef uint64_t safe = reclaim_safe(space.reclaim)
    cdef LimboBlock* retired
    space.retired_since_drain = 0
    while space.limbo_count != 0:
        retired = &space.limbo[space.limbo_first]
        if retired.grace_period > safe:
            return
        make_available(space, retired.address)
        space.limbo_first = (space.limbo_first + 1) & (space.limbo_capacity - 1)
        space.limbo_count -= 1


cdef void make_available(TrieSpace* space, uint64_t address) noexcept nogil:
    cdef uint32_t index = <uint32_t> (address // CHUNK_BYTES)
    cdef uint32_t size_class = header_at(space, index).size_class
    cdef Chunk* chunk = chunk_at(space, index)
    cdef uint32_t block = block_index(address, size_class)
    chunk.available[block // 64] |= <uint64_t> 1 << (block % 64)
    chunk.first_word = min(chunk.first_word, block // 64)
    chunk.available_blocks += 1
    if chunk.available_blocks == 1:
        list_add(space, &space.partial[size_class], index)
    if chunk.available_blocks == blocks_of(size_class):
        list_remove(space, &space.partial[size_class], index)
        list_add(space, &space.unassigned, index)


cdef void triespace_touch_page(TrieSpace* space, uint64_t page) noexcept nogil:
    cdef uint8_t* state = space.page_states.base + page
    cdef uint64_t offset = page * PAGE_BYTES
    if cas_u8(state, PAGE_FROZEN, PAGE_COPYING):
        memcpy(space.shadow.base + offset, space.memory.base + offset, PAGE_BYTES)
        store_release_u8(state, PAGE_ASIDE)
        return
    while load_acquire_u8(state) == PAGE_COPYING:
        spin_pause()
    if load_acquire_u8(state) == PAGE_CLEAN:
        store_release_u8(state, PAGE_DIRTY)


cdef bint triespace_extend(TrieSpace* space, uint64_t chunks) noexcept nogil:
    return chunks == 0 or extend(space, chunks)


cdef bint triespace_adopt_chunk(TrieSpace* space, uint64_t index) noexcept nogil:
    cdef const ChunkHeader* header = header_at(space, index)
    cdef Chunk* chunk = chunk_at(space, index)
    if not is_header_sound(header):
        return False
    set_available(chunk, header)
    space.used_bytes += <uint64_t> header.used_blocks * (BLOCK_BYTES_MIN << header.size_class)
    if header.used_blocks == 0:
        list_add(space, &space.unassigned, <uint32_t> index)
    elif chunk.available_blocks != 0:
        list_add(space, &space.partial[header.size_class], <uint32_t> index)
    return True


# The class exists, and the bitmap holds `used_blocks` blocks and none that do not exist.
cdef bint is_header_sound(const ChunkHeader* header) noexcept nogil:
    cdef uint32_t used = 0
    cdef uint32_t blocks
    cdef uint32_t word
    if header.size_class >= SIZE_CLASSES:
        return False
    blocks = blocks_of(header.size_class)
    for word in range(WORDS_PER_CHUNK):
        used += <uint32_t> __builtin_popcountll(header.used[word])
        if word * 64 >= blocks and header.used[word] != 0:
            return False
    if blocks % 64 != 0 and header.used[blocks // 64] >> (blocks % 64) != 0:
        return False
    return used == header.used_blocks


# --- What can be seen ---


cdef void triespace_stats(const TrieSpace* space, TrieSpaceStats* stats) noexcept nogil:
    cdef uint64_t page
    cdef uint8_t state
    stats.chunks = load_relaxed_u64(&space.chunk_count)
    stats.used_bytes = load_relaxed_u64(&space.used_bytes)
    stats.memory_bytes = stats.chunks * CHUNK_BYTES
    stats.pages = stats.chunks * PAGES_PER_CHUNK
    stats.dirty_pages = 0
    for page in range(stats.pages):
        state = load_acquire_u8(space.page_states.base + page)
        stats.dirty_pages += state == PAGE_DIRTY or state == PAGE_ASIDE
    stats.frames = load_relaxed_u64(&space.frames.count)
    stats.image_bytes_written = load_relaxed_u64(&space.image_bytes_written)


cdef bint triespace_is_used(
    const TrieSpace* space, uint64_t address, uint32_t bytes
) noexcept nogil:
    cdef uint32_t size_class = size_class_of(bytes)
    cdef uint64_t index = address // CHUNK_BYTES
    cdef uint32_t offset = <uint32_t> (address % CHUNK_BYTES)
    if bytes > BLOCK_BYTES_MAX or index >= space.chunk_count:
        return False
    cdef const ChunkHeader* header = header_at(space, index)
    if header.size_class != size_class or offset < header_bytes_of(size_class):
        return False
    if offset % (<uint32_t> BLOCK_BYTES_MIN << size_class) != 0:
        return False
    cdef uint32_t block = block_index(address, size_class)
    return (header.used[block // 64] >> (block % 64)) & 1


cdef Status triespace_check(const TrieSpace* space, Failure* failure) noexcept nogil:
    cdef uint32_t* in_limbo = <uint32_t*> calloc(space.chunk_count + 1, sizeof(uint32_t))
    if in_limbo == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "memory for the check")
    cdef const char* rule = check_chunks(space, in_limbo)
    free(in_limbo)
    if rule != NULL:
        return failure_set(failure, STATUS_CORRUPT, 0, "trie space", 0, rule)
    return STATUS_OK


# The first rule that is broken, or NULL.
cdef const char* check_chunks(const TrieSpace* space, uint32_t* in_limbo) noexcept nogil:
    cdef uint64_t used_bytes = 0
    cdef uint64_t listed = 0
    cdef uint64_t to_list = 0
    cdef uint64_t position
    cdef uint64_t index
    cdef const ChunkHeader* header
    cdef const Chunk* chunk
    cdef uint32_t word
    cdef uint32_t size_class
    for position in range(space.limbo_count):
        index = (space.limbo_first + position) & (space.limbo_capacity - 1)
        in_limbo[space.limbo[index].address // CHUNK_BYTES] += 1
    for index in range(space.chunk_count):
        header = header_at(space, index)
        chunk = chunk_at(space, index)
        if not is_header_sound(header):
            return "header of a trie chunk"
        for word in range(WORDS_PER_CHUNK):
            if header.used[word] & chunk.available[word]:
                return "a used block is available"
        if (
            header.used_blocks + chunk.available_blocks + in_limbo[index]
            != blocks_of(header.size_class)
        ):
            return "a block is neither used nor available nor in limbo"
        used_bytes += <uint64_t> header.used_blocks * (BLOCK_BYTES_MIN << header.size_class)
        to_list += chunk.available_blocks != 0
    for size_class in range(SIZE_CLASSES):
        listed += list_length(space, space.partial[size_class])
    listed += list_length(space, space.unassigned)
    if listed != to_list:
        return "a chunk with available blocks is in no list"
    if used_bytes != space.used_bytes:
        return "count of used bytes"
    return NULL


cdef uint64_t list_length(const TrieSpace* space, uint32_t index) noexcept nogil:
    cdef uint64_t length = 0
    while index != NO_CHUNK and length <= space.chunk_count:
        length += 1
        index = chunk_at(space, index).next
    return length


if sizeof(ChunkHeader) != 568 or sizeof(PageEntry) != 16:
    raise ImportError("the layout of trie chunks or page tables is not the documented one")
