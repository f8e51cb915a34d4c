"""What `check` says and what a start then does, side by side, over damage at every byte."""

from collections.abc import Iterator
from typing import Final

import pytest

from delayd.cli.journal_report import examine
from delayd.core.log_records import Kind, pack_turn
from delayd.journal.errors import DamageError
from delayd.journal.journal import Journal
from tests.journal.journals import (
    DIRECTORY,
    START_MS,
    contents_of,
    disk_with,
    frame,
    header,
    segment_of,
)
from tests.rigs.disk import SimulatedDisk

READING: Final = {"list_directory", "open", "size", "pread", "status", "close"}
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
        return examination.played.frames, 0, str(examination.refusal)
    return examination.played.frames, examination.rest.data_bytes, ""


def flipped(content: bytes) -> Iterator[bytes]:
    for offset in range(len(content)):
        yield content[:offset] + bytes([content[offset] ^ 0x41]) + content[offset + 1 :]


def cut(content: bytes) -> Iterator[bytes]:
    for end in range(len(content)):
        yield content[:end]


@pytest.mark.thorough
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


def directory_with_snapshot() -> SimulatedDisk:
    """Two frames, a snapshot of them, two more frames."""
    disk = SimulatedDisk()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=4096)
    assert not list(journal.replay())
    for number, payload in enumerate(PAYLOADS):
        if number == 2:
            writer = journal.begin_snapshot(2, START_MS, START_MS)
            writer.write(PAYLOADS[1])
            writer.finish(0)
        journal.append(payload, START_MS, START_MS)
        journal.sync()
    journal.close()
    return disk


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [flipped, cut])
@pytest.mark.parametrize("prefix", ["snapshot-", "segment-"])
def test_check_says_what_a_start_does_where_there_is_a_snapshot(
    damage: object, prefix: str
) -> None:
    assert callable(damage)
    whole = contents_of(directory_with_snapshot())
    (name,) = (name for name in whole if name.startswith(prefix))
    said = []
    for content in damage(whole[name].rstrip(b"\0")):
        disks = [SimulatedDisk(), SimulatedDisk()]
        for disk in disks:
            for other, data in (whole | {name: content}).items():
                disk.put_file(f"{DIRECTORY}/{other}", data)
        said.append(what_check_says(disks[0]))
        assert said[-1] == what_a_start_does(disks[1])
    assert any(refusal for _, _, refusal in said) == (prefix == "segment-")


def test_check_says_what_a_start_does_about_files_that_are_not_ours() -> None:
    disk = disk_with(FIRST)
    disk.put_file(f"{DIRECTORY}/notes.txt", b"")
    assert what_check_says(disk) == what_a_start_does(disk)
    assert what_check_says(disk)[2].endswith("nothing was touched")
