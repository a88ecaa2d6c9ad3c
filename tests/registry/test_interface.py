"""What every registry promises: etcd, the embedded one, and the embedded one served."""

from __future__ import annotations

import asyncio

import pytest

from deodar.registry.interface import (
    OPERATIONS_MAX,
    Compare,
    Delete,
    LeaseLost,
    Put,
    Registry,
)

from .conftest import first_snapshot, next_events, watching


async def test_compare_and_set(registry: Registry, root: str) -> None:
    """The truth table of a compare: absent, right revision, old revision; all or nothing."""
    a, b = root + "a", root + "b"
    assert await registry.get(a) is None
    assert await registry.commit([Compare(a, 7)], [Put(a, b"no")]) is None
    first = await registry.commit([Compare(a, 0)], [Put(a, b"1")])
    assert first is not None
    assert await registry.commit([Compare(a, 0)], [Put(a, b"no")]) is None
    entry = await registry.get(a)
    assert entry is not None
    assert (entry.key, entry.value, entry.mod_revision, entry.lease) == (a, b"1", first, 0)

    second = await registry.commit([Compare(a, first)], [Put(a, b"2"), Put(b, b"")])
    assert second is not None
    assert second > first
    assert await registry.commit([Compare(a, second), Compare(b, first)], [Delete(a)]) is None
    empty = await registry.get(b)
    assert empty is not None, "an empty value is not an absent one"
    assert empty.value == b""
    assert empty.mod_revision == second

    third = await registry.commit([Compare(a, second)], [Delete(a)])
    assert third is not None
    assert await registry.get(a) is None
    assert await registry.commit([Compare(a, second)], [Put(a, b"no")]) is None
    assert await registry.commit([Compare(a, 0)], [Put(a, b"3")]) is not None


async def test_a_commit_without_changes_keeps_the_revision(registry: Registry, root: str) -> None:
    revision = await registry.commit([], [Put(root + "a", b"1")])
    assert revision is not None
    assert await registry.commit([Compare(root + "a", revision)], []) == revision
    assert await registry.commit([], [Delete(root + "absent")]) == revision


async def test_range_is_of_its_prefix_alone_and_sorted(registry: Registry, root: str) -> None:
    for name in ("b", "a", "c/2", "c/10", "d"):
        await registry.commit([], [Put(root + name, name.encode())])
    await registry.commit([], [Put(root[:-1] + "0", b"behind the prefix")])
    snapshot = await registry.range(root)
    assert [entry.key for entry in snapshot.entries] == [
        root + name for name in ("a", "b", "c/10", "c/2", "d")
    ]
    assert [entry.value for entry in (await registry.range(root + "c/")).entries] == [
        b"c/10",
        b"c/2",
    ]
    assert snapshot.revision >= max(entry.mod_revision for entry in snapshot.entries)


async def test_bounds_of_a_commit(registry: Registry, root: str) -> None:
    """Exactly the bound works; one more is refused before it is sent."""
    puts = [Put(f"{root}{index:03}", b"x") for index in range(OPERATIONS_MAX + 1)]
    with pytest.raises(ValueError, match="129 operations"):
        await registry.commit([], puts)
    compares = [Compare(put.key, 0) for put in puts]
    with pytest.raises(ValueError, match="129 compares"):
        await registry.commit(compares, [])
    with pytest.raises(ValueError, match="twice"):
        await registry.commit([], [Put(root + "a", b""), Delete(root + "a")])
    with pytest.raises(ValueError, match="empty key"):
        await registry.commit([], [Put("", b"")])
    assert (await registry.range(root)).entries == ()
    assert await registry.commit(compares[:-1], puts[:-1]) is not None
    assert len((await registry.range(root)).entries) == OPERATIONS_MAX


async def test_watch_begins_with_a_snapshot_and_goes_on_in_order(
    registry: Registry, root: str
) -> None:
    await registry.commit([], [Put(root + "old", b"0")])
    async with watching(registry, root) as stream:
        snapshot = await first_snapshot(stream)
        assert [entry.key for entry in snapshot.entries] == [root + "old"]
        revisions = []
        for number in range(20):
            revision = await registry.commit([], [Put(f"{root}{number}", b"%d" % number)])
            revisions.append(revision)
        last = await registry.commit([], [Delete(root + "old"), Put(root + "0", b"again")])
        await registry.commit([], [Put(root[:-1] + "0/outside", b"")])
        events = await next_events(stream, 22)
        assert [event.value for event in events[:20]] == [b"%d" % number for number in range(20)]
        assert [event.mod_revision for event in events[:20]] == revisions
        assert {(event.key, event.value, event.mod_revision) for event in events[20:]} == {
            (root + "old", None, last),
            (root + "0", b"again", last),
        }


async def test_many_writers_and_a_watch_without_gap_or_duplicate(
    registry: Registry, root: str
) -> None:
    """Counters raised by racing compare-and-sets: the watch shows each step exactly once."""
    key = root + "counter"
    await registry.commit([], [Put(key, b"0")])

    async def raise_by(count: int) -> None:
        while count:
            entry = await registry.get(key)
            assert entry is not None
            value = b"%d" % (int(entry.value) + 1)
            if await registry.commit([Compare(key, entry.mod_revision)], [Put(key, value)]):
                count -= 1

    async with watching(registry, root) as stream:
        await first_snapshot(stream)
        await asyncio.gather(*(raise_by(10) for _ in range(4)))
        events = await next_events(stream, 40)
    assert [int(event.value or b"-1") for event in events] == list(range(1, 41))


async def test_a_lease_keeps_its_keys_until_revoked(registry: Registry, root: str) -> None:
    """Kept alive past its ttl; revoking deletes the key and says so to a watch."""
    lease = await registry.grant_lease(2_000)
    assert 0 < lease.remaining_ms <= 2_000
    await registry.commit([], [Put(root + "leased", b"x", lease.id), Put(root + "kept", b"y")])
    async with watching(registry, root) as stream:
        snapshot = await first_snapshot(stream)
        assert {entry.key: entry.lease for entry in snapshot.entries} == {
            root + "leased": lease.id,
            root + "kept": 0,
        }
        await asyncio.sleep(2.6)
        assert not lease.lost
        assert await registry.get(root + "leased") is not None
        await lease.revoke()
        [event] = await next_events(stream, 1)
        assert (event.key, event.value) == (root + "leased", None)
    assert lease.lost
    assert lease.remaining_ms == 0
    await asyncio.wait_for(lease.wait_lost(), 1)
    await lease.revoke()
    assert await registry.get(root + "kept") is not None
    with pytest.raises(LeaseLost):
        await registry.commit([], [Put(root + "late", b"", lease.id)])
    assert await registry.get(root + "late") is None


async def test_a_put_without_the_lease_sets_a_key_free(registry: Registry, root: str) -> None:
    lease = await registry.grant_lease(2_000)
    await registry.commit([], [Put(root + "a", b"1", lease.id)])
    await registry.commit([], [Put(root + "a", b"2")])
    await lease.revoke()
    entry = await registry.get(root + "a")
    assert entry is not None
    assert entry.value == b"2"


async def test_a_lease_that_nobody_keeps_ends(registry: Registry, root: str) -> None:
    """A holder that stops, as a killed process does, loses its keys after the ttl."""
    lease = await registry.grant_lease(2_000)
    await registry.commit([], [Put(root + "a", b"1", lease.id)])
    await lease.stop()  # type: ignore[attr-defined]
    assert await registry.get(root + "a") is not None
    async with watching(registry, root) as stream:
        await first_snapshot(stream)
        [event] = await next_events(stream, 1)
        assert (event.key, event.value) == (root + "a", None)
    assert await registry.get(root + "a") is None


async def test_all_bytes_survive(registry: Registry, root: str) -> None:
    value = bytes(range(256)) * 3
    await registry.commit([], [Put(root + "ключ", value)])
    assert [(entry.key, entry.value) for entry in (await registry.range(root)).entries] == [
        (root + "ключ", value)
    ]
