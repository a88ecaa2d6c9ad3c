# Calls that carry many records: lists of Python objects in and out.  With the GIL, which they give
# up while they work; the caller keeps the store open.
from libc.stdint cimport uint32_t, uint64_t

from .core cimport StoreCore
from .record cimport RecordView
from .write cimport Outcome

# Item of a view; its value is b"" with `keys_only`.
cdef object item_of(const RecordView* view, bint keys_only)
cdef bytes value_of(const RecordView* view)
cdef object written_of(const Outcome* outcome)

# Items (or values alone) aligned with `keys`, None for what is absent.
cdef list many_get(StoreCore* core, list keys, bint values_only)

# (items, cursor to go on with or None).
cdef tuple many_scan(
    StoreCore* core, bytes cursor, bytes end, object limit, object bytes_max, bint keys_only
)

# Changes behind a version.
cdef list many_changes(
    StoreCore* core, uint64_t after_version, uint32_t limit, uint64_t bytes_max
)

# A Written for each Put or Delete, of which there is at least one.
cdef list many_write(StoreCore* core, list items, bint durable)

# How many of the changes were applied.
cdef Py_ssize_t many_apply(StoreCore* core, list changes) except -1
