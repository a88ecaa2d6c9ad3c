"""`def` faces of `deodar.engine.space` for the tests."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from deodar.engine.atomics cimport (
    load_acquire_u32,
    load_acquire_u64,
    store_release_u32,
    store_release_u64,
)
from deodar.engine.space cimport (
    RESIDENCY_ABSENT,
    RESIDENCY_ANONYMOUS,
    RESIDENCY_FILE,
    Space,
    space_at,
    space_close,
    space_discover,
    space_drop,
    space_extend,
    space_fd,
    space_file_offset,
    space_load,
    space_make_anonymous,
    space_map_file,
    space_open,
)
from deodar.engine.status cimport Failure, Status, failure_clear, raise_for_status
from tests.engine.probe_env cimport Door, env_of

ABSENT, ANONYMOUS, FILE = RESIDENCY_ABSENT, RESIDENCY_ANONYMOUS, RESIDENCY_FILE


cdef class Addresses:
    """One `Space`."""

    cdef Space* space
    cdef readonly Door door
    cdef uint32_t stopped
    cdef uint64_t watched               # rounds that `watch` has made

    def __cinit__(self) -> None:
        self.space = <Space*> calloc(1, sizeof(Space))
        if self.space == NULL:
            raise MemoryError

    def __init__(
        self,
        str directory not None,
        *,
        str name="data",
        uint32_t region_bytes=262144,
        uint64_t reserved_bytes=2**30,
        uint32_t region_count=0,
        bint direct=False,
        Door door=None,
    ) -> None:
        cdef Failure failure
        cdef Status status
        cdef bytes directory_bytes = directory.encode()
        cdef bytes name_bytes = name.encode()
        failure_clear(&failure)
        self.door = door
        status = space_open(
            self.space,
            env_of(door),
            directory_bytes,
            name_bytes,
            region_bytes,
            reserved_bytes,
            region_count,
            direct,
            &failure,
        )
        raise_for_status(status, &failure)

    def __dealloc__(self) -> None:
        if self.space != NULL and self.space.env != NULL:
            space_close(self.space)
        free(self.space)

    def close(self) -> None:
        space_close(self.space)

    @property
    def base(self) -> int:
        return <uint64_t> self.space.base

    @property
    def direct(self) -> bool:
        return self.space.direct

    @property
    def region_count(self) -> int:
        return self.space.region_count

    def residency(self, uint32_t region) -> int:
        return self.space.residency[region]

    def place(self, uint64_t address) -> tuple[int, int]:
        """(descriptor, offset in the file)."""
        return space_fd(self.space, address), space_file_offset(self.space, address)

    def extend(self, uint32_t count) -> int:
        cdef Failure failure
        cdef Status status
        cdef uint32_t first = 0
        failure_clear(&failure)
        with nogil:
            status = space_extend(self.space, count, &first, &failure)
        raise_for_status(status, &failure)
        return first

    def discover(self) -> int:
        cdef Failure failure
        failure_clear(&failure)
        raise_for_status(space_discover(self.space, &failure), &failure)
        return self.space.region_count

    def make_anonymous(self, uint32_t region, uint32_t count=1) -> None:
        cdef Failure failure
        failure_clear(&failure)
        raise_for_status(space_make_anonymous(self.space, region, count, &failure), &failure)

    def load(self, uint32_t region, uint32_t count=1) -> None:
        cdef Failure failure
        cdef Status status
        failure_clear(&failure)
        with nogil:
            status = space_load(self.space, region, count, &failure)
        raise_for_status(status, &failure)

    def map_file(self, uint32_t region, uint32_t count=1) -> None:
        cdef Failure failure
        cdef Status status
        failure_clear(&failure)
        with nogil:
            status = space_map_file(self.space, region, count, &failure)
        raise_for_status(status, &failure)

    def drop(self, uint32_t region, uint32_t count=1) -> None:
        cdef Failure failure
        failure_clear(&failure)
        raise_for_status(space_drop(self.space, region, count, &failure), &failure)

    def get(self, uint64_t address, uint64_t size) -> bytes:
        return <bytes> space_at(self.space, address)[:size]

    def set(self, uint64_t address, bytes data not None) -> None:
        memcpy(space_at(self.space, address), <const uint8_t*> data, len(data))

    def view(self, uint64_t address, uint64_t size) -> memoryview:
        """The memory itself; valid while the space is open."""
        return memoryview(<uint8_t[:size]> space_at(self.space, address))

    def start(self) -> None:
        store_release_u64(&self.watched, 0)
        store_release_u32(&self.stopped, 0)

    def rounds(self) -> int:
        return load_acquire_u64(&self.watched)

    def stop(self) -> None:
        store_release_u32(&self.stopped, 1)

    def watch(self, uint64_t address, uint64_t size, uint64_t expected) -> tuple[int, int]:
        """Read every word of the range until stopped: (rounds, words that were not `expected`)."""
        cdef uint64_t rounds = 0
        cdef uint64_t wrong = 0
        cdef uint64_t at
        with nogil:
            while load_acquire_u32(&self.stopped) == 0:
                at = address
                while at < address + size:
                    if load_acquire_u64(<uint64_t*> space_at(self.space, at)) != expected:
                        wrong += 1
                    at += 8
                rounds += 1
                store_release_u64(&self.watched, rounds)
        return rounds, wrong
