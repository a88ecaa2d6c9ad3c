"""The etcd registry against a real etcd that is killed, hung, compacted, and locked by TLS and
passwords."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from deodar.registry.config import RegistryConfig
from deodar.registry.connect import open_registry
from deodar.registry.etcd import PAGE_KEYS
from deodar.registry.interface import (
    Changes,
    Compare,
    Event,
    OutcomeUnknown,
    Put,
    Registry,
    RegistryError,
    RegistryRefused,
    RegistryUnavailable,
    Snapshot,
)
from deodar.registry.lease import now_ms
from tests.etcd_server import EtcdServer, free_port, running_cluster, running_etcd

ROOT = "/deodar/test/"


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Registry]:
    registry = await open_registry(
        RegistryConfig(url=url, **{"timeout_ms": 1_000, "start_timeout_s": 15, **settings})
    )
    try:
        yield registry
    finally:
        await registry.close()


async def put(registry: Registry, name: str, value: bytes = b"x") -> int:
    """A put that is repeated until it is known to be done."""
    async with asyncio.timeout(20):
        while True:
            try:
                revision = await registry.commit([], [Put(ROOT + name, value)])
            except (RegistryUnavailable, OutcomeUnknown):
                continue
            assert revision is not None
            return revision


class Follower:
    """Collects what a watch says, as its consumer would."""

    def __init__(self, registry: Registry) -> None:
        self.snapshots: list[Snapshot] = []
        self.events: list[Event] = []
        self.task = asyncio.create_task(self._run(registry))

    async def _run(self, registry: Registry) -> None:
        stream: Any = registry.watch(ROOT)
        async with aclosing(stream) as steps:
            async for step in steps:
                if isinstance(step, Snapshot):
                    self.snapshots.append(step)
                else:
                    assert isinstance(step, Changes)
                    if step.events:
                        assert step.events[0].mod_revision > self.seen, "a revision comes whole"
                    self.events += step.events

    async def until(self, revision: int) -> None:
        """Wait until a revision has been seen."""
        async with asyncio.timeout(30):
            while self.seen < revision:
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.02)

    @property
    def seen(self) -> int:
        snapshot = self.snapshots[-1].revision if self.snapshots else 0
        return max(snapshot, self.events[-1].mod_revision if self.events else 0)

    async def close(self) -> None:
        assert not self.task.done(), self.task.exception()
        self.task.cancel()
        await asyncio.wait({self.task})


async def test_watch_goes_on_through_kills_without_gap_or_duplicate(etcd: EtcdServer) -> None:
    """etcd is killed under a watch, twice; every write answered for arrives once, in order."""
    async with opened(etcd.url) as registry:
        first = await put(registry, "0")
        follower = Follower(registry)
        await follower.until(first)
        written = []
        for number in range(1, 31):
            if number in (10, 20):
                await asyncio.to_thread(etcd.kill)
                await asyncio.to_thread(etcd.start)
            written.append((await put(registry, str(number)), str(number)))
        await follower.until(written[-1][0])
        await follower.close()
        assert len(follower.snapshots) == 1, "nothing was compacted, so it never starts over"
        revisions = [event.mod_revision for event in follower.events]
        assert revisions == sorted(set(revisions))
        seen = [(event.mod_revision, event.key.removeprefix(ROOT)) for event in follower.events]
        assert set(written) <= set(seen)


async def test_watch_starts_over_after_a_compaction(etcd: EtcdServer) -> None:
    """While the watch is cut off, what it missed is compacted: it gets a snapshot, then goes on."""
    async with opened(etcd.url) as registry:
        follower = Follower(registry)
        await follower.until(await put(registry, "a"))
        snapshots = len(follower.snapshots)
        await asyncio.to_thread(etcd.kill)
        await asyncio.sleep(0.3)
        # A second client writes and compacts before the follower is let in again: the server
        # starts on another port meanwhile.
        port, etcd.port = etcd.port, free_port()
        await asyncio.to_thread(etcd.start)
        async with opened(etcd.url) as other:
            for _ in range(10):
                revision = await put(other, "b")
        await asyncio.to_thread(etcd.control, "compact", str(revision))
        await asyncio.to_thread(etcd.stop)
        etcd.port = port
        await asyncio.to_thread(etcd.start)
        await follower.until(revision)
        assert len(follower.snapshots) == snapshots + 1
        assert {entry.key for entry in follower.snapshots[-1].entries} == {ROOT + "a", ROOT + "b"}
        await follower.until(await put(registry, "c"))
        assert follower.events[-1].key == ROOT + "c"
        await follower.close()


async def test_list_survives_a_compaction_between_its_pages(etcd: EtcdServer) -> None:
    """More than one page; the revision of the first is compacted before the second is read."""
    async with opened(etcd.url) as registry:
        count = PAGE_KEYS + 200
        for start in range(0, count, 100):
            puts = [Put(f"{ROOT}{number:05}", b"x") for number in range(start, start + 100)]
            await registry.commit([], puts)
        assert len((await registry.range(ROOT)).entries) == count

        wire: Any = registry
        plain_read, reads = wire._wire.read, 0

        async def read(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            if reads == 2:
                revision = await put(registry, "later")
                await asyncio.to_thread(etcd.control, "compact", str(revision))
            return await plain_read(*arguments)

        wire._wire.read = read
        snapshot = await registry.range(ROOT)
        assert reads == 4, "two pages, twice"
        assert [entry.key for entry in snapshot.entries] == [
            *(f"{ROOT}{number:05}" for number in range(count)),
            ROOT + "later",
        ]


async def test_watch_leaves_a_hung_peer(etcd: EtcdServer) -> None:
    """etcd hangs with its connections open; progress that is asked for and does not come tells."""
    async with opened(etcd.url) as registry:
        follower = Follower(registry)
        await follower.until(await put(registry, "a"))
        etcd.pause()
        await asyncio.sleep(2.5)
        etcd.resume()
        await follower.until(await put(registry, "b"))
        await follower.close()
        assert [event.key for event in follower.events if event.key == ROOT + "b"] == [ROOT + "b"]


async def test_calls_to_a_hung_etcd_are_bounded(etcd: EtcdServer) -> None:
    """A read is unavailable; a commit was sent, so its outcome is unknown."""
    async with opened(etcd.url) as registry:
        await put(registry, "a")
        etcd.pause()
        start = time.monotonic()
        with pytest.raises(RegistryUnavailable):
            await registry.get(ROOT + "a")
        with pytest.raises(OutcomeUnknown):
            await registry.commit([], [Put(ROOT + "a", b"perhaps")])
        assert time.monotonic() - start < 4
        etcd.resume()
        entry = await registry.get(ROOT + "a")
        assert entry is not None
        assert entry.value in (b"x", b"perhaps")


async def test_a_commit_to_a_dead_etcd_is_certainly_not_done(etcd: EtcdServer) -> None:
    async with opened(etcd.url) as registry:
        await put(registry, "a")
        await asyncio.to_thread(etcd.kill)
        await asyncio.sleep(0.3)
        with pytest.raises(RegistryUnavailable):
            await registry.commit([], [Put(ROOT + "a", b"no")])


async def test_lost_answers_are_never_guessed(etcd: EtcdServer) -> None:
    """etcd is killed in the middle of racing increments.  Each is done, refused, or in doubt; the
    counter lies between what is known to be done and that plus what is in doubt."""
    key = ROOT + "counter"
    async with opened(etcd.url) as registry:
        await put(registry, "counter", b"0")
        done = doubtful = 0
        stop = asyncio.Event()

        async def increment() -> None:
            nonlocal done, doubtful
            while not stop.is_set():
                try:
                    entry = await registry.get(key)
                    assert entry is not None
                    value = b"%d" % (int(entry.value) + 1)
                    if await registry.commit([Compare(key, entry.mod_revision)], [Put(key, value)]):
                        done += 1
                except OutcomeUnknown:
                    doubtful += 1
                except RegistryUnavailable:
                    continue

        tasks = [asyncio.create_task(increment()) for _ in range(4)]
        for _ in range(3):
            await asyncio.sleep(0.4)
            await asyncio.to_thread(etcd.kill)
            await asyncio.to_thread(etcd.start)
        stop.set()
        await asyncio.gather(*tasks)
        entry = await registry.get(key)
        assert entry is not None
        assert done > 10
        assert done <= int(entry.value) <= done + doubtful


async def test_lease_loss_is_known_by_the_local_clock(etcd: EtcdServer) -> None:
    """etcd hangs: the lease is lost within its ttl from the last good send, not when etcd says."""
    async with opened(etcd.url) as registry:
        lease = await registry.grant_lease(2_000)
        await asyncio.sleep(1.0)
        assert not lease.lost
        etcd.pause()
        start_ms = now_ms()
        await asyncio.wait_for(lease.wait_lost(), 4)
        assert now_ms() - start_ms <= 2_000 + 100
        assert lease.lost
        etcd.resume()
        await asyncio.sleep(0.5)
        assert lease.lost, "a lost lease stays lost"


async def test_a_pause_of_ours_longer_than_the_lease_loses_it(etcd: EtcdServer) -> None:
    """The clock is read at each question, so that a holder that stood still never believes."""
    async with opened(etcd.url) as registry:
        lease = await registry.grant_lease(2_000)
        # The event loop stands still, as the process would under SIGSTOP.
        time.sleep(2.2)  # noqa: ASYNC251
        assert lease.lost


async def test_dead_first_endpoint(etcd: EtcdServer) -> None:
    """Start, calls and watches all find the second endpoint, also when the first swallows packets
    (a listener that never answers)."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(1)
        for first in (f"127.0.0.1:{free_port()}", f"127.0.0.1:{mute.getsockname()[1]}"):
            start = time.monotonic()
            async with opened(f"etcd://{first},{etcd.address}", timeout_ms=3_000) as registry:
                follower = Follower(registry)
                await follower.until(await put(registry, "a"))
                await follower.close()
            assert time.monotonic() - start < 5


async def test_failover_when_the_endpoint_in_use_hangs(tmp_path: Path) -> None:
    """Two etcds stand in for two members: after the first hangs, reads and watches go on."""
    with running_etcd(tmp_path / "left") as left, running_etcd(tmp_path / "right") as right:
        async with opened(f"etcd://{left.address},{right.address}", timeout_ms=2_000) as registry:
            await put(registry, "a")
            left.pause()
            assert await registry.get(ROOT + "a") is None, "answered by the second"
            left.resume()


async def test_a_cluster_loses_its_leader_and_its_quorum(tmp_path: Path) -> None:
    """Three members.  The leader is killed: writes and the watch go on by the others.  Then another
    hangs: no quorum, so calls end in bounded time and the watch resumes when there is one again."""
    with running_cluster(tmp_path) as members:
        url = "etcd://" + ",".join(member.address for member in members)
        async with opened(url, timeout_ms=2_000) as registry:
            follower = Follower(registry)
            written = [(await put(registry, "before"), "before")]
            await follower.until(written[0][0])
            leader = next(member for member in members if _leads(member))
            await asyncio.to_thread(leader.kill)
            for name in "abcde":
                written.append((await put(registry, name), name))  # noqa: PERF401
            await follower.until(written[-1][0])

            hung = next(member for member in members if member is not leader)
            hung.pause()
            await asyncio.sleep(0.5)
            start = time.monotonic()
            with pytest.raises(RegistryUnavailable):
                await registry.get(ROOT + "before")
            assert time.monotonic() - start < 3
            with pytest.raises((OutcomeUnknown, RegistryUnavailable)):
                await registry.commit([], [Put(ROOT + "doubtful", b"")])
            hung.resume()
            written.append((await put(registry, "after"), "after"))
            await follower.until(written[-1][0])
            await follower.close()
            revisions = [event.mod_revision for event in follower.events]
            assert revisions == sorted(set(revisions))
            seen = {(event.mod_revision, event.key) for event in follower.events}
            first = follower.snapshots[0].revision
            assert len(follower.snapshots) == 1
            assert {
                (revision, ROOT + name) for revision, name in written if revision > first
            } <= seen


async def test_watch_leaves_a_member_that_hangs_for_good(tmp_path: Path) -> None:
    """One of three members hangs with its connections open, and stays so: the watch goes on from
    another long before gRPC's own keep-alive would notice."""
    with running_cluster(tmp_path) as members:
        url = "etcd://" + ",".join(member.address for member in members)
        async with opened(url) as registry:
            follower = Follower(registry)
            await follower.until(await put(registry, "a"))
            members[0].pause()
            start = time.monotonic()
            await follower.until(await put(registry, "b"))
            assert time.monotonic() - start < 9
            await follower.close()
            assert len(follower.snapshots) == 1


def _leads(member: EtcdServer) -> bool:
    status = json.loads(member.control("endpoint", "status", "-w", "json").stdout)[0]["Status"]
    return bool(status["leader"] == status["header"]["member_id"])


async def test_start_waits_for_etcd(etcd: EtcdServer) -> None:
    await asyncio.to_thread(etcd.stop)
    opening = asyncio.create_task(open_registry(RegistryConfig(url=etcd.url, timeout_ms=500)))
    await asyncio.sleep(1.0)
    assert not opening.done()
    await asyncio.to_thread(etcd.start)
    registry = await asyncio.wait_for(opening, 10)
    await put(registry, "a")
    await registry.close()


async def test_start_gives_up(capfd: pytest.CaptureFixture[str]) -> None:
    """No etcd at all: each attempt is logged, and the start ends when its time is over."""
    config = RegistryConfig(
        url=f"etcd://127.0.0.1:{free_port()}", timeout_ms=300, start_timeout_s=1.5
    )
    start = time.monotonic()
    with pytest.raises(RegistryUnavailable, match=r"no answer for 1\.5 s"):
        await open_registry(config)
    assert 1.4 < time.monotonic() - start < 3
    assert capfd.readouterr().out.count("registry not reached") >= 2


async def test_values_over_etcds_bound_are_refused(etcd: EtcdServer) -> None:
    async with opened(etcd.url) as registry:
        with pytest.raises(RegistryRefused):
            await registry.commit([], [Put(ROOT + "big", bytes(4 << 20))])
        assert await registry.get(ROOT + "big") is None


async def test_large_histories_come_in_fragments(etcd: EtcdServer) -> None:
    """A watch that resumes far back gets answers over etcd's own message bound, cut in pieces; one
    revision still arrives whole."""
    async with opened(etcd.url) as registry:
        follower = Follower(registry)
        await follower.until(await put(registry, "a"))
        await asyncio.to_thread(etcd.kill)
        port, etcd.port = etcd.port, free_port()
        await asyncio.to_thread(etcd.start)
        async with opened(etcd.url, timeout_ms=5_000) as other:
            revisions = []
            for number in range(8):
                puts = [Put(f"{ROOT}{number}-{part}", bytes(450_000)) for part in range(3)]
                revisions.append(await other.commit([], puts))
        await asyncio.to_thread(etcd.stop)
        etcd.port = port
        await asyncio.to_thread(etcd.start)
        await follower.until(revisions[-1] or 0)
        await follower.close()
        assert len(follower.snapshots) == 1
        large = [event for event in follower.events if event.key != ROOT + "a"]
        assert [event.key for event in large] == [
            f"{ROOT}{number}-{part}" for number in range(8) for part in range(3)
        ]
        assert [event.mod_revision for event in large] == [
            revision for revision in revisions for _ in range(3)
        ]
        assert all(event.value == bytes(450_000) for event in large)


class Certificates:
    """An authority, a server's certificate for localhost, and a client's."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.ca_file = directory / "ca.pem"
        authority.cert_pem.write_to_path(self.ca_file)
        self.server = self._issue(authority, directory, "server", "localhost", "127.0.0.1")
        self.client = self._issue(authority, directory, "client", "client.deodar")

    @staticmethod
    def _issue(
        authority: trustme.CA, directory: Path, name: str, *identities: str
    ) -> tuple[Path, Path]:
        issued = authority.issue_cert(*identities)
        certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return certificate, key


async def test_mutual_tls_by_dns_name(tmp_path: Path) -> None:
    """With our certificate and the authority's all works; without either nothing is let in."""
    certificates = Certificates(tmp_path)
    server = EtcdServer(tmp_path / "etcd", tls=(*certificates.server, certificates.ca_file))
    await asyncio.to_thread(server.start)
    try:
        url = f"etcd://localhost:{server.port}"
        mine = {
            "ca_file": certificates.ca_file,
            "cert_file": certificates.client[0],
            "key_file": certificates.client[1],
        }
        async with opened(url, **mine) as registry:
            follower = Follower(registry)
            await follower.until(await put(registry, "a"))
            lease = await registry.grant_lease(2_000)
            await lease.revoke()
            await follower.close()
        other_directory = tmp_path / "other"
        other_directory.mkdir()
        other = Certificates(other_directory)
        for settings in (
            {},
            {"ca_file": certificates.ca_file},
            {**mine, "ca_file": other.ca_file},
            {**mine, "cert_file": other.client[0], "key_file": other.client[1]},
        ):
            with pytest.raises(RegistryUnavailable):
                async with opened(url, **settings, start_timeout_s=0.5):
                    pass
    finally:
        server.stop()


async def test_passwords_and_renewed_tokens(etcd: EtcdServer) -> None:
    """Tokens die with etcd's memory: calls, leases and watches get new ones by themselves."""
    for command in (
        ("user", "add", "root:secret"),
        ("user", "grant-role", "root", "root"),
        ("auth", "enable"),
    ):
        await asyncio.to_thread(etcd.control, *command)
    with pytest.raises(RegistryRefused):
        async with opened(etcd.url):
            pass
    with pytest.raises(RegistryRefused):
        async with opened(etcd.url, user="root", password="wrong"):
            pass
    async with opened(etcd.url, user="root", password="secret") as registry:
        follower = Follower(registry)
        await follower.until(await put(registry, "a"))
        await asyncio.to_thread(etcd.kill)
        # etcdctl has no password to ask with.
        await asyncio.to_thread(etcd.start, ready=etcd.listens)
        revision = await put(registry, "b")
        lease = await registry.grant_lease(2_000)
        await follower.until(revision)
        await follower.until(await put(registry, "c"))
        await asyncio.sleep(2.5)
        assert not lease.lost
        await lease.revoke()
        await follower.close()


async def test_closed_registry_says_so(etcd: EtcdServer) -> None:
    async with opened(etcd.url) as registry:
        pass
    with pytest.raises(RegistryError):
        await registry.get(ROOT)
