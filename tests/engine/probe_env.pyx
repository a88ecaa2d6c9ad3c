"""An Env that shows each call to Python first, and `def` faces of `deodar.engine.env`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from libc.errno cimport EIO
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memset

from deodar.engine.env cimport (
    Env,
    env_allocate_by_writing,
    env_read_full,
    env_system,
    env_write_full,
)


class Operation(NamedTuple):
    """One call on its way to the system; kind "queued" is a write that a kernel queue carries.

    "synced" follows a "sync" or "sync_directory" that succeeded; its observer's answer is not used.
    """

    kind: str
    path: str
    offset: int
    bytes: int
    data: bytes | None  # of "write" and "queued"
    target: str | None  # of "rename"


# The system's own functions, whatever Door is installed.
cdef Env real = env_system()[0]


cdef class Door:
    """Asks `observer` before each call: 0 = go on, n > 0 = fail with errno n, -n = n bytes only.

    An observer that raises fails the call with EIO; the exception is kept in `raised`.
    """

    def __cinit__(self, observer: Callable[[Operation], int]) -> None:
        memset(&self.env, 0, sizeof(Env))
        self.observer = observer
        self.raised = None
        self.env.context = <void*> self
        self.env.open_file = door_open
        self.env.close_file = door_close
        self.env.file_bytes = door_file_bytes
        self.env.read_at = door_read
        self.env.write_at = door_write
        self.env.sync_data = door_sync
        self.env.allocate = door_allocate
        self.env.truncate = door_truncate
        self.env.rename = door_rename
        self.env.unlink = door_unlink
        self.env.sync_directory = door_sync_directory
        self.env.before_queued_write = door_queued
        self.env.boot_ms = real.boot_ms
        self.env.wall_ms = real.wall_ms

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Puts this door in the place of the system's for every store opened inside.

        Open and close the stores inside, since all of them share the one Env.  What the observer
        raised is raised at the end.
        """
        cdef Env* system = <Env*> env_system()
        system[0] = self.env
        try:
            yield
        finally:
            system[0] = real
        if self.raised is not None:
            raise self.raised

    cdef const Env* pointer(self) noexcept:
        return &self.env


cdef const Env* env_of(Door door) noexcept:
    return env_system() if door is None else door.pointer()


# What the kernel calls the file now; follows a rename.
cdef str path_of(int fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    except FileNotFoundError:
        return f"descriptor {fd}"


# 0, an errno, or minus the bytes to let through.
cdef int ask(
    Door door,
    str kind,
    str path,
    uint64_t offset=0,
    uint64_t size=0,
    bytes data=None,
    str target=None,
) noexcept:
    try:
        return door.observer(Operation(kind, path, offset, size, data, target))
    except BaseException as error:  # noqa: BLE001 - shown by the test that owns the door
        door.raised = error
        return EIO


cdef int refuse(int answer, int* error) noexcept:
    error[0] = answer
    return -1


cdef int door_open(
    void* context, const char* path, int flags, int mode, int* error
) noexcept with gil:
    cdef int answer = ask(<Door> context, "open", path.decode(), flags)
    if answer > 0:
        return refuse(answer, error)
    return real.open_file(NULL, path, flags, mode, error)


cdef int door_close(void* context, int fd, int* error) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "close", path_of(fd))
    cdef int result = real.close_file(NULL, fd, error)
    return refuse(answer, error) if answer > 0 else result


cdef int64_t door_file_bytes(void* context, int fd, int* error) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "file_bytes", path_of(fd))
    if answer > 0:
        return refuse(answer, error)
    return real.file_bytes(NULL, fd, error)


cdef int64_t door_read(
    void* context, int fd, uint8_t* buffer, uint64_t size, uint64_t offset, int* error
) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "read", path_of(fd), offset, size)
    if answer > 0:
        return refuse(answer, error)
    if answer < 0:
        size = min(size, <uint64_t> -answer)
    return real.read_at(NULL, fd, buffer, size, offset, error)


cdef int64_t door_write(
    void* context, int fd, const uint8_t* buffer, uint64_t size, uint64_t offset, int* error
) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "write", path_of(fd), offset, size, buffer[:size])
    if answer > 0:
        return refuse(answer, error)
    if answer < 0:
        size = min(size, <uint64_t> -answer)
    return real.write_at(NULL, fd, buffer, size, offset, error)


cdef int door_queued(
    void* context, int fd, const uint8_t* buffer, uint64_t size, uint64_t offset
) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "queued", path_of(fd), offset, size, buffer[:size])
    return answer if answer > 0 else 0


cdef int door_sync(void* context, int fd, int* error) noexcept with gil:
    cdef Door door = <Door> context
    cdef str path = path_of(fd)
    cdef int answer = ask(door, "sync", path)
    if answer > 0:
        return refuse(answer, error)
    cdef int result = real.sync_data(NULL, fd, error)
    if result == 0:
        ask(door, "synced", path)
    return result


cdef int door_allocate(
    void* context, int fd, uint64_t offset, uint64_t size, int* error
) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "allocate", path_of(fd), offset, size)
    if answer > 0:
        return refuse(answer, error)
    return real.allocate(NULL, fd, offset, size, error)


cdef int door_truncate(void* context, int fd, uint64_t size, int* error) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "truncate", path_of(fd), size)
    if answer > 0:
        return refuse(answer, error)
    return real.truncate(NULL, fd, size, error)


cdef int door_rename(
    void* context, const char* source, const char* target, int* error
) noexcept with gil:
    cdef int answer = ask(<Door> context, "rename", source.decode(), 0, 0, None, target.decode())
    if answer > 0:
        return refuse(answer, error)
    return real.rename(NULL, source, target, error)


cdef int door_unlink(void* context, const char* path, int* error) noexcept with gil:
    cdef int answer = ask(<Door> context, "unlink", path.decode())
    if answer > 0:
        return refuse(answer, error)
    return real.unlink(NULL, path, error)


cdef int door_sync_directory(void* context, const char* path, int* error) noexcept with gil:
    cdef Door door = <Door> context
    cdef int answer = ask(door, "sync_directory", path.decode())
    if answer > 0:
        return refuse(answer, error)
    cdef int result = real.sync_directory(NULL, path, error)
    if result == 0:
        ask(door, "synced", path.decode())
    return result


class Failed(Exception):
    """A call answered -1; `error` is the errno it gave."""

    def __init__(self, error: int) -> None:
        super().__init__(error)
        self.error = error


cdef object answered(int64_t result, int error):
    if result < 0:
        raise Failed(error)
    return result


def open_file(str path not None, int flags, int mode=0o644, *, Door door=None) -> int:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef bytes name = path.encode()
    cdef int64_t result = env.open_file(env.context, name, flags, mode, &error)
    return answered(result, error)


def close_file(int fd, *, Door door=None) -> None:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.close_file(env.context, fd, &error)
    answered(result, error)


def file_bytes(int fd, *, Door door=None) -> int:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.file_bytes(env.context, fd, &error)
    return answered(result, error)


def read_full(int fd, uint64_t size, uint64_t offset, *, Door door=None) -> bytes:
    cdef int error = -1
    cdef bytearray target = bytearray(size)
    cdef int64_t result = env_read_full(env_of(door), fd, target, size, offset, &error)
    answered(result, error)
    return bytes(target)


def write_full(int fd, bytes data not None, uint64_t offset, *, Door door=None) -> None:
    cdef int error = -1
    cdef int64_t result = env_write_full(env_of(door), fd, data, len(data), offset, &error)
    answered(result, error)


def sync_data(int fd, *, Door door=None) -> None:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.sync_data(env.context, fd, &error)
    answered(result, error)


def allocate(int fd, uint64_t offset, uint64_t size, *, Door door=None) -> None:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.allocate(env.context, fd, offset, size, &error)
    answered(result, error)


def allocate_by_writing(int fd, uint64_t offset, uint64_t size) -> None:
    cdef int error = -1
    cdef int64_t result = env_allocate_by_writing(env_system(), fd, offset, size, &error)
    answered(result, error)


def truncate(int fd, uint64_t size, *, Door door=None) -> None:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.truncate(env.context, fd, size, &error)
    answered(result, error)


def rename(str source not None, str target not None, *, Door door=None) -> None:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.rename(env.context, source.encode(), target.encode(), &error)
    answered(result, error)


def unlink(str path not None, *, Door door=None) -> None:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.unlink(env.context, path.encode(), &error)
    answered(result, error)


def sync_directory(str path not None, *, Door door=None) -> None:
    cdef int error = -1
    cdef const Env* env = env_of(door)
    cdef int64_t result = env.sync_directory(env.context, path.encode(), &error)
    answered(result, error)


def clocks() -> tuple[int, int]:
    """(milliseconds since boot, milliseconds since 1970)."""
    return env_system().boot_ms(NULL), env_system().wall_ms(NULL)
