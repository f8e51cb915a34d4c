"""What `check` says and what a start then does, side by side, over damage at every byte."""

from collections.abc import Iterator
from typing import Final

import pytest

from delayd.cli.examination import examine
from delayd.core.records import Kind, pack_turn
from delayd.journal.errors import DamageError
from delayd.journal.journal import Journal
from delayd.testing.disk import SimulatedDisk
from tests.journal.journals import (
    DIRECTORY,
    START_MS,
    contents_of,
    disk_with,
    frame,
    header,
    segment_of,
)

READING: Final = {"list_directory", "open", "size", "pread", "close"}
PAYLOADS: Final = [pack_turn(Kind.TURN, START_MS + number) for number in range(4)]
FIRST: Final = segment_of(PAYLOADS[:2])
SECOND: Final = header(2, 3, synced=2, previous_valid_bytes=len(FIRST)) + b"".join(
    (frame(3, 2, PAYLOADS[2], number=2), frame(4, 2, PAYLOADS[3], number=2), bytes(50))
)


def what_a_start_does(disk: SimulatedDisk) -> tuple[int, int, str]:
    """Frames played, bytes cut, the refusal."""
    frames = 0
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=4096)
    try:
        for _ in journal.replay():
            frames += 1
    except DamageError as error:
        return frames, 0, str(error)
    finally:
        journal.close()
    return frames, sum(tail.cut_bytes for tail in journal.torn_tails), ""


def what_check_says(disk: SimulatedDisk) -> tuple[int, int, str]:
    before, calls = contents_of(disk), disk.verb_counts.copy()
    examination = examine(disk, DIRECTORY)
    assert list(examination.lines())
    assert contents_of(disk) == before
    assert set(disk.verb_counts - calls) <= READING
    if examination.refusal:
        return examination.frames, 0, str(examination.refusal)
    return examination.frames, examination.rest.data_bytes, ""


def flipped(content: bytes) -> Iterator[bytes]:
    for offset in range(len(content)):
        yield content[:offset] + bytes([content[offset] ^ 0x41]) + content[offset + 1 :]


def cut(content: bytes) -> Iterator[bytes]:
    for end in range(len(content)):
        yield content[:end]


@pytest.mark.parametrize("damage", [flipped, cut])
def test_check_says_what_a_start_does_whatever_is_damaged(damage: object) -> None:
    assert callable(damage)
    outcomes = set()
    directories = [
        *((first, SECOND) for first in damage(FIRST)),
        *((FIRST, second) for second in damage(SECOND)),
        (FIRST, SECOND),
        (FIRST,),
        (),
    ]
    for segments in directories:
        said = what_check_says(disk_with(*segments))
        assert said == what_a_start_does(disk_with(*segments))
        outcomes.add((bool(said[1]), bool(said[2])))
    assert outcomes == {(False, False), (True, False), (False, True)}


def test_check_says_what_a_start_does_about_files_that_are_not_ours() -> None:
    disk = disk_with(FIRST)
    disk.put_file(f"{DIRECTORY}/notes.txt", b"")
    assert what_check_says(disk) == what_a_start_does(disk)
    assert what_check_says(disk)[2].endswith("not part of a delayd journal")
