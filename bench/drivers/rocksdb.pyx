"""RocksDB through its C interface: writes go to its log without a sync, reads pin their block."""

import re

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

cdef extern from "rocksdb/c.h" nogil:
    ctypedef struct rocksdb_t:
        pass
    ctypedef struct rocksdb_options_t:
        pass
    ctypedef struct rocksdb_block_based_table_options_t:
        pass
    ctypedef struct rocksdb_readoptions_t:
        pass
    ctypedef struct rocksdb_writeoptions_t:
        pass
    ctypedef struct rocksdb_cache_t:
        pass
    ctypedef struct rocksdb_filterpolicy_t:
        pass
    ctypedef struct rocksdb_pinnableslice_t:
        pass
    ctypedef struct rocksdb_column_family_handle_t:
        pass
    enum:
        rocksdb_no_compression
    rocksdb_t* rocksdb_open_column_families(
        const rocksdb_options_t*,
        const char* name,
        int count,
        const char** names,
        const rocksdb_options_t** options,
        rocksdb_column_family_handle_t** handles,
        char** error,
    )
    void rocksdb_column_family_handle_destroy(rocksdb_column_family_handle_t*)
    void rocksdb_close(rocksdb_t*)
    void rocksdb_put(
        rocksdb_t*,
        const rocksdb_writeoptions_t*,
        const char*,
        size_t,
        const char*,
        size_t,
        char** error,
    )
    void rocksdb_delete(
        rocksdb_t*, const rocksdb_writeoptions_t*, const char*, size_t, char** error
    )
    rocksdb_pinnableslice_t* rocksdb_get_pinned(
        rocksdb_t*, const rocksdb_readoptions_t*, const char*, size_t, char** error
    )
    void rocksdb_batched_multi_get_cf(
        rocksdb_t*,
        const rocksdb_readoptions_t*,
        rocksdb_column_family_handle_t*,
        size_t count,
        const char** keys,
        const size_t* key_bytes,
        rocksdb_pinnableslice_t** values,
        char** errors,
        bint sorted_input,
    )
    const char* rocksdb_pinnableslice_value(const rocksdb_pinnableslice_t*, size_t*)
    void rocksdb_pinnableslice_destroy(rocksdb_pinnableslice_t*)
    void rocksdb_free(void*)
    rocksdb_options_t* rocksdb_options_create()
    void rocksdb_options_destroy(rocksdb_options_t*)
    void rocksdb_options_set_create_if_missing(rocksdb_options_t*, unsigned char)
    void rocksdb_options_set_compression(rocksdb_options_t*, int)
    void rocksdb_options_set_write_buffer_size(rocksdb_options_t*, size_t)
    void rocksdb_options_set_block_based_table_factory(
        rocksdb_options_t*, rocksdb_block_based_table_options_t*
    )
    rocksdb_block_based_table_options_t* rocksdb_block_based_options_create()
    void rocksdb_block_based_options_destroy(rocksdb_block_based_table_options_t*)
    void rocksdb_block_based_options_set_block_cache(
        rocksdb_block_based_table_options_t*, rocksdb_cache_t*
    )
    void rocksdb_block_based_options_set_filter_policy(
        rocksdb_block_based_table_options_t*, rocksdb_filterpolicy_t*
    )
    rocksdb_cache_t* rocksdb_cache_create_lru(size_t)
    void rocksdb_cache_destroy(rocksdb_cache_t*)
    rocksdb_filterpolicy_t* rocksdb_filterpolicy_create_bloom_full(double)
    rocksdb_readoptions_t* rocksdb_readoptions_create()
    void rocksdb_readoptions_destroy(rocksdb_readoptions_t*)
    rocksdb_writeoptions_t* rocksdb_writeoptions_create()
    void rocksdb_writeoptions_destroy(rocksdb_writeoptions_t*)

cdef size_t CACHE_BYTES = <size_t> 8 << 30
cdef size_t WRITE_BUFFER_BYTES = <size_t> 64 << 20
cdef int BLOOM_BITS = 10

cdef struct RocksdbSession:
    Session head
    rocksdb_t* database                 # not owned, nor are the options and the family
    rocksdb_readoptions_t* read_options
    rocksdb_writeoptions_t* write_options
    rocksdb_column_family_handle_t* family
    # Owned: what the last call answered.
    rocksdb_pinnableslice_t* values[64]
    size_t value_count


cdef Answer failed(Session* head, char* error) noexcept nogil:
    strncpy(head.message, error, MESSAGE_BYTES - 1)
    rocksdb_free(error)
    return ANSWER_FAILED


cdef inline void free_values(RocksdbSession* session) noexcept nogil:
    cdef size_t i
    for i in range(session.value_count):
        if session.values[i] != NULL:
            rocksdb_pinnableslice_destroy(session.values[i])
    session.value_count = 0


cdef Answer put(
    Session* head, const uint8_t* key, const uint8_t* value, size_t value_bytes
) noexcept nogil:
    cdef RocksdbSession* session = <RocksdbSession*> head
    cdef char* error = NULL
    rocksdb_put(
        session.database, session.write_options,
        <const char*> key, KEY_BYTES, <const char*> value, value_bytes, &error,
    )
    return ANSWER_DONE if error == NULL else failed(head, error)


cdef Answer get(
    Session* head, const uint8_t* key, const uint8_t** value, size_t* value_bytes
) noexcept nogil:
    cdef RocksdbSession* session = <RocksdbSession*> head
    cdef char* error = NULL
    free_values(session)
    session.values[0] = rocksdb_get_pinned(
        session.database, session.read_options, <const char*> key, KEY_BYTES, &error
    )
    if error != NULL:
        return failed(head, error)
    if session.values[0] == NULL:
        return ANSWER_ABSENT
    session.value_count = 1
    value[0] = <const uint8_t*> rocksdb_pinnableslice_value(session.values[0], value_bytes)
    return ANSWER_DONE


cdef Answer get_batch(
    Session* head, const uint8_t** keys, size_t count, const uint8_t** values, size_t* value_bytes
) noexcept nogil:
    cdef RocksdbSession* session = <RocksdbSession*> head
    cdef size_t[64] key_bytes
    cdef char* errors[64]
    cdef Answer answer = ANSWER_DONE
    cdef size_t i
    free_values(session)
    for i in range(count):
        key_bytes[i] = KEY_BYTES
        errors[i] = NULL
    rocksdb_batched_multi_get_cf(
        session.database, session.read_options, session.family,
        count, <const char**> keys, key_bytes, session.values, errors, False,
    )
    session.value_count = count
    for i in range(count):
        values[i] = NULL
        if errors[i] != NULL:
            answer = failed(head, errors[i])
        elif session.values[i] != NULL:
            values[i] = <const uint8_t*> rocksdb_pinnableslice_value(
                session.values[i], &value_bytes[i]
            )
    return answer


cdef Answer remove(Session* head, const uint8_t* key) noexcept nogil:
    """RocksDB does not say whether there was something."""
    cdef RocksdbSession* session = <RocksdbSession*> head
    cdef char* error = NULL
    rocksdb_delete(session.database, session.write_options, <const char*> key, KEY_BYTES, &error)
    return ANSWER_DONE if error == NULL else failed(head, error)


cdef class Rocksdb(Driver):
    """A database in the directory `path`."""

    cdef:
        rocksdb_t* database
        rocksdb_column_family_handle_t* family
        rocksdb_cache_t* cache
        rocksdb_readoptions_t* read_options
        rocksdb_writeoptions_t* write_options
        bytes path

    def __init__(self, bytes path not None, uint64_t keys, size_t value_bytes):
        cdef rocksdb_options_t* options = rocksdb_options_create()
        cdef rocksdb_block_based_table_options_t* table = rocksdb_block_based_options_create()
        cdef const rocksdb_options_t* family_options = options
        cdef const char* family_name = b"default"
        cdef char* error = NULL
        self.path = path
        self.cache = rocksdb_cache_create_lru(CACHE_BYTES)
        self.read_options = rocksdb_readoptions_create()
        self.write_options = rocksdb_writeoptions_create()
        rocksdb_block_based_options_set_block_cache(table, self.cache)
        rocksdb_block_based_options_set_filter_policy(
            table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS)
        )
        rocksdb_options_set_create_if_missing(options, 1)
        rocksdb_options_set_compression(options, rocksdb_no_compression)
        rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES)
        rocksdb_options_set_block_based_table_factory(options, table)
        self.database = rocksdb_open_column_families(
            options, path, 1, &family_name, &family_options, &self.family, &error
        )
        rocksdb_block_based_options_destroy(table)
        rocksdb_options_destroy(options)
        if error != NULL:
            message = (<bytes> error).decode(errors="replace")
            rocksdb_free(error)
            raise RuntimeError(f"rocksdb_open: {message}")
        self.calls.put = put
        self.calls.get = get
        self.calls.get_batch = get_batch
        self.calls.remove = remove

    cdef Session* session_open(self) except NULL:
        cdef RocksdbSession* session = <RocksdbSession*> calloc(1, sizeof(RocksdbSession))
        if session == NULL:
            raise MemoryError
        session.database = self.database
        session.read_options = self.read_options
        session.write_options = self.write_options
        session.family = self.family
        return &session.head

    cdef int session_close(self, Session* session) except -1:
        free_values(<RocksdbSession*> session)
        free(session)
        return 0

    def describe(self):
        # Only its log file says what the library is.
        with open(self.path + b"/LOG", encoding="utf-8", errors="replace") as log:
            facts = log.read()
        version = re.search(r"RocksDB version: (\S+)", facts)
        slow_crc = " without fast CRC32" if "Fast CRC32 supported: Not" in facts else ""
        return (
            f"RocksDB {version[1] if version else 'of unknown version'}{slow_crc}:"
            " log without sync, no compression,"
            f" {BLOOM_BITS}-bit bloom filter, {CACHE_BYTES >> 30} GiB block cache,"
            f" {WRITE_BUFFER_BYTES >> 20} MiB write buffer"
        )

    def close(self):
        with nogil:
            rocksdb_column_family_handle_destroy(self.family)
            rocksdb_close(self.database)
        rocksdb_cache_destroy(self.cache)
        rocksdb_readoptions_destroy(self.read_options)
        rocksdb_writeoptions_destroy(self.write_options)
        self.database = NULL


def open_driver(bytes path not None, uint64_t keys, size_t value_bytes):
    return Rocksdb(path, keys, value_bytes)
