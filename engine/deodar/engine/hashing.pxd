# XXH3 without the GIL, taken at import from the C symbols that the installed `xxhash` extension
# exports; no hash code lives here.  The trie path of a key and the checksums of files both use it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# The 128-bit path of a key in the global trie, most significant byte first: path byte 0 is the top
# byte of `high`, path byte 15 the lowest of `low`.  Rule H1: path = XXH3_128(key); when the key
# holds a hash tag - the bytes between the first '{' and the next '}' behind it, at least one
# byte - the top 16 bits of `high` are those of XXH3_128(tag).  `deodar.contract.keypath` is the
# same rule in Python; tests hold both to one vector file.
cdef struct Path:
    uint64_t high
    uint64_t low

cdef Path path_of(const uint8_t* key, size_t key_bytes) noexcept nogil

# Byte `depth` (0..15) of the path.
cdef inline uint8_t path_byte(Path path, unsigned int depth) noexcept nogil:
    if depth < 8:
        return <uint8_t> (path.high >> (56 - 8 * depth))
    return <uint8_t> (path.low >> (56 - 8 * (depth - 8)))

# The 16-bit tag that leaves keep of a path: its last two bytes, which no walk of fewer than 14
# branches looks at.
cdef inline unsigned int path_tag(Path path) noexcept nogil:
    return <unsigned int> (path.low & 0xFFFF)

# -1, 0 or 1 as `left` is before, equal to or after `right` in hash order.
cdef inline int path_compare(Path left, Path right) noexcept nogil:
    if left.high != right.high:
        return -1 if left.high < right.high else 1
    if left.low != right.low:
        return -1 if left.low < right.low else 1
    return 0

# XXH3_64 of `bytes` bytes with `seed`.
cdef uint64_t checksum64(const void* data, size_t bytes, uint64_t seed) noexcept nogil
