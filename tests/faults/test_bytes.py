"""Damaged bytes: cut off anywhere, any bit flipped, files swapped, doubled, missing, or foreign.

What `tests/journal` proves of small logs of opaque payloads is proven here of the engine's own
records, of a size that has everything in it, and of snapshots beside the log.
"""

import contextlib
import errno
import random
from collections.abc import Callable
from typing import Final

import hypothesis
import pytest
from hypothesis import strategies

from delayd.core.engine import Engine
from delayd.core.log_records import UnknownRecord
from delayd.core.replay import Replay
from delayd.journal.errors import DamageError, JournalCorrupt, JournalError, JournalFailed
from delayd.journal.format import HEADER_BYTES, frame_mark
from delayd.journal.recovery import LogVerdict
from delayd.journal.snapshot import Damage, verify
from tests.faults.bytes_of_a_log import (
    Log,
    believed,
    check_flipped,
    check_truncated,
    log_of,
    recovered,
    snapshots_of,
)
from tests.faults.conftest import Runs
from tests.faults.parts import digest
from tests.journal.journals import (
    DIRECTORY,
    IDENTITY,
    contents_of,
    disk_with,
    flipped,
    frame,
    frame_ends,
    header,
    opened,
    path_of,
    segment_of,
)
from tests.rigs.disk import SimulatedDisk

LOG_BYTES: Final = 64 << 10
TURNS: Final = 60


@pytest.fixture(scope="module")
def log() -> Log:
    log = log_of(LOG_BYTES)
    assert believed(log.content) == (log.payloads, LogVerdict.ACCEPT)
    return log


def test_a_log_cut_off_at_any_byte_is_believed_up_to_there(log: Log, runs: Runs) -> None:
    """T-B1."""
    lengths = runs.some(range(len(log.content)), 1_000)
    for length in lengths:
        check_truncated(log, length)
    runs.count("T-B1", len(lengths), "lengths of a 64 KiB log")


def test_any_flipped_bit_of_a_log_is_found_or_harmless(log: Log, runs: Runs) -> None:
    """T-B2."""
    bits = runs.some(range(8 * len(log.content)), 2_000)
    for bit in bits:
        check_flipped(log, bit)
    runs.count("T-B2", len(bits), "bits of a 64 KiB log")


def snapshot_paths(disk: SimulatedDisk) -> list[str]:
    names = sorted(name for name in contents_of(disk) if name.startswith("snapshot"))
    return [f"{DIRECTORY}/{name}" for name in names]


def test_any_flipped_bit_of_a_snapshot_is_found(runs: Runs) -> None:
    """T-B2."""
    disk, _ = snapshots_of(TURNS)
    path = snapshot_paths(disk)[-1]
    content = disk.file_bytes(path)
    bits = runs.some(range(8 * len(content)), 1_500)
    for bit in bits:
        disk.put_file(path, flipped(content, bit))
        with pytest.raises(Damage):
            verify(disk, path, inflate=False)
    runs.count("T-B2", len(bits), "bits of a snapshot")


def test_a_snapshot_cut_off_at_any_byte_is_found(runs: Runs) -> None:
    """T-B1."""
    disk, _ = snapshots_of(TURNS)
    path = snapshot_paths(disk)[-1]
    content = disk.file_bytes(path)
    lengths = runs.some(range(len(content)), 500)
    for length in lengths:
        disk.put_file(path, content[:length])
        with pytest.raises(Damage):
            verify(disk, path, inflate=False)
    runs.count("T-B1", len(lengths), "lengths of a snapshot")


def test_with_the_newest_snapshot_damaged_the_one_before_gives_the_same_state(runs: Runs) -> None:
    """T-B4."""
    disk, state = snapshots_of(TURNS)
    files = contents_of(disk)
    paths = snapshot_paths(disk)
    assert len(paths) == 2
    newest = disk.file_bytes(paths[-1])
    bits = runs.some(range(8 * len(newest)), 20)[:: 40 if runs.is_long else 1]
    for bit in bits:
        damaged = SimulatedDisk()
        for name, content in files.items():
            damaged.put_file(f"{DIRECTORY}/{name}", content)
        damaged.put_file(paths[-1], flipped(newest, bit))
        engine, journal = recovered(damaged)
        assert digest(engine) == state, bit
        assert len(journal.damaged_snapshots) == 1
    runs.count("T-B4", len(bits), "starts from the snapshot before")


# --- Files that are not where they belong --------------------------------------------------------


def segments() -> list[bytes]:
    """A log of several files."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, 16 << 10)
    for payload in log_of(12 << 10).payloads:
        journal.append(payload, 0, 0)
        journal.sync()
    contents = [content for name, content in contents_of(disk).items() if "segment" in name]
    assert len(contents) >= 4
    return contents


MISPLACED: Final[dict[str, Callable[[list[bytes]], list[bytes | None]]]] = {
    "two are swapped": lambda files: [files[0], files[2], files[1], *files[3:]],
    "one is there twice": lambda files: [*files[:2], files[1], *files[2:]],
    "one is missing": lambda files: [files[0], None, *files[2:]],
    "the first is missing": lambda files: [None, *files[1:]],
    "one is empty": lambda files: [files[0], b"", *files[2:]],
    "one is somebody else's": lambda files: [files[0], b"From: a letter\n" * 99, *files[2:]],
    "one is of a newer version": lambda files: [
        files[0],
        files[1][:8] + b"\xff" + files[1][9:],
        *files[2:],
    ],
    "one has lost its second half": lambda files: [
        files[0],
        files[1][: len(files[1]) // 2],
        *files[2:],
    ],
}


@pytest.mark.parametrize("case", MISPLACED)
def test_files_that_are_not_where_they_belong_are_refused_untouched(case: str, runs: Runs) -> None:
    """T-B3."""
    disk = disk_with()
    for number, content in enumerate(MISPLACED[case](segments()), 1):
        if content is not None:
            disk.put_file(path_of(number), content)
    before = contents_of(disk)
    with pytest.raises(DamageError, match="segment-"):
        recovered(disk)
    assert contents_of(disk) == before
    runs.count("T-B3", 1, "directories")


def test_a_file_with_a_name_that_is_not_ours_is_refused_untouched() -> None:
    """T-B3."""
    disk = disk_with(*segments())
    disk.put_file(f"{DIRECTORY}/thesis.doc", b"precious")
    before = contents_of(disk)
    with pytest.raises(JournalError, match=r"thesis\.doc"):
        recovered(disk)
    assert contents_of(disk) == before


def test_a_file_that_may_not_be_opened_is_no_damage() -> None:
    """T-B3: wrong owner or mode."""
    probe = disk_with(*segments())
    recovered(probe)
    for number in range(1, probe.verb_counts["open"] + 1):
        disk = disk_with(*segments())
        disk.fail(number, PermissionError(errno.EACCES, "Permission denied"), "open")
        before = contents_of(disk)
        with pytest.raises(JournalFailed, match="Permission denied"):
            recovered(disk)
        assert contents_of(disk) == before


# --- Bytes from nowhere -------------------------------------------------------------------------


def torn_off(log: Log, what: str) -> bytes:
    """What may stand behind a write that a power cut tore."""
    ends = frame_ends(log.content)
    return {
        "nothing": b"",
        "zeros": bytes(5_000),
        "garbage": random.Random(4).randbytes(5_000),
        "old frames": log.content[ends[1] : ends[9]],
    }[what]


@pytest.mark.parametrize("what", ["nothing", "zeros", "garbage", "old frames"])
def test_a_torn_write_is_cut_off_whatever_stands_behind_it(log: Log, runs: Runs, what: str) -> None:
    """T-P3 and T-P4: the last frames, torn at every byte."""
    ends = frame_ends(log.content)
    behind = torn_off(log, what)
    for frames in range(1, 9):
        start, end = ends[-1 - frames], ends[-frames]
        for stop in runs.some(range(end - start), 10):
            torn = log.content[: start + stop] + behind
            payloads, verdict = believed(torn)
            assert payloads == log.payloads[:-frames]
            assert verdict is (LogVerdict.CUT if any(torn[start:]) else LogVerdict.ACCEPT)
            runs.count("T-P3" if what == "nothing" else "T-P4", what="places in a frame")


ANY_BYTES: Final = hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
"""`runs` is the same for all examples of a test: it counts them."""


@ANY_BYTES
@hypothesis.given(payload=strategies.binary(max_size=300))
def test_a_payload_of_any_bytes_is_played_or_refused(runs: Runs, payload: bytes) -> None:
    """T-B5."""
    runs.count("T-B5", what="payloads, tails and segments")
    replay = Replay(Engine(start_ms=0))
    with contextlib.suppress(UnknownRecord):
        replay.play(payload)


@ANY_BYTES
@hypothesis.given(data=strategies.data())
def test_a_payload_that_was_tampered_with_is_played_or_refused(
    runs: Runs, data: strategies.DataObject
) -> None:
    """T-B5: lengths, numbers and kinds that pass the checksum and make no sense."""
    runs.count("T-B5", what="payloads, tails and segments")
    payloads = log_of(2 << 10).payloads
    index = data.draw(strategies.integers(0, len(payloads) - 1))
    payload = bytearray(payloads[index])
    for _ in range(data.draw(strategies.integers(1, 4))):
        payload[data.draw(strategies.integers(0, len(payload) - 1))] = data.draw(
            strategies.integers(0, 255)
        )
    replay = Replay(Engine(start_ms=0))
    for each in payloads[:index]:
        replay.play(each)
    with contextlib.suppress(UnknownRecord):
        replay.play(bytes(payload))


@ANY_BYTES
@hypothesis.given(tail=strategies.binary(max_size=2_000))
def test_a_log_that_ends_in_any_bytes_is_believed_up_to_them(runs: Runs, tail: bytes) -> None:
    """T-B5, T-P4."""
    runs.count("T-B5", what="payloads, tails and segments")
    log = log_of(1 << 10)
    payloads, verdict = believed(log.content + tail)
    assert payloads == log.payloads
    assert verdict is (LogVerdict.CUT if any(tail) else LogVerdict.ACCEPT)


@ANY_BYTES
@hypothesis.given(content=strategies.binary(min_size=HEADER_BYTES, max_size=500))
def test_a_segment_of_any_bytes_is_refused(runs: Runs, content: bytes) -> None:
    """T-B5."""
    runs.count("T-B5", what="payloads, tails and segments")
    disk = disk_with(content)
    if any(content[:HEADER_BYTES]):
        with pytest.raises(JournalCorrupt):
            recovered(disk)


def test_frames_are_found_whatever_their_mark() -> None:
    """A mark is drawn by chance, and may begin with a zero, as what stands behind the frames."""
    number = next(number for number in range(1, 10_000) if not frame_mark(IDENTITY, number) & 0xFF)
    content = header(number) + frame(1, 0, b"payload", number=number) + bytes(100)
    assert frame_ends(content)[1:] == [len(content) - 100]


def test_a_sync_of_the_log_that_fails_in_a_start_ends_it() -> None:
    """A start that cuts a torn end tries again without space for the copy, but never after that."""
    ended = []
    for number in range(1, 4):
        disk = disk_with(segment_of([b"one", b"two"]) + b"torn")
        space = OSError(errno.ENOSPC, "No space left on device")
        disk.fail(disk.verb_counts["sync"] + number, space, "sync")
        try:
            opened(disk)[0].close()
        except JournalFailed:
            ended.append(number)
    # The first sync is of the copy.
    assert ended == [2, 3]
