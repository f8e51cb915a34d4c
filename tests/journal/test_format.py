"""The bytes of the files: the document's example, the golden files, the examples in docstrings."""

import re
from pathlib import Path

from delayd.journal.disk import RealDisk
from delayd.journal.format import (
    FRAME,
    FRAME_OVERHEAD_BYTES,
    HEADER,
    HEADER_BYTES,
    MARKERS,
    OUR_NAMES,
    TOLERATED_NAMES,
    Frame,
    FrameKind,
    SegmentHeader,
    check_names,
    frame_mark,
    pack_frame,
    pack_header,
)
from delayd.journal.journal import Journal
from delayd.journal.recovery import RULES, After, Found, LogVerdict
from delayd.limits import JOURNAL_PAYLOAD_BYTES_MAX
from tests.journal.journals import (
    CONFIGURED_BYTES,
    DOCUMENT,
    IDENTITY,
    START_MS,
    disk_with,
    documented,
)

GOLDEN = Path(__file__).parent / "golden"


def test_the_documents_example_is_what_the_code_writes_and_reads() -> None:
    header = SegmentHeader(IDENTITY, 1, 1, 0, 0, START_MS, START_MS)
    mark = frame_mark(IDENTITY, 1)
    written = pack_header(header)
    written += pack_frame(mark, FrameKind.RECORDS, 1, 0, START_MS + 5, START_MS + 4, b"hello")
    written += pack_frame(mark, FrameKind.CLOSED, 2, 1, START_MS + 5, START_MS + 4, b"")
    assert documented("Example")[1] == written
    journal = Journal.open("data", disk=disk_with(written), segment_bytes=CONFIGURED_BYTES)
    assert list(journal.replay()) == [
        Frame(1, START_MS + 5, START_MS + 4, b"hello"),
        Frame(2, START_MS + 5, START_MS + 4, b""),
    ]


def documented_fields(heading: str) -> list[tuple[int, str]]:
    """(offset, type) of each row of the table below a heading of the document."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"### {heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"(?m)^\| (\d+) \| ([\w ]+) \|", section)
    return [(int(at), kind) for at, kind in rows]


def test_the_documents_tables_have_the_offsets_of_the_code() -> None:
    size = {"u8": 1, "u32": 4, "u64": 8, "i64": 8, "8 bytes": 8, "16 bytes": 16}
    header, frame = documented_fields("Header"), documented_fields("Frame")
    for fields in (header, frame[:-1]):
        ends = [at + size[kind] for at, kind in fields]
        assert [at for at, _ in fields] == [0, *ends[:-1]]
    assert header[-1] == (HEADER.size, "u32")
    assert frame[-1] == (FRAME.size, "bytes")
    text = DOCUMENT.read_text(encoding="utf-8")
    assert f"header ({HEADER_BYTES} bytes)" in text
    assert f"A frame costs {FRAME_OVERHEAD_BYTES} bytes" in text
    assert JOURNAL_PAYLOAD_BYTES_MAX == 2 << 30
    assert "at most 2 GiB" in text


def test_the_document_names_every_file_that_may_be_in_the_directory() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").split("## The directory\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    examples = {
        name.replace("<sequence>", f"{7:020}")
        .replace("snapshot-*", f"snapshot-{7:020}")
        .replace("segment-*", f"segment-{1:010}")
        .replace("<offset>", "80")
        for name in documented
    }
    assert examples >= {*TOLERATED_NAMES, *MARKERS}
    check_names("data", examples - set(MARKERS))
    for pattern in OUR_NAMES:
        assert any(map(pattern.fullmatch, examples)), pattern


def test_the_documents_decision_table_is_the_codes() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.split("## What a start makes of it")[1].split("\n## ")[0]
    rows = [row.split("|")[2:-1] for row in section.splitlines() if row.startswith("| ")][1:]
    words = {"accept": LogVerdict.ACCEPT, "cut here": LogVerdict.CUT, "refuse": "refuse"}
    documented = [[words[cell.strip()] for cell in row] for row in rows]
    refusals = {LogVerdict.CORRUPT, LogVerdict.NEWER}
    verdicts = [[RULES[found, after] for after in After] for found in Found]
    assert documented == [
        [("refuse" if verdict in refusals else verdict) for verdict in row] for row in verdicts
    ]


def test_version_1_is_read_for_ever(tmp_path: Path) -> None:
    # Written by the first program that knew version 1. Neither the files nor this test change.
    for file in (GOLDEN / "version-1").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    journal = Journal.open(str(tmp_path), disk=RealDisk(), segment_bytes=CONFIGURED_BYTES)
    frames = list(journal.replay())
    payloads = [bytes([number]) * (number * 37) for number in range(1, 16)]
    assert [frame.payload for frame in frames] == [*payloads, b""]
    assert [frame.sequence for frame in frames] == list(range(1, 17))
    assert [frame.time_ms for frame in frames] == [*range(1_001, 1_016), 1_015]
    assert [frame.wall_ms for frame in frames] == [*range(-14, 1), 0]
    assert journal.append(b"next", 2_000, 2_000) == 17
    journal.close()


def test_no_two_segments_share_a_mark_and_none_is_zero() -> None:
    identities = [bytes([number]) * 16 for number in range(20)]
    marks = {frame_mark(identity, number) for identity in identities for number in range(1, 50)}
    assert len(marks) == 20 * 49
    assert 0 not in marks
    # The checksum of a frame depends on its segment.
    frames = [pack_frame(mark, 1, 1, 0, 0, 0, b"payload") for mark in (1, 2)]
    assert frames[0][4:-4] == frames[1][4:-4]
    assert frames[0][-4:] != frames[1][-4:]
