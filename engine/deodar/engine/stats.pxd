# Numbers about an open store, for operators and benchmarks.
from .core cimport StoreCore

cdef dict stats_of(StoreCore* core)
