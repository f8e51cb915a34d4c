"""Snapshots interrupted at every call to the disk: a start always yields what was acknowledged.

The workload puts, takes snapshots while it goes on putting, restarts, and takes more, so that
writing, finishing and removing are all cut short. Every snapshot holds all that was put before it.
"""

import errno
import itertools
import random
from typing import Final

import pytest

from delayd.journal.disk import Disk
from delayd.journal.errors import JournalError, JournalFailed, SnapshotFailed
from delayd.journal.journal import Journal
from tests.journal.clients import WAYS, Client, any_order, stop
from tests.journal.journals import (
    START_MS,
    append_all,
    contents_of,
    numbered,
    opened,
    payloads_in,
    take_snapshot,
)
from tests.rigs.disk import PowerCut, SimulatedDisk

PAYLOADS: Final = numbered(24, 900)
LIVE_BYTES: Final = 900 * len(PAYLOADS)


class Snapshotter(Client):
    """After every fourth payload takes a snapshot, with two more put while it is written."""

    def use(self, disk: Disk, payloads: list[bytes], *, live_bytes: int) -> None:
        with self.running(disk) as journal:
            for start in range(0, len(payloads), 4):
                self.put(journal, payloads[start : start + 2])
                journal.snapshot_is_due(live_bytes)
                self.take(journal, payloads[start + 2 : start + 4])

    def put(self, journal: Journal, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.append(journal, payload)
        self.sync(journal)

    def take(self, journal: Journal, meanwhile: list[bytes]) -> None:
        covered = self.attempted.copy()
        writer = journal.begin_snapshot(journal.appended_sequence, START_MS, START_MS)
        try:
            writer.write(covered[0])
            for payload in covered[1:]:
                writer.write(payload)
            self.put(journal, meanwhile)
            writer.finish(len(covered))
        except SnapshotFailed:
            assert writer.is_over
            self.put(journal, [payload for payload in meanwhile if payload not in self.attempted])

    def work(self, disk: Disk, live_bytes: int = LIVE_BYTES) -> None:
        self.use(disk, PAYLOADS[:12], live_bytes=live_bytes)
        self.use(disk, PAYLOADS[12:], live_bytes=live_bytes)


def calls_of_the_workload(live_bytes: int) -> int:
    disk = SimulatedDisk()
    client = Snapshotter()
    client.work(disk, live_bytes)
    call_count = disk.call_count
    names = list(contents_of(disk))
    assert sum(name.startswith("snapshot") for name in names) == 2
    assert "segment-0000000001.log" not in names, "the workload removes files"
    assert client.acked == PAYLOADS == payloads_in(disk)
    return call_count


def check(disk: SimulatedDisk, client: Client) -> None:
    """The acknowledged is there, nothing is invented, the journal and its snapshots go on."""
    survivors = client.survivors_on(disk)
    files = contents_of(disk)
    journal, again = opened(disk)
    assert again == survivors
    assert {name for name in contents_of(disk) if "snap" in name} == {
        name for name in files if "snap" in name
    }
    append_all(journal, [b"afterwards"], sync_each=True)
    journal.snapshot_is_due(LIVE_BYTES)
    take_snapshot(journal, [*survivors, b"afterwards"])
    disk.crash()
    assert payloads_in(disk) == [*survivors, b"afterwards"]


def fifteenth(number: int, case: str | int, live_bytes: int = LIVE_BYTES) -> range:
    """Every fifteenth call, not the same ones in each case; the long run has all of them."""
    shift = number + sum(str(case).encode())
    return range(1 + shift % 15, calls_of_the_workload(live_bytes) + 1, 15)


# With so little live the bound gives the older snapshot up while the next is being written.
@pytest.mark.walk(1, 15)
@pytest.mark.parametrize("live_bytes", [LIVE_BYTES, 1_000])
@pytest.mark.parametrize("way", [*WAYS, "all but the rename"])
def test_a_stop_at_any_call_loses_nothing_acknowledged(
    way: str, live_bytes: int, number: int, rng: random.Random
) -> None:
    for call in fifteenth(number, way, live_bytes):
        disk, client = SimulatedDisk(), Snapshotter()
        disk.fail(call, PowerCut())
        with pytest.raises(PowerCut):
            client.work(disk, live_bytes)
        if way == "all but the rename":
            # The rename that was not synced is lost, the removals after it are not.
            disk.crash(lambda piece: (piece.kind, piece.offset) != ("names", 1))
        else:
            stop(disk, way, rng)
        check(disk, client)


@pytest.mark.walk(1, 15)
@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_an_error_at_any_call_leads_to_no_false_acknowledgement(
    error_number: int, number: int, rng: random.Random
) -> None:
    for call in fifteenth(number, error_number):
        disk, client = SimulatedDisk(), Snapshotter()
        disk.fail(call, OSError(error_number, errno.errorcode[error_number]))
        try:
            client.work(disk)
        except JournalError as error:
            assert errno.errorcode[error_number] in str(error)  # noqa: PT017 - not every call shows
        disk.crash(any_order(rng))
        check(disk, client)


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
def test_power_cuts_one_after_the_other_lose_nothing_acknowledged(rng: random.Random) -> None:
    for _ in range(100):
        disk, client = SimulatedDisk(), Snapshotter()
        for run in range(5):
            disk.fail(disk.call_count + rng.randrange(1, 150), PowerCut())
            payloads = numbered(16, rng.choice([60, 900, 3_000]), first=run * 100)
            try:
                client.use(disk, payloads, live_bytes=rng.choice([0, LIVE_BYTES]))
            except PowerCut:
                disk.crash(any_order(rng))
            disk.heal()
        check(disk, client)
