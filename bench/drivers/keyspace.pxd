# What the operations are about: keys, values and the order in which they come.  Everything is a
# function of an index, so that any value read can be checked without remembering what was written.
#
# K1: a key is 23 bytes, "bench:k" and the 16 hexadecimal digits of twice its index; the odd numbers
#     between are keys that are never there.
# K2: a value begins with 8 bytes that name its index and the workload that wrote it (its
#     generation); the rest is cut from random bytes and does not compress.
# K3: orders are bijections of 0..n: every key comes once, and neighbours are far apart.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    KEY_BYTES = 23
    VALUE_BYTES_MIN = 8
    POOL_BYTES = 131072                 # random bytes that values are cut from: fits the L2 cache

cdef inline uint64_t mix64(uint64_t x) noexcept nogil:
    # The finaliser of SplitMix64: a bijection of 64 bits.
    x = (x ^ (x >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94D049BB133111EB
    return x ^ (x >> 31)

# Eight lower-case hexadecimal digits of `word`, first digit in the lowest byte.
cdef inline uint64_t hex_digits(uint32_t word) noexcept nogil:
    cdef uint64_t x = word
    # Spread the nibbles over bytes, highest nibble first.
    x = ((x & 0x0000FFFF) << 32) | (x >> 16)
    x = ((x & <uint64_t> 0x000000FF000000FF) << 16) | ((x >> 8) & <uint64_t> 0x000000FF000000FF)
    x = ((x & <uint64_t> 0x000F000F000F000F) << 8) | ((x >> 4) & <uint64_t> 0x000F000F000F000F)
    # '0' + nibble, and 39 more where the nibble is a letter.
    cdef uint64_t letters = (x + <uint64_t> 0x0606060606060606) >> 4
    letters &= <uint64_t> 0x0101010101010101
    return x + <uint64_t> 0x3030303030303030 + letters * 39

# The key of `index`, or its absent neighbour.
cdef inline void key_fill(uint8_t* key, uint64_t index, bint absent) noexcept nogil:
    cdef uint64_t number = 2 * index + absent
    cdef uint64_t high = hex_digits(<uint32_t> (number >> 32))
    cdef uint64_t low = hex_digits(<uint32_t> number)
    memcpy(key, b"bench:k", 7)
    memcpy(key + 7, &high, 8)
    memcpy(key + 15, &low, 8)

# The first 8 bytes of a value: the generation is in the lowest byte.
cdef inline uint64_t value_head(uint64_t index, uint8_t generation) noexcept nogil:
    return (mix64(index + 1) & ~(<uint64_t> 0xFF)) | generation

cdef inline void value_fill(
    uint8_t* value, size_t value_bytes, uint64_t index, uint8_t generation, const uint8_t* pool
) noexcept nogil:
    cdef uint64_t head = value_head(index, generation)
    cdef uint64_t offset = (head >> 8) ^ (<uint64_t> generation << 10)
    memcpy(value, pool + offset % POOL_BYTES, value_bytes)
    memcpy(value, &head, 8)

# A bijection of 0..2^(2 * half_bits): four rounds of a Feistel network.
cdef inline uint64_t feistel(uint64_t x, unsigned int half_bits, uint64_t seed) noexcept nogil:
    cdef uint64_t mask = (<uint64_t> 1 << half_bits) - 1
    cdef uint64_t left = x >> half_bits
    cdef uint64_t right = x & mask
    cdef uint64_t swap
    cdef unsigned int step
    for step in range(4):
        swap = left ^ (mix64(right + seed + step * <uint64_t> 0x9E3779B97F4A7C15) & mask)
        left = right
        right = swap
    return (left << half_bits) | right

# A bijection of 0..count (walks the cycle of the larger one until it comes back into the range).
cdef inline uint64_t permute(
    uint64_t x, uint64_t count, unsigned int half_bits, uint64_t seed
) noexcept nogil:
    x = feistel(x, half_bits, seed)
    while x >= count:
        x = feistel(x, half_bits, seed)
    return x
