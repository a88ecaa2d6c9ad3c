from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from .atomics cimport load_acquire_u64, prefetch_read
from .branch cimport BRANCH_SLOTS, Item, block_at, items_hash, path_with_byte
from .debug cimport check
from .hashing cimport path_byte, path_compare
from .leaf cimport (
    LEAF_CAPACITY_MAX,
    SLOT_BRANCH,
    SLOT_LEAF,
    SLOT_RECORD,
    slot_address,
    slot_kind,
    slot_tag,
)
from .record cimport record_key
from .status cimport STATUS_OK
from .trie cimport TRIE_DEPTH_MAX


cdef enum:
    FORESIGHT_SLOTS = 24                # slots looked ahead: some ten records of small leaves


cdef struct Walk:
    const Trie* trie
    Path from_path
    TrieEntry* entries
    uint32_t capacity
    uint32_t count
    Path next_path
    bint more
    Failure* failure


cdef Status trie_walk(
    const Trie* trie,
    Path from_path,
    TrieEntry* entries,
    uint32_t capacity,
    uint32_t* count,
    Path* next_path,
    bint* more,
    Failure* failure,
) noexcept nogil:
    check(capacity >= LEAF_CAPACITY_MAX, "a walk has room for any leaf")
    cdef Walk walk
    cdef Path start
    start.high = 0
    start.low = 0
    walk.trie = trie
    walk.from_path = from_path
    walk.entries = entries
    walk.capacity = capacity
    walk.count = 0
    walk.next_path = from_path
    walk.more = False
    walk.failure = failure
    cdef Status status = walk_branch(&walk, trie.root, 0, start, True)
    count[0] = walk.count
    next_path[0] = walk.next_path
    more[0] = walk.more
    return status


# `start` is the lowest path below this branch; with `bounded`, from_path lies below it.
cdef Status walk_branch(
    Walk* walk, uint64_t branch, unsigned int depth, Path start, bint bounded
) noexcept nogil:
    cdef const uint64_t* slots = block_at(walk.trie, branch)
    cdef unsigned int first = path_byte(walk.from_path, depth) if bounded else 0
    cdef unsigned int byte
    cdef uint64_t slot
    cdef Path below
    cdef Status status = STATUS_OK
    check(depth < TRIE_DEPTH_MAX, "a branch lies above depth 16")
    for byte in range(first, first + FORESIGHT_SLOTS):
        foresee(walk.trie, slots, byte)
    for byte in range(first, BRANCH_SLOTS):
        foresee(walk.trie, slots, byte + FORESIGHT_SLOTS)
        slot = load_acquire_u64(&slots[byte])
        if slot == 0:
            continue
        below = path_with_byte(start, depth, byte)
        if slot_kind(slot) == SLOT_BRANCH:
            status = walk_branch(
                walk, slot_address(slot), depth + 1, below, bounded and byte == first
            )
        else:
            status = walk_entries(walk, slot, below)
        if status != STATUS_OK or walk.more:
            return status
    return STATUS_OK


# Asks for the leaf or the record that a slot further on leads to.
cdef inline void foresee(const Trie* trie, const uint64_t* slots, unsigned int byte) noexcept nogil:
    cdef uint64_t slot
    if byte >= BRANCH_SLOTS:
        return
    slot = load_acquire_u64(&slots[byte])
    if slot_kind(slot) == SLOT_LEAF:
        prefetch_read(block_at(trie, slot_address(slot)))
    elif slot_kind(slot) == SLOT_RECORD:
        prefetch_read(trie.records + slot_address(slot))


# Adds what a leaf or record slot holds, or stops in front of it when it may not fit.
cdef Status walk_entries(Walk* walk, uint64_t slot, Path start) noexcept nogil:
    cdef Item[LEAF_CAPACITY_MAX] items
    cdef const uint64_t* entries = &slot
    cdef uint32_t capacity = 1
    cdef uint32_t count = 0
    cdef uint32_t index
    cdef Status status
    if slot_kind(slot) == SLOT_LEAF:
        entries = block_at(walk.trie, slot_address(slot))
        capacity = slot_tag(slot)
    for index in range(capacity):
        items[count].entry = load_acquire_u64(&entries[index])
        count += items[count].entry != 0
    if walk.count + count > walk.capacity:
        walk.more = True
        walk.next_path = start
        return STATUS_OK
    status = items_hash(walk.trie, items, count, walk.failure)
    if status != STATUS_OK:
        return status
    cdef uint32_t first = walk.count
    for index in range(count):
        if path_compare(items[index].path, walk.from_path) >= 0:
            place_sorted(walk, first, &items[index])
    return STATUS_OK


# Inserts an item among the walk's entries from `first` on, all of one leaf.  A key that the writer
# took out and put back while the leaf was read shows up twice there: one is enough (W1).
cdef void place_sorted(Walk* walk, uint32_t first, const Item* item) noexcept nogil:
    cdef uint64_t address = slot_address(item.entry)
    cdef uint32_t place = walk.count
    cdef int order
    while place > first:
        order = compare_keys(walk.trie, item.path, address, &walk.entries[place - 1])
        if order == 0:
            return
        if order > 0:
            break
        place -= 1
    cdef uint32_t index = walk.count
    while index > place:
        walk.entries[index] = walk.entries[index - 1]
        index -= 1
    walk.entries[place].path = item.path
    walk.entries[place].address = address
    walk.count += 1


# Order of (path, key).
cdef int compare_keys(
    const Trie* trie, Path path, uint64_t address, const TrieEntry* other
) noexcept nogil:
    cdef int order = path_compare(path, other.path)
    if order != 0:
        return order
    cdef uint32_t left_bytes
    cdef uint32_t right_bytes
    cdef const uint8_t* left = record_key(trie.records + address, &left_bytes)
    cdef const uint8_t* right = record_key(trie.records + other.address, &right_bytes)
    order = memcmp(left, right, min(left_bytes, right_bytes))
    if order != 0:
        return order
    return <int> (left_bytes > right_bytes) - <int> (left_bytes < right_bytes)
