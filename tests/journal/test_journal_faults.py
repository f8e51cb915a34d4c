"""A fixed workload, interrupted at every single call to the disk: what was acknowledged is there.

The workload appends, syncs, changes files, closes, and starts again twice; or takes snapshots as
well, so that writing, finishing and removing are cut short too. See `Client`.
"""

import errno
import functools
import itertools
import os
import pwd
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from delayd.journal.errors import JournalError, JournalFailed, JournalFull, SnapshotFailed, failing
from delayd.journal.journal import Journal
from tests.journal.clients import LIVE_BYTES, WAYS, Client, any_order, stop
from tests.journal.journals import (
    append_all,
    contents_of,
    frame,
    numbered,
    opened,
    path_of,
    payloads_in,
    segment_of,
    take_snapshot,
)
from tests.rigs.disk import PowerCut, SimulatedDisk

PAYLOADS: Final = numbered(25, 900)
# With little live the bound gives the older snapshot up while the next is being written.
LIVE: Final = {"the log alone": 0, "snapshots": LIVE_BYTES, "snapshots of little": 1_000}


@functools.cache
def calls_of_the_workload(live_bytes: int) -> range:
    disk, client = SimulatedDisk(), Client(live_bytes)
    client.work(disk, PAYLOADS)
    calls = range(1, disk.call_count + 1)
    names = list(contents_of(disk))
    assert sum(name.startswith("snapshot") for name in names) == (2 if live_bytes else 0)
    assert ("segment-0000000001.log" in names) == (not live_bytes), "the workload removes files"
    assert live_bytes or len(names) > 5, "the workload changes files"
    assert client.acked == PAYLOADS == payloads_in(disk)
    return calls


def chosen(live: str, share: Callable[[range], range]) -> range:
    """The calls to try: a seventh, of the longer workloads half of that; in the long run all."""
    calls = share(calls_of_the_workload(LIVE[live]))
    return calls[::2] if LIVE[live] and calls.step > 1 else calls


@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_at_any_call_loses_nothing_acknowledged(
    way: str, live: str, rng: random.Random, share: Callable[[range], range]
) -> None:
    for number in chosen(live, share):
        disk, client = SimulatedDisk(), Client(LIVE[live])
        disk.fail(number, PowerCut())
        with pytest.raises(PowerCut):
            client.work(disk, PAYLOADS)
        stop(disk, way, rng)
        client.check(disk)


@pytest.mark.thorough
def test_power_cuts_one_after_the_other_lose_nothing_acknowledged(rng: random.Random) -> None:
    for _ in range(200):
        disk, client = SimulatedDisk(), Client()
        for run in range(4):
            disk.fail(disk.call_count + rng.randrange(1, 90), PowerCut())
            client.live_bytes = rng.choice([0, 1, LIVE_BYTES])
            try:
                client.use(disk, numbered(20, rng.choice([60, 900, 3_000]), first=run * 100))
            except PowerCut:
                disk.crash(any_order(rng))
            disk.heal()
        client.check(disk)


def torn_disk() -> tuple[SimulatedDisk, list[bytes]]:
    """A start has to cut a segment, remove another, and clear up."""
    payloads = numbered(3, 300)
    disk = SimulatedDisk()
    disk.put_file(path_of(1), segment_of(payloads) + frame(4, 3, b"x" * 500)[:-9] + bytes(900))
    disk.put_file(path_of(2), bytes(200) + b"rubbish")
    disk.put_file(f"{path_of(3)}.new", b"")
    return disk, payloads


def test_a_stop_at_any_call_of_a_recovery_is_recovered_from(
    rng: random.Random, share: Callable[[range], range]
) -> None:
    disk, payloads = torn_disk()
    before = disk.call_count
    payloads_in(disk)
    for number in range(before + 1, disk.call_count + 1):
        orders = [any_order(rng) for _ in share(range(20))]
        for survives in (None, lambda _piece: True, *orders):
            cut, _ = torn_disk()
            cut.fail(number, PowerCut())
            with pytest.raises(PowerCut):
                payloads_in(cut)
            cut.crash(survives)
            client = Client()
            client.attempted = client.acked = payloads
            client.check(cut)
            kept = [content for name, content in contents_of(cut).items() if "torn" in name]
            assert frame(4, 3, b"x" * 500)[:-9] in kept, "the cut bytes are kept"
            assert bytes(200) + b"rubbish" in kept


@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_an_error_at_any_call_leads_to_no_false_acknowledgement(
    number: int, live: str, rng: random.Random, share: Callable[[range], range]
) -> None:
    for call in chosen(live, share):
        disk, client = SimulatedDisk(), Client(LIVE[live])
        disk.fail(call, OSError(number, errno.errorcode[number]))
        try:
            client.work(disk, PAYLOADS)
        except JournalError as error:
            assert errno.errorcode[number] in str(error)  # noqa: PT017 - not every call shows
        stop(disk, rng.choice(WAYS[1:]), rng)
        client.check(disk)


@pytest.mark.parametrize("verb", ["pwrite", "sync", "sync_directory"])
def test_after_a_second_failure_every_call_fails_and_touches_nothing(verb: str) -> None:
    probe = SimulatedDisk()
    journal, _ = opened(probe)
    opening = probe.verb_counts[verb]
    append_all(journal, PAYLOADS, sync_each=True)
    for number in range(opening + 1, probe.verb_counts[verb] + 1):
        disk = SimulatedDisk()
        journal, _ = opened(disk)
        for again in range(3):
            disk.fail(number + again, OSError(errno.EIO, "EIO"), verb)
        with pytest.raises(JournalFailed, match="EIO"):
            append_all(journal, PAYLOADS, sync_each=True)
        synced, calls = journal.synced_sequence, disk.call_count
        with pytest.raises(JournalFailed, match="EIO"):
            journal.append(b"more", 0, 0)
        with pytest.raises(JournalFailed, match="EIO"):
            journal.sync()
        assert disk.call_count == calls
        assert journal.synced_sequence == synced
        disk.heal()
        journal.close()
        disk.crash()
        survivors = payloads_in(disk)
        assert survivors == PAYLOADS[: len(survivors)]
        assert len(survivors) >= synced


def test_no_failure_of_a_snapshot_but_one_is_a_failure_of_the_journal() -> None:
    failures: list[type[JournalError] | None] = []
    for number in itertools.count(1):
        disk = SimulatedDisk()
        journal, _ = opened(disk)
        append_all(journal, PAYLOADS[:6], sync_each=True)
        journal.snapshot_is_due(LIVE_BYTES)
        take_snapshot(journal, PAYLOADS[:6])
        append_all(journal, PAYLOADS[6:8], sync_each=True)
        last = disk.call_count + number
        disk.fail(last, OSError(errno.EIO, "EIO"))
        failures.append(None)
        try:
            take_snapshot(journal, PAYLOADS[:8])
        except (SnapshotFailed, JournalFailed) as error:
            failures[-1] = type(error)
        is_over = disk.call_count < last
        disk.heal()
        if failures[-1] is not JournalFailed:
            append_all(journal, PAYLOADS[8:9], sync_each=True)
            disk.crash()
            assert payloads_in(disk) == PAYLOADS[:9]
        if is_over:
            break
    assert failures.count(JournalFailed) == 1, "the directory's sync"
    assert failures.count(SnapshotFailed) > len(PAYLOADS[:8])


@pytest.mark.thorough
@pytest.mark.parametrize("short_bytes", [1, 2, 44, 45, 46, 500])
def test_a_short_write_or_read_is_continued(short_bytes: int) -> None:
    for number in range(1, 40):
        disk = SimulatedDisk()
        disk.shorten(number, "pwrite", short_bytes)
        disk.shorten(number, "pread", short_bytes)
        Client().work(disk, PAYLOADS)
        assert payloads_in(disk) == PAYLOADS


@pytest.mark.parametrize("space_bytes", [0, 1, 44, 45, 300, 800])
def test_half_a_frame_on_a_full_disk_leaves_no_trace(
    disk: SimulatedDisk, journal: Journal, space_bytes: int
) -> None:
    # A segment that could not be preallocated again when the daemon started on a full disk.
    append_all(journal, [b"before"])
    journal.close()
    disk.capacity_bytes = len(disk.file_bytes(path_of(1))) + space_bytes
    journal, _ = opened(disk)
    for _ in range(2):
        with pytest.raises(JournalFull):
            journal.append(b"\xff" * 900, 0, 0)
    assert not disk.file_bytes(path_of(1)).count(0xFF)
    disk.kill()
    journal, payloads = opened(disk)
    assert payloads == [b"before"]
    assert not journal.torn_tails, "nothing had to be cut: a full disk has no space for copies"
    disk.capacity_bytes = None
    append_all(journal, [b"after"], sync_each=True)
    disk.crash()
    assert payloads_in(disk) == [b"before", b"after"]


def test_a_file_that_may_not_be_used_is_named_with_its_owner(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    denied = PermissionError(errno.EACCES, "Permission denied")
    for path, said in ((tmp_path, f"; it belongs to the user {me}, and"), (tmp_path / "no", "$")):
        with (
            pytest.raises(JournalFailed, match=f"Permission denied{said}"),
            failing(str(path), "cannot be read"),
        ):
            raise denied
