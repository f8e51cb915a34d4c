"""Damage to the files: every length, every bit, foreign tails, pages that arrived out of order.

T-B1, T-B2, T-P3 and T-P4 of docs/guarantees.md; in the long run of a log of 64 KiB.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from delayd.journal.errors import JournalCorrupt, JournalError
from delayd.journal.format import FRAME, FRAME_OVERHEAD_BYTES, HEADER_BYTES, Frame
from delayd.journal.journal import Journal
from delayd.journal.recovery import LogVerdict, Recovery
from delayd.limits import JOURNAL_WINDOW_BYTES
from tests.journal.journals import (
    DIRECTORY,
    append_all,
    contents_of,
    disk_with,
    flipped,
    frame,
    frame_ends,
    numbered,
    opened,
    path_of,
    payloads_in,
    segment_of,
)
from tests.rigs.disk import SimulatedDisk

BEHIND: Final[dict[str, Callable[[bytes, int, int], bytes]]] = {
    "nothing": lambda _log, _start, _stop: b"",
    "zeros": lambda _log, _start, _stop: bytes(2_000),
    "garbage": lambda _log, _start, _stop: random.Random(4).randbytes(2_000),
    "the frame before": lambda log, start, stop: log[start:stop],
}
"""What may stand behind a write that a power cut tore; the frame before is between two places."""


@pytest.fixture
def log_bytes(pytestconfig: pytest.Config) -> int:
    return (64 if pytestconfig.getoption("--long") else 4) << 10


def log_of(log_bytes: int, *, synced_each: bool = True) -> tuple[bytes, list[bytes]]:
    """A segment of about this length, and its payloads."""
    rng = random.Random(log_bytes)
    payloads: list[bytes] = []
    while sum(len(payload) + FRAME_OVERHEAD_BYTES for payload in payloads) < log_bytes:
        payloads.append(rng.randbytes(rng.choice([1, 30, 200, 700])))
    return segment_of(payloads, synced_each=synced_each), payloads


def decide(*segments: bytes) -> tuple[list[bytes], LogVerdict | None]:
    """The payloads that recovery believes, and its verdict; nothing is changed."""
    disk = disk_with(*segments)
    recovery = Recovery(disk, DIRECTORY, disk.list_directory(DIRECTORY))
    frames: list[Frame] = []
    try:
        frames.extend(recovery.frames())
    except JournalError:
        assert recovery.verdict in {LogVerdict.CORRUPT, LogVerdict.NEWER}
    return [frame.payload for frame in frames], recovery.verdict


def believed_before(ends: Sequence[int], offset: int) -> int:
    """How many frames end at or before the offset."""
    return sum(end <= offset for end in ends[1:])


@pytest.mark.thorough
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("behind", BEHIND)
def test_a_log_cut_off_at_any_byte_gives_the_frames_before(behind: str, log_bytes: int) -> None:
    content, payloads = log_of(log_bytes)
    ends = frame_ends(content)
    # A header that ends in garbage is one of somebody else's.
    for length in range(HEADER_BYTES if behind == "garbage" else 0, len(content)):
        whole = believed_before(ends, length)
        start, stop = ends[max(0, whole - 1)], ends[whole]
        kept = content[:length] + BEHIND[behind](content, start, stop)
        # What stands behind it may happen to be what was cut off.
        whole = sum(kept[:end] == content[:end] for end in ends[1:])
        is_torn = length < HEADER_BYTES or any(kept[ends[whole] :])
        expected = payloads[:whole], LogVerdict.CUT if is_torn else LogVerdict.ACCEPT
        assert decide(kept) == expected, length


@pytest.mark.thorough
def test_an_earlier_segment_cut_off_at_any_byte_is_refused(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, numbered(8, 900), sync_each=True)
    first, second = contents_of(disk).values()
    ends = frame_ends(first)
    for length in range(len(first)):
        believed, verdict = decide(first[:length], second)
        assert verdict is LogVerdict.CORRUPT, length
        assert len(believed) == believed_before(ends, length), length


@pytest.mark.timeout(3_600)
def test_any_flipped_bit_of_a_synced_log_is_found_or_in_the_last_frame(
    share: Callable[[range], range], log_bytes: int
) -> None:
    content, payloads = log_of(log_bytes)
    ends = frame_ends(content)
    for bit in share(range(len(content) * 8)):
        believed, verdict = decide(flipped(content, bit) + bytes(100))
        damaged = believed_before(ends, bit // 8)
        if bit // 8 < HEADER_BYTES:
            assert (believed, verdict in {LogVerdict.CORRUPT, LogVerdict.NEWER}) == ([], True), bit
        else:
            assert believed == payloads[:damaged], bit
            is_last = damaged == len(payloads) - 1
            assert verdict is (LogVerdict.CUT if is_last else LogVerdict.CORRUPT), bit


def test_any_flipped_bit_of_a_closed_log_is_refused_or_was_in_the_closing_frame(
    disk: SimulatedDisk, journal: Journal, share: Callable[[range], range]
) -> None:
    payloads = numbered(5, 100)
    append_all(journal, payloads)  # never synced but by close
    journal.close()
    content = disk.file_bytes(path_of(1))
    closing = frame_ends(content)[-2]
    for bit in share(range(len(content) * 8)):
        believed, verdict = decide(flipped(content, bit))
        if bit // 8 < closing:
            assert verdict in {LogVerdict.CORRUPT, LogVerdict.NEWER}, bit
            assert believed == payloads[: len(believed)], bit
        else:
            assert (believed, verdict) == (payloads, LogVerdict.CUT), bit


def test_any_flipped_bit_among_unsynced_frames_cuts_there(share: Callable[[range], range]) -> None:
    content, payloads = log_of(1 << 10, synced_each=False)
    ends = frame_ends(content)
    for bit in share(range(HEADER_BYTES * 8, len(content) * 8)):
        expected = payloads[: believed_before(ends, bit // 8)]
        assert decide(flipped(content, bit)) == (expected, LogVerdict.CUT), bit


def test_any_flipped_bit_of_the_preallocated_rest_loses_nothing() -> None:
    content, payloads = log_of(1 << 10)
    rest = bytes(100)
    for bit in range(len(rest) * 8):
        assert decide(content + flipped(rest, bit)) == (payloads, LogVerdict.CUT), bit


def test_a_header_alone_can_testify_for_the_frames_before_it(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, numbered(5, 900), sync_each=True)
    first, second = contents_of(disk).values()
    last = len(first) - 1
    believed, verdict = decide(flipped(first, last * 8), second[:HEADER_BYTES] + bytes(900))
    assert (believed, verdict) == (numbered(3, 900), LogVerdict.CORRUPT)


GOOD = numbered(3)
FIRST = segment_of(GOOD)


def foreign_tails() -> dict[str, bytes]:
    other_journal = frame(4, 3, b"of another journal", identity=b"?" * 16)
    other_segment = frame(4, 3, b"of another segment", number=2)
    return {
        "zeros": bytes(600),
        "garbage": random.Random(4).randbytes(600),
        "old frames": FIRST[HEADER_BYTES:],
        "the last frame again": FIRST[frame_ends(FIRST)[-2] :],
        "another journal": other_journal,
        "another segment": other_segment,
        "half a frame": frame(4, 3, b"fourth")[:-1],
        "a head": frame(4, 3, b"fourth")[: FRAME.size],
        "a mark": frame(4, 3, b"fourth")[:4],
        "a huge length": frame(4, 3, b"")[:4] + b"\xff\xff\xff\xff" + frame(4, 3, b"")[8:],
        "the longest length": frame(4, 3, b"")[:4] + b"\0\0\0\x80" + frame(4, 3, b"")[8:],
    }


@pytest.mark.parametrize("name", foreign_tails())
@pytest.mark.parametrize("rest_bytes", [0, 1, 3_000])
def test_a_tail_that_is_no_frame_of_this_log_is_never_accepted(name: str, rest_bytes: int) -> None:
    tail = foreign_tails()[name]
    disk = disk_with(FIRST + tail + bytes(rest_bytes))
    journal, payloads = opened(disk)
    assert payloads == GOOD
    assert [disk.file_bytes(torn.copy) for torn in journal.torn_tails] == (
        [tail.rstrip(b"\0")] if any(tail) else []
    )
    append_all(journal, [b"fourth"], sync_each=True)
    disk.crash()
    assert payloads_in(disk) == [*GOOD, b"fourth"]


@pytest.mark.parametrize("stop", range(FRAME_OVERHEAD_BYTES + 6))
def test_zeros_over_the_end_of_the_last_frame_are_a_torn_tail(stop: int) -> None:
    last = frame(4, 3, b"fourth")
    content = FIRST + last[:stop] + bytes(len(last) - stop + 100)
    expected = LogVerdict.CUT if any(last[:stop]) else LogVerdict.ACCEPT
    assert decide(content) == (GOOD, expected)


def test_a_client_cannot_write_frames_into_its_bodies() -> None:
    forged = b"".join(frame(sequence, 9, b"?", identity=b"?" * 16) for sequence in range(1, 9))
    torn = frame(4, 0, forged)[:-1]
    assert decide(FIRST + torn) == (GOOD, LogVerdict.CUT)
    assert decide(FIRST + frame(4, 0, forged)) == ([*GOOD, forged], LogVerdict.ACCEPT)


class GreedDisk(SimulatedDisk):
    """Notes the longest read."""

    longest = 0

    def pread(self, handle: int, count: int, offset: int, /) -> bytes:
        self.longest = max(self.longest, count)
        return super().pread(handle, count, offset)


@pytest.mark.thorough
def test_memory_is_bounded_whatever_a_length_field_says() -> None:
    for tail in foreign_tails().values():
        disk = GreedDisk()
        disk.put_file(path_of(1), FIRST + tail + bytes(2 * JOURNAL_WINDOW_BYTES))
        assert payloads_in(disk) == GOOD
        assert disk.longest <= JOURNAL_WINDOW_BYTES


@pytest.mark.thorough
def test_damage_far_before_an_intact_frame_is_found_across_windows() -> None:
    longer = frame(5, 4, b"x" * (2 * JOURNAL_WINDOW_BYTES))
    with pytest.raises(JournalCorrupt):
        opened(disk_with(FIRST + b"\xff" * 99 + longer))
    # The witness stands in the third window, its mark across the border of two.
    for shift in range(-8, 9):
        garbage = b"\xff" * (2 * JOURNAL_WINDOW_BYTES - 3 + shift)
        with pytest.raises(JournalCorrupt):
            opened(disk_with(FIRST + garbage + frame(5, 4, b"fifth")))
        believed, verdict = decide(FIRST + garbage + frame(5, 3, b"fifth") * 2)
        assert (believed, verdict) == (GOOD, LogVerdict.CUT)
