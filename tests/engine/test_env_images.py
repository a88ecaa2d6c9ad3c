"""The crash model itself: what it must lose, what it must keep, and old mistakes it must find."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from . import probe_disk as disk
from . import probe_env as env
from . import probe_space as space
from .crash_images import Crash, KeepAll, KeepNone, KeepSome, Recorder, crashes

OLD, NEW = b"old" * 400, b"new" * 400


def replace(door: env.Door, root: Path, *, sync_file: bool, sync_directory: bool) -> None:
    """The well-known dance: write beside, rename over."""
    beside = str(root / "beside")
    fd = env.open_file(beside, os.O_WRONLY | os.O_CREAT, door=door)
    env.write_full(fd, NEW, 0, door=door)
    if sync_file:
        env.sync_data(fd, door=door)
    env.close_file(fd, door=door)
    env.rename(beside, str(root / "file"), door=door)
    if sync_directory:
        env.sync_directory(str(root), door=door)


def contents(recorder: Recorder, seeds: int = 40) -> tuple[set[bytes], set[bytes]]:
    """What "file" may hold at any moment, and at the end."""
    ever: set[bytes] = set()
    last: set[bytes] = set()
    for crash in crashes(recorder):
        choices = [KeepAll(), KeepNone(), *(KeepSome(random.Random(seed)) for seed in range(seeds))]
        last = {crash.model.image(choice).get("file", b"absent") for choice in choices}
        ever |= last
    return ever, last


@pytest.mark.parametrize("sync_file", [True, False])
@pytest.mark.parametrize("sync_directory", [True, False])
def test_replacing_a_file(tmp_path: Path, sync_file: bool, sync_directory: bool) -> None:
    (tmp_path / "file").write_bytes(OLD)
    recorder = Recorder(tmp_path)
    replace(env.Door(recorder), tmp_path, sync_file=sync_file, sync_directory=sync_directory)
    assert (tmp_path / "file").read_bytes() == NEW
    ever, last = contents(recorder)
    if sync_file:
        assert ever == {OLD, NEW}
    else:
        assert b"" in ever
        assert any(0 < content.count(b"\0") < len(NEW) for content in ever)
    assert (OLD in last) is not sync_directory
    assert NEW in last


def test_new_file_needs_a_sync_of_its_directory(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    door = env.Door(recorder)
    fd = env.open_file(str(tmp_path / "file"), os.O_WRONLY | os.O_CREAT, door=door)
    env.write_full(fd, NEW, 0, door=door)
    env.sync_data(fd, door=door)
    assert contents(recorder)[1] == {b"absent", NEW}
    env.sync_directory(str(tmp_path), door=door)
    assert contents(recorder)[1] == {NEW}
    env.unlink(str(tmp_path / "file"), door=door)
    assert contents(recorder)[1] == {b"absent", NEW}
    env.close_file(fd, door=door)
    assert door.raised is None


def test_sync_covers_only_what_came_before_it_began(tmp_path: Path) -> None:
    """A write that overlaps with an fsync is not made certain by it."""
    (tmp_path / "file").write_bytes(OLD)
    recorder = Recorder(tmp_path)
    door = env.Door(recorder)
    fd = env.open_file(str(tmp_path / "file"), os.O_WRONLY, door=door)
    env.write_full(fd, NEW, 0, door=door)
    env.sync_data(fd, door=door)
    write, sync, synced = recorder.events[-3:]
    late = write._replace(data=OLD)
    recorder.events[-3:] = [write, sync, late, synced]
    assert {OLD, NEW} < contents(recorder)[1]
    env.close_file(fd, door=door)


def test_lengths_are_uncertain_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    recorder = Recorder(tmp_path)
    door = env.Door(recorder)
    fd = env.open_file(str(tmp_path / "file"), os.O_RDWR, door=door)
    env.allocate(fd, 0, 2000, door=door)
    env.truncate(fd, 100, door=door)
    _, last = contents(recorder)
    assert {len(content) for content in last} == {100, 1200, 2000}
    env.sync_data(fd, door=door)
    assert contents(recorder)[1] == {OLD[:100]}
    env.close_file(fd, door=door)


def test_refused_calls_leave_no_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    recorder = Recorder(tmp_path, lambda operation: -5 if operation.kind == "write" else 0)
    door = env.Door(recorder)
    fd = env.open_file(str(tmp_path / "file"), os.O_RDWR, door=door)
    env.write_full(fd, NEW[:7], 0, door=door)
    assert [event.data for event in recorder.events[1:]] == [NEW[:5], NEW[5:7]]
    recorder.inner = lambda _: 5
    with pytest.raises(env.Failed):
        env.write_full(fd, NEW, 0, door=door)
    assert len(recorder.events) == 3
    recorder.inner = lambda _: 0
    env.close_file(fd, door=door)


@pytest.mark.parametrize(
    "backend", [disk.AIO, disk.URING, disk.PWRITE], ids=["aio", "io_uring", "pwrite"]
)
def test_marked_writes_of_a_space_survive(tmp_path: Path, backend: int) -> None:
    """Space and disk through an installed door: what was marked as synced is in every image."""
    root, target = tmp_path / "root", tmp_path / "image"
    root.mkdir()
    recorder = Recorder(root)
    with env.Door(recorder).installed():
        addresses = space.Addresses(str(root))
        writer = disk.Writer(backend)
        first = addresses.extend(2)
        for turn in range(1, 6):
            addresses.set(0, bytes([turn]) * 8192)
            fd, offset = addresses.place(first)
            writer.write([(fd, addresses.view(0, 8192), offset)])
            writer.sync(fd)
            recorder.mark(turn)
        addresses.close()
    target.mkdir()
    seen = 0
    for crash in crashes(recorder):
        for choice in (KeepAll(), KeepNone(), KeepSome(random.Random(crash.event))):
            seen += check_image(crash, target, choice)
    assert seen > 20


def check_image(crash: Crash, target: Path, choice: KeepAll | KeepNone | KeepSome) -> int:
    """Reopens one image; 1 when something was marked by then."""
    crash.write(target, choice)
    addresses = space.Addresses(str(target))
    found = b""
    if addresses.discover():
        addresses.load(0)
        found = addresses.get(0, 8192)
    addresses.close()
    for file in target.iterdir():
        file.unlink()
    if not crash.marks:
        return 0
    marked = crash.marks[-1]
    assert isinstance(marked, int)
    assert len(found) == 8192
    assert set(found) <= {marked, marked + 1}
    return 1
