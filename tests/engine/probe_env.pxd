from deodar.engine.env cimport Env

# An Env whose every call is shown to a Python observer first.
cdef class Door:
    cdef Env env
    cdef readonly object observer
    cdef readonly object raised         # what the observer raised, None = nothing
    cdef const Env* pointer(self) noexcept


# The Env of `door`, or the system's own where it is None.  Borrowed.
cdef const Env* env_of(Door door) noexcept
