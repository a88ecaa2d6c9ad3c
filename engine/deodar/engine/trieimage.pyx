from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcmp, memcpy, memset

from .atomics cimport cas_u8, load_acquire_u8, spin_pause, store_relaxed_u64, store_release_u8
from .debug cimport check
from .disk cimport WriteOperation, disk_write
from .frames cimport (
    FRAMES_PER_FILE,
    frame_file_name,
    frame_offset,
    frames_claim,
    frames_fd_to_write,
    frames_give_back,
    frames_read,
    frames_sync,
    frames_take,
)
from .hashing cimport checksum64
from .limits cimport PAGE_BYTES
from .reservation cimport reservation_clear
from .status cimport (
    STATUS_CORRUPT,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    failure_set,
)
from .triespace cimport (
    CHUNK_BYTES,
    IMAGE_FROZEN,
    IMAGE_NONE,
    IMAGE_WRITTEN,
    PAGE_ASIDE,
    PAGE_CLEAN,
    PAGE_COPYING,
    PAGE_DIRTY,
    PAGE_FROZEN,
    PAGES_PER_CHUNK,
    triespace_adopt_chunk,
    triespace_extend,
)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** memory, size_t alignment, size_t bytes)

cdef enum:
    BATCH_PAGES = 512                   # 2 MiB gathered for one disk_write
    NAME_BYTES = 32


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
    if not triespace_extend(space, chunks):
        return failure_set(failure, STATUS_NO_MEMORY, errno, NULL, 0, "memory for the trie space")
    memcpy(space.durable.base, entries, pages * sizeof(PageEntry))
    memcpy(space.image.base, entries, pages * sizeof(PageEntry))
    cdef Status status = read_pages(space, pages, failure)
    cdef PageEntry* durable = <PageEntry*> space.durable.base
    cdef uint64_t index = chunks
    while status == STATUS_OK and index > 0:
        index -= 1
        if not triespace_adopt_chunk(space, index):
            status = fail_frame(
                durable[index * PAGES_PER_CHUNK].frame, "header of a trie chunk", failure
            )
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
