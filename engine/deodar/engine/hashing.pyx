from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr
from posix.dlfcn cimport RTLD_LOCAL, RTLD_NOW, dlopen, dlsym

import xxhash._xxhash as _xxhash

cdef extern from *:
    """
    typedef struct { uint64_t low64; uint64_t high64; } deodar_xxh128;
    typedef deodar_xxh128 (*deodar_xxh3_128)(const void*, size_t);
    typedef uint64_t (*deodar_xxh3_64)(const void*, size_t, uint64_t);
    """
    ctypedef struct deodar_xxh128:
        uint64_t low64
        uint64_t high64
    ctypedef deodar_xxh128 (*deodar_xxh3_128)(const void*, size_t) noexcept nogil
    ctypedef uint64_t (*deodar_xxh3_64)(const void*, size_t, uint64_t) noexcept nogil

# Set once at import, then constant.
cdef deodar_xxh3_128 hash128 = NULL
cdef deodar_xxh3_64 hash64 = NULL


cdef Path path_of(const uint8_t* key, size_t key_bytes) noexcept nogil:
    cdef deodar_xxh128 whole = hash128(key, key_bytes)
    cdef Path path
    path.high = whole.high64
    path.low = whole.low64
    cdef const uint8_t* opening = <const uint8_t*> memchr(key, c"{", key_bytes)
    if opening == NULL:
        return path
    cdef const uint8_t* tag = opening + 1
    cdef size_t rest_bytes = key_bytes - <size_t> (tag - key)
    cdef const uint8_t* closing = <const uint8_t*> memchr(tag, c"}", rest_bytes)
    if closing == NULL or closing == tag:
        return path
    cdef uint64_t tag_high = hash128(tag, <size_t> (closing - tag)).high64
    path.high = (tag_high & <uint64_t> 0xFFFF000000000000) | (path.high & <uint64_t> 0xFFFFFFFFFFFF)
    return path


cdef uint64_t checksum64(const void* data, size_t bytes, uint64_t seed) noexcept nogil:
    return hash64(data, bytes, seed)


cdef void* symbol_of(void* library, str name) except NULL:
    """The address of `name`, its variant that picks the widest vector unit at run time first."""
    cdef bytes dispatching = f"{name}_dispatch".encode()
    cdef bytes plain = name.encode()
    cdef void* address = dlsym(library, dispatching)
    if address == NULL:
        address = dlsym(library, plain)
    if address == NULL:
        raise ImportError(
            f"{_xxhash.__file__} does not export {name}: install xxhash>=3.5 from a wheel or with "
            "its bundled sources (pip install --force-reinstall 'xxhash>=3.5,<5')"
        )
    return address


cdef int bind() except -1:
    """Take the functions from the loaded extension and compare each with its Python face.

    The library stays open for the life of the process.
    """
    global hash128, hash64
    cdef bytes file = _xxhash.__file__.encode()
    cdef bytes probe = b"deodar" * 100
    cdef void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        raise ImportError(f"cannot load {_xxhash.__file__}: install xxhash>=3.5 from a wheel")
    hash128 = <deodar_xxh3_128> symbol_of(library, "XXH3_128bits")
    hash64 = <deodar_xxh3_64> symbol_of(library, "XXH3_64bits_withSeed")
    cdef deodar_xxh128 wide = hash128(<const uint8_t*> probe, len(probe))
    cdef uint64_t narrow = hash64(<const uint8_t*> probe, len(probe), 7)
    if (
        (<object> wide.high64 << 64) | wide.low64 != _xxhash.xxh3_128_intdigest(probe)
        or narrow != _xxhash.xxh3_64_intdigest(probe, 7)
    ):
        raise ImportError(f"{_xxhash.__file__} exports another XXH3: install xxhash>=3.5,<5")
    return 0


bind()
