"""`def` faces of the trie and its space for the tests, and threads that race without the GIL."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_THREAD_CPUTIME_ID, clock_gettime, timespec

from deodar.engine.atomics cimport load_acquire_u8, load_acquire_u32, store_release_u32
from deodar.engine.disk cimport DISK_AUTO, Disk, disk_close, disk_open
from deodar.engine.hashing cimport Path, path_of, path_tag
from deodar.engine.leaf cimport (
    SLOT_LEAF,
    SLOT_RECORD,
    slot_address,
    slot_kind,
    slot_make,
    slot_tag,
)
from deodar.engine.limits cimport PAGE_BYTES
from deodar.engine.reclaim cimport Reclaim, reclaim_enter, reclaim_exit, reclaim_open
from deodar.engine.record cimport (
    RECORD_PUT,
    RecordView,
    record_bytes_of,
    record_encode,
    record_key,
)
from deodar.engine.status cimport (
    STATUS_CORRUPT,
    STATUS_NOT_FOUND,
    STATUS_OK,
    Failure,
    Status,
    failure_clear,
    failure_set,
    raise_for_status,
)
from deodar.engine.trie cimport Trie, trie_create, trie_find, trie_find_batch
from deodar.engine.triecheck cimport TrieStats, trie_check
from deodar.engine.trieimage cimport (
    PageEntry,
    triespace_abandon_image,
    triespace_commit_image,
    triespace_freeze,
    triespace_load,
    triespace_page_table,
    triespace_write_image,
)
from deodar.engine.triespace cimport (
    PAGE_FROZEN,
    TrieSpace,
    TrieSpaceStats,
    triespace_allocate,
    triespace_base,
    triespace_check,
    triespace_free,
    triespace_is_used,
    triespace_new,
    triespace_prepare,
    triespace_retire,
    triespace_stats,
    triespace_touch,
)
from deodar.engine.trieupdate cimport trie_remove, trie_replace, trie_upsert
from deodar.engine.triewalk cimport TrieEntry, trie_walk
from tests.engine.probe_env cimport Door, env_of

PATH_BYTES = 16


cdef Path path_from(bytes whole):
    cdef Path path
    if len(whole) != PATH_BYTES:
        raise ValueError("a path has 16 bytes")
    path.high = int.from_bytes(whole[:8], "big")
    path.low = int.from_bytes(whole[8:], "big")
    return path


cdef bytes path_bytes(Path path):
    return (<object> path.high).to_bytes(8, "big") + (<object> path.low).to_bytes(8, "big")


# The path of a forged key is its first 16 bytes.
cdef Path forged_path(const uint8_t* key, size_t key_bytes) noexcept nogil:
    cdef Path path
    cdef size_t index
    path.high = 0
    path.low = 0
    for index in range(8):
        path.high = path.high << 8 | key[index]
        path.low = path.low << 8 | key[8 + index]
    return path


# Fails for the one record that `context` points at.
cdef Status refuse_record(void* context, uint64_t address, Failure* failure) noexcept nogil:
    if address == (<uint64_t*> context)[0]:
        return failure_set(failure, STATUS_CORRUPT, 0, "records", address, "refused")
    return STATUS_OK


cdef class Records:
    """Memory that records are appended to: the data space of a test."""

    cdef uint8_t* base
    cdef uint64_t bytes
    cdef uint64_t end

    def __init__(self, uint64_t bytes=1 << 24) -> None:
        self.base = <uint8_t*> malloc(bytes)
        if self.base == NULL:
            raise MemoryError
        self.bytes = bytes
        self.end = 64

    def __dealloc__(self) -> None:
        free(self.base)

    def append(self, bytes key not None) -> int:
        """The address of a new record with `key` and no value."""
        cdef const uint8_t* data = key
        return self.add(data, len(key))

    def key_at(self, uint64_t address) -> bytes:
        cdef uint32_t key_bytes
        cdef const uint8_t* key = record_key(self.base + address, &key_bytes)
        return key[:key_bytes]

    # 0 when the memory is used up.
    cdef uint64_t add(self, const uint8_t* key, uint32_t key_bytes) noexcept nogil:
        cdef RecordView view
        cdef uint64_t address = self.end
        memset(&view, 0, sizeof(RecordView))
        view.kind = RECORD_PUT
        view.key = key
        view.key_bytes = key_bytes
        if self.end + record_bytes_of(key_bytes, 0, False) > self.bytes:
            return 0
        record_encode(self.base + address, &view, 1)
        self.end += record_bytes_of(key_bytes, 0, False)
        return address


cdef class Index:
    """One trie in a space of its own, pointing into `records`."""

    cdef Reclaim reclaim
    cdef TrieSpace* space
    cdef Trie trie
    cdef uint64_t refused
    cdef uint32_t stopped
    cdef readonly Records records
    cdef readonly Door door
    cdef bint forged

    def __init__(
        self,
        str directory,
        *,
        Records records=None,
        uint32_t sluggishness=16,
        bint forged=False,
        uint64_t reserved_bytes=1 << 30,
        bint direct=True,
        Door door=None,
        tuple image=None,
    ) -> None:
        """`image`, as `page_table` and `roots` gave it, is loaded instead of making a trie."""
        cdef Failure failure
        cdef Status status
        cdef bytes path = directory.encode()
        cdef bytes table
        failure_clear(&failure)
        self.records = records if records is not None else Records()
        self.door = door
        self.forged = forged
        reclaim_open(&self.reclaim)
        self.space = triespace_new(
            env_of(door), &self.reclaim, path, reserved_bytes, direct, &failure
        )
        if self.space == NULL:
            raise_for_status(failure.status, &failure)
        if image is None:
            status = trie_create(
                &self.trie, self.space, &self.reclaim, self.records.base, sluggishness, &failure
            )
            raise_for_status(status, &failure)
        else:
            table, roots = image
            status = triespace_load(
                self.space, <const PageEntry*> <const char*> table, len(table) // 16, &failure
            )
            raise_for_status(status, &failure)
            self.trie.space = self.space
            self.trie.reclaim = &self.reclaim
            self.trie.records = self.records.base
            self.trie.sluggishness = sluggishness
            self.trie.root = roots[0]
            self.trie.key_count = roots[1]
            self.trie.branch_count = roots[2]
            self.trie.leaf_count = roots[3]
            self.trie.leaf_slots = roots[4]
        if forged:
            self.trie.path_of = forged_path

    def __dealloc__(self) -> None:
        triespace_free(self.space)

    def close(self) -> None:
        triespace_free(self.space)
        self.space = NULL

    def refuse(self, uint64_t address) -> None:
        """Let `verify` fail for the record at `address`; 0 = for none."""
        self.refused = address
        self.trie.verify = NULL
        if address != 0:
            self.trie.verify = refuse_record
        self.trie.verify_context = &self.refused

    @property
    def roots(self) -> tuple[int, int, int, int, int]:
        """What a checkpoint keeps of the trie beside its pages."""
        return (
            self.trie.root,
            self.trie.key_count,
            self.trie.branch_count,
            self.trie.leaf_count,
            self.trie.leaf_slots,
        )

    cdef Path path(self, const uint8_t* key, size_t key_bytes) noexcept nogil:
        return forged_path(key, key_bytes) if self.forged else path_of(key, key_bytes)

    # --- Operations ---

    def find(self, bytes key not None) -> int:
        """The address, 0 when absent."""
        cdef Failure failure
        cdef const uint8_t* data = key
        cdef size_t data_bytes = len(key)
        cdef uint64_t address = 0
        cdef Status status
        cdef uint32_t slot
        failure_clear(&failure)
        with nogil:
            slot = reclaim_enter(&self.reclaim)
            status = trie_find(
                &self.trie, self.path(data, data_bytes), data, data_bytes, &address, &failure
            )
            reclaim_exit(&self.reclaim, slot)
        raise_for_status(status, &failure)
        return address if status == STATUS_OK else 0

    def find_batch(self, list keys not None) -> list[int]:
        cdef Failure failure
        cdef Status status
        cdef uint32_t count = len(keys)
        cdef uint32_t index
        cdef Path* paths = <Path*> calloc(count + 1, sizeof(Path))
        cdef const uint8_t** pointers = <const uint8_t**> calloc(count + 1, sizeof(void*))
        cdef uint32_t* sizes = <uint32_t*> calloc(count + 1, sizeof(uint32_t))
        cdef uint64_t* addresses = <uint64_t*> calloc(count + 1, sizeof(uint64_t))
        failure_clear(&failure)
        try:
            if paths == NULL or pointers == NULL or sizes == NULL or addresses == NULL:
                raise MemoryError
            for index in range(count):
                pointers[index] = <const uint8_t*> <bytes> keys[index]
                sizes[index] = len(<bytes> keys[index])
                paths[index] = self.path(pointers[index], sizes[index])
                addresses[index] = 0xBAD
            with nogil:
                slot = reclaim_enter(&self.reclaim)
                status = trie_find_batch(
                    &self.trie, paths, pointers, sizes, count, addresses, &failure
                )
                reclaim_exit(&self.reclaim, slot)
            raise_for_status(status, &failure)
            return [addresses[index] for index in range(count)]
        finally:
            free(paths)
            free(pointers)
            free(sizes)
            free(addresses)

    def upsert(self, bytes key not None) -> tuple[int, int]:
        """(address of the new record, address it replaces or 0)."""
        cdef Failure failure
        cdef const uint8_t* data = key
        cdef size_t data_bytes = len(key)
        cdef uint64_t address = self.records.append(key)
        cdef uint64_t old_address
        cdef Status status
        failure_clear(&failure)
        with nogil:
            status = trie_upsert(
                &self.trie,
                self.path(data, data_bytes),
                data,
                data_bytes,
                address,
                &old_address,
                &failure,
            )
        raise_for_status(status, &failure)
        return address, old_address

    def remove(self, bytes key not None) -> int:
        """The address it had, 0 when absent."""
        cdef Failure failure
        cdef const uint8_t* data = key
        cdef size_t data_bytes = len(key)
        cdef uint64_t old_address
        cdef Status status
        failure_clear(&failure)
        with nogil:
            status = trie_remove(
                &self.trie,
                self.path(data, data_bytes),
                data,
                data_bytes,
                &old_address,
                &failure,
            )
        raise_for_status(status, &failure)
        return old_address

    def replace(self, bytes key not None, uint64_t old_address, uint64_t new_address) -> bool:
        cdef const uint8_t* data = key
        cdef Path path = self.path(data, len(key))
        return trie_replace(&self.trie, path, old_address, new_address) == STATUS_OK

    def walk(self, bytes start not None, uint32_t capacity) -> tuple[list[object], object]:
        """([(path, address)...], path to go on from or None)."""
        cdef Failure failure
        cdef Status status
        cdef uint32_t count
        cdef uint32_t slot
        cdef Path from_path = path_from(start)
        cdef Path next_path
        cdef bint more
        cdef TrieEntry* entries = <TrieEntry*> calloc(capacity, sizeof(TrieEntry))
        if entries == NULL:
            raise MemoryError
        failure_clear(&failure)
        try:
            with nogil:
                slot = reclaim_enter(&self.reclaim)
                status = trie_walk(
                    &self.trie, from_path, entries, capacity, &count, &next_path, &more, &failure
                )
                reclaim_exit(&self.reclaim, slot)
            raise_for_status(status, &failure)
            found = [(path_bytes(entries[at].path), entries[at].address) for at in range(count)]
            return found, path_bytes(next_path) if more else None
        finally:
            free(entries)

    # --- State ---

    def check(self) -> dict[str, int]:
        """Every invariant of trie and space; raises Corruption for the first that is broken."""
        cdef Failure failure
        cdef TrieStats stats
        cdef Status status
        failure_clear(&failure)
        status = triespace_check(self.space, &failure)
        raise_for_status(status, &failure)
        status = trie_check(&self.trie, &stats, &failure)
        raise_for_status(status, &failure)
        return stats

    def space_stats(self) -> dict[str, int]:
        cdef TrieSpaceStats stats
        triespace_stats(self.space, &stats)
        return stats

    def damage(self, bytes key not None, int xor) -> None:
        """Flip bits of the tag of the top-level slot that `key` goes through."""
        cdef const uint8_t* data = key
        cdef Path path = self.path(data, len(key))
        cdef uint64_t* root = <uint64_t*> (triespace_base(self.space) + self.trie.root)
        root[path.high >> 56] ^= <uint64_t> xor << 48

    def double(self, bytes key not None) -> None:
        """Give `key`, which is in a leaf below the root, a second entry: what a walk can see of a
        key that is taken out and put back meanwhile."""
        cdef const uint8_t* data = key
        cdef Path path = self.path(data, len(key))
        cdef uint8_t* base = triespace_base(self.space)
        cdef uint64_t slot = (<uint64_t*> (base + self.trie.root))[path.high >> 56]
        cdef uint64_t* entries = <uint64_t*> (base + slot_address(slot))
        cdef uint64_t entry = slot_make(path_tag(path), SLOT_RECORD, self.find(key))
        cdef uint32_t index
        if slot_kind(slot) != SLOT_LEAF:
            raise ValueError("no leaf there")
        for index in range(slot_tag(slot)):
            if entries[index] == 0:
                entries[index] = entry
                return
        raise ValueError("the leaf is full")

    def enter(self) -> int:
        """Begin a read that keeps retired blocks from being used again."""
        return reclaim_enter(&self.reclaim)

    def exit(self, uint32_t slot) -> None:
        reclaim_exit(&self.reclaim, slot)

    # --- Blocks ---

    def allocate(self, uint32_t bytes) -> int:
        return triespace_allocate(self.space, bytes)

    def retire(self, uint64_t address, uint32_t bytes) -> None:
        cdef Failure failure
        failure_clear(&failure)
        raise_for_status(triespace_prepare(self.space, &failure), &failure)
        triespace_retire(self.space, address, bytes)

    def is_used(self, uint64_t address, uint32_t bytes) -> bool:
        return triespace_is_used(self.space, address, bytes)

    def read(self, uint64_t address, uint32_t bytes) -> bytes:
        return (<char*> triespace_base(self.space) + address)[:bytes]

    def write(self, uint64_t address, bytes data not None) -> None:
        triespace_touch(self.space, address)
        memcpy(triespace_base(self.space) + address, <const char*> data, len(data))

    def check_space(self) -> None:
        cdef Failure failure
        failure_clear(&failure)
        raise_for_status(triespace_check(self.space, &failure), &failure)

    # --- Images ---

    def freeze(self) -> None:
        cdef Failure failure
        failure_clear(&failure)
        raise_for_status(triespace_freeze(self.space, &failure), &failure)

    def write_image(self) -> None:
        cdef Failure failure
        cdef Disk disk
        cdef Status status
        failure_clear(&failure)
        status = disk_open(&disk, env_of(self.door), DISK_AUTO, 16, &failure)
        raise_for_status(status, &failure)
        with nogil:
            status = triespace_write_image(self.space, &disk, &failure)
        disk_close(&disk)
        raise_for_status(status, &failure)

    def page_table(self) -> bytes:
        cdef const PageEntry* entries
        cdef uint64_t count = triespace_page_table(self.space, &entries)
        return (<const char*> entries)[: count * sizeof(PageEntry)]

    def commit(self) -> None:
        triespace_commit_image(self.space)

    def abandon(self) -> None:
        triespace_abandon_image(self.space)

    # --- Races: each call keeps a thread busy without the GIL ---

    def overwrite(self, list addresses not None, int byte, uint64_t lead) -> None:
        """Fill 2048-byte blocks with `byte`, each at the moment when its page is fought over:
        as soon as the checkpoint has reached the page `lead` before it."""
        cdef uint64_t count = len(addresses)
        cdef uint64_t* blocks = <uint64_t*> calloc(count, sizeof(uint64_t))
        cdef uint8_t* states = self.space.page_states.base
        cdef uint64_t page
        cdef uint64_t index
        if blocks == NULL:
            raise MemoryError
        for index in range(count):
            blocks[index] = addresses[index]
        with nogil:
            for index in range(count):
                page = blocks[index] // PAGE_BYTES - lead
                while load_acquire_u8(states + page) == PAGE_FROZEN:
                    if load_acquire_u32(&self.stopped) != 0:
                        break
                triespace_touch(self.space, blocks[index])
                memset(triespace_base(self.space) + blocks[index], byte, 2048)
        free(blocks)

    def stop(self) -> None:
        store_release_u32(&self.stopped, 1)

    def churn(self, list keys not None, uint64_t rounds) -> None:
        """Put and remove `keys` in turn, `rounds` times or until stopped; all are absent after."""
        cdef Failure failure
        cdef uint32_t count = len(keys)
        cdef uint64_t* addresses = <uint64_t*> calloc(count, sizeof(uint64_t))
        cdef uint64_t old_address
        cdef uint64_t _turn
        cdef uint32_t index
        cdef Status status = STATUS_OK
        if addresses == NULL:
            raise MemoryError
        for index in range(count):
            addresses[index] = self.records.append(keys[index])
        failure_clear(&failure)
        with nogil:
            for _turn in range(rounds):
                for index in range(count):
                    status = self.put_record(addresses[index], &old_address, &failure)
                    if status != STATUS_OK:
                        break
                for index in range(count):
                    status = self.remove_record(addresses[index], &old_address, &failure)
                    if status != STATUS_OK:
                        break
                if status != STATUS_OK or load_acquire_u32(&self.stopped) != 0:
                    break
        free(addresses)
        if status == STATUS_NOT_FOUND:
            raise AssertionError("a key that was put is gone")
        raise_for_status(status, &failure)

    cdef Status put_record(
        self, uint64_t address, uint64_t* old_address, Failure* failure
    ) noexcept nogil:
        cdef uint32_t key_bytes
        cdef const uint8_t* key = record_key(self.records.base + address, &key_bytes)
        return trie_upsert(
            &self.trie,
            self.path(key, key_bytes),
            key,
            key_bytes,
            address,
            old_address,
            failure,
        )

    cdef Status remove_record(
        self, uint64_t address, uint64_t* old_address, Failure* failure
    ) noexcept nogil:
        cdef uint32_t key_bytes
        cdef const uint8_t* key = record_key(self.records.base + address, &key_bytes)
        return trie_remove(
            &self.trie, self.path(key, key_bytes), key, key_bytes, old_address, failure
        )

    def watch(self, list addresses not None, bint batched) -> tuple[int, int]:
        """Look records' keys up until stopped: (lookups, keys missed or found elsewhere)."""
        cdef uint32_t count = len(addresses)
        cdef uint64_t lookups = 0
        cdef uint64_t missed = 0
        cdef uint64_t[64] found
        cdef uint64_t[64] wanted
        cdef Path[64] paths
        cdef uint32_t[64] sizes
        cdef const uint8_t* keys[64]
        cdef uint32_t index
        cdef uint32_t at = 0
        cdef uint32_t slot
        cdef Failure failure
        cdef Status status
        cdef uint64_t* all_wanted = <uint64_t*> calloc(count, sizeof(uint64_t))
        if all_wanted == NULL:
            raise MemoryError
        for index in range(count):
            all_wanted[index] = addresses[index]
        failure_clear(&failure)
        with nogil:
            while load_acquire_u32(&self.stopped) == 0:
                for index in range(64):
                    wanted[index] = all_wanted[(at + index) % count]
                    keys[index] = record_key(self.records.base + wanted[index], &sizes[index])
                    paths[index] = self.path(keys[index], sizes[index])
                    found[index] = 0
                at = (at + 64) % count
                slot = reclaim_enter(&self.reclaim)
                if batched:
                    status = trie_find_batch(
                        &self.trie, paths, keys, sizes, 64, found, &failure
                    )
                else:
                    for index in range(64):
                        status = trie_find(
                            &self.trie,
                            paths[index],
                            keys[index],
                            sizes[index],
                            &found[index],
                            &failure,
                        )
                reclaim_exit(&self.reclaim, slot)
                for index in range(64):
                    missed += found[index] != wanted[index]
                lookups += 64
        free(all_wanted)
        return lookups, missed


# --- Rates ---


# Of this thread alone: other load takes time away, not cycles.
cdef double cpu_s() noexcept nogil:
    cdef timespec spent
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent)
    return <double> spent.tv_sec + <double> spent.tv_nsec / 1e9


cdef inline uint64_t scramble(uint64_t value) noexcept nogil:
    value = (value ^ value >> 30) * <uint64_t> 0xBF58476D1CE4E5B9
    value = (value ^ value >> 27) * <uint64_t> 0x94D049BB133111EB
    return value ^ value >> 31


cdef void key_of(uint64_t number, uint8_t* key) noexcept nogil:
    cdef uint64_t first = scramble(number + 1)
    cdef uint64_t second = scramble(first)
    memcpy(key, &first, 8)
    memcpy(key + 8, &second, 8)
    memcpy(key + 15, &number, 8)


# Keys seen by a walk over everything.
cdef uint64_t walk_whole(const Trie* trie, Failure* failure) noexcept nogil:
    cdef TrieEntry[512] entries
    cdef Path place
    cdef uint32_t count
    cdef uint64_t walked = 0
    cdef bint more = True
    place.high = 0
    place.low = 0
    while more:
        if trie_walk(trie, place, entries, 512, &count, &place, &more, failure) != STATUS_OK:
            return 0
        walked += count
    return walked


def rates(str directory, uint64_t keys, uint32_t value_bytes=128, uint64_t lookups=2_000_000):
    """Operations a second of CPU time, hashing included, of `keys` 23-byte keys in random order."""
    cdef Records records = Records(keys * (56 + value_bytes) + 4096)
    cdef Index index = Index(directory, records=records, reserved_bytes=8 << 30)
    cdef Failure failure
    cdef uint8_t[23] key
    cdef uint8_t[64][23] group
    cdef const uint8_t* pointers[64]
    cdef uint32_t[64] sizes
    cdef Path[64] paths
    cdef uint64_t[64] addresses
    cdef uint64_t number
    cdef uint64_t address
    cdef uint64_t missed = 0
    cdef uint64_t seed = 0x9E3779B97F4A7C15
    cdef uint32_t at
    cdef uint32_t slot
    cdef double[8] times
    cdef uint64_t walked
    failure_clear(&failure)
    with nogil:
        times[0] = cpu_s()
        for number in range(keys):
            key_of(number, key)
            address = records.add(key, 23)
            records.end += value_bytes
            missed += trie_upsert(
                &index.trie, path_of(key, 23), key, 23, address, &address, &failure
            ) != STATUS_OK
        times[1] = cpu_s()
        with gil:
            space = index.space_stats()
        for number in range(lookups):
            key_of(scramble(seed + number) % keys, key)
            slot = reclaim_enter(&index.reclaim)
            missed += trie_find(
                &index.trie, path_of(key, 23), key, 23, &address, &failure
            ) != STATUS_OK
            reclaim_exit(&index.reclaim, slot)
        times[2] = cpu_s()
        for number in range(lookups // 64):
            for at in range(64):
                key_of(scramble(seed + number * 64 + at) % keys, group[at])
                pointers[at] = group[at]
                sizes[at] = 23
                paths[at] = path_of(group[at], 23)
            slot = reclaim_enter(&index.reclaim)
            missed += trie_find_batch(
                &index.trie, paths, pointers, sizes, 64, addresses, &failure
            ) != STATUS_OK
            reclaim_exit(&index.reclaim, slot)
            for at in range(64):
                missed += addresses[at] == 0
        times[3] = cpu_s()
        for number in range(lookups):
            key_of(keys + scramble(seed + number) % keys, key)
            slot = reclaim_enter(&index.reclaim)
            missed += trie_find(
                &index.trie, path_of(key, 23), key, 23, &address, &failure
            ) != STATUS_NOT_FOUND
            reclaim_exit(&index.reclaim, slot)
        times[4] = cpu_s()
        for number in range(lookups):
            key_of(scramble(seed + number) % keys, key)
            missed += trie_upsert(
                &index.trie, path_of(key, 23), key, 23, 64, &address, &failure
            ) != STATUS_OK
            # Put back what was there: the record at 64 has another key.
            missed += trie_replace(&index.trie, path_of(key, 23), 64, address) != STATUS_OK
        times[5] = cpu_s()
        walked = walk_whole(&index.trie, &failure)
        times[6] = cpu_s()
        for number in range(0, keys, 2):
            key_of(number, key)
            missed += trie_remove(
                &index.trie, path_of(key, 23), key, 23, &address, &failure
            ) != STATUS_OK
        times[7] = cpu_s()
    missed += walked != keys
    if missed != 0:
        raise AssertionError(f"{missed} wrong answers")
    return {
        "load": keys / (times[1] - times[0]),
        "find": lookups / (times[2] - times[1]),
        "batch64": lookups / (times[3] - times[2]),
        "miss": lookups / (times[4] - times[3]),
        "update": lookups / (times[5] - times[4]),
        "walk": keys / (times[6] - times[5]),
        "remove": keys // 2 / (times[7] - times[6]),
        "index_bytes_a_key": space["used_bytes"] / keys,
        "memory_bytes_a_key": space["memory_bytes"] / keys,
    }
