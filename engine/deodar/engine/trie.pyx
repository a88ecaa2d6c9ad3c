from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from .atomics cimport load_acquire_u64, prefetch_read, store_relaxed_u64, store_release_u64
from .branch cimport (
    BRANCH_SLOTS,
    Item,
    block_at,
    branch_allocate,
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
    needle_of,
    slot_address,
    slot_kind,
    slot_make,
    slot_matches,
    slot_tag,
)
from .record cimport RECORD_HEADER_BYTES, record_key
from .status cimport (
    STATUS_NOT_FOUND,
    STATUS_NO_MEMORY,
    STATUS_OK,
    STATUS_OVER_LIMIT,
    failure_set,
)
from .triespace cimport triespace_base, triespace_prepare, triespace_touch

cdef enum:
    GROUP_KEYS = 64                     # of a batch walked together: about what one core can miss
    LINE_BYTES = 64
    LINE_SLOTS = 8
    SPLIT_ITEMS_MAX = 17                # a full leaf above depth 16, and the entry that comes


cdef Status trie_create(
    Trie* trie,
    TrieSpace* space,
    Reclaim* reclaim,
    const uint8_t* records,
    uint32_t sluggishness,
    Failure* failure,
) noexcept nogil:
    check(1 <= sluggishness <= 16, "sluggishness is 1 to 16")
    memset(trie, 0, sizeof(Trie))
    trie.space = space
    trie.reclaim = reclaim
    trie.records = records
    trie.sluggishness = sluggishness
    trie.root = branch_allocate(trie)
    if trie.root == 0:
        return no_memory(failure)
    return STATUS_OK


cdef Status no_memory(Failure* failure) noexcept nogil:
    return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "memory for the trie")


# --- Readers ---


# STATUS_OK when the record at `address` has this key, STATUS_NOT_FOUND when it has another.
cdef inline Status compare(
    const Trie* trie, uint64_t address, const uint8_t* key, uint32_t key_bytes, Failure* failure
) noexcept nogil:
    cdef Status status
    cdef uint32_t stored_bytes
    if trie.verify != NULL:
        status = trie.verify(trie.verify_context, address, failure)
        if status != STATUS_OK:
            return status
    cdef const uint8_t* stored = record_key(trie.records + address, &stored_bytes)
    if stored_bytes == key_bytes and memcmp(stored, key, key_bytes) == 0:
        return STATUS_OK
    return STATUS_NOT_FOUND


# Index of the first entry from `start` on whose tag fits, or `capacity`.
cdef inline uint32_t next_match(
    const uint64_t* entries, uint32_t capacity, uint32_t start, uint64_t needle, uint64_t* entry
) noexcept nogil:
    cdef uint32_t index
    for index in range(start, capacity):
        entry[0] = load_acquire_u64(&entries[index])
        if slot_matches(entry[0], needle):
            return index
    return capacity


# The entry of `key` among `capacity` of them from `start` on.
cdef inline Status search(
    const Trie* trie,
    const uint64_t* entries,
    uint32_t capacity,
    uint32_t start,
    uint64_t needle,
    const uint8_t* key,
    uint32_t key_bytes,
    uint32_t* index,
    uint64_t* entry,
    Failure* failure,
) noexcept nogil:
    cdef Status status
    index[0] = next_match(entries, capacity, start, needle, entry)
    while index[0] < capacity:
        status = compare(trie, slot_address(entry[0]), key, key_bytes, failure)
        if status != STATUS_NOT_FOUND:
            return status
        index[0] = next_match(entries, capacity, index[0] + 1, needle, entry)
    return STATUS_NOT_FOUND


cdef Status trie_find(
    const Trie* trie,
    Path path,
    const uint8_t* key,
    uint32_t key_bytes,
    uint64_t* address,
    Failure* failure,
) noexcept nogil:
    cdef uint64_t slot = slot_make(0, SLOT_BRANCH, trie.root)
    cdef const uint64_t* entries = &slot
    cdef uint32_t capacity = 1
    cdef unsigned int depth = 0
    cdef uint32_t index
    cdef uint64_t entry
    cdef Status status
    while slot_kind(slot) == SLOT_BRANCH:
        check(depth < TRIE_DEPTH_MAX, "a branch lies above depth 16")
        slot = load_acquire_u64(block_at(trie, slot_address(slot)) + path_byte(path, depth))
        depth += 1
    # A slot that holds a record is its own leaf of one: the copy, since the slot may change.
    if slot_kind(slot) == SLOT_LEAF:
        entries = block_at(trie, slot_address(slot))
        capacity = slot_tag(slot)
        if capacity > LINE_SLOTS:
            prefetch_read(entries + LINE_SLOTS)
    status = search(
        trie, entries, capacity, 0, needle_of(path), key, key_bytes, &index, &entry, failure
    )
    if status == STATUS_OK:
        address[0] = slot_address(entry)
    return status


cdef Status trie_find_batch(
    const Trie* trie,
    const Path* paths,
    const uint8_t** keys,
    const uint32_t* key_bytes,
    uint32_t count,
    uint64_t* addresses,
    Failure* failure,
) noexcept nogil:
    cdef uint32_t first = 0
    cdef uint32_t group
    cdef Status status
    while first < count:
        group = min(count - first, <uint32_t> GROUP_KEYS)
        status = find_group(
            trie, paths + first, keys + first, key_bytes + first, group, addresses + first, failure
        )
        if status != STATUS_OK:
            return status
        first += group
    return STATUS_OK


# One key of a group: where it is in its leaf.
cdef struct Candidate:
    uint32_t key                        # index in the group
    uint32_t index                      # of `entry`
    uint64_t slot                       # the slot that holds the leaf or record
    uint64_t entry


# In three stages, each of which has all its cache misses in flight at once: slots level by level,
# then leaf lines, then records.
cdef Status find_group(
    const Trie* trie,
    const Path* paths,
    const uint8_t** keys,
    const uint32_t* key_bytes,
    uint32_t count,
    uint64_t* addresses,
    Failure* failure,
) noexcept nogil:
    cdef Candidate[GROUP_KEYS] candidates
    cdef Candidate* candidate
    cdef uint32_t found = walk_group(trie, paths, count, candidates, addresses)
    found = match_group(trie, paths, key_bytes, candidates, found, addresses)
    cdef uint32_t position
    cdef uint32_t key
    cdef Status status
    for position in range(found):
        candidate = &candidates[position]
        key = candidate.key
        status = compare(
            trie, slot_address(candidate.entry), keys[key], key_bytes[key], failure
        )
        if status == STATUS_NOT_FOUND and slot_kind(candidate.slot) == SLOT_LEAF:
            status = search(
                trie,
                block_at(trie, slot_address(candidate.slot)),
                slot_tag(candidate.slot),
                candidate.index + 1,
                needle_of(paths[key]),
                keys[key],
                key_bytes[key],
                &candidate.index,
                &candidate.entry,
                failure,
            )
        if status == STATUS_OK:
            addresses[key] = slot_address(candidate.entry)
        elif status == STATUS_NOT_FOUND:
            addresses[key] = 0
        else:
            return status
    return STATUS_OK


# Walks all keys down to a slot that is no branch and asks for their leaf lines.
# Answers how many candidates it wrote; the other keys are absent.
cdef uint32_t walk_group(
    const Trie* trie,
    const Path* paths,
    uint32_t count,
    Candidate* candidates,
    uint64_t* addresses,
) noexcept nogil:
    cdef const uint64_t*[GROUP_KEYS] places
    cdef uint32_t[GROUP_KEYS] walking
    cdef const uint64_t* block
    cdef uint32_t left = count
    cdef uint32_t still
    cdef uint32_t found = 0
    cdef uint32_t position
    cdef uint32_t key
    cdef unsigned int depth = 0
    cdef uint64_t slot
    for key in range(count):
        walking[key] = key
        places[key] = block_at(trie, trie.root) + path_byte(paths[key], 0)
        prefetch_read(places[key])
    while left != 0:
        still = 0
        depth += 1
        for position in range(left):
            key = walking[position]
            slot = load_acquire_u64(places[key])
            if slot == 0:
                addresses[key] = 0
                continue
            block = block_at(trie, slot_address(slot))
            if slot_kind(slot) == SLOT_BRANCH:
                places[key] = block + path_byte(paths[key], depth)
                prefetch_read(places[key])
                walking[still] = key
                still += 1
                continue
            if slot_kind(slot) == SLOT_LEAF:
                prefetch_read(block)
                if slot_tag(slot) > LINE_SLOTS:
                    prefetch_read(block + LINE_SLOTS)
            candidates[found].key = key
            candidates[found].slot = slot
            found += 1
        left = still
    return found


# Finds the first entry with a fitting tag for each candidate and asks for its record, which spans
# two lines where the key ends beyond the first.
cdef uint32_t match_group(
    const Trie* trie,
    const Path* paths,
    const uint32_t* key_bytes,
    Candidate* candidates,
    uint32_t count,
    uint64_t* addresses,
) noexcept nogil:
    cdef Candidate candidate
    cdef const uint64_t* entries
    cdef const uint8_t* record
    cdef uint32_t found = 0
    cdef uint32_t position
    cdef uint32_t capacity
    for position in range(count):
        candidate = candidates[position]
        entries = &candidate.slot
        capacity = 1
        if slot_kind(candidate.slot) == SLOT_LEAF:
            entries = block_at(trie, slot_address(candidate.slot))
            capacity = slot_tag(candidate.slot)
        candidate.index = next_match(
            entries, capacity, 0, needle_of(paths[candidate.key]), &candidate.entry
        )
        if candidate.index == capacity:
            addresses[candidate.key] = 0
            continue
        record = trie.records + slot_address(candidate.entry)
        prefetch_read(record)
        if <uint64_t> record % LINE_BYTES + RECORD_HEADER_BYTES + key_bytes[candidate.key] > (
            LINE_BYTES
        ):
            prefetch_read(record + LINE_BYTES)
        candidates[found] = candidate
        found += 1
    return found


# --- Writer ---


# The slots passed on the way to a path: slots[d] lies in a branch at depth d.
cdef struct Descent:
    uint64_t*[TRIE_DEPTH_MAX] slots
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
cdef void store_counted(Trie* trie, Descent* descent, unsigned int depth, uint64_t slot) noexcept nogil:
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
    cdef Status status = search(
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
    if entries.used == 0 and slot_kind(old_slot) != SLOT_LEAF:
        store_counted(trie, descent, descent.depth, entry)
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
    cdef Status status = search(
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
        store_counted(trie, descent, descent.depth, 0)
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
