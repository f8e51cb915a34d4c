"""What a start believes: the decision table, and every situation in it made out of real bytes."""

import itertools
from collections.abc import Callable
from typing import Final

import pytest

from delayd.journal.directory import look_first
from delayd.journal.errors import ForeignFile, JournalCorrupt, JournalVersion
from delayd.journal.format import CHECKSUM, HEADER, HEADER_BYTES, Frame, check_names
from delayd.journal.recovery import RULES, After, Found, LogVerdict, Recovery
from tests.journal.journals import (
    DIRECTORY,
    contents_of,
    disk_with,
    flipped,
    frame,
    header,
    opened,
    path_of,
    payloads_in,
    segment_of,
)
from tests.rigs.disk import SimulatedDisk

GOOD: Final = [b"first", b"second"]
ZEROS: Final = bytes(100)
FIRST: Final = segment_of(GOOD)
END: Final = len(FIRST)

# What may stand after a missing frame 3, in segment 1 or 2.
WITNESS_SYNCED: Final = {After.NOTHING: None, After.UNSYNCED: 2, After.SYNCED: 3}


def witness(after: After, number: int) -> bytes:
    synced = WITNESS_SYNCED[after]
    return b"" if synced is None else frame(4, synced, b"fourth", number=number)


def newer(head: bytes) -> bytes:
    changed = head[:8] + b"\x02\0\0\0" + head[12 : HEADER.size]
    return changed + CHECKSUM.pack(0)


def at_the_end(after: After) -> list[bytes]:
    if after is After.NOTHING:
        return [FIRST + ZEROS]
    second = header(2, 4, synced=2, previous_valid_bytes=END + 60)
    return [FIRST + ZEROS, second + witness(after, 2) + ZEROS]


def at_a_bad_frame(after: After) -> list[bytes]:
    return [FIRST + b"\xff" * 50 + witness(after, 1) + ZEROS]


def in_segment_2(head: bytes) -> Callable[[After], list[bytes]]:
    return lambda after: [FIRST + ZEROS, head + witness(after, 2) + ZEROS]


CONTINUATION: Final = header(2, 3, synced=2, previous_valid_bytes=END)
SITUATIONS: Final = {
    Found.END: at_the_end,
    Found.BAD_FRAME: at_a_bad_frame,
    Found.NO_HEADER: in_segment_2(bytes(HEADER_BYTES)),
    Found.BAD_HEADER: in_segment_2(flipped(CONTINUATION, 8 * 40)),
    Found.FOREIGN: in_segment_2(flipped(CONTINUATION, 8 * 3)),
    Found.NEWER: in_segment_2(newer(CONTINUATION)),
    Found.MISPLACED: in_segment_2(header(2, 3, previous_valid_bytes=END, identity=b"?" * 16)),
}
COMBINATIONS: Final = list(itertools.product(Found, After))
# Nothing that cannot be read may testify that a place before it is harmless.
MUTE: Final = {Found.FOREIGN, Found.NEWER, Found.MISPLACED}


@pytest.mark.parametrize(("found", "after"), COMBINATIONS)
def test_each_situation_gets_the_verdict_of_the_table_which_is_carried_out(
    found: Found, after: After
) -> None:
    disk = disk_with(*SITUATIONS[found](after))
    before = contents_of(disk)
    recovery = Recovery(disk, DIRECTORY, disk.list_directory(DIRECTORY))
    verdict = RULES[found, After.SYNCED if found in MUTE else after]
    read: list[Frame] = []
    try:
        read.extend(recovery.frames())
    except JournalVersion:
        assert verdict is LogVerdict.NEWER
    except JournalCorrupt:
        assert verdict is LogVerdict.CORRUPT
    assert [one.payload for one in read] == GOOD
    assert recovery.place
    assert recovery.place.found is found
    assert recovery.verdict is verdict
    assert contents_of(disk) == before, "deciding changes nothing"
    if verdict in {LogVerdict.CORRUPT, LogVerdict.NEWER}:
        error = JournalVersion if verdict is LogVerdict.NEWER else JournalCorrupt
        with pytest.raises(error):
            opened(disk)
        disk.crash()
        assert contents_of(disk) == before, "a refusal touches nothing"
        return
    journal, payloads = opened(disk)
    assert payloads == GOOD
    assert journal.append(b"third", 0, 0) == 3
    journal.sync()
    disk.crash()
    assert payloads_in(disk) == [*GOOD, b"third"]
    for tail in journal.torn_tails:
        cut = before[tail.file.rpartition("/")[2]][tail.offset :].rstrip(b"\0")
        assert disk.file_bytes(tail.copy) == cut, "what was cut is kept"
        assert tail.cut_bytes == len(cut)


def refusal(*segments: bytes | None) -> JournalCorrupt:
    disk = disk_with(*segments)
    before = contents_of(disk)
    with pytest.raises(JournalCorrupt) as caught:
        opened(disk)
    assert contents_of(disk) == before
    return caught.value


THIRD: Final = frame(3, 2, b"third", number=2)
WRONG_FILES: Final = {
    "a copy under another number": ((FIRST, FIRST), "says that this is segment 1"),
    "two that are swapped": ((CONTINUATION + THIRD, FIRST), "says that this is segment 2"),
    "one of another journal": (
        (FIRST, header(2, 3, synced=2, previous_valid_bytes=END, identity=b"?" * 16)),
        "belongs to another journal",
    ),
    "one that overlaps": (
        (FIRST, header(2, 2, synced=2, previous_valid_bytes=END)),
        "begins with frame 2, wanted is 3",
    ),
    "one that skips frames where no bytes are missing": (
        (FIRST, header(2, 5, synced=2, previous_valid_bytes=END)),
        "begins with frame 5, wanted is 3",
    ),
    "one behind a file that is missing": (
        (FIRST, None, header(3, 4, synced=3, previous_valid_bytes=200)),
        "segment 2 is missing",
    ),
    "one without the first": (
        (None, header(2, 3, synced=2, previous_valid_bytes=END)),
        "begins with frame 3, wanted is 1",
    ),
}


@pytest.mark.parametrize(("segments", "why"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_file_that_does_not_continue_the_one_before_is_refused(
    segments: tuple[bytes | None, ...], why: str
) -> None:
    assert why in refusal(*segments).why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (newer(header()) + frame(1, 0, b"first"), "version is 2, this program reads up to 1"),
        (FIRST + frame(3, 2, b"third", kind=3), "of a kind that this program does not know"),
    ],
)
def test_what_a_newer_program_wrote_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(JournalVersion, match=why):
        opened(disk_with(content))


def test_bytes_beyond_the_valid_end_of_a_segment_are_void_but_no_frame_goes_across_it() -> None:
    # After a failed sync the next segment says how much of the one before counts.
    void = frame(3, 2, b"never synced") + b"rubbish"
    assert payloads_in(disk_with(FIRST + void, CONTINUATION + THIRD)) == [*GOOD, b"third"]
    second = header(2, 3, synced=2, previous_valid_bytes=END - 1)
    assert refusal(FIRST, second).file == path_of(1)
    # A refusal names the file, the offset and the reason.
    error = refusal(FIRST + b"?" * 50 + frame(4, 3, b"fourth"))
    assert (error.file, error.offset) == (path_of(1), END)
    assert str(error).startswith(f"{path_of(1)} at offset {END}: these bytes are no frame; what ")


@pytest.mark.parametrize("name", ["notes.txt", "segment-1.log", "segment-0000000001.log.bak"])
def test_a_foreign_file_in_the_directory_is_refused_by_name(name: str) -> None:
    disk = disk_with(FIRST)
    disk.put_file(f"{DIRECTORY}/{name}", b"")
    with pytest.raises(ForeignFile, match="is unknown to this delayd: if a newer") as caught:
        opened(disk)
    assert caught.value.file == f"{DIRECTORY}/{name}"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("binlog.12", "is beanstalkd's: .* `delayd import-beanstalkd data --data-dir "),
        ("import-unfinished", "is left of an unfinished import: .* begins it again"),
        ("backup-unfinished", "is left of an unfinished backup: .* begins it again"),
    ],
)
def test_a_file_whose_origin_is_known_is_named_with_what_to_do(name: str, why: str) -> None:
    with pytest.raises(ForeignFile, match=f"^data/{name} {why}.*; nothing was touched$"):
        check_names("data", ["a", name, "z"])


def test_a_directory_that_is_not_ours_is_seen_before_it_gets_a_lock(disk: SimulatedDisk) -> None:
    look_first(disk, DIRECTORY)
    assert disk.call_count == 1
    disk.put_file(f"{DIRECTORY}/notes.txt", b"")
    with pytest.raises(ForeignFile, match=r"notes\.txt"):
        look_first(disk, DIRECTORY)
    assert disk.list_directory(DIRECTORY) == ["notes.txt"]


@pytest.mark.parametrize("content", [b"", header()[:79], bytes(HEADER_BYTES), bytes(5000)])
def test_a_first_segment_that_was_never_finished_is_made_anew(content: bytes) -> None:
    disk = disk_with(content)
    journal, payloads = opened(disk)
    assert payloads == []
    assert journal.append(b"first", 0, 0) == 1
    journal.close()
    assert payloads_in(disk) == [b"first"]


def test_a_first_segment_with_anything_after_a_lost_header_is_refused() -> None:
    # Its header was durable before anything was written after it.
    assert refusal(bytes(HEADER_BYTES) + FIRST[HEADER_BYTES:]).offset == 0
    assert refusal(b"", CONTINUATION).offset == 0


def test_copies_of_torn_tails_never_replace_each_other_and_the_newest_are_kept() -> None:
    disk = disk_with(FIRST + b"one")
    for offset in range(1, 31):
        disk.put_file(f"{path_of(1)}.torn-{offset}", b"")
    for tail in (b"one", b"two"):
        disk.put_file(path_of(1), FIRST + tail)
        payloads_in(disk)
    opened(disk)
    disk.kill()
    once = contents_of(disk)
    opened(disk)
    assert contents_of(disk) == once, "recovering again gives the same files"
    copies = {name.partition("-")[2]: once[name] for name in once if "torn" in name}
    kept = {f"0000000001.log.torn-{offset}": b"" for offset in range(17, 31)}
    newest = f"0000000001.log.torn-{END}"
    assert copies == kept | {newest: b"one", f"{newest}-2": b"two"}


@pytest.mark.parametrize("begun", range(8))
def test_a_header_that_was_only_begun_is_none_and_the_end_before_it_is_cut(begun: int) -> None:
    """A write may be cut short, and the power before the rest of it is written."""
    head = CONTINUATION[:begun] + bytes(HEADER_BYTES - begun)
    disk = disk_with(FIRST + b"\xff" * 50 + ZEROS, head + ZEROS)
    recovery = Recovery(disk, DIRECTORY, disk.list_directory(DIRECTORY))
    assert [frame.payload for frame in recovery.frames()] == GOOD
    assert recovery.verdict is LogVerdict.CUT
