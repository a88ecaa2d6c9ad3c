"""LevelDB through its C interface: writes go to its log without a sync."""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strncpy

from bench.drivers.driver cimport (
    ANSWER_ABSENT,
    ANSWER_DONE,
    ANSWER_FAILED,
    MESSAGE_BYTES,
    Answer,
    Driver,
    Session,
)
from bench.drivers.keyspace cimport KEY_BYTES

cdef extern from "leveldb/c.h" nogil:
    ctypedef struct leveldb_t:
        pass
    ctypedef struct leveldb_options_t:
        pass
    ctypedef struct leveldb_readoptions_t:
        pass
    ctypedef struct leveldb_writeoptions_t:
        pass
    ctypedef struct leveldb_cache_t:
        pass
    ctypedef struct leveldb_filterpolicy_t:
        pass
    enum:
        leveldb_no_compression
    int leveldb_major_version()
    int leveldb_minor_version()
    leveldb_t* leveldb_open(const leveldb_options_t*, const char* name, char** error)
    void leveldb_close(leveldb_t*)
    void leveldb_put(
        leveldb_t*,
        const leveldb_writeoptions_t*,
        const char*,
        size_t,
        const char*,
        size_t,
        char** error,
    )
    void leveldb_delete(
        leveldb_t*, const leveldb_writeoptions_t*, const char*, size_t, char** error
    )
    char* leveldb_get(
        leveldb_t*, const leveldb_readoptions_t*, const char*, size_t, size_t*, char** error
    )
    void leveldb_free(void*)
    leveldb_options_t* leveldb_options_create()
    void leveldb_options_destroy(leveldb_options_t*)
    void leveldb_options_set_create_if_missing(leveldb_options_t*, unsigned char)
    void leveldb_options_set_compression(leveldb_options_t*, int)
    void leveldb_options_set_write_buffer_size(leveldb_options_t*, size_t)
    void leveldb_options_set_cache(leveldb_options_t*, leveldb_cache_t*)
    void leveldb_options_set_filter_policy(leveldb_options_t*, leveldb_filterpolicy_t*)
    leveldb_cache_t* leveldb_cache_create_lru(size_t)
    void leveldb_cache_destroy(leveldb_cache_t*)
    leveldb_filterpolicy_t* leveldb_filterpolicy_create_bloom(int)
    void leveldb_filterpolicy_destroy(leveldb_filterpolicy_t*)
    leveldb_readoptions_t* leveldb_readoptions_create()
    void leveldb_readoptions_destroy(leveldb_readoptions_t*)
    leveldb_writeoptions_t* leveldb_writeoptions_create()
    void leveldb_writeoptions_destroy(leveldb_writeoptions_t*)

cdef size_t CACHE_BYTES = <size_t> 8 << 30
cdef size_t WRITE_BUFFER_BYTES = <size_t> 64 << 20
cdef int BLOOM_BITS = 10

cdef struct LeveldbSession:
    Session head
    leveldb_t* database                 # not owned, nor are the options
    leveldb_readoptions_t* read_options
    leveldb_writeoptions_t* write_options
    char* values[64]                   # owned: what the last call answered
    size_t value_count


cdef Answer failed(Session* head, char* error) noexcept nogil:
    strncpy(head.message, error, MESSAGE_BYTES - 1)
    leveldb_free(error)
    return ANSWER_FAILED


cdef inline void free_values(LeveldbSession* session) noexcept nogil:
    cdef size_t i
    for i in range(session.value_count):
        leveldb_free(session.values[i])
    session.value_count = 0


cdef Answer put(
    Session* head, const uint8_t* key, const uint8_t* value, size_t value_bytes
) noexcept nogil:
    cdef LeveldbSession* session = <LeveldbSession*> head
    cdef char* error = NULL
    leveldb_put(
        session.database, session.write_options,
        <const char*> key, KEY_BYTES, <const char*> value, value_bytes, &error,
    )
    return ANSWER_DONE if error == NULL else failed(head, error)


cdef inline Answer read(
    LeveldbSession* session, const uint8_t* key, const uint8_t** value, size_t* value_bytes
) noexcept nogil:
    cdef char* error = NULL
    cdef char* found = leveldb_get(
        session.database, session.read_options, <const char*> key, KEY_BYTES, value_bytes, &error
    )
    if error != NULL:
        return failed(&session.head, error)
    value[0] = <const uint8_t*> found
    if found == NULL:
        return ANSWER_ABSENT
    session.values[session.value_count] = found
    session.value_count += 1
    return ANSWER_DONE


cdef Answer get(
    Session* head, const uint8_t* key, const uint8_t** value, size_t* value_bytes
) noexcept nogil:
    free_values(<LeveldbSession*> head)
    return read(<LeveldbSession*> head, key, value, value_bytes)


cdef Answer get_batch(
    Session* head, const uint8_t** keys, size_t count, const uint8_t** values, size_t* value_bytes
) noexcept nogil:
    """LevelDB has no batched read."""
    cdef size_t i
    free_values(<LeveldbSession*> head)
    for i in range(count):
        if read(<LeveldbSession*> head, keys[i], &values[i], &value_bytes[i]) == ANSWER_FAILED:
            return ANSWER_FAILED
    return ANSWER_DONE


cdef Answer remove(Session* head, const uint8_t* key) noexcept nogil:
    """LevelDB does not say whether there was something."""
    cdef LeveldbSession* session = <LeveldbSession*> head
    cdef char* error = NULL
    leveldb_delete(session.database, session.write_options, <const char*> key, KEY_BYTES, &error)
    return ANSWER_DONE if error == NULL else failed(head, error)


cdef class Leveldb(Driver):
    """A database in the directory `path`."""

    cdef:
        leveldb_t* database
        leveldb_cache_t* cache
        leveldb_filterpolicy_t* bloom
        leveldb_readoptions_t* read_options
        leveldb_writeoptions_t* write_options

    def __init__(self, bytes path not None, uint64_t keys, size_t value_bytes):
        cdef leveldb_options_t* options = leveldb_options_create()
        cdef char* error = NULL
        self.cache = leveldb_cache_create_lru(CACHE_BYTES)
        self.bloom = leveldb_filterpolicy_create_bloom(BLOOM_BITS)
        self.read_options = leveldb_readoptions_create()
        self.write_options = leveldb_writeoptions_create()
        leveldb_options_set_create_if_missing(options, 1)
        leveldb_options_set_compression(options, leveldb_no_compression)
        leveldb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES)
        leveldb_options_set_cache(options, self.cache)
        leveldb_options_set_filter_policy(options, self.bloom)
        self.database = leveldb_open(options, path, &error)
        leveldb_options_destroy(options)
        if error != NULL:
            message = (<bytes> error).decode(errors="replace")
            leveldb_free(error)
            raise RuntimeError(f"leveldb_open: {message}")
        self.calls.put = put
        self.calls.get = get
        self.calls.get_batch = get_batch
        self.calls.remove = remove

    cdef Session* session_open(self) except NULL:
        cdef LeveldbSession* session = <LeveldbSession*> calloc(1, sizeof(LeveldbSession))
        if session == NULL:
            raise MemoryError
        session.database = self.database
        session.read_options = self.read_options
        session.write_options = self.write_options
        return &session.head

    cdef int session_close(self, Session* session) except -1:
        free_values(<LeveldbSession*> session)
        free(session)
        return 0

    def describe(self):
        return (
            f"LevelDB {leveldb_major_version()}.{leveldb_minor_version()}: log without sync, no"
            f" compression, {BLOOM_BITS}-bit bloom filter, {CACHE_BYTES >> 30} GiB block cache,"
            f" {WRITE_BUFFER_BYTES >> 20} MiB write buffer"
        )

    def close(self):
        with nogil:
            leveldb_close(self.database)
        leveldb_cache_destroy(self.cache)
        leveldb_filterpolicy_destroy(self.bloom)
        leveldb_readoptions_destroy(self.read_options)
        leveldb_writeoptions_destroy(self.write_options)
        self.database = NULL


def open_driver(bytes path not None, uint64_t keys, size_t value_bytes):
    return Leveldb(path, keys, value_bytes)
