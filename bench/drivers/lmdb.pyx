"""LMDB with its fastest options that keep a file: no sync, a writable map, one transaction a write.

Reads of one session share a read transaction until 64 of them were made or the session wrote, so
that their cost is LMDB's search and not its reader table.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strncpy

from bench.drivers.driver cimport (
    ANSWER_ABSENT,
    ANSWER_DONE,
    ANSWER_FAILED,
    BATCH_KEYS,
    MESSAGE_BYTES,
    Answer,
    Driver,
    Session,
)
from bench.drivers.keyspace cimport KEY_BYTES

cdef extern from "lmdb.h" nogil:
    ctypedef struct MDB_env:
        pass
    ctypedef struct MDB_txn:
        pass
    ctypedef unsigned int MDB_dbi
    ctypedef struct MDB_val:
        size_t mv_size
        void* mv_data
    enum:
        MDB_NOSYNC
        MDB_WRITEMAP
        MDB_MAPASYNC
        MDB_NOTLS
        MDB_RDONLY
        MDB_NOTFOUND
        MDB_SUCCESS
    const char* mdb_version(int* major, int* minor, int* patch)
    const char* mdb_strerror(int error)
    int mdb_env_create(MDB_env** env)
    int mdb_env_set_mapsize(MDB_env* env, size_t size)
    int mdb_env_open(MDB_env* env, const char* path, unsigned int flags, unsigned int mode)
    int mdb_env_sync(MDB_env* env, int force)
    void mdb_env_close(MDB_env* env)
    int mdb_txn_begin(MDB_env* env, MDB_txn* parent, unsigned int flags, MDB_txn** txn)
    int mdb_txn_commit(MDB_txn* txn)
    void mdb_txn_abort(MDB_txn* txn)
    void mdb_txn_reset(MDB_txn* txn)
    int mdb_txn_renew(MDB_txn* txn)
    int mdb_dbi_open(MDB_txn* txn, const char* name, unsigned int flags, MDB_dbi* dbi)
    int mdb_get(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* value)
    int mdb_put(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* value, unsigned int flags)
    int mdb_del(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* value)

cdef struct LmdbSession:
    Session head
    MDB_env* env                        # not owned
    MDB_dbi dbi
    MDB_txn* snapshot                   # owned; reset while `reads_left` is 0
    unsigned int reads_left


cdef Answer failed(Session* head, int error) noexcept nogil:
    strncpy(head.message, mdb_strerror(error), MESSAGE_BYTES - 1)
    return ANSWER_FAILED


cdef inline void drop_snapshot(LmdbSession* session) noexcept nogil:
    if session.reads_left > 0:
        mdb_txn_reset(session.snapshot)
        session.reads_left = 0


cdef inline int renew_snapshot(LmdbSession* session) noexcept nogil:
    cdef int error = mdb_txn_renew(session.snapshot)
    if error == MDB_SUCCESS:
        session.reads_left = BATCH_KEYS
    return error


cdef Answer put(
    Session* head, const uint8_t* key, const uint8_t* value, size_t value_bytes
) noexcept nogil:
    cdef LmdbSession* session = <LmdbSession*> head
    cdef MDB_txn* txn
    cdef MDB_val key_slice, value_slice
    drop_snapshot(session)
    cdef int error = mdb_txn_begin(session.env, NULL, 0, &txn)
    if error != MDB_SUCCESS:
        return failed(head, error)
    key_slice.mv_data = <void*> key
    key_slice.mv_size = KEY_BYTES
    value_slice.mv_data = <void*> value
    value_slice.mv_size = value_bytes
    error = mdb_put(txn, session.dbi, &key_slice, &value_slice, 0)
    if error != MDB_SUCCESS:
        mdb_txn_abort(txn)
        return failed(head, error)
    error = mdb_txn_commit(txn)
    return ANSWER_DONE if error == MDB_SUCCESS else failed(head, error)


cdef Answer get(
    Session* head, const uint8_t* key, const uint8_t** value, size_t* value_bytes
) noexcept nogil:
    cdef LmdbSession* session = <LmdbSession*> head
    cdef MDB_val key_slice, value_slice
    cdef int error
    if session.reads_left <= 1:
        drop_snapshot(session)
        error = renew_snapshot(session)
        if error != MDB_SUCCESS:
            return failed(head, error)
    session.reads_left -= 1
    key_slice.mv_data = <void*> key
    key_slice.mv_size = KEY_BYTES
    error = mdb_get(session.snapshot, session.dbi, &key_slice, &value_slice)
    if error == MDB_NOTFOUND:
        return ANSWER_ABSENT
    if error != MDB_SUCCESS:
        return failed(head, error)
    value[0] = <const uint8_t*> value_slice.mv_data
    value_bytes[0] = value_slice.mv_size
    return ANSWER_DONE


cdef Answer get_batch(
    Session* head, const uint8_t** keys, size_t count, const uint8_t** values, size_t* value_bytes
) noexcept nogil:
    """LMDB has no batched read: one snapshot for all, then one search a key."""
    cdef LmdbSession* session = <LmdbSession*> head
    cdef size_t i
    cdef Answer answer
    drop_snapshot(session)
    cdef int error = renew_snapshot(session)
    if error != MDB_SUCCESS:
        return failed(head, error)
    session.reads_left = BATCH_KEYS + 1
    for i in range(count):
        answer = get(head, keys[i], &values[i], &value_bytes[i])
        if answer == ANSWER_FAILED:
            return answer
        if answer == ANSWER_ABSENT:
            values[i] = NULL
    return ANSWER_DONE


cdef Answer remove(Session* head, const uint8_t* key) noexcept nogil:
    cdef LmdbSession* session = <LmdbSession*> head
    cdef MDB_txn* txn
    cdef MDB_val key_slice
    drop_snapshot(session)
    cdef int error = mdb_txn_begin(session.env, NULL, 0, &txn)
    if error != MDB_SUCCESS:
        return failed(head, error)
    key_slice.mv_data = <void*> key
    key_slice.mv_size = KEY_BYTES
    error = mdb_del(txn, session.dbi, &key_slice, NULL)
    if error == MDB_NOTFOUND:
        mdb_txn_abort(txn)
        return ANSWER_ABSENT
    if error != MDB_SUCCESS:
        mdb_txn_abort(txn)
        return failed(head, error)
    error = mdb_txn_commit(txn)
    return ANSWER_DONE if error == MDB_SUCCESS else failed(head, error)


cdef int require(int error, str call) except -1:
    if error != MDB_SUCCESS:
        raise RuntimeError(f"{call}: {mdb_strerror(error).decode()}")
    return 0


cdef class Lmdb(Driver):
    """A database in the directory `path`, its map four times what the records need."""

    cdef:
        MDB_env* env
        MDB_dbi dbi

    def __init__(self, bytes path not None, uint64_t keys, size_t value_bytes):
        cdef MDB_txn* txn
        cdef size_t map_bytes = (1 << 30) + 4 * keys * (KEY_BYTES + value_bytes + 32)
        require(mdb_env_create(&self.env), "mdb_env_create")
        require(mdb_env_set_mapsize(self.env, map_bytes & ~(<size_t> 4095)), "mdb_env_set_mapsize")
        require(
            mdb_env_open(
                self.env, path, MDB_NOSYNC | MDB_WRITEMAP | MDB_MAPASYNC | MDB_NOTLS, 0o644
            ),
            "mdb_env_open",
        )
        require(mdb_txn_begin(self.env, NULL, 0, &txn), "mdb_txn_begin")
        require(mdb_dbi_open(txn, NULL, 0, &self.dbi), "mdb_dbi_open")
        require(mdb_txn_commit(txn), "mdb_txn_commit")
        self.calls.put = put
        self.calls.get = get
        self.calls.get_batch = get_batch
        self.calls.remove = remove

    cdef Session* session_open(self) except NULL:
        cdef LmdbSession* session = <LmdbSession*> calloc(1, sizeof(LmdbSession))
        if session == NULL:
            raise MemoryError
        session.env = self.env
        session.dbi = self.dbi
        cdef int error = mdb_txn_begin(self.env, NULL, MDB_RDONLY, &session.snapshot)
        if error != MDB_SUCCESS:
            free(session)
            require(error, "mdb_txn_begin")
        mdb_txn_reset(session.snapshot)
        return &session.head

    cdef int session_close(self, Session* session) except -1:
        mdb_txn_abort((<LmdbSession*> session).snapshot)
        free(session)
        return 0

    def describe(self):
        cdef int major, minor, patch
        mdb_version(&major, &minor, &patch)
        return (
            f"LMDB {major}.{minor}.{patch}: NOSYNC | WRITEMAP | MAPASYNC, one transaction a write,"
            f" one read transaction for {BATCH_KEYS} reads"
        )

    def close(self):
        """Sync and close."""
        cdef int error
        with nogil:
            error = mdb_env_sync(self.env, 1)
            mdb_env_close(self.env)
        self.env = NULL
        require(error, "mdb_env_sync")


def open_driver(bytes path not None, uint64_t keys, size_t value_bytes):
    return Lmdb(path, keys, value_bytes)
