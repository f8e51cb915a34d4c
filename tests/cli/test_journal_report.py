"""What `check` says and what a start then does, side by side, over damage at every byte."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from delayd.cli.journal_report import examine, examine_live
from delayd.core.log_records import Kind, pack_turn
from delayd.exits import Exit
from delayd.journal.errors import DamageError
from delayd.journal.format import HEADER_BYTES, PREFIX, segment_name
from delayd.journal.journal import Journal
from delayd.journal.recovery import LogVerdict, Recovery
from delayd.journal.snapshot import snapshot_name
from tests.journal.journals import (
    DIRECTORY,
    START_MS,
    WatchedDisk,
    append_all,
    contents_of,
    disk_of,
    disk_with,
    files_of,
    frame,
    header,
    opened,
    path_of,
    segment_of,
    take_snapshot,
)
from tests.rigs.disk import SimulatedDisk

Damage = Callable[[bytes], Iterator[bytes]]
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
def test_check_says_what_a_start_does_whatever_is_damaged(damage: Damage) -> None:
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
    damage: Damage, prefix: str
) -> None:
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


# --- What a start does not read ------------------------------------------------------------------


def log_with_two_snapshots() -> dict[str, bytes]:
    """Frames 1 to 12 in three files, and snapshots up to frames 4 and 8; the last one is needed."""
    return files_of([pack_turn(Kind.TURN, START_MS) * 100] * 12)


UNUSED: Final = (segment_name(1), segment_name(2), snapshot_name(4))
DAMAGES: Final[dict[str, Damage]] = {
    # Another magic or a newer version is refused.
    "flipped": lambda content: itertools.islice(flipped(content), PREFIX.size, None, 31),
    "emptied": lambda _content: iter([b""]),
    "zeroed": lambda content: (content[:end].ljust(len(content), b"\0") for end in (0, 90, 150)),
    "cut": lambda content: itertools.islice(cut(content), 0, None, 101),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", UNUSED)
def test_damage_in_what_a_start_does_without_is_named_and_the_exit_code_tells(
    name: str, damage: str
) -> None:
    files = log_with_two_snapshots()
    whole = examine(disk_of(files), DIRECTORY)
    assert whole.exit_code is Exit.OK
    assert whole.recovery.base.sequence == 8
    used = files[name].rstrip(b"\0") if name.startswith("segment") else files[name]
    for damaged in DAMAGES[damage](used):
        examination = examine(disk_of(files | {name: damaged}), DIRECTORY)
        assert not examination.refusal
        assert examination.exit_code is Exit.CORRUPT_JOURNAL
        assert [found.path for found in examination.unused] == [f"{DIRECTORY}/{name}"]
        (line,) = (line for line in examination.lines() if line.startswith("damaged"))
        assert line.endswith("a start does not need it today")
        assert "verdict    accept: what a start needs is whole" in examination.lines()


def test_what_a_daemon_removes_meanwhile_is_not_damaged() -> None:
    disk = disk_of(log_with_two_snapshots())
    recovery = Recovery(disk, DIRECTORY, disk.list_directory(DIRECTORY), may_grow=True)
    assert list(recovery.frames())
    for name in UNUSED:
        disk.unlink(f"{DIRECTORY}/{name}")
    assert not list(recovery.unused_damage())


# --- While a daemon writes -----------------------------------------------------------------------


class Busy:
    """A journal that somebody appends to, syncs and takes snapshots of, by chance."""

    def __init__(self, rng: random.Random, snapshots: float = 0.03) -> None:
        self.snapshots = snapshots  # how likely one is each time
        self.disk = WatchedDisk()
        self.journal, _ = opened(self.disk)
        self.rng = rng
        self.put = 0
        self.work()

    def work(self, _verb: str = "") -> None:
        payloads = [
            b"".join(pack_turn(Kind.TURN, START_MS + self.put) for _ in range(30))
            for _ in range(self.rng.randrange(1, 4))
        ]
        append_all(self.journal, payloads, sync_each=True)
        self.put += len(payloads)
        if self.rng.random() < self.snapshots:
            self.journal.snapshot_is_due(0)
            take_snapshot(self.journal, payloads[:1])
        if self.rng.random() < 0.02:
            self.journal.find_lost()  # notes the end of the log


def test_frames_that_come_while_the_end_is_read_are_no_proof_of_damage() -> None:
    for at_call in itertools.count():
        disk = WatchedDisk()
        journal, _ = opened(disk)
        append_all(journal, PAYLOADS[:2], sync_each=True)
        calls, left = itertools.count(), [PAYLOADS[2:]]

        def work(_verb: str) -> None:
            if next(calls) == at_call:  # noqa: B023 - within the turn
                append_all(journal, left.pop(), sync_each=True)  # noqa: B023 - the same

        disk.meanwhile = work
        examination = examine(disk, DIRECTORY)
        assert examination.refusal is None
        assert examination.recovery.verdict is LogVerdict.ACCEPT
        if left:  # it was over before
            break
    assert at_call > 10


def test_a_log_is_whole_up_to_where_a_daemon_writes(
    rng: random.Random, often: Callable[[int, int], range]
) -> None:
    grown = removed = 0
    for _ in often(10, 60):
        busy = Busy(rng)
        for _ in range(40):
            busy.work()
        before, names = busy.put, set(busy.disk.list_directory(DIRECTORY))
        busy.disk.meanwhile = busy.work
        examination = examine_live(busy.disk, DIRECTORY)
        busy.disk.meanwhile = None
        assert not examination.refusal
        assert examination.recovery.verdict is LogVerdict.ACCEPT
        assert examination.recovery.sequence >= before
        grown += examination.recovery.sequence > before
        removed += not names <= set(busy.disk.list_directory(DIRECTORY))
    assert min(grown, removed) > 2


def test_damage_before_the_place_where_a_daemon_writes_is_found(rng: random.Random) -> None:
    busy = Busy(rng, snapshots=0)
    handle = busy.disk.open(path_of(1), write=True)
    busy.disk.pwrite(handle, b"?", HEADER_BYTES)
    busy.disk.meanwhile = busy.work
    assert examine_live(busy.disk, DIRECTORY).refusal
