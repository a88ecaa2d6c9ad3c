from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from .atomics cimport prefetch_read, store_relaxed_u64
from .debug cimport check
from .hashing cimport path_byte, path_compare, path_of
from .leaf cimport (
    LEAF_CAPACITY_MAX,
    SLOT_BRANCH,
    SLOT_BYTES,
    SLOT_LEAF,
    SLOT_RECORD,
    leaf_capacity_for,
    slot_address,
    slot_kind,
    slot_make,
    slot_tag,
)
from .record cimport record_key
from .status cimport STATUS_OK
from .trie cimport TRIE_DEPTH_MAX
from .triespace cimport triespace_allocate, triespace_retire


# Counters have one writer; relaxed stores keep their readers from seeing halves.
cdef inline void add(uint64_t* counter, int64_t difference) noexcept nogil:
    store_relaxed_u64(counter, counter[0] + <uint64_t> difference)


cdef Status items_hash(
    const Trie* trie, Item* items, uint32_t count, Failure* failure
) noexcept nogil:
    cdef uint32_t index
    cdef uint64_t address
    cdef const unsigned char* key
    cdef uint32_t key_bytes
    cdef Status status
    for index in range(count):
        prefetch_read(trie.records + slot_address(items[index].entry))
    for index in range(count):
        address = slot_address(items[index].entry)
        if trie.verify != NULL:
            status = trie.verify(trie.verify_context, address, failure)
            if status != STATUS_OK:
                return status
        key = record_key(trie.records + address, &key_bytes)
        if trie.path_of == NULL:
            items[index].path = path_of(key, key_bytes)
        else:
            items[index].path = trie.path_of(key, key_bytes)
    return STATUS_OK


cdef uint64_t branch_allocate(Trie* trie) noexcept nogil:
    cdef uint64_t address = triespace_allocate(trie.space, BRANCH_BYTES)
    if address != 0:
        add(&trie.branch_count, 1)
    return address


cdef uint64_t leaf_allocate(
    Trie* trie, const uint64_t* entries, uint32_t count, uint32_t capacity
) noexcept nogil:
    check(count <= capacity <= LEAF_CAPACITY_MAX, "a leaf holds its entries")
    cdef uint64_t address = triespace_allocate(trie.space, capacity * SLOT_BYTES)
    if address == 0:
        return 0
    memcpy(block_at(trie, address), entries, count * sizeof(uint64_t))
    add(&trie.leaf_count, 1)
    add(&trie.leaf_slots, capacity)
    return address


cdef void leaf_retire(Trie* trie, uint64_t slot) noexcept nogil:
    add(&trie.leaf_count, -1)
    add(&trie.leaf_slots, -<int64_t> slot_tag(slot))
    triespace_retire(trie.space, slot_address(slot), slot_tag(slot) * SLOT_BYTES)


cdef bint subtrie_build(
    Trie* trie, Item* items, uint32_t count, unsigned int depth, uint64_t* slot
) noexcept nogil:
    sort_by_path(items, count)
    return build_sorted(trie, items, count, depth, slot)


# By insertion: there are hardly ever more than 17.
cdef void sort_by_path(Item* items, uint32_t count) noexcept nogil:
    cdef uint32_t index
    cdef uint32_t place
    cdef Item moving
    for index in range(1, count):
        moving = items[index]
        place = index
        while place > 0 and path_compare(moving.path, items[place - 1].path) < 0:
            items[place] = items[place - 1]
            place -= 1
        items[place] = moving


cdef bint build_sorted(
    Trie* trie, const Item* items, uint32_t count, unsigned int depth, uint64_t* slot
) noexcept nogil:
    if count == 1:
        slot[0] = items[0].entry
        return True
    if count <= trie.sluggishness or depth == TRIE_DEPTH_MAX:
        return build_leaf(trie, items, count, slot)
    cdef uint64_t address = branch_allocate(trie)
    if address == 0:
        return False
    cdef uint64_t* slots = block_at(trie, address)
    cdef uint32_t filled = 0
    cdef uint32_t first = 0
    cdef uint32_t end
    cdef unsigned int byte
    while first < count:
        byte = path_byte(items[first].path, depth)
        end = first + 1
        while end < count and path_byte(items[end].path, depth) == byte:
            end += 1
        if not build_sorted(trie, items + first, end - first, depth + 1, &slots[byte]):
            subtrie_retire(trie, slot_make(filled, SLOT_BRANCH, address))
            return False
        filled += 1
        first = end
    slot[0] = slot_make(filled, SLOT_BRANCH, address)
    return True


cdef bint build_leaf(
    Trie* trie, const Item* items, uint32_t count, uint64_t* slot
) noexcept nogil:
    cdef uint64_t[LEAF_CAPACITY_MAX] entries
    cdef uint32_t capacity = leaf_capacity_for(count)
    cdef uint32_t index
    for index in range(count):
        entries[index] = items[index].entry
    cdef uint64_t address = leaf_allocate(trie, entries, count, capacity)
    if address == 0:
        return False
    slot[0] = slot_make(capacity, SLOT_LEAF, address)
    return True


cdef uint32_t subtrie_collect(
    const Trie* trie, uint64_t slot, uint64_t* entries, uint32_t limit
) noexcept nogil:
    cdef const uint64_t* slots = block_at(trie, slot_address(slot))
    cdef unsigned int kind = slot_kind(slot)
    cdef uint32_t left = slot_tag(slot) if kind == SLOT_BRANCH else 0
    cdef uint32_t count = 0
    cdef uint32_t index
    if slot == 0:
        return 0
    if kind == SLOT_RECORD:
        if limit != 0:
            entries[0] = slot
        return 1
    for index in range(BRANCH_SLOTS if kind == SLOT_BRANCH else slot_tag(slot)):
        if slots[index] == 0:
            continue
        count += subtrie_collect(trie, slots[index], entries + count, limit - count)
        if count > limit:
            return count
        if kind == SLOT_BRANCH:
            left -= 1
            if left == 0:
                break
    return count


cdef void subtrie_retire(Trie* trie, uint64_t slot) noexcept nogil:
    cdef const uint64_t* slots
    cdef uint32_t index
    if slot_kind(slot) == SLOT_LEAF:
        leaf_retire(trie, slot)
    elif slot_kind(slot) == SLOT_BRANCH:
        slots = block_at(trie, slot_address(slot))
        for index in range(BRANCH_SLOTS):
            subtrie_retire(trie, slots[index])
        add(&trie.branch_count, -1)
        triespace_retire(trie.space, slot_address(slot), BRANCH_BYTES)
