"""A write or a sync fails once: the journal goes on in a fresh segment, and what it acknowledges
afterwards is there, whatever happens to the disk then.

A failed `sync` of the simulated disk loses what it should have synced for good, and calls the pages
clean: trying again would report success over lost frames.
"""

import contextlib
import copy
import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import pytest

from delayd.journal.disk import Disk, RealDisk
from delayd.journal.errors import JournalFailed
from delayd.journal.format import unpack_header
from delayd.journal.journal import Journal
from tests.journal.clients import WAYS, goes_on, stop
from tests.journal.journals import (
    START_MS,
    append_all,
    frame_ends,
    numbered,
    opened,
    path_of,
    payloads_in,
)
from tests.rigs.disk import PowerCut, SimulatedDisk

PAYLOADS: Final = numbered(16, 900)
EIO: Final = OSError(errno.EIO, "EIO")
VERBS: Final = ("pwrite", "sync", "sync_directory", "create", "allocate", "rename", "truncate")


class Writer:
    """Appends payloads, syncing after every fourth; `acked` is what was reported durable."""

    def __init__(self, disk: SimulatedDisk, *, has_reserve: bool = False) -> None:
        self.journal, _ = opened(disk)
        self.appended: list[bytes] = []
        self.acked: list[bytes] = []
        if has_reserve:
            assert self.journal.make_space(300_000)

    def work(self, payloads: list[bytes]) -> None:
        for number, payload in enumerate(payloads, 1):
            self.journal.append(payload, START_MS, START_MS)
            self.appended.append(payload)
            if number % 4 == 0:
                self.journal.sync()
                self.acked = self.appended.copy()


def calls_of(verb: str, *, has_reserve: bool = False) -> range:
    """The numbers of the calls of this verb ("" for any) that the workload makes."""
    disk = SimulatedDisk()
    writer = Writer(disk, has_reserve=has_reserve)
    opening = disk.verb_counts[verb] if verb else disk.call_count
    writer.work(PAYLOADS)
    return range(opening + 1, (disk.verb_counts[verb] if verb else disk.call_count) + 1)


def check(disk: SimulatedDisk, writer: Writer) -> None:
    """What was acknowledged is there, nothing is invented, and the log can be gone on with."""
    survivors = payloads_in(disk)
    assert survivors == PAYLOADS[: len(survivors)]
    assert len(survivors) >= len(writer.acked)
    goes_on(disk, survivors)


@pytest.mark.thorough
@pytest.mark.parametrize("has_reserve", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_one_error_of_any_verb_at_any_call_is_survived(
    verb: str, has_reserve: bool, rng: random.Random
) -> None:
    for number in calls_of(verb, has_reserve=has_reserve):
        disk = SimulatedDisk()
        writer = Writer(disk, has_reserve=has_reserve)
        disk.fail(number, EIO, verb)
        try:
            writer.work(PAYLOADS)
        except JournalFailed:
            # Nothing had been made durable yet that a fresh segment could continue.
            assert not writer.acked
        else:
            assert writer.acked == PAYLOADS
            assert writer.journal.fresh_starts == 1
        for way in WAYS:
            after = copy.deepcopy(disk)
            stop(after, way, rng)
            check(after, writer)


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_at_any_call_after_an_error_loses_nothing_acknowledged(
    way: str, rng: random.Random, share: Callable[[range], range]
) -> None:
    errors = calls_of("")
    for error_number in rng.sample(errors, 12):
        for number in share(range(error_number + 1, errors.stop + 12)):
            disk = SimulatedDisk()
            writer = Writer(disk)
            disk.fail(error_number, EIO)
            disk.fail(number, PowerCut())
            with contextlib.suppress(PowerCut, JournalFailed):
                writer.work(PAYLOADS)
            disk.heal()
            stop(disk, way, rng)
            check(disk, writer)


@pytest.mark.thorough
def test_two_errors_lead_to_a_fresh_segment_or_to_the_end_and_never_to_a_loss(
    rng: random.Random,
) -> None:
    errors = calls_of("")
    outcomes = set()
    for first in errors:
        for second in rng.sample(range(first + 1, errors.stop + 8), 6):
            disk = SimulatedDisk()
            writer = Writer(disk)
            disk.fail(first, EIO)
            disk.fail(second, EIO)
            try:
                writer.work(PAYLOADS)
                outcomes.add(writer.journal.fresh_starts)
            except JournalFailed:
                outcomes.add(-1)
            disk.heal()
            stop(disk, "any order", rng)
            check(disk, writer)
    assert outcomes >= {-1, 1, 2}


def test_the_fresh_segment_says_how_much_of_the_one_before_was_synced(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, [b"first", b"second"], sync_each=True)
    append_all(journal, [b"third", b"fourth"])
    disk.fail(disk.verb_counts["sync"] + 1, EIO, "sync")
    assert journal.sync() == 4
    header = unpack_header(disk.file_bytes(path_of(2))[:80])
    assert header is not None
    assert (header.first_sequence, header.synced_sequence) == (3, 2)
    assert header.previous_valid_bytes == frame_ends(disk.file_bytes(path_of(1)))[2]
    disk.crash()
    assert payloads_in(disk) == [b"first", b"second", b"third", b"fourth"]


def test_a_kill_after_a_fresh_start_loses_nothing_that_was_written() -> None:
    for number in calls_of("pwrite"):
        disk = SimulatedDisk()
        journal, _ = opened(disk)
        append_all(journal, PAYLOADS[:1], sync_each=True)
        disk.fail(number + 2, EIO, "pwrite")
        append_all(journal, PAYLOADS[1:])
        disk.heal()
        disk.kill()
        assert payloads_in(disk) == PAYLOADS


class FlakyDisk:
    """Now and then a write or a sync fails, in whichever thread; then all goes well for a while."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.calls_left = 150
        self._real = RealDisk()

    def __getattr__(self, verb: str) -> Any:  # noqa: ANN401  # whatever the verb takes and returns
        return getattr(self._real, verb)

    def _now_and_then(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            self.calls_left = self.rng.randrange(400, 800)
            raise OSError(errno.EIO, "EIO")

    def pwrite(self, handle: int, data: bytes, offset: int, /) -> int:
        self._now_and_then()
        return os.pwrite(handle, data, offset)

    def sync(self, handle: int, /) -> None:
        self._now_and_then()
        os.fdatasync(handle)


def test_two_threads_survive_errors_in_either(tmp_path: Path, rng: random.Random) -> None:
    home = str(tmp_path / "journal")
    journal = Journal.open(home, disk=cast("Disk", FlakyDisk(rng)), segment_bytes=4 * 4_096)
    assert list(journal.replay()) == []
    is_done = threading.Event()
    reports = [journal.synced_sequence]  # the thread may begin when all has been done
    errors: list[JournalFailed] = []

    def sync_until_done() -> None:
        while not is_done.is_set() and not errors:
            try:
                reports.append(journal.sync())
            except JournalFailed as error:
                errors.append(error)

    syncing = threading.Thread(target=sync_until_done, daemon=True)
    syncing.start()
    payloads = numbered(1_500, 300)
    with contextlib.suppress(JournalFailed):
        append_all(journal, payloads)
    is_done.set()
    syncing.join()
    assert reports == sorted(reports)
    assert journal.fresh_starts
    with contextlib.suppress(JournalFailed):
        journal.close()
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=4 * 4_096)
    survivors = [frame.payload for frame in journal.replay() if frame.payload]
    assert survivors == payloads[: len(survivors)]
    assert len(survivors) >= reports[-1]
    journal.close()
