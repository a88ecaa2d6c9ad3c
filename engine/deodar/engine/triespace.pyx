from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from .atomics cimport (
    cas_u8,
    load_acquire_u8,
    load_relaxed_u64,
    spin_pause,
    store_relaxed_u64,
    store_release_u8,
)
from .debug cimport check
from .disk cimport disk_write
from .frames cimport (
    FRAMES_PER_FILE,
    frame_file_name,
    frame_offset,
    frames_claim,
    frames_close,
    frames_fd_to_write,
    frames_give_back,
    frames_open,
    frames_read,
    frames_sync,
    frames_take,
)
from .hashing cimport checksum64
from .limits cimport PAGE_BYTES
from .reclaim cimport reclaim_retire, reclaim_safe
from .reservation cimport (
    HUGE_PAGE_BYTES,
    reservation_clear,
    reservation_close,
    reservation_extend,
    reservation_open,
)
from .status cimport (
    STATUS_CORRUPT,
    STATUS_IO_ERROR,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    failure_set,
)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t bytes)

cdef extern from *:
    int __builtin_ctzll(unsigned long long bits) noexcept nogil
    int __builtin_popcountll(unsigned long long bits) noexcept nogil

cdef enum:
    NO_CHUNK = 0xFFFFFFFF
    PAGES_PER_CHUNK = CHUNK_BYTES // PAGE_BYTES
    WORDS_PER_CHUNK = 63
    GROWTH_CHUNKS = HUGE_PAGE_BYTES // CHUNK_BYTES
    BATCH_PAGES = 512                   # 2 MiB gathered for one disk_write
    LIMBO_CAPACITY_MIN = 4096
    DRAIN_EVERY = 128                   # retirements; looking at every reader slot is not free
    NAME_BYTES = 32


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


# --- Images ---


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


cdef Status triespace_freeze(TrieSpace* space, Failure* failure) noexcept nogil:
    check(space.image_state == IMAGE_NONE, "one image at a time")
    cdef uint64_t pages = space.chunk_count * PAGES_PER_CHUNK
    cdef uint8_t* states = space.page_states.base
    cdef uint64_t page
    if not prepare_batch(space):
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "memory for a checkpoint")
    for page in range(pages):
        if states[page] == PAGE_DIRTY:
            states[page] = PAGE_FROZEN
    space.image_pages = pages
    space.image_state = IMAGE_FROZEN
    return STATUS_OK


# The buffers of write_image, kept for the next one.
cdef bint prepare_batch(TrieSpace* space) noexcept nogil:
    cdef void* batch = NULL
    if space.batch == NULL:
        if posix_memalign(&batch, PAGE_BYTES, <size_t> BATCH_PAGES * PAGE_BYTES) != 0:
            return False
        space.batch = <uint8_t*> batch
    if space.operations == NULL:
        space.operations = <WriteOperation*> calloc(BATCH_PAGES, sizeof(WriteOperation))
    return space.operations != NULL


# Copies a page of the image to `target` and takes it out of the image.
# False for pages that the image does not hold.
cdef bint take_page(TrieSpace* space, uint64_t page, uint8_t* target) noexcept nogil:
    cdef uint8_t* state = space.page_states.base + page
    cdef uint64_t offset = page * PAGE_BYTES
    cdef unsigned char seen = load_acquire_u8(state)
    if seen == PAGE_CLEAN or seen == PAGE_DIRTY:
        return False
    if cas_u8(state, PAGE_FROZEN, PAGE_COPYING):
        memcpy(target, space.memory.base + offset, PAGE_BYTES)
        store_release_u8(state, PAGE_CLEAN)
        return True
    while load_acquire_u8(state) == PAGE_COPYING:
        spin_pause()
    memcpy(target, space.shadow.base + offset, PAGE_BYTES)
    store_release_u8(state, PAGE_DIRTY)
    return True


cdef inline bint is_zero(const uint8_t* page) noexcept nogil:
    return page[0] == 0 and memcmp(page, page + 1, PAGE_BYTES - 1) == 0


cdef Status triespace_write_image(TrieSpace* space, Disk* disk, Failure* failure) noexcept nogil:
    check(space.image_state == IMAGE_FROZEN, "triespace_freeze comes before triespace_write_image")
    cdef uint64_t page = 0
    cdef Status status = STATUS_OK
    while status == STATUS_OK and page < space.image_pages:
        status = write_batch(space, disk, &page, failure)
    if status == STATUS_OK:
        status = frames_sync(&space.frames, disk, failure)
    if status != STATUS_OK:
        triespace_abandon_image(space)
        return status
    release_shadow(space)
    space.image_state = IMAGE_WRITTEN
    return STATUS_OK


# Gathers pages from `*page` on, gives each a frame and writes them; neighbours in one operation.
cdef Status write_batch(
    TrieSpace* space, Disk* disk, uint64_t* page, Failure* failure
) noexcept nogil:
    cdef PageEntry* image = <PageEntry*> space.image.base
    cdef WriteOperation* operation = NULL
    cdef uint64_t operations = 0
    cdef uint64_t gathered = 0
    cdef uint64_t frame = 0
    cdef uint64_t previous_frame = 0
    cdef uint8_t* target
    cdef Status status
    while page[0] < space.image_pages and gathered < BATCH_PAGES:
        target = space.batch + gathered * PAGE_BYTES
        if not take_page(space, page[0], target):
            page[0] += 1
            continue
        if is_zero(target):
            memset(&image[page[0]], 0, sizeof(PageEntry))
            page[0] += 1
            continue
        status = frames_take(&space.frames, &frame, failure)
        if status != STATUS_OK:
            store_release_u8(space.page_states.base + page[0], PAGE_DIRTY)
            return status
        image[page[0]].frame = frame
        image[page[0]].checksum = checksum64(target, PAGE_BYTES, page[0])
        if operation != NULL and frame == previous_frame + 1 and frame % FRAMES_PER_FILE != 0:
            operation.bytes += PAGE_BYTES
        else:
            operation = space.operations + operations
            operation.fd = frames_fd_to_write(&space.frames, frame)
            operation.buffer = target
            operation.bytes = PAGE_BYTES
            operation.offset = frame_offset(frame)
            operations += 1
        previous_frame = frame
        gathered += 1
        page[0] += 1
    if gathered == 0:
        return STATUS_OK
    status = disk_write(disk, space.operations, operations, failure)
    if status == STATUS_OK:
        store_relaxed_u64(
            &space.image_bytes_written, space.image_bytes_written + gathered * PAGE_BYTES
        )
    return status


# Memory of pages copied aside is needed no more; should the system refuse it, it is used again.
cdef void release_shadow(TrieSpace* space) noexcept nogil:
    cdef bint released = reservation_clear(&space.shadow, space.image_pages * PAGE_BYTES)
    check(released, "the shadow's pages are ours to discard")


cdef uint64_t triespace_page_table(
    TrieSpace* space, const PageEntry** entries
) noexcept nogil:
    check(space.image_state == IMAGE_WRITTEN, "a page table belongs to an image that is written")
    entries[0] = <const PageEntry*> space.image.base
    return space.image_pages


cdef void triespace_commit_image(TrieSpace* space) noexcept nogil:
    check(space.image_state == IMAGE_WRITTEN, "only an image that is written is committed")
    replace_changed(space, <PageEntry*> space.durable.base, <PageEntry*> space.image.base)
    space.image_state = IMAGE_NONE


# Makes `losing` equal to `kept` and frees the frames that it alone refers to.
cdef void replace_changed(
    TrieSpace* space, PageEntry* losing, const PageEntry* kept
) noexcept nogil:
    cdef uint64_t page
    for page in range(space.image_pages):
        if losing[page].frame == kept[page].frame:
            continue
        if losing[page].frame != 0:
            frames_give_back(&space.frames, losing[page].frame)
        losing[page] = kept[page]


cdef void triespace_abandon_image(TrieSpace* space) noexcept nogil:
    cdef PageEntry* image = <PageEntry*> space.image.base
    cdef PageEntry* durable = <PageEntry*> space.durable.base
    cdef uint8_t* state
    cdef uint64_t page
    if space.image_state == IMAGE_NONE:
        return
    for page in range(space.image_pages):
        state = space.page_states.base + page
        if not cas_u8(state, PAGE_FROZEN, PAGE_DIRTY):
            while load_acquire_u8(state) == PAGE_COPYING:
                spin_pause()
        if load_acquire_u8(state) == PAGE_ASIDE or image[page].frame != durable[page].frame:
            store_release_u8(state, PAGE_DIRTY)
    replace_changed(space, image, durable)
    release_shadow(space)
    space.image_state = IMAGE_NONE


# --- Open ---


cdef Status fail_frame(uint64_t frame, const char* rule, Failure* failure) noexcept nogil:
    cdef char[NAME_BYTES] name
    frame_file_name(frame, name, NAME_BYTES)
    return failure_set(failure, STATUS_CORRUPT, 0, name, frame_offset(frame), rule)


cdef Status triespace_load(
    TrieSpace* space, const PageEntry* entries, uint64_t pages, Failure* failure
) noexcept nogil:
    check(space.chunk_count == 0, "an image is loaded into a new space")
    cdef uint64_t chunks = pages // PAGES_PER_CHUNK
    if pages % PAGES_PER_CHUNK != 0:
        return failure_set(failure, STATUS_CORRUPT, 0, NULL, 0, "page table of half a chunk")
    if chunks * CHUNK_BYTES > space.memory.reserved_bytes:
        return failure_set(
            failure, STATUS_OVER_LIMIT, 0, NULL, 0, "page table beyond the reserved addresses"
        )
    if chunks != 0 and not extend(space, chunks):
        return failure_set(failure, STATUS_NO_MEMORY, errno, NULL, 0, "memory for the trie space")
    memcpy(space.durable.base, entries, pages * sizeof(PageEntry))
    memcpy(space.image.base, entries, pages * sizeof(PageEntry))
    cdef Status status = read_pages(space, pages, failure)
    cdef uint64_t index = chunks
    while status == STATUS_OK and index > 0:
        index -= 1
        status = adopt_chunk(space, index, failure)
    if status == STATUS_OK:
        store_relaxed_u64(&space.chunk_count, chunks)
    return status


# Pages that lie in neighbouring frames are read at once, up to a batch.
cdef Status read_pages(TrieSpace* space, uint64_t pages, Failure* failure) noexcept nogil:
    cdef PageEntry* durable = <PageEntry*> space.durable.base
    cdef uint64_t page = 0
    cdef uint64_t run
    cdef uint64_t first
    cdef Status status
    while page < pages:
        first = durable[page].frame
        if first == 0:
            page += 1
            continue
        run = 1
        while (
            run < BATCH_PAGES
            and page + run < pages
            and durable[page + run].frame == first + run
            and (first + run) % FRAMES_PER_FILE != 0
        ):
            run += 1
        status = read_run(space, page, run, failure)
        if status != STATUS_OK:
            return status
        page += run
    return STATUS_OK


cdef Status read_run(
    TrieSpace* space, uint64_t first_page, uint64_t count, Failure* failure
) noexcept nogil:
    cdef PageEntry* entry = <PageEntry*> space.durable.base + first_page
    cdef uint8_t* bytes = space.memory.base + first_page * PAGE_BYTES
    cdef uint64_t index
    cdef Status status
    for index in range(count):
        status = frames_claim(&space.frames, entry[index].frame, failure)
        if status != STATUS_OK:
            return status
    status = frames_read(&space.frames, entry[0].frame, count, bytes, failure)
    if status != STATUS_OK:
        return status
    for index in range(count):
        if (
            checksum64(bytes + index * PAGE_BYTES, PAGE_BYTES, first_page + index)
            != entry[index].checksum
        ):
            return fail_frame(entry[index].frame, "P3: checksum of a trie page", failure)
    return STATUS_OK


cdef Status adopt_chunk(TrieSpace* space, uint64_t index, Failure* failure) noexcept nogil:
    cdef const ChunkHeader* header = header_at(space, index)
    cdef Chunk* chunk = chunk_at(space, index)
    cdef uint64_t frame = (<PageEntry*> space.durable.base)[index * PAGES_PER_CHUNK].frame
    if not is_header_sound(header):
        return fail_frame(frame, "header of a trie chunk", failure)
    set_available(chunk, header)
    space.used_bytes += <uint64_t> header.used_blocks * (BLOCK_BYTES_MIN << header.size_class)
    if header.used_blocks == 0:
        list_add(space, &space.unassigned, <uint32_t> index)
    elif chunk.available_blocks != 0:
        list_add(space, &space.partial[header.size_class], <uint32_t> index)
    return STATUS_OK


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
    return NULL if used_bytes == space.used_bytes else "count of used bytes"


cdef uint64_t list_length(const TrieSpace* space, uint32_t index) noexcept nogil:
    cdef uint64_t length = 0
    while index != NO_CHUNK and length <= space.chunk_count:
        length += 1
        index = chunk_at(space, index).next
    return length


if sizeof(ChunkHeader) != 568 or sizeof(PageEntry) != 16:
    raise ImportError("the layout of trie chunks or page tables is not the documented one")
