"""The face of the engine; `store.pyi` is its manual."""

import os
import secrets

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from posix.unistd cimport close as close_descriptor, usleep

from .arguments cimport (
    count_of,
    delete_fill,
    durable_of,
    key_check,
    options_fill,
    put_fill,
    unsigned_of,
    until_of,
)
from .changes cimport changes_pin, changes_unpin
from .check cimport check_core
from .core cimport Options, core_now_ms
from .env cimport Env, env_system
from .env_reading cimport env_reading
from .epoch cimport epoch_last_used, epoch_wait
from .identity cimport Identity, Session, identity_read
from .lifecycle cimport (
    lifecycle_allocate,
    lifecycle_close,
    lifecycle_create,
    lifecycle_free,
    lifecycle_open,
)
from .limits cimport BATCH_OPERATIONS_MAX, REGION_BYTES_DEFAULT
from .maintenance cimport maintenance_request_checkpoint, maintenance_request_compaction
from .many cimport many_apply, many_changes, many_get, many_scan, many_write, value_of, written_of
from .read cimport read_view
from .reclaim cimport reclaim_enter, reclaim_exit
from .record cimport RecordView
from .scan cimport scan_digest
from .stats cimport stats_of
from .status cimport (
    STATUS_CONDITION,
    STATUS_INVALID,
    STATUS_NOT_FOUND,
    STATUS_OK,
    STATUS_TIMEOUT,
    Failure,
    Status,
    failure_clear,
    raise_for_status,
)
from .threads cimport mutex_lock, mutex_unlock
from .write cimport (
    INCREMENT_NOT_A_NUMBER,
    INCREMENT_OUT_OF_RANGE,
    IncrementRefusal,
    Operation,
    Outcome,
    write_increment,
    write_one,
)

from . import directory
from .errors import (
    Closed,
    ConditionFailed,
    Corruption,
    InvalidArgument,
    LimitExceeded,
    NotANumber,
    NotAStore,
    OutOfRange,
)
from .items import Change, Delete, Durability, Item, Put, Written

__all__ = ["Change", "Delete", "Durability", "Item", "Put", "Store", "Written", "check_directory"]

cdef enum:
    CLOSE_POLL_US = 200
    SCAN_STEP = 1000                    # items that `scan` reads at a time
    CHANGES_MAX = 100000


cdef int raise_for_write(Status status, const Failure* failure, const Outcome* outcome) except -1:
    if status == STATUS_CONDITION:
        raise ConditionFailed(outcome.version if outcome.existed else None)
    return raise_for_status(status, failure)


@final
cdef class Store:
    def __cinit__(self):
        self.lock_descriptor = -1

    def __init__(self):
        raise TypeError("use Store.open")

    def __dealloc__(self):
        cdef Failure failure
        if self.core != NULL:
            failure_clear(&failure)
            with nogil:
                lifecycle_close(self.core, False, &failure)
            lifecycle_free(self.core)
        if self.lock_descriptor >= 0:
            close_descriptor(self.lock_descriptor)

    @staticmethod
    def open(
        path,
        *,
        bint create=True,
        region_bytes=REGION_BYTES_DEFAULT,
        sluggishness=16,
        epoch_ms=5.0,
        write_buffer_bytes=67_108_864,
        stall_ms=30_000,
        checkpoint_log_bytes=268_435_456,
        memory_bytes=None,
        bint compaction=True,
        disk_backend="auto",
        bint direct_io=True,
        bint read_only=False,
    ):
        cdef Options options
        cdef str place = os.fsdecode(os.path.abspath(path))
        options_fill(
            &options,
            region_bytes,
            sluggishness,
            epoch_ms,
            write_buffer_bytes,
            stall_ms,
            checkpoint_log_bytes,
            memory_bytes,
            compaction,
            disk_backend,
            direct_io,
            read_only,
        )
        create = create and not read_only
        descriptor = directory.lock(place, create=create, shared=read_only)
        try:
            return store_open(place, &options, create, descriptor)
        except BaseException:  # an interrupt too must not leave the directory locked
            os.close(descriptor)
            raise

    cdef int enter(self) except -1:
        if self.core == NULL or self.closing:
            raise Closed(f"the store in {self.path} was closed")
        self.users += 1
        return 0

    @property
    def store_id(self):
        self.enter()
        self.users -= 1
        return self.core.identity.store_id

    @property
    def last_version(self):
        cdef uint64_t version
        self.enter()
        with nogil:
            mutex_lock(&self.core.log.mutex)
            version = self.core.log.last_version
            mutex_unlock(&self.core.log.mutex)
        self.users -= 1
        return version

    @property
    def recovered_epoch(self):
        self.enter()
        self.users -= 1
        return self.core.recovered_epoch

    @property
    def durable_epoch(self):
        cdef uint64_t epoch
        self.enter()
        with nogil:
            mutex_lock(&self.core.log.mutex)
            epoch = self.core.log.durable_epoch
            mutex_unlock(&self.core.log.mutex)
        self.users -= 1
        return epoch

    def get(self, bytes key not None):
        cdef RecordView view
        cdef Failure failure
        cdef Status status
        cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(key)
        cdef uint32_t key_bytes = <uint32_t> PyBytes_GET_SIZE(key)
        cdef uint32_t slot
        cdef bytes value = None
        key_check(key)
        self.enter()
        failure_clear(&failure)
        with nogil:
            slot = reclaim_enter(&self.core.reclaim)
            status = read_view(self.core, start, key_bytes, &view, &failure)
        try:
            if status == STATUS_OK:
                value = value_of(&view)
        finally:
            reclaim_exit(&self.core.reclaim, slot)
            self.users -= 1
        raise_for_status(status, &failure)
        return value

    def get_item(self, bytes key not None):
        return self.get_items((key,))[0]

    def get_many(self, keys):
        self.enter()
        try:
            return many_get(self.core, list(keys), True)
        finally:
            self.users -= 1

    def get_items(self, keys):
        self.enter()
        try:
            return many_get(self.core, list(keys), False)
        finally:
            self.users -= 1

    def put(
        self,
        bytes key not None,
        bytes value not None,
        *,
        ttl_ms=None,
        if_version=None,
        bint if_absent=False,
        durability="buffered",
    ):
        cdef Operation operation
        cdef Outcome outcome
        cdef Failure failure
        cdef Status status
        cdef bint durable = durable_of(durability)
        self.enter()
        try:
            put_fill(
                &operation, key, value, ttl_ms, if_version, if_absent, core_now_ms(self.core)
            )
            failure_clear(&failure)
            with nogil:
                status = write_one(self.core, &operation, durable, &outcome, &failure)
        finally:
            self.users -= 1
        raise_for_write(status, &failure, &outcome)
        return outcome.version

    def delete(self, bytes key not None, *, if_version=None, durability="buffered"):
        cdef Operation operation
        cdef Outcome outcome
        cdef Failure failure
        cdef Status status
        cdef bint durable = durable_of(durability)
        delete_fill(&operation, key, if_version)
        self.enter()
        failure_clear(&failure)
        with nogil:
            status = write_one(self.core, &operation, durable, &outcome, &failure)
        self.users -= 1
        raise_for_write(status, &failure, &outcome)
        return outcome.version != 0

    def increment(self, bytes key not None, delta=1, *, durability="buffered"):
        cdef Outcome outcome
        cdef Failure failure
        cdef IncrementRefusal refusal
        cdef Status status
        cdef bint durable = durable_of(durability)
        cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(key)
        cdef uint32_t key_bytes = <uint32_t> PyBytes_GET_SIZE(key)
        cdef int64_t step
        cdef int64_t result = 0
        key_check(key)
        if not -(1 << 63) <= delta < 1 << 63:
            raise InvalidArgument("delta", f"{delta} is not a signed 64-bit number")
        step = delta
        self.enter()
        failure_clear(&failure)
        with nogil:
            status = write_increment(
                self.core, start, key_bytes, step, durable, &result, &refusal, &outcome, &failure
            )
        self.users -= 1
        if refusal == INCREMENT_NOT_A_NUMBER:
            raise NotANumber("the value is not a signed 64-bit decimal number")
        if refusal == INCREMENT_OUT_OF_RANGE:
            raise OutOfRange("the sum is not a signed 64-bit number")
        raise_for_status(status, &failure)
        return result, written_of(&outcome)

    def write(self, batch, *, durability="buffered"):
        cdef list items = list(batch)
        cdef bint durable = durable_of(durability)
        if len(items) > BATCH_OPERATIONS_MAX:
            raise LimitExceeded(
                f"a batch of {len(items)} operations; {BATCH_OPERATIONS_MAX} are allowed"
            )
        if len(items) == 0:
            return []
        self.enter()
        try:
            return many_write(self.core, items, durable)
        finally:
            self.users -= 1

    def apply(self, changes):
        cdef list items = list(changes)
        cdef Py_ssize_t start
        cdef Py_ssize_t applied = 0
        self.enter()
        try:
            for start in range(0, len(items), BATCH_OPERATIONS_MAX):
                applied += many_apply(
                    self.core, items[start:start + BATCH_OPERATIONS_MAX]
                )
        finally:
            self.users -= 1
        return applied

    def scan(self, *, bytes after=None, limit=None):
        cursor = after if after is not None else b""
        while cursor is not None and (limit is None or limit > 0):
            items, cursor = self.scan_page(
                cursor, limit=SCAN_STEP if limit is None else min(limit, SCAN_STEP)
            )
            if limit is not None:
                limit -= len(items)
            yield from items

    def scan_page(
        self,
        bytes cursor not None=b"",
        *,
        limit=1000,
        bytes_max=1_048_576,
        bytes end=None,
        bint keys_only=False,
    ):
        self.enter()
        try:
            return many_scan(self.core, cursor, end, limit, bytes_max, keys_only)
        finally:
            self.users -= 1

    def read_log(self, after_version, *, limit=1000, bytes_max=1_048_576):
        cdef uint64_t after = unsigned_of("after_version", after_version)
        cdef uint64_t bytes_most = unsigned_of("bytes_max", bytes_max)
        cdef uint32_t most = count_of("limit", limit, CHANGES_MAX)
        self.enter()
        try:
            return many_changes(self.core, after, most, bytes_most)
        finally:
            self.users -= 1

    def pin_log(self, after_version):
        cdef uint64_t after = unsigned_of("after_version", after_version)
        cdef uint64_t token = 0
        cdef Failure failure
        cdef Status status
        self.enter()
        failure_clear(&failure)
        with nogil:
            status = changes_pin(self.core, after, &token, &failure)
        self.users -= 1
        raise_for_status(status, &failure)
        return token

    def unpin_log(self, token):
        cdef uint64_t number = unsigned_of("token", token)
        cdef Status status
        self.enter()
        with nogil:
            status = changes_unpin(self.core, number)
        self.users -= 1
        if status == STATUS_NOT_FOUND:
            raise InvalidArgument("token", f"{token} is no pin of this store")

    def digest(self, *, alive_at_ms=None):
        cdef uint64_t keys = 0
        cdef uint64_t digest = 0
        cdef uint64_t moment = 0
        cdef Failure failure
        cdef Status status
        if alive_at_ms is not None:
            moment = unsigned_of("alive_at_ms", alive_at_ms)
        self.enter()
        if alive_at_ms is None:
            moment = core_now_ms(self.core)
        failure_clear(&failure)
        with nogil:
            status = scan_digest(self.core, moment, &keys, &digest, &failure)
        self.users -= 1
        raise_for_status(status, &failure)
        return keys, digest

    def sync(self, timeout=None):
        cdef uint64_t until_ns = until_of(timeout)
        cdef uint64_t epoch
        cdef Failure failure
        cdef Status status
        self.enter()
        failure_clear(&failure)
        with nogil:
            mutex_lock(&self.core.log.mutex)
            epoch = epoch_last_used(&self.core.log)
            status = epoch_wait(&self.core.log, epoch, until_ns, &failure)
            mutex_unlock(&self.core.log.mutex)
        self.users -= 1
        raise_for_status(status, &failure)
        return epoch

    def wait_durable(self, epoch, timeout=None):
        cdef uint64_t wanted = unsigned_of("epoch", epoch)
        cdef uint64_t until_ns = until_of(timeout)
        cdef Failure failure
        cdef Status status
        self.enter()
        failure_clear(&failure)
        with nogil:
            mutex_lock(&self.core.log.mutex)
            status = epoch_wait(&self.core.log, wanted, until_ns, &failure)
            mutex_unlock(&self.core.log.mutex)
        self.users -= 1
        if status == STATUS_TIMEOUT:
            return False
        raise_for_status(status, &failure)
        return True

    def checkpoint(self):
        cdef Failure failure
        cdef Status status
        self.enter()
        failure_clear(&failure)
        with nogil:
            status = maintenance_request_checkpoint(self.core, &failure)
        self.users -= 1
        raise_for_status(status, &failure)

    def set_memory_bytes(self, memory_bytes):
        cdef uint64_t limit = unsigned_of("memory_bytes", memory_bytes)
        self.enter()
        with nogil:
            mutex_lock(&self.core.log.mutex)
            self.core.log.memory_bytes_max = limit
            mutex_unlock(&self.core.log.mutex)
        self.users -= 1

    def compact(self):
        cdef Failure failure
        cdef uint64_t freed_bytes = 0
        cdef Status status
        self.enter()
        failure_clear(&failure)
        with nogil:
            status = maintenance_request_compaction(self.core, &freed_bytes, &failure)
        self.users -= 1
        raise_for_status(status, &failure)
        return freed_bytes

    def stats(self):
        self.enter()
        try:
            return stats_of(self.core)
        finally:
            self.users -= 1

    def check(self):
        self.enter()
        try:
            return check_core(self.core)
        finally:
            self.users -= 1

    def close(self):
        cdef Failure failure
        cdef Status status
        if self.closing:
            return
        self.closing = True
        with nogil:
            while self.users > 0:
                usleep(CLOSE_POLL_US)
            failure_clear(&failure)
            status = lifecycle_close(self.core, True, &failure)
        lifecycle_free(self.core)
        self.core = NULL
        close_descriptor(self.lock_descriptor)
        self.lock_descriptor = -1
        raise_for_status(status, &failure)

    def __len__(self):
        cdef uint64_t count
        self.enter()
        with nogil:
            mutex_lock(&self.core.log.mutex)
            count = self.core.trie.key_count
            mutex_unlock(&self.core.log.mutex)
        self.users -= 1
        return count

    def __contains__(self, bytes key not None):
        return self.get_item(key) is not None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.close()


cdef Store store_open(str place, const Options* options, bint create, int descriptor):
    cdef bytes encoded = os.fsencode(place)
    cdef const char* name = PyBytes_AS_STRING(encoded)
    cdef const Env* env = env_reading() if options.read_only else env_system()
    cdef Store store = Store.__new__(Store)
    cdef Failure failure
    cdef Status status
    cdef uint64_t number
    contents = made(place, options, create, env)
    if not contents.checkpoints:
        raise Corruption("checkpoint", 0, "the store has no checkpoint")
    if not options.read_only:
        directory.remove(place, contents.unfinished)
    number = contents.newest_checkpoint
    store.path = place
    core = lifecycle_allocate()
    if core == NULL:
        raise MemoryError()
    failure_clear(&failure)
    with nogil:
        status = lifecycle_open(core, env, name, options, number, &failure)
    if status != STATUS_OK:
        lifecycle_free(core)
        raise_for_status(status, &failure)
    store.core = core
    store.lock_descriptor = descriptor
    if not options.read_only:
        directory.remove(place, directory.checkpoint_names(contents.older_checkpoints))
    return store


# What is in the directory once there is a store, made now if need be.
cdef object made(str place, const Options* options, bint create, const Env* env):
    cdef bytes encoded = os.fsencode(place)
    cdef const char* name = PyBytes_AS_STRING(encoded)
    cdef Identity identity
    cdef Session session
    cdef Failure failure
    cdef Status status
    cdef uint64_t store_id
    failure_clear(&failure)
    contents = directory.look(place)
    if contents.has_identity:
        with nogil:
            status = identity_read(env, name, &identity, &session, &failure)
        if status == STATUS_INVALID:
            raise NotAStore(f"{place}/STORE is not a file of a Deodar store")
        raise_for_status(status, &failure)
        if session.incarnation > 0:
            return contents
        if create:
            # I4: a crash fell into the making of this store; nothing was ever in it.
            leftovers = directory.checkpoint_names(contents.checkpoints)
            directory.remove(place, [*leftovers, *contents.segments, *contents.unfinished])
    else:
        directory.refuse_foreign(place, contents)
    if not create:
        raise NotAStore(f"{place} holds no store")
    store_id = secrets.randbits(64)
    with nogil:
        status = lifecycle_create(env, name, options, store_id, &failure)
    raise_for_status(status, &failure)
    return directory.look(place)


def check_directory(path):
    with Store.open(path, create=False, read_only=True) as store:
        return store.check()
