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
from delayd.journal.journal import Journal
from tests.journal.clients import WAYS, Client, stop
from tests.journal.journals import CONFIGURED_BYTES, append_all, numbered, opened
from tests.rigs.disk import PowerCut, SimulatedDisk

PAYLOADS: Final = numbered(16, 900)
EIO: Final = OSError(errno.EIO, "EIO")
VERBS: Final = ("pwrite", "sync", "sync_directory", "create", "allocate", "rename", "truncate")


def begun(*, has_reserve: bool = False) -> tuple[SimulatedDisk, Client]:
    disk, client = SimulatedDisk(), Client()
    journal = client.start(disk)
    assert not has_reserve or journal.make_space(300_000)
    return disk, client


def calls_of(verb: str, *, has_reserve: bool = False) -> range:
    """The numbers of the calls of this verb ("" for any) that the workload makes."""
    disk, client = begun(has_reserve=has_reserve)

    def calls() -> int:
        return disk.verb_counts[verb] if verb else disk.call_count

    opening = calls()
    client.put(PAYLOADS)
    return range(opening + 1, calls() + 1)


@pytest.mark.thorough
@pytest.mark.parametrize("has_reserve", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_one_error_of_any_verb_at_any_call_is_survived(
    verb: str, has_reserve: bool, rng: random.Random
) -> None:
    for number in calls_of(verb, has_reserve=has_reserve):
        disk, client = begun(has_reserve=has_reserve)
        disk.fail(number, EIO, verb)
        try:
            client.put(PAYLOADS)
        except JournalFailed:
            # Nothing had been made durable yet that a fresh segment could continue.
            assert not client.acked
        else:
            assert client.acked == PAYLOADS
            assert client.journal.fresh_starts == 1
        for way in WAYS:
            after = copy.deepcopy(disk)
            stop(after, way, rng)
            client.check(after)


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_at_any_call_after_an_error_loses_nothing_acknowledged(
    way: str, rng: random.Random, share: Callable[[range], range]
) -> None:
    errors = calls_of("")
    for error_number in rng.sample(errors, 12):
        for number in share(range(error_number + 1, errors.stop + 12)):
            disk, client = begun()
            disk.fail(error_number, EIO)
            disk.fail(number, PowerCut())
            with contextlib.suppress(PowerCut, JournalFailed):
                client.put(PAYLOADS)
            disk.heal()
            stop(disk, way, rng)
            client.check(disk)


@pytest.mark.thorough
def test_two_errors_lead_to_a_fresh_segment_or_to_the_end_and_never_to_a_loss(
    rng: random.Random,
) -> None:
    errors = calls_of("")
    outcomes = set()
    for first in errors:
        for second in rng.sample(range(first + 1, errors.stop + 8), 6):
            disk, client = begun()
            disk.fail(first, EIO)
            disk.fail(second, EIO)
            try:
                client.put(PAYLOADS)
                outcomes.add(client.journal.fresh_starts)
            except JournalFailed:
                outcomes.add(-1)
            disk.heal()
            stop(disk, "any order", rng)
            client.check(disk)
    assert outcomes >= {-1, 1, 2}


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
    flaky = cast("Disk", FlakyDisk(rng))
    journal = Journal.open(home, disk=flaky, segment_bytes=CONFIGURED_BYTES)
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
    journal, survivors = opened(RealDisk(), directory=home)
    assert survivors == payloads[: len(survivors)]
    assert len(survivors) >= reports[-1]
    journal.close()
