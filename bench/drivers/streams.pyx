"""Streams of operations: which key comes next, and what is done with it."""

from libc.math cimport pow
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from bench.drivers.keyspace cimport mix64, permute

KEYS_MAX = INDEX_MASK


cdef class Stream:
    """The operations of one workload."""

    def __cinit__(self, Py_ssize_t count):
        self.operations = <uint32_t*> malloc(<size_t> max(count, 1) * sizeof(uint32_t))
        if self.operations == NULL:
            raise MemoryError
        self.count = count

    def __dealloc__(self):
        free(self.operations)


cdef unsigned int half_bits_of(uint64_t count) noexcept nogil:
    """Half the width of the smallest even-bit range that holds 0..count."""
    cdef unsigned int bits = 1
    while (<uint64_t> 1 << (2 * bits)) < count:
        bits += 1
    return bits


cdef inline double unit(uint64_t random) noexcept nogil:
    return <double> (random >> 11) * (1.0 / <double> (<uint64_t> 1 << 53))


def every_key(uint64_t keys, uint64_t count, uint64_t seed, bint delete):
    """`count` different keys of `keys` in random order, each written or deleted once."""
    cdef Stream stream = Stream(<Py_ssize_t> count)
    cdef uint32_t operation = OPERATION_DELETE if delete else OPERATION_WRITE
    cdef unsigned int half_bits = half_bits_of(keys)
    cdef uint64_t i
    with nogil:
        for i in range(count):
            stream.operations[i] = operation | <uint32_t> permute(i, keys, half_bits, seed)
    return stream


def uniform(uint64_t keys, uint64_t count, uint64_t seed, unsigned int writes_percent):
    """Keys drawn evenly; `writes_percent` of the operations write, the others read."""
    cdef Stream stream = Stream(<Py_ssize_t> count)
    cdef uint64_t i, random
    with nogil:
        for i in range(count):
            random = mix64(seed ^ mix64(i + 1))
            stream.operations[i] = <uint32_t> ((random >> 32) * keys >> 32)
            if mix64(random) % 100 < writes_percent:
                stream.operations[i] |= OPERATION_WRITE
    return stream


def misses(uint64_t keys, uint64_t count, uint64_t seed):
    """Reads of keys that are not there, drawn evenly; each has neighbours that are."""
    cdef Stream stream = Stream(<Py_ssize_t> count)
    cdef uint64_t i
    with nogil:
        for i in range(count):
            stream.operations[i] = OPERATION_MISS | <uint32_t> (
                (mix64(seed ^ mix64(i + 1)) >> 32) * keys >> 32
            )
    return stream


def zipf(uint64_t keys, uint64_t count, uint64_t seed, unsigned int writes_percent, double theta):
    """Keys drawn by Zipf's law with exponent `theta` < 1; ranks are scattered over the keys.

    The generator is that of Gray et al., "Quickly generating billion-record synthetic databases"
    (SIGMOD 1994), section 3, which YCSB uses too.
    """
    cdef Stream stream = Stream(<Py_ssize_t> count)
    cdef unsigned int half_bits = half_bits_of(keys)
    cdef double zeta = 0.0
    cdef double zeta_of_2 = 1.0 + pow(0.5, theta)
    cdef double alpha = 1.0 / (1.0 - theta)
    cdef double eta, scaled, u
    cdef uint64_t i, random, rank
    with nogil:
        for i in range(1, keys + 1):
            zeta += pow(1.0 / <double> i, theta)
        eta = (1.0 - pow(2.0 / <double> keys, 1.0 - theta)) / (1.0 - zeta_of_2 / zeta)
        for i in range(count):
            random = mix64(seed ^ mix64(i + 1))
            u = unit(random)
            scaled = u * zeta
            if scaled < 1.0:
                rank = 0
            elif scaled < zeta_of_2:
                rank = 1
            else:
                rank = <uint64_t> (<double> keys * pow(eta * u - eta + 1.0, alpha))
            if rank >= keys:
                rank = keys - 1
            stream.operations[i] = <uint32_t> permute(rank, keys, half_bits, ~seed)
            if mix64(random) % 100 < writes_percent:
                stream.operations[i] |= OPERATION_WRITE
    return stream
