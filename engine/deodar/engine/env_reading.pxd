# A door that only lets bytes out: for stores that are opened read-only.
from .env cimport Env

# Opens files for reading, whatever is asked; everything that would change one fails with EROFS.
cdef const Env* env_reading() noexcept nogil
