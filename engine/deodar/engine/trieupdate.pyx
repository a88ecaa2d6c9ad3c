from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .atomics cimport store_relaxed_u64, store_release_u64
from .branch cimport (
    Item,
    block_at,
    items_hash,
    leaf_allocate,
    leaf_retire,
    subtrie_build,
    subtrie_collect,
    subtrie_retire,
)
from .debug cimport check
from .hashing cimport path_byte, path_tag
from .leaf cimport (
    LEAF_CAPACITY_MAX,
    SLOT_BRANCH,
    SLOT_LEAF,
    SLOT_RECORD,
    leaf_capacity_for,
    leaf_search,
    needle_of,
    slot_address,
    slot_kind,
    slot_make,
    slot_tag,
)
from .status cimport (
    STATUS_NOT_FOUND,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    failure_set,
)
from .trie cimport TRIE_DEPTH_MAX
from .triespace cimport triespace_base, triespace_prepare, triespace_touch

cdef enum:
    SPLIT_ITEMS_MAX = 17                # a full leaf above depth 16, and the entry that comes


cdef Status no_memory(Failure* failure) noexcept nogil:
    return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "memory for the trie")


# The slots passed on the way to a path: slots[d] lies in a branch at depth d.
cdef struct Descent:
    uint64_t* slots[TRIE_DEPTH_MAX]
    unsigned int depth                  # of the last


# Where the entries of a descent's last slot are: its leaf's block, or the slot itself.
cdef struct Entries:
    uint64_t* first
    uint32_t capacity
    uint32_t used
    uint32_t free                       # index of the first empty entry, `capacity` when full


cdef void descend(const Trie* trie, Path path, Descent* descent) noexcept nogil:
    cdef uint64_t branch = trie.root
    cdef uint64_t slot
    descent.depth = 0
    while True:
        descent.slots[descent.depth] = (
            block_at(trie, branch) + path_byte(path, descent.depth)
        )
        slot = descent.slots[descent.depth][0]
        if slot_kind(slot) != SLOT_BRANCH:
            return
        branch = slot_address(slot)
        descent.depth += 1
        check(descent.depth < TRIE_DEPTH_MAX, "a branch lies above depth 16")


cdef Entries entries_of(const Trie* trie, uint64_t* place) noexcept nogil:
    cdef Entries entries
    cdef uint32_t index
    entries.first = place
    entries.capacity = 1
    if slot_kind(place[0]) == SLOT_LEAF:
        entries.first = block_at(trie, slot_address(place[0]))
        entries.capacity = slot_tag(place[0])
    entries.used = 0
    entries.free = entries.capacity
    for index in range(entries.capacity):
        if entries.first[index] != 0:
            entries.used += 1
        elif entries.free == entries.capacity:
            entries.free = index
    return entries


cdef inline void store_slot(Trie* trie, uint64_t* place, uint64_t slot) noexcept nogil:
    triespace_touch(trie.space, <uint64_t> (<uint8_t*> place - triespace_base(trie.space)))
    store_release_u64(place, slot)


# Changes the last slot of a descent between empty and not, and the count kept of the branch.
cdef void store_counted(Trie* trie, Descent* descent, uint64_t slot) noexcept nogil:
    cdef unsigned int depth = descent.depth
    cdef uint64_t* place = descent.slots[depth]
    cdef uint64_t* parent
    cdef unsigned int count
    check((place[0] == 0) != (slot == 0), "the slot changes between empty and not")
    store_slot(trie, place, slot)
    if depth != 0:
        parent = descent.slots[depth - 1]
        count = slot_tag(parent[0]) + 1 if slot != 0 else slot_tag(parent[0]) - 1
        store_slot(trie, parent, slot_make(count, SLOT_BRANCH, slot_address(parent[0])))


cdef Status trie_upsert(
    Trie* trie,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t address,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil:
    cdef uint64_t entry = slot_make(path_tag(path), SLOT_RECORD, address)
    cdef uint64_t old_entry
    cdef uint32_t index
    cdef Descent descent
    old_address[0] = 0
    descend(trie, path, &descent)
    cdef Entries entries = entries_of(trie, descent.slots[descent.depth])
    cdef Status status = leaf_search(
        trie,
        entries.first,
        entries.capacity,
        0,
        needle_of(path),
        key,
        key_bytes,
        &index,
        &old_entry,
        failure,
    )
    if status == STATUS_OK:
        old_address[0] = slot_address(old_entry)
        store_slot(trie, &entries.first[index], entry)
        return STATUS_OK
    if status == STATUS_NOT_FOUND:
        status = insert(trie, &descent, &entries, path, entry, failure)
    if status == STATUS_OK:
        store_relaxed_u64(&trie.key_count, trie.key_count + 1)
    return status


# Adds an entry of a new key where the descent ended.
cdef Status insert(
    Trie* trie,
    Descent* descent,
    const Entries* entries,
    Path path,
    uint64_t entry,
    Failure* failure,
) noexcept nogil:
    cdef uint64_t* place = descent.slots[descent.depth]
    cdef bint last = descent.depth + 1 == TRIE_DEPTH_MAX
    cdef uint32_t used_max = LEAF_CAPACITY_MAX if last else trie.sluggishness
    cdef uint64_t old_slot = place[0]
    cdef uint64_t slot = 0
    cdef Status status
    if old_slot == 0:
        store_counted(trie, descent, entry)
        return STATUS_OK
    if entries.used < used_max and entries.free < entries.capacity:
        store_slot(trie, &entries.first[entries.free], entry)
        return STATUS_OK
    if entries.used >= used_max and last:
        return failure_set(
            failure, STATUS_OVER_LIMIT, 0, NULL, 0, "more than 256 keys with equal paths"
        )
    status = triespace_prepare(trie.space, failure)
    if status != STATUS_OK:
        return status
    if entries.used < used_max:
        slot = grown_leaf(trie, entries, entry)
        status = STATUS_OK if slot != 0 else no_memory(failure)
    else:
        status = split_leaf(trie, entries, path, entry, descent.depth + 1, &slot, failure)
    if status != STATUS_OK:
        return status
    store_slot(trie, place, slot)
    if slot_kind(old_slot) == SLOT_LEAF:
        leaf_retire(trie, old_slot)
    return STATUS_OK


# A leaf of twice the capacity with `entry` added; 0 when there is no memory.
cdef uint64_t grown_leaf(Trie* trie, const Entries* entries, uint64_t entry) noexcept nogil:
    cdef uint32_t capacity = entries.capacity * 2
    cdef uint64_t block = leaf_allocate(trie, entries.first, entries.capacity, capacity)
    if block == 0:
        return 0
    block_at(trie, block)[entries.capacity] = entry
    return slot_make(capacity, SLOT_LEAF, block)


# What tells the entries and the new one apart (CedrusDB section 3.2: one split an insertion).
cdef Status split_leaf(
    Trie* trie,
    const Entries* entries,
    Path path,
    uint64_t entry,
    unsigned int depth,
    uint64_t* slot,
    Failure* failure,
) noexcept nogil:
    cdef Item[SPLIT_ITEMS_MAX] items
    cdef uint32_t count = 0
    cdef uint32_t index
    cdef Status status
    check(entries.used < SPLIT_ITEMS_MAX, "a leaf above depth 16 holds at most 16 entries")
    for index in range(entries.capacity):
        if entries.first[index] != 0:
            items[count].entry = entries.first[index]
            count += 1
    status = items_hash(trie, items, count, failure)
    if status != STATUS_OK:
        return status
    items[count].entry = entry
    items[count].path = path
    if not subtrie_build(trie, items, count + 1, depth, slot):
        return no_memory(failure)
    return STATUS_OK


cdef Status trie_remove(
    Trie* trie,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t* old_address,
    Failure* failure,
) noexcept nogil:
    cdef Descent descent
    cdef uint64_t entry
    cdef uint32_t index
    old_address[0] = 0
    descend(trie, path, &descent)
    cdef Entries entries = entries_of(trie, descent.slots[descent.depth])
    cdef Status status = leaf_search(
        trie,
        entries.first,
        entries.capacity,
        0,
        needle_of(path),
        key,
        key_bytes,
        &index,
        &entry,
        failure,
    )
    if status != STATUS_OK:
        return status
    status = triespace_prepare(trie.space, failure)
    if status != STATUS_OK:
        return status
    old_address[0] = slot_address(entry)
    take_entry(trie, &descent, &entries, index)
    store_relaxed_u64(&trie.key_count, trie.key_count - 1)
    merge(trie, &descent)
    return STATUS_OK


# Removes one entry.  A leaf that is left with a quarter of its capacity is replaced by one of half,
# and one that is left with a single entry by that entry.
cdef void take_entry(
    Trie* trie, Descent* descent, const Entries* entries, uint32_t index
) noexcept nogil:
    cdef uint64_t* place = descent.slots[descent.depth]
    cdef uint64_t old_slot = place[0]
    cdef uint64_t[LEAF_CAPACITY_MAX] kept
    cdef uint32_t count = 0
    cdef uint32_t position
    if slot_kind(old_slot) != SLOT_LEAF:
        store_counted(trie, descent, 0)
        return
    for position in range(entries.capacity):
        if entries.first[position] != 0 and position != index:
            kept[count] = entries.first[position]
            count += 1
    check(count != 0, "a leaf holds two entries or more")
    cdef uint64_t slot = 0
    if count == 1 or count <= entries.capacity // 4:
        slot = packed_slot(trie, kept, count, entries.capacity // 2)
    if slot == 0:
        store_slot(trie, &entries.first[index], 0)
        return
    store_slot(trie, place, slot)
    leaf_retire(trie, old_slot)


# A slot for `count` entries: the only one itself, or a leaf.  0 when there is no memory.
cdef uint64_t packed_slot(
    Trie* trie, const uint64_t* entries, uint32_t count, uint32_t capacity
) noexcept nogil:
    if count == 1:
        return entries[0]
    cdef uint64_t block = leaf_allocate(trie, entries, count, capacity)
    return slot_make(capacity, SLOT_LEAF, block) if block != 0 else 0


# After a removal: finds the highest branch on the way that is down to half the sluggishness, and
# puts a leaf, or the only entry, in its place; the path below it that does not fork goes with it
# (CedrusDB section 3.3: one merge a deletion).  Where there is no memory for the leaf, the branch
# stays for a later deletion; a single entry needs none (T2).
cdef void merge(Trie* trie, Descent* descent) noexcept nogil:
    cdef uint32_t entries_max = max(trie.sluggishness // 2, <uint32_t> 1)
    cdef uint64_t[LEAF_CAPACITY_MAX] entries
    cdef uint64_t[LEAF_CAPACITY_MAX] seen
    cdef uint64_t slot
    cdef uint32_t count = 0
    cdef uint32_t below
    cdef unsigned int top = descent.depth
    while top > 0:
        slot = descent.slots[top - 1][0]
        if slot_tag(slot) > entries_max:
            break
        below = subtrie_collect(trie, slot, seen, entries_max)
        if below > entries_max:
            break
        count = below
        for index in range(count):
            entries[index] = seen[index]
        top -= 1
    if top == descent.depth:
        return
    check(count != 0, "T2: something is left below a branch")
    cdef uint64_t old_slot = descent.slots[top][0]
    slot = packed_slot(trie, entries, count, leaf_capacity_for(count))
    if slot == 0:
        return
    store_slot(trie, descent.slots[top], slot)
    subtrie_retire(trie, old_slot)


cdef Status trie_replace(
    Trie* trie, Path path, uint64_t old_address, uint64_t new_address
) noexcept nogil:
    cdef uint64_t entry = slot_make(path_tag(path), SLOT_RECORD, old_address)
    cdef uint32_t index
    cdef Descent descent
    descend(trie, path, &descent)
    cdef Entries entries = entries_of(trie, descent.slots[descent.depth])
    for index in range(entries.capacity):
        if entries.first[index] == entry:
            store_slot(
                trie,
                &entries.first[index],
                slot_make(path_tag(path), SLOT_RECORD, new_address),
            )
            return STATUS_OK
    return STATUS_NOT_FOUND
