# The face of the engine.  A loop without Python takes `Store.core` of a store that it keeps open:
#   from deodar.engine.store cimport Store
#   from deodar.engine.core cimport StoreCore
#   from deodar.engine.write cimport Outcome, store_put, store_delete
#   from deodar.engine.read cimport store_get
from .core cimport StoreCore

cdef class Store:
    cdef StoreCore* core                # owned; NULL once closed
    cdef readonly str path
    cdef int lock_descriptor            # owned; -1 once closed
    cdef bint closing
    cdef Py_ssize_t users               # calls inside; guarded by the GIL
    cdef int enter(self) except -1
