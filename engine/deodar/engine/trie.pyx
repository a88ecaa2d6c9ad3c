from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from .atomics cimport load_acquire_u64, prefetch_read
from .branch cimport block_at, branch_allocate
from .debug cimport check
from .hashing cimport path_byte
from .leaf cimport (
    SLOT_BRANCH,
    SLOT_LEAF,
    leaf_next,
    leaf_search,
    needle_of,
    record_compare,
    slot_address,
    slot_kind,
    slot_make,
    slot_tag,
)
from .record cimport RECORD_HEADER_BYTES
from .status cimport STATUS_NOT_FOUND, STATUS_NO_MEMORY, STATUS_OK, failure_set

cdef enum:
    GROUP_KEYS = 64                     # of a batch walked together: about what one core can miss
    LINE_BYTES = 64
    LINE_SLOTS = 8


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
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "memory for the trie")
    return STATUS_OK


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
    status = leaf_search(
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
        status = record_compare(
            trie, slot_address(candidate.entry), keys[key], key_bytes[key], failure
        )
        if status == STATUS_NOT_FOUND and slot_kind(candidate.slot) == SLOT_LEAF:
            status = leaf_search(
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
    cdef uint64_t* places[GROUP_KEYS]
    cdef uint32_t[GROUP_KEYS] walking
    cdef uint64_t* block
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
        candidate.index = leaf_next(
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
