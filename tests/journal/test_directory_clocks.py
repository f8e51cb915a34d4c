"""A directory belongs to the clock it was first used with."""

import errno

import pytest

from delayd.cli.journal_report import examine
from delayd.journal.errors import JournalFailed, WrongClock
from delayd.journal.format import VIRTUAL_NAME
from delayd.journal.journal import Journal
from tests.journal.journals import CONFIGURED_BYTES, DIRECTORY, START_MS, contents_of
from tests.rigs.disk import SimulatedDisk


def used(disk: SimulatedDisk, *, is_virtual: bool, frames: int = 1) -> int:
    """Open the directory, append that many frames, close; how many had been there."""
    journal = Journal.open(
        DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES, is_virtual=is_virtual
    )
    try:
        found = sum(1 for frame in journal.replay() if frame.payload)
        for _ in range(frames):
            journal.append(b"payload", START_MS, START_MS)
            journal.sync()
    finally:
        journal.close()
    return found


def test_a_fresh_directory_is_marked_and_taken_again(disk: SimulatedDisk) -> None:
    assert used(disk, is_virtual=True) == 0
    assert VIRTUAL_NAME in disk.list_directory(DIRECTORY)
    assert used(disk, is_virtual=True) == 1


def test_a_virtual_directory_is_refused_by_the_system_clock(disk: SimulatedDisk) -> None:
    used(disk, is_virtual=True)
    before = contents_of(disk)
    with pytest.raises(WrongClock, match="start with --clock virtual"):
        used(disk, is_virtual=False)
    assert contents_of(disk) == before


@pytest.mark.parametrize("frames", [0, 1])
def test_a_directory_in_use_is_refused_by_the_virtual_clock(
    disk: SimulatedDisk, frames: int
) -> None:
    used(disk, is_virtual=False, frames=1)
    used(disk, is_virtual=False, frames=frames)
    before = contents_of(disk)
    with pytest.raises(WrongClock, match="used with the system clock"):
        used(disk, is_virtual=True)
    assert contents_of(disk) == before


def test_a_directory_without_a_frame_belongs_to_the_clock_all_the_same(disk: SimulatedDisk) -> None:
    used(disk, is_virtual=True, frames=0)
    with pytest.raises(WrongClock):
        used(disk, is_virtual=False)


def test_the_mark_is_durable_before_the_first_frame_can_be(disk: SimulatedDisk) -> None:
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES, is_virtual=True)
    assert not list(journal.replay())
    disk.crash()
    assert VIRTUAL_NAME in disk.list_directory(DIRECTORY)


def test_a_directory_that_takes_no_mark_is_not_used(disk: SimulatedDisk) -> None:
    Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES).close()
    disk.fail(1, OSError(errno.EROFS, "Read-only file system"), "create")
    with pytest.raises(JournalFailed):
        used(disk, is_virtual=True)


def test_check_says_which_clock_it_is(disk: SimulatedDisk) -> None:
    used(disk, is_virtual=True)
    assert any(line.startswith("clock      virtual") for line in examine(disk, DIRECTORY).lines())
    disk = SimulatedDisk()
    used(disk, is_virtual=False)
    assert not any(line.startswith("clock") for line in examine(disk, DIRECTORY).lines())
