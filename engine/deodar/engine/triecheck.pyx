from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from .branch cimport (
    BRANCH_BYTES,
    BRANCH_SLOTS,
    Item,
    block_at,
    items_hash,
    path_with_byte,
)
from .hashing cimport Path, path_byte, path_compare, path_tag
from .leaf cimport (
    LEAF_CAPACITY_MAX,
    LEAF_CAPACITY_MIN,
    SLOT_BRANCH,
    SLOT_BYTES,
    SLOT_LEAF,
    SLOT_RECORD,
    slot_address,
    slot_kind,
    slot_tag,
)
from .record cimport record_key
from .status cimport STATUS_CORRUPT, STATUS_NO_MEMORY, STATUS_OK, failure_set
from .trie cimport TRIE_DEPTH_MAX
from .triespace cimport (
    BLOCK_BYTES_MIN,
    TrieSpaceStats,
    triespace_is_used,
    triespace_stats,
)


cdef struct Check:
    const Trie* trie
    TrieStats* stats
    uint64_t* seen                      # one bit for each BLOCK_BYTES_MIN bytes of the space
    uint64_t seen_bytes                 # in blocks
    Failure* failure


cdef Status trie_check(const Trie* trie, TrieStats* stats, Failure* failure) noexcept nogil:
    cdef TrieSpaceStats space
    cdef Check checking
    cdef Path start
    start.high = 0
    start.low = 0
    memset(stats, 0, sizeof(TrieStats))
    triespace_stats(trie.space, &space)
    checking.trie = trie
    checking.stats = stats
    checking.seen = <uint64_t*> calloc(space.memory_bytes // BLOCK_BYTES_MIN // 64 + 1, 8)
    checking.seen_bytes = 0
    checking.failure = failure
    if checking.seen == NULL:
        return failure_set(failure, STATUS_NO_MEMORY, 0, NULL, 0, "memory for the check")
    cdef Status status = check_branch(&checking, trie.root, 0, start, NULL)
    free(checking.seen)
    if status != STATUS_OK:
        return status
    if checking.seen_bytes != space.used_bytes:
        return broken(failure, 0, "a block of the space is used and not in the trie")
    if (
        stats.keys != trie.key_count
        or stats.branches != trie.branch_count
        or stats.leaves != trie.leaf_count
        or stats.leaf_slots != trie.leaf_slots
    ):
        return broken(failure, 0, "counts of keys, branches, leaves or leaf slots")
    return STATUS_OK


cdef Status broken(Failure* failure, uint64_t address, const char* rule) noexcept nogil:
    return failure_set(failure, STATUS_CORRUPT, 0, "trie", address, rule)


# Marks a block as seen; it must be in use, of this size, and not seen before.
cdef Status check_block(Check* checking, uint64_t address, uint32_t bytes) noexcept nogil:
    if not triespace_is_used(checking.trie.space, address, bytes):
        return broken(checking.failure, address, "a block of the trie is not in use")
    cdef uint64_t unit = address // BLOCK_BYTES_MIN
    cdef uint64_t bit = <uint64_t> 1 << (unit % 64)
    if checking.seen[unit // 64] & bit:
        return broken(checking.failure, address, "a block is in the trie twice")
    checking.seen[unit // 64] |= bit
    checking.seen_bytes += bytes
    return STATUS_OK


# Checks the branch at `address`, which its parent says has `*slots_kept` filled slots; the root has
# no parent.
cdef Status check_branch(
    Check* checking,
    uint64_t address,
    unsigned int depth,
    Path start,
    const unsigned int* slots_kept,
) noexcept nogil:
    cdef Failure* failure = checking.failure
    cdef uint64_t keys_before = checking.stats.keys
    cdef unsigned int filled = 0
    cdef unsigned int kept
    cdef unsigned int byte
    cdef uint64_t slot
    cdef const uint64_t* slots
    cdef Path below
    cdef Status status = STATUS_OK
    if depth >= TRIE_DEPTH_MAX:
        return broken(failure, address, "a branch lies above depth 16")
    status = check_block(checking, address, BRANCH_BYTES)
    if status != STATUS_OK:
        return status
    slots = block_at(checking.trie, address)
    for byte in range(BRANCH_SLOTS):
        slot = slots[byte]
        if slot == 0:
            continue
        filled += 1
        below = path_with_byte(start, depth, byte)
        if slot_kind(slot) == SLOT_BRANCH:
            kept = slot_tag(slot)
            status = check_branch(checking, slot_address(slot), depth + 1, below, &kept)
        else:
            status = check_entries(checking, address, slot, depth, below)
        if status != STATUS_OK:
            return status
    if slots_kept != NULL and filled != slots_kept[0]:
        return broken(failure, address, "count of a branch's filled slots")
    if slots_kept != NULL and checking.stats.keys - keys_before < 2:
        return broken(failure, address, "T2: a branch with fewer than two entries below it")
    checking.stats.branches += 1
    checking.stats.depth_max = max(checking.stats.depth_max, <uint64_t> depth + 1)
    return STATUS_OK


# Checks a leaf or record slot of the branch at `branch`.
cdef Status check_entries(
    Check* checking, uint64_t branch, uint64_t slot, unsigned int depth, Path start
) noexcept nogil:
    cdef bint last = depth + 1 == TRIE_DEPTH_MAX
    cdef uint32_t used_max = LEAF_CAPACITY_MAX if last else checking.trie.sluggishness
    cdef Item[LEAF_CAPACITY_MAX] items
    cdef const uint64_t* entries = &slot
    cdef uint32_t capacity = 1
    cdef uint32_t count = 0
    cdef uint32_t index
    cdef Status status
    if slot_kind(slot) == SLOT_LEAF:
        capacity = slot_tag(slot)
        if (
            capacity < LEAF_CAPACITY_MIN
            or capacity > (LEAF_CAPACITY_MAX if last else 16)
            or capacity & (capacity - 1)
        ):
            return broken(checking.failure, branch, "capacity of a leaf")
        status = check_block(checking, slot_address(slot), capacity * SLOT_BYTES)
        if status != STATUS_OK:
            return status
        entries = block_at(checking.trie, slot_address(slot))
        checking.stats.leaves += 1
        checking.stats.leaf_slots += capacity
    for index in range(capacity):
        items[count].entry = entries[index]
        count += entries[index] != 0
    if count > used_max:
        return broken(checking.failure, branch, "T1: a slot holds more than the sluggishness")
    if capacity > 1 and count < 2:
        return broken(checking.failure, branch, "a leaf with fewer than two entries")
    status = items_hash(checking.trie, items, count, checking.failure)
    if status != STATUS_OK:
        return status
    checking.stats.keys += count
    checking.stats.path_length_sum += <uint64_t> count * (depth + 1)
    return check_items(checking, items, count, depth, start)


# Kinds, tags and positions of entries; no key twice.
cdef Status check_items(
    Check* checking, const Item* items, uint32_t count, unsigned int depth, Path start
) noexcept nogil:
    cdef uint32_t index
    cdef uint32_t other
    cdef unsigned int byte
    cdef uint64_t address
    for index in range(count):
        address = slot_address(items[index].entry)
        if slot_kind(items[index].entry) != SLOT_RECORD:
            return broken(checking.failure, address, "kind of an entry")
        if slot_tag(items[index].entry) != path_tag(items[index].path):
            return broken(checking.failure, address, "tag of an entry")
        for byte in range(depth + 1):
            if path_byte(items[index].path, byte) != path_byte(start, byte):
                return broken(checking.failure, address, "an entry lies off its path")
        for other in range(index):
            if is_same_key(checking.trie, &items[index], &items[other]):
                return broken(checking.failure, address, "a key has two entries")
    return STATUS_OK


cdef bint is_same_key(const Trie* trie, const Item* left, const Item* right) noexcept nogil:
    cdef uint32_t left_bytes
    cdef uint32_t right_bytes
    cdef const uint8_t* left_key
    cdef const uint8_t* right_key
    if path_compare(left.path, right.path) != 0:
        return False
    left_key = record_key(trie.records + slot_address(left.entry), &left_bytes)
    right_key = record_key(trie.records + slot_address(right.entry), &right_bytes)
    return left_bytes == right_bytes and memcmp(left_key, right_key, left_bytes) == 0
