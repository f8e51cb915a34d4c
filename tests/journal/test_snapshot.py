"""Snapshots as the service takes them, and the bytes they consist of."""

import errno
import random
import threading
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from delayd.journal.disk import RealDisk
from delayd.journal.errors import SnapshotFailed
from delayd.journal.format import Frame
from delayd.journal.journal import Journal
from delayd.journal.snapshot import (
    SNAPSHOT_HEADER_BYTES,
    SUMMARY,
    Damage,
    SnapshotHeader,
    SnapshotKind,
    deflated,
    inflated,
    pack_snapshot_frame,
    pack_snapshot_header,
    payloads,
    snapshot_mark,
    snapshot_name,
    verify,
)
from delayd.limits import SNAPSHOT_SYNC_BYTES
from tests.journal.journals import (
    CONFIGURED_BYTES,
    DIRECTORY,
    IDENTITY,
    START_MS,
    append_all,
    contents_of,
    documented,
    flipped,
    numbered,
    opened,
    payloads_in,
    take_snapshot,
)
from tests.rigs.disk import SimulatedDisk

GOLDEN: Final = Path(__file__).parent / "golden" / "snapshot-version-1"
EIO: Final = OSError(errno.EIO, "EIO")


def snapshots_in(disk: SimulatedDisk) -> list[str]:
    return [name for name in contents_of(disk) if name.startswith("snapshot")]


def test_a_replay_begins_with_the_snapshot_and_goes_on_with_the_log(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, [b"first", b"second"])
    writer = journal.begin_snapshot(2, 7_000, -7)
    append_all(journal, [b"third"])
    writer.write(b"copy of the first")
    writer.write(b"and of the second")
    info = writer.finish(jobs=2)
    assert (info.sequence, info.jobs, info.payload_bytes) == (2, 2, 34)
    append_all(journal, [b"fourth"])
    journal.sync()
    disk.crash()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES)
    assert list(journal.replay()) == [
        Frame(2, 7_000, -7, b"copy of the first"),
        Frame(2, 7_000, -7, b"and of the second"),
        Frame(3, START_MS, START_MS, b"third"),
        Frame(4, START_MS, START_MS, b"fourth"),
    ]
    assert journal.append(b"fifth", 0, 0) == 5
    assert not journal.damaged_snapshots


def test_an_empty_snapshot_still_says_what_time_it_was(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, [b"put", b"delete"])
    journal.begin_snapshot(2, 5_000, 6_000).finish(jobs=0)
    disk.crash()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES)
    assert list(journal.replay()) == [Frame(2, 5_000, 6_000, b"")]


def test_two_snapshots_and_the_log_since_the_older_one_are_kept(
    disk: SimulatedDisk, journal: Journal
) -> None:
    put: list[bytes] = []
    for round_number in range(6):
        fresh = numbered(10, 900, first=round_number * 10)
        put += fresh
        append_all(journal, fresh, sync_each=True)
        journal.snapshot_is_due(10 * sum(map(len, put)))
        take_snapshot(journal, put)
    first, second = snapshots_in(disk)
    assert (first, second) == (snapshot_name(50), snapshot_name(60))
    segments = [name for name in contents_of(disk) if name.startswith("segment")]
    frames = 4  # of this length in a file
    journal.close()
    assert segments[0] == f"segment-{(50 - 1) // frames + 1:010d}.log"
    assert payloads_in(disk) == put
    # The newest is gone bad: the one before and the log since give the same.
    disk.put_file(f"{DIRECTORY}/{second}", b"")
    assert payloads_in(disk) == put


def test_on_a_full_disk_the_older_snapshot_makes_way_for_the_new_one(
    disk: SimulatedDisk, journal: Journal
) -> None:
    rng = random.Random(1)
    put: list[bytes] = []
    for _ in range(2):
        put.append(rng.randbytes(3_000))
        append_all(journal, put[-1:])
        journal.snapshot_is_due(100_000)
        take_snapshot(journal, put)
    append_all(journal, [b"third"], sync_each=True)
    disk.capacity_bytes = sum(map(len, contents_of(disk).values())) + 4_000
    assert take_snapshot(journal, [*put, b"third"]).sequence == 3
    assert snapshots_in(disk) == [snapshot_name(2), snapshot_name(3)]
    disk.crash()
    assert payloads_in(disk) == [*put, b"third"]


def test_what_cannot_be_removed_is_said_and_removed_by_the_next_snapshot(
    disk: SimulatedDisk, journal: Journal
) -> None:
    for number in range(1, 5):
        append_all(journal, numbered(1, 900, first=number), sync_each=True)
        journal.snapshot_is_due(100_000)
        writer = journal.begin_snapshot(number, START_MS, START_MS)
        for payload in numbered(number, 900):
            writer.write(payload)
        if number == 3:
            disk.fail(disk.verb_counts["unlink"] + 1, EIO, "unlink")
        writer.finish(number)
        expected = [f"{DIRECTORY}/{snapshot_name(1)}"] if number == 3 else []
        assert writer.left_behind == expected
    assert snapshots_in(disk) == [snapshot_name(3), snapshot_name(4)]


def test_a_snapshot_that_does_not_read_as_it_was_written_gets_no_name() -> None:
    class Forgetful(SimulatedDisk):
        def pread(self, handle: int, count: int, offset: int, /) -> bytes:
            data = super().pread(handle, count, offset)
            return bytes([data[0] ^ 1]) + data[1:] if data else data

    disk = Forgetful()
    journal, _ = opened(disk)
    append_all(journal, [b"first"])
    writer = journal.begin_snapshot(1, 0, 0)
    writer.write(b"first")
    with pytest.raises(SnapshotFailed, match="damaged"):
        writer.finish(1)
    assert snapshots_in(disk) == []


def test_a_long_snapshot_is_synced_in_between(disk: SimulatedDisk, journal: Journal) -> None:
    append_all(journal, [b"first"])
    journal.snapshot_is_due(1 << 30)
    writer = journal.begin_snapshot(1, 0, 0)
    before = disk.verb_counts["sync"]
    piece = random.Random(1).randbytes(1 << 20)
    for _ in range(2 * SNAPSHOT_SYNC_BYTES // len(piece)):
        writer.write(piece)
    assert disk.verb_counts["sync"] == before + 2


@pytest.mark.thorough
def test_a_snapshot_is_written_in_one_thread_while_others_append_and_sync(tmp_path: Path) -> None:
    home = str(tmp_path / "journal")
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=CONFIGURED_BYTES)
    assert list(journal.replay()) == []
    put = numbered(20, 300)
    append_all(journal, put)
    writers: list[str] = []

    def take(covered: list[bytes]) -> None:
        for payload in covered:
            writer.write(payload)
        writers.append(str(writer.finish(len(covered))))

    for number in range(2, 12):
        journal.snapshot_is_due(1 << 20)
        writer = journal.begin_snapshot(journal.appended_sequence, START_MS, START_MS)
        taking = threading.Thread(target=take, args=(put.copy(),))
        taking.start()
        for payload in numbered(40, 300, first=number * 100):
            append_all(journal, [payload])
            put.append(payload)
            journal.sync()
        taking.join()
    assert len(writers) == 10
    journal.close()
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=CONFIGURED_BYTES)
    assert [frame.payload for frame in journal.replay() if frame.payload] == put
    journal.close()


# --- The bytes -----------------------------------------------------------------------------------


def example() -> bytes:
    """The document's example, made of the parts."""
    content = pack_snapshot_header(SnapshotHeader(IDENTITY, 2, START_MS + 5, START_MS + 4))
    mark = snapshot_mark(IDENTITY, 2)
    content += pack_snapshot_frame(mark, SnapshotKind.RECORDS, 1, b"hello", 5)
    summary = SUMMARY.pack(1, 5, crc32(content))
    return content + pack_snapshot_frame(mark, SnapshotKind.CLOSING, 2, summary, 0)


def test_the_documents_example_is_what_the_code_writes() -> None:
    text, written = documented("A snapshot")
    assert written == example()
    assert f"header ({SNAPSHOT_HEADER_BYTES} bytes)" in text
    assert f"{len(example())} bytes." in text


def test_version_1_of_snapshots_is_read_for_ever(tmp_path: Path) -> None:
    # Written by the first program that knew version 1. Neither the files nor this test change.
    for file in GOLDEN.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    journal = Journal.open(str(tmp_path), disk=RealDisk(), segment_bytes=4096)
    frames = list(journal.replay())
    pieces = [bytes([number]) * (number * 37) for number in range(1, 16)]
    assert [frame.payload for frame in frames] == [*pieces, b""]
    assert [frame.sequence for frame in frames] == [10] * 10 + [11, 12, 13, 14, 15, 16]
    journal.close()
    info = verify(RealDisk(), str(GOLDEN / snapshot_name(10)), inflate=True)
    assert (info.jobs, info.payload_bytes) == (10, sum(map(len, pieces[:10])))


@pytest.mark.parametrize("size", [1, 2, 100, 65_536, 1 << 20])
def test_what_was_deflated_is_inflated(size: int) -> None:
    for payload in (bytes(size), random.Random(size).randbytes(size)):
        kind, stored = deflated(payload)
        assert len(stored) <= size
        assert inflated(kind, stored, size) == payload
        assert inflated(kind, stored, size + 1) is None
        assert inflated(kind, stored, size - 1) is None
        assert inflated(kind, stored + b"x", size) is None
        assert inflated(SnapshotKind.DEFLATED, b"no such thing", size) is None


def damaged_at(content: bytes) -> int | None:
    disk = SimulatedDisk()
    disk.put_file("d/snapshot", content)
    try:
        verify(disk, "d/snapshot", inflate=False)
    except Damage as damage:
        with pytest.raises(Damage):
            list(payloads(disk, "d/snapshot"))
        return damage.offset
    return None


def test_every_length_but_the_right_one_is_damage() -> None:
    content = example()
    assert damaged_at(content) is None
    for length in range(len(content)):
        assert damaged_at(content[:length]) is not None, length
        assert damaged_at(content[:length] + bytes(len(content) - length)) is not None, length
    assert damaged_at(content + b"\0") is not None


def test_every_flipped_bit_is_damage() -> None:
    content = example()
    for bit in range(8 * len(content)):
        assert damaged_at(flipped(content, bit)) is not None, bit


def test_frames_that_are_missing_or_swapped_are_damage() -> None:
    header = pack_snapshot_header(SnapshotHeader(IDENTITY, 2, 0, 0))
    mark = snapshot_mark(IDENTITY, 2)
    frames = [
        pack_snapshot_frame(mark, SnapshotKind.RECORDS, number, b"%d" % number, 1)
        for number in (1, 2, 3)
    ]
    closing = SUMMARY.pack(3, 3, crc32(header + b"".join(frames)))
    end = pack_snapshot_frame(mark, SnapshotKind.CLOSING, 4, closing, 0)
    assert damaged_at(header + b"".join(frames) + end) is None
    assert damaged_at(header + frames[0] + frames[2] + frames[1] + end) is not None
    assert damaged_at(header + frames[0] + frames[1] + end) is not None
    renumbered = pack_snapshot_frame(mark, SnapshotKind.CLOSING, 3, closing, 0)
    assert damaged_at(header + frames[0] + frames[1] + renumbered) is not None
