"""`def` faces of `deodar.engine.hashing` for the tests."""

from libc.stdint cimport uint8_t

from deodar.engine.hashing cimport Path, checksum64, path_byte, path_compare, path_of, path_tag


def path(bytes key not None) -> bytes:
    """The 16 bytes of the path of `key`."""
    cdef Path found
    cdef const uint8_t* data = key
    cdef size_t data_bytes = len(key)
    with nogil:
        found = path_of(data, data_bytes)
    return bytes([path_byte(found, depth) for depth in range(16)])


cdef Path path_from(bytes whole):
    cdef Path path
    path.high = int.from_bytes(whole[:8], "big")
    path.low = int.from_bytes(whole[8:], "big")
    return path


def tag(bytes whole not None) -> int:
    return path_tag(path_from(whole))


def compare(bytes left not None, bytes right not None) -> int:
    return path_compare(path_from(left), path_from(right))


def checksum(bytes data not None, seed: int) -> int:
    return checksum64(<const uint8_t*> data, len(data), seed)
