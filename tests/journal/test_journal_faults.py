"""A fixed workload, interrupted at every single call to the disk: what was acknowledged is there.

The workload appends, syncs, changes segments, closes, and starts again twice. `acked` holds what a
client could have been told: every payload up to the sequence that a `sync` returned.
"""

import errno
import os
import pwd
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from delayd.journal.disk import Disk
from delayd.journal.errors import JournalError, JournalFailed, JournalFull, failing
from delayd.journal.journal import Journal
from tests.journal.clients import WAYS, Client, any_order, goes_on, stop
from tests.journal.journals import (
    append_all,
    contents_of,
    frame,
    numbered,
    opened,
    path_of,
    payloads_in,
    segment_of,
)
from tests.rigs.disk import PowerCut, SimulatedDisk

PAYLOADS: Final = numbered(24, 900)


class Putter(Client):
    """Puts payloads, and syncs after every third."""

    def use(self, disk: Disk, payloads: list[bytes]) -> None:
        with self.running(disk) as journal:
            for number, payload in enumerate(payloads):
                self.append(journal, payload)
                if number % 3 == 0:
                    self.sync(journal)

    def work(self, disk: Disk) -> None:
        self.use(disk, PAYLOADS[:10])
        self.use(disk, PAYLOADS[10:11])
        self.use(disk, PAYLOADS[11:])


def calls_of_the_workload() -> int:
    disk = SimulatedDisk()
    client = Putter()
    client.work(disk)
    call_count = disk.call_count
    assert client.acked == PAYLOADS == payloads_in(disk)
    assert len(contents_of(disk)) > 5, "the workload changes segments"
    return call_count


CALLS: Final = calls_of_the_workload()


def check(disk: SimulatedDisk, client: Client) -> None:
    """The acknowledged is there, nothing is invented, and the journal goes on."""
    goes_on(disk, client.survivors_on(disk))


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_at_any_call_loses_nothing_acknowledged(
    way: str, rng: random.Random, share: Callable[[range], range]
) -> None:
    for number in share(range(1, CALLS + 1)):
        disk, client = SimulatedDisk(), Putter()
        disk.fail(number, PowerCut())
        with pytest.raises(PowerCut):
            client.work(disk)
        stop(disk, way, rng)
        check(disk, client)


@pytest.mark.thorough
def test_power_cuts_one_after_the_other_lose_nothing_acknowledged(rng: random.Random) -> None:
    for _ in range(300):
        disk, client = SimulatedDisk(), Putter()
        for run in range(4):
            disk.fail(disk.call_count + rng.randrange(1, 60), PowerCut())
            try:
                client.use(disk, numbered(20, rng.choice([60, 900, 3_000]), first=run * 100))
            except PowerCut:
                disk.crash(any_order(rng))
            disk.heal()
        check(disk, client)


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
            client = Putter()
            client.attempted = client.acked = payloads
            check(cut, client)
            kept = [content for name, content in contents_of(cut).items() if "torn" in name]
            assert frame(4, 3, b"x" * 500)[:-9] in kept, "the cut bytes are kept"
            assert bytes(200) + b"rubbish" in kept


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_an_error_at_any_call_leads_to_no_false_acknowledgement(
    number: int, rng: random.Random, share: Callable[[range], range]
) -> None:
    for call in share(range(1, CALLS + 1)):
        for survives in (None, any_order(rng)):
            disk, client = SimulatedDisk(), Putter()
            disk.fail(call, OSError(number, errno.errorcode[number]))
            try:
                client.work(disk)
            except JournalError as error:
                assert errno.errorcode[number] in str(error)  # noqa: PT017 - not every call shows
            disk.crash(survives)
            check(disk, client)


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


@pytest.mark.thorough
@pytest.mark.parametrize("short_bytes", [1, 2, 44, 45, 46, 500])
def test_a_short_write_or_read_is_continued(short_bytes: int) -> None:
    for number in range(1, 40):
        disk, client = SimulatedDisk(), Putter()
        disk.shorten(number, "pwrite", short_bytes)
        disk.shorten(number, "pread", short_bytes)
        client.work(disk)
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
    with (
        pytest.raises(JournalFailed, match=f"Permission denied; it belongs to the user {me}, and"),
        failing(str(tmp_path), "cannot be read"),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
    with (
        pytest.raises(JournalFailed, match=r"Permission denied$"),
        failing(str(tmp_path / "nowhere"), "cannot be read"),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
