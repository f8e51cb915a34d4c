"""The journal as the service uses it: append, sync, rotate, replay, close."""

import copy
import os
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from delayd.journal.disk import RealDisk
from delayd.journal.errors import DirectoryLocked, JournalFailed
from delayd.journal.format import FRAME_OVERHEAD_BYTES, HEADER_BYTES, LOCK_NAME, Frame
from delayd.journal.journal import Journal
from delayd.limits import (
    DISK_BLOCK_BYTES,
    JOURNAL_FILES_PER_SEGMENT,
    JOURNAL_PAYLOAD_BYTES_MAX,
    JOURNAL_UNSYNCED_SEGMENTS_MAX,
    JOURNAL_WINDOW_BYTES,
    ZEROED_AHEAD_BYTES,
    ZEROED_AHEAD_FRAME_BYTES_MAX,
)
from tests.journal.journals import (
    CONFIGURED_BYTES,
    DIRECTORY,
    SEGMENT_BYTES,
    BesideDisk,
    append_all,
    frame_ends,
    numbered,
    opened,
    path_of,
    payloads_in,
)
from tests.rigs.disk import SimulatedDisk

FITTING: Final = SEGMENT_BYTES - HEADER_BYTES - FRAME_OVERHEAD_BYTES
"""The longest payload that shares a segment with nothing else."""


def test_frames_come_back_in_order_with_their_times_and_a_closing_frame_with_the_last(
    disk: SimulatedDisk, journal: Journal
) -> None:
    journal.append(b"first", 1_000, -5)
    journal.append(b"second", 1_001, 2**62)
    journal.close()
    opened(disk)[0].close()
    disk.crash()
    frames = list(Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES).replay())
    assert frames == [
        Frame(1, 1_000, -5, b"first"),
        *(Frame(n, 1_001, 2**62, b"second" if n == 2 else b"") for n in (2, 3, 4)),
    ]


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("/proc/foo", "/proc is there, but takes no new directory"),
        ("/proc/foo/", "/proc is there, but takes no new directory"),
        ("/proc/foo/bar", "there is no directory /proc/foo, make that first"),
        ("/nowhere/at/all", "there is no directory /nowhere/at, make that first"),
        ("/proc/version/foo", "Not a directory"),
    ],
)
def test_a_directory_that_cannot_be_made_is_told_with_the_reason(directory: str, why: str) -> None:
    with pytest.raises(JournalFailed) as caught:
        Journal.open(directory, disk=RealDisk(), segment_bytes=CONFIGURED_BYTES)
    assert str(caught.value) == f"{directory}: cannot be made: {why}"


@pytest.mark.parametrize("payload_bytes", [FITTING - 1, FITTING, FITTING + 1, 3 * FITTING])
def test_a_frame_longer_than_a_segment_gets_one_of_its_own(
    disk: SimulatedDisk, journal: Journal, payload_bytes: int
) -> None:
    payloads = [b"before", b"x" * payload_bytes, b"after"]
    append_all(journal, payloads, sync_each=True)
    assert len(frame_ends(disk.file_bytes(path_of(2)))) == 2
    disk.crash()
    assert payloads_in(disk) == payloads


def test_frames_longer_than_the_reading_window_are_read_whole(disk: SimulatedDisk) -> None:
    payloads = [b"a" * (JOURNAL_WINDOW_BYTES - 100), b"b" * (3 * JOURNAL_WINDOW_BYTES), b"c"] * 2
    journal, _ = opened(disk, 16 << 20)
    append_all(journal, payloads)
    journal.sync()
    disk.crash()
    assert payloads_in(disk) == payloads


def test_appending_before_the_replay_is_done_is_our_own_mistake(disk: SimulatedDisk) -> None:
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES)
    with pytest.raises(AssertionError, match="replay comes before append"):
        journal.append(b"", 0, 0)
    list(journal.replay())
    with pytest.raises(AssertionError, match="replayed once"):
        list(journal.replay())
    journal.close()
    with pytest.raises(AssertionError, match="closed"):
        journal.append(b"", 0, 0)


def test_a_payload_beyond_the_limit_is_our_own_mistake(journal: Journal) -> None:
    payload = bytes(JOURNAL_PAYLOAD_BYTES_MAX + 1)  # no memory as long as nobody reads it
    with pytest.raises(AssertionError, match="splits its batches"):
        journal.append(payload, 0, 0)
    append_all(journal, [b"first"])


def test_one_append_is_one_write_and_one_sync_one_sync_or_none_where_there_is_nothing_to_do(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, [b"first"], sync_each=True)
    calls, before = disk.call_count, disk.verb_counts.copy()
    append_all(journal, [b"second"], sync_each=True)
    assert journal.sync() == 2
    assert disk.call_count - calls == 2
    assert disk.verb_counts - before == {"pwrite": 1, "sync": 1}


@pytest.mark.parametrize(("payload_bytes", "writes"), [(100, 1), (ZEROED_AHEAD_FRAME_BYTES_MAX, 0)])
def test_zeros_are_written_ahead_of_many_short_frames_at_once(
    disk: SimulatedDisk, payload_bytes: int, writes: int
) -> None:
    journal, _ = opened(disk, JOURNAL_FILES_PER_SEGMENT * 2 * ZEROED_AHEAD_BYTES)
    append_all(journal, [b"first"], sync_each=True)
    # The first frame has written so many zeros, from the next block on.
    frames = (DISK_BLOCK_BYTES + ZEROED_AHEAD_BYTES) // (payload_bytes + FRAME_OVERHEAD_BYTES) + 1
    before = disk.verb_counts["pwrite"]
    payloads = numbered(frames, payload_bytes - 1)
    append_all(journal, payloads)
    assert disk.verb_counts["pwrite"] - before == frames + writes
    journal.sync()
    disk.crash()
    assert payloads_in(disk) == [b"first", *payloads]


def test_unsynced_segments_are_bounded(journal: Journal) -> None:
    append_all(journal, numbered(50, FITTING - 10))
    assert journal.synced_sequence >= 50 - JOURNAL_UNSYNCED_SEGMENTS_MAX - 1
    assert len(journal._unsynced) <= JOURNAL_UNSYNCED_SEGMENTS_MAX + 1


@pytest.mark.thorough
@pytest.mark.parametrize("payload_bytes", [100, 1_500, FITTING])
def test_frames_appended_during_a_sync_are_not_reported_durable_by_it(payload_bytes: int) -> None:
    disk = BesideDisk()
    journal, _ = opened(disk)
    payloads = numbered(36, payload_bytes - 1)
    append_all(journal, payloads[:1])
    for appended in range(1, len(payloads)):
        disk.beside = [partial(append_all, journal, payloads[appended : appended + 1])]
        assert journal.sync() == journal.synced_sequence == appended
        after = copy.deepcopy(disk)
        after.crash()
        survivors = payloads_in(after)
        assert survivors == payloads[: len(survivors)]
        assert len(survivors) >= appended


def test_a_real_directory_is_locked_recovered_and_closed(tmp_path: Path) -> None:
    home = str(tmp_path / "journal")
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=CONFIGURED_BYTES)
    assert list(journal.replay()) == []
    lock = tmp_path / "journal" / LOCK_NAME
    assert lock.read_text() == f"{os.getpid()}\n"
    append_all(journal, numbered(20, 500), sync_each=True)
    assert lock.read_text() == f"{os.getpid()}\n"
    with pytest.raises(DirectoryLocked):
        Journal.open(home, disk=RealDisk(), segment_bytes=CONFIGURED_BYTES)
    journal.close()
    assert lock.read_text() == "", "there is no process any more"
    journal.close()
    last = max((tmp_path / "journal").glob("segment-*"))
    with last.open("ab") as file:
        file.write(b"half a frame")
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=CONFIGURED_BYTES)
    assert [frame.payload for frame in journal.replay()] == [*numbered(20, 500), b""]
    (tail,) = journal.torn_tails
    assert tail.file == str(last)
    assert Path(tail.copy).read_bytes() == b"half a frame"
    assert str(tail) == f"12 bytes at offset {tail.offset} of {last}, kept in {tail.copy}"
    journal.close()


@pytest.mark.parametrize("frames", [1, 30, 50])
@pytest.mark.parametrize("is_cut", [False, True])
def test_how_much_a_replay_has_to_read_is_told_without_what_is_preallocated(
    disk: SimulatedDisk, journal: Journal, frames: int, is_cut: bool
) -> None:
    append_all(journal, numbered(frames, 900), sync_each=True)
    if is_cut:
        journal.close()
    disk.kill()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES)
    read_bytes, expected_bytes = 0, {0}
    for frame in journal.replay():
        read_bytes += FRAME_OVERHEAD_BYTES + len(frame.payload)
        expected_bytes.add(journal.replay_bytes)
    (expected,) = expected_bytes - {0}
    first, last = journal.retention.file_numbers
    assert read_bytes <= expected <= read_bytes + (1 + last - first) * HEADER_BYTES
    journal.close()
