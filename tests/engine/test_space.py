"""Regions, segments and residency (rules S1 to S3)."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deodar.engine import errors

from . import probe_disk as disk
from . import probe_env as env
from . import probe_space as space
from .faults import FailNth

REGION = 262_144
PER_SEGMENT = 1024
SEGMENT = REGION * PER_SEGMENT


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., space.Addresses]]:
    spaces: list[space.Addresses] = []

    def open_space(**options: object) -> space.Addresses:
        spaces.append(space.Addresses(str(tmp_path), **options))
        return spaces[-1]

    yield open_space
    for one in spaces:
        one.close()


def write(addresses: space.Addresses, region: int, data: bytes) -> None:
    """Puts `data` at the start of a region on disk, past its memory."""
    fd, offset = addresses.place(region * REGION)
    disk.Writer(disk.PWRITE).write([(fd, aligned(data), offset)])


def aligned(data: bytes) -> memoryview:
    buffer = mmap.mmap(-1, -(-len(data) // 4096) * 4096)
    buffer[: len(data)] = data
    return memoryview(buffer)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"region_bytes": 131_072}, "region_bytes"),
        ({"region_bytes": 33_554_432}, "region_bytes"),
        ({"region_bytes": 300_000}, "region_bytes"),
        ({"reserved_bytes": 0}, "reserved_bytes"),
        ({"reserved_bytes": REGION + 1}, "reserved_bytes"),
        ({"reserved_bytes": 2**40 + REGION}, "reserved_bytes"),
        ({"reserved_bytes": REGION, "region_count": 2}, "reserved_bytes"),
        ({"name": "n" * 32}, "name"),
    ],
)
def test_arguments_outside_their_bounds(
    tmp_path: Path, options: dict[str, object], field: str
) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        space.Addresses(str(tmp_path), **options)
    assert raised.value.field == field


def test_a_terabyte_is_only_addresses(opened: Callable[..., space.Addresses]) -> None:
    addresses = opened(reserved_bytes=2**40)
    assert addresses.base % (2 << 20) == 0
    assert addresses.region_count == 0


def test_place_of_an_address(opened: Callable[..., space.Addresses]) -> None:
    """S1."""
    addresses = opened()
    addresses.extend(3)
    fd, offset = addresses.place(2 * REGION + 100)
    assert offset == 2 * REGION + 100
    assert os.readlink(f"/proc/self/fd/{fd}").endswith("/data-000000.segment")
    assert addresses.place(SEGMENT + 5) == (-1, 5)


def test_extend_preallocates_and_gives_zero_memory(
    tmp_path: Path, opened: Callable[..., space.Addresses]
) -> None:
    addresses = opened()
    assert addresses.extend(2) == 0
    assert addresses.extend(3) == 2
    facts = (tmp_path / "data-000000.segment").stat()
    assert facts.st_size == 5 * REGION
    assert facts.st_blocks * 512 >= 5 * REGION
    assert addresses.get(0, 5 * REGION) == bytes(5 * REGION)
    addresses.set(5 * REGION - 4, b"last")
    assert [addresses.residency(region) for region in range(6)] == [space.ANONYMOUS] * 5 + [
        space.ABSENT
    ]


def test_run_over_two_segments(tmp_path: Path, opened: Callable[..., space.Addresses]) -> None:
    addresses = opened()
    addresses.extend(PER_SEGMENT - 1)
    assert addresses.extend(4) == PER_SEGMENT - 1
    assert (tmp_path / "data-000000.segment").stat().st_size == SEGMENT
    assert (tmp_path / "data-000001.segment").stat().st_size == 3 * REGION
    addresses.set((PER_SEGMENT + 3) * REGION - 3, b"end")
    write(addresses, PER_SEGMENT - 1, b"in the first")
    write(addresses, PER_SEGMENT + 2, b"in the second")
    addresses.load(PER_SEGMENT - 1, 4)
    assert addresses.get((PER_SEGMENT - 1) * REGION, 12) == b"in the first"
    assert addresses.get((PER_SEGMENT + 2) * REGION, 13) == b"in the second"
    addresses.map_file(PER_SEGMENT - 1, 4)
    assert addresses.get((PER_SEGMENT - 1) * REGION, 12) == b"in the first"
    assert addresses.get((PER_SEGMENT + 2) * REGION, 13) == b"in the second"


def test_new_segment_syncs_the_directory_after_it(tmp_path: Path) -> None:
    kinds: list[str] = []

    def note(operation: env.Operation) -> int:
        kinds.append(operation.kind)
        return 0

    door = env.Door(note)
    addresses = space.Addresses(str(tmp_path), door=door)
    kinds.clear()
    addresses.extend(1)
    assert kinds == ["open", "sync_directory", "synced", "allocate"]
    kinds.clear()
    addresses.extend(1)
    assert kinds == ["allocate"]
    addresses.close()
    assert door.raised is None


def test_addresses_are_bounded(opened: Callable[..., space.Addresses]) -> None:
    addresses = opened(reserved_bytes=4 * REGION)
    addresses.extend(3)
    with pytest.raises(errors.LimitExceeded):
        addresses.extend(2)
    assert addresses.region_count == 3
    assert addresses.extend(1) == 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_changes_nothing(tmp_path: Path, error: int) -> None:
    faults = FailNth(3, error, kinds=["allocate"])
    addresses = space.Addresses(str(tmp_path), door=env.Door(faults))
    addresses.extend(PER_SEGMENT - 1)
    with pytest.raises(errors.DiskFull):
        addresses.extend(3)
    assert addresses.region_count == PER_SEGMENT - 1
    assert addresses.residency(PER_SEGMENT - 1) == space.ABSENT
    assert (tmp_path / "data-000000.segment").stat().st_size == SEGMENT - REGION
    assert addresses.extend(3) == PER_SEGMENT - 1
    assert addresses.get((PER_SEGMENT - 1) * REGION, 3 * REGION) == bytes(3 * REGION)
    addresses.close()


@pytest.mark.parametrize("at", range(1, 8))
def test_every_call_of_extend_may_fail(tmp_path: Path, at: int) -> None:
    """The N-th call fails, nothing has changed, and the next attempt succeeds."""
    faults = FailNth(0, errno.EIO, kinds=["open", "sync_directory", "allocate"])
    addresses = space.Addresses(str(tmp_path), door=env.Door(faults))
    faults.at = faults.seen + at
    if at <= 6:
        with pytest.raises(errors.IOFailure):
            addresses.extend(PER_SEGMENT + 1)
        assert addresses.region_count == 0
        assert all(path.stat().st_size == 0 for path in tmp_path.iterdir())
    assert addresses.extend(PER_SEGMENT + 1) == 0
    assert addresses.region_count == PER_SEGMENT + 1
    addresses.close()


def test_reopen_finds_bytes(opened: Callable[..., space.Addresses]) -> None:
    addresses = opened()
    addresses.extend(2)
    write(addresses, 1, b"on disk")
    addresses.close()
    addresses = opened(region_count=2)
    assert addresses.residency(1) == space.ABSENT
    addresses.load(1)
    assert addresses.residency(1) == space.ANONYMOUS
    assert addresses.get(REGION, 7) == b"on disk"
    addresses.set(REGION, b"changed")
    addresses.load(1)
    assert addresses.get(REGION, 7) == b"on disk"


def test_discover_counts_whole_regions(
    tmp_path: Path, opened: Callable[..., space.Addresses]
) -> None:
    addresses = opened()
    addresses.extend(PER_SEGMENT + 2)
    addresses.close()
    os.truncate(tmp_path / "data-000001.segment", 2 * REGION - 1)
    addresses = opened(region_count=1)
    assert addresses.region_count == 1
    assert addresses.discover() == PER_SEGMENT + 1
    addresses.close()
    addresses = opened(region_count=1, reserved_bytes=4 * REGION)
    assert addresses.discover() == 4


def test_discover_stops_at_a_short_segment(
    tmp_path: Path, opened: Callable[..., space.Addresses]
) -> None:
    """A later file cannot hold what was durable when an earlier one never grew."""
    addresses = opened()
    addresses.extend(PER_SEGMENT + 1)
    addresses.close()
    os.truncate(tmp_path / "data-000000.segment", 5 * REGION)
    addresses = opened()
    assert addresses.discover() == 5
    assert addresses.extend(1) == 5


def test_short_file_is_refused(tmp_path: Path, opened: Callable[..., space.Addresses]) -> None:
    addresses = opened()
    addresses.extend(PER_SEGMENT + 2)
    addresses.close()
    opened(region_count=PER_SEGMENT + 2).close()
    os.truncate(tmp_path / "data-000001.segment", 2 * REGION - 1)
    with pytest.raises(errors.Corruption) as raised:
        opened(region_count=PER_SEGMENT + 2)
    assert raised.value.file == "data-000001.segment"
    assert raised.value.offset == 2 * REGION - 1
    os.truncate(tmp_path / "data-000000.segment", SEGMENT - 1)
    with pytest.raises(errors.Corruption) as raised:
        opened(region_count=PER_SEGMENT + 1)
    assert raised.value.file == "data-000000.segment"


def test_gap_is_refused(tmp_path: Path, opened: Callable[..., space.Addresses]) -> None:
    addresses = opened()
    addresses.extend(PER_SEGMENT + 1)
    addresses.close()
    os.unlink(tmp_path / "data-000000.segment")
    for known in (0, 1, PER_SEGMENT + 1):
        with pytest.raises(errors.Corruption, match="missing") as raised:
            opened(region_count=known)
        assert raised.value.file == "data-000000.segment"


def test_file_cut_while_open_is_an_error_not_a_signal(
    tmp_path: Path, opened: Callable[..., space.Addresses]
) -> None:
    addresses = opened()
    addresses.extend(2)
    os.truncate(tmp_path / "data-000000.segment", REGION + 4096)
    addresses.map_file(0)
    with pytest.raises(errors.Corruption) as raised:
        addresses.map_file(1)
    assert raised.value.offset == REGION + 4096
    with pytest.raises(errors.Corruption):
        addresses.load(1)
    assert addresses.residency(1) == space.ABSENT


def test_read_error_names_the_file(tmp_path: Path) -> None:
    door = env.Door(FailNth(1, errno.EIO, kinds=["read"]))
    addresses = space.Addresses(str(tmp_path), door=door)
    addresses.extend(1)
    with pytest.raises(errors.IOFailure) as raised:
        addresses.load(0)
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, "data-000000.segment")
    addresses.load(0)
    assert addresses.residency(0) == space.ANONYMOUS
    addresses.close()


def test_anonymous_again_is_zero(opened: Callable[..., space.Addresses]) -> None:
    addresses = opened()
    addresses.extend(3)
    addresses.set(REGION, b"old")
    write(addresses, 1, b"old")
    addresses.map_file(1)
    addresses.make_anonymous(1)
    assert addresses.get(REGION, REGION) == bytes(REGION)
    assert addresses.residency(1) == space.ANONYMOUS


def protection(address: int) -> str:
    """The permissions of the mapping that holds `address`, as /proc shows them."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1]
    return "none"


def test_protection_follows_residency(opened: Callable[..., space.Addresses]) -> None:
    """S2."""
    addresses = opened()
    addresses.extend(3)
    addresses.map_file(1)
    addresses.drop(2)
    assert addresses.residency(2) == space.ABSENT
    assert [protection(addresses.base + region * REGION) for region in range(4)] == [
        "rw-p",
        "r--p",
        "---p",
        "---p",
    ]
    addresses.close()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
@pytest.mark.parametrize(("region_bytes", "advised"), [(REGION, False), (8 * REGION, True)])
def test_huge_pages_are_asked_for_where_one_fits(
    opened: Callable[..., space.Addresses], region_bytes: int, advised: bool
) -> None:
    addresses = opened(region_bytes=region_bytes)
    addresses.extend(1)
    smaps = Path("/proc/self/smaps").read_text()
    mapping = smaps[smaps.index(f"{addresses.base:x}-") :]
    flags = mapping[mapping.index("VmFlags:") :].splitlines()[0].split()
    assert ("hg" in flags) is advised


def test_drop_gives_memory_back(opened: Callable[..., space.Addresses]) -> None:
    addresses = opened()
    addresses.extend(64)
    addresses.set(0, b"x" * 64 * REGION)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    addresses.drop(0, 64)
    assert resident() < before - 48 * REGION


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    "backend", [disk.AIO, disk.URING, disk.PWRITE], ids=["aio", "io_uring", "pwrite"]
)
def test_readers_keep_their_pointers_across_the_exchange(
    opened: Callable[..., space.Addresses], direct: bool, backend: int
) -> None:
    """S3, and that a mapping made after the write shows the bytes just written.

    One region is written, synced and mapped again and again while a thread reads every word; the
    file is also mapped before each write, so that the page cache holds what was there before.
    """
    addresses = opened(direct=direct)
    assert addresses.direct is direct
    addresses.extend(1)
    writer = disk.Writer(backend)
    fd, offset = addresses.place(0)
    for turn in range(20):
        word = int.from_bytes(bytes([turn + 1]) * 8, "little")
        addresses.make_anonymous(0)
        addresses.set(0, bytes([turn + 1]) * REGION)
        results: list[tuple[int, int]] = []
        reader = threading.Thread(
            target=lambda results=results, word=word: results.append(
                addresses.watch(0, REGION, word)
            )
        )
        addresses.start()
        reader.start()
        writer.write([(fd, addresses.view(0, REGION), offset)])
        writer.sync(fd)
        for _ in range(5):
            addresses.map_file(0)
        while not addresses.rounds():
            pass
        addresses.stop()
        reader.join(10)
        assert results[0][0] > 0
        assert results[0][1] == 0


def test_direct_falls_back_where_it_is_refused(tmp_path: Path) -> None:
    def refuse_direct(operation: env.Operation) -> int:
        return errno.EINVAL if operation.offset & os.O_DIRECT else 0

    door = env.Door(lambda operation: refuse_direct(operation) if operation.kind == "open" else 0)
    addresses = space.Addresses(str(tmp_path), direct=True, door=door)
    addresses.extend(1)
    assert not addresses.direct
    addresses.close()


def test_refused_reservation_is_out_of_memory(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**36, hard))
    try:
        with pytest.raises(errors.OutOfMemory):
            space.Addresses(str(tmp_path), reserved_bytes=2**40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
