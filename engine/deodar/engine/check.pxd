# Checking a store: every invariant and every checksum that can be checked while it is open.
from .core cimport StoreCore

# What is broken, one line each; empty when nothing is.  Holds the log's mutex, so writers wait.
cdef list check_core(StoreCore* core)
