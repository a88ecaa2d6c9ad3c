# Bounds of the engine, with units.  Each is checked where bytes enter, so that nothing below can
# overflow.  `deodar.contract.limits` repeats the public ones for the service.

cdef enum:
    KEY_BYTES_MAX = 65536                # 1..64 KiB: stored as `key_bytes - 1` in 16 bits
    VALUE_BYTES_MAX = 67108864           # 64 MiB
    REGION_BYTES_MIN = 262144            # 256 KiB
    REGION_BYTES_MAX = 16777216          # 16 MiB
    REGION_BYTES_DEFAULT = 2097152       # 2 MiB: one huge page
    SEGMENT_BYTES = 268435456            # 256 MiB a segment file
    RECORD_ALIGNMENT = 8                 # bytes; addresses of records are multiples of it
    PAGE_BYTES = 4096                    # unit of direct I/O and of the trie's dirty tracking
    FORMAT_VERSION = 1                   # of every file of a store
    BATCH_OPERATIONS_MAX = 10000
    TTL_MS_MAX = 3155760000000           # 100 years in milliseconds
