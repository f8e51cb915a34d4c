"""The bytes of every record: what is in a journal today must be readable for ever."""

from pathlib import Path
from typing import Final

import pytest

from delayd.core import job_parts, job_record, transitions
from delayd.core.job_parts import (
    COUNT_MAX,
    Failure,
    Flag,
    Note,
    Own,
    Reason,
    Retry,
    Tally,
    tally_of,
)
from delayd.core.job_record import State
from delayd.core.log_records import LAYOUTS, RECORDS, Kind, pack
from tests.rigs.written import tables_of

ROOT: Final = Path(__file__).parents[2]
NOW_MS: Final = 1_700_000_000_000
GOLDEN: Final = [
    (Kind[kind], tuple(int(value, 0) for value in values), golden)
    for told, golden in tables_of(Path(__file__).parent / "records.txt")["golden"]
    for kind, *values in [told.split()]
]

FRESH: Final = (
    "0700000000000000 dc05000000000000 f401000000000000 60ea000000000000 03000000 01000000 00 00"
)
WORKED_ON: Final = (
    "0700000000000000 d007000000000000 f401000000000000 60ea000000000000 04000000 01000000 00 01"
    "0a00000000000000 01000000 00000000 01000000 00000000 00000000"
)


ALL_PARTS: Final = (
    "0700000000000000 d007000000000000 f401000000000000 60ea000000000000 03000000 01000000 03 ff"
    "0a00000000000000 05000000 01000000 00000000 01000000 00000000"  # tally
    "0807060504030201 0100000002000000"  # wall-clock time, rank
    "01 02000000 6c07000000000000"  # failure
    "06 6f722d31c3a9"  # key
    "02 0900 0a 983a000000000000 20bf020000000000"  # retry
    "04 6d61696c 0300 6fc3a9"  # note
    "1300 50555420 68747470733a2f2f612e62 0a413a 20"  # target
)


@pytest.mark.parametrize(("kind", "values", "golden"), GOLDEN)
def test_each_kind_has_its_bytes_for_ever(kind: Kind, values: tuple[int, ...], golden: str) -> None:
    assert pack(kind, *values) == bytes.fromhex(golden)
    assert LAYOUTS[kind].unpack(bytes.fromhex(golden)) == (kind, *values)


def test_every_kind_has_a_layout_and_a_golden_record() -> None:
    assert set(LAYOUTS) == set(Kind)
    assert sorted(kind for kind, _, _ in GOLDEN) == sorted(Kind)
    assert {kind.value for kind in Kind} == set(range(1, len(Kind) + 1))


def test_the_document_lists_the_records_as_the_table_has_them() -> None:
    types = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "q": "i64"}
    rows = [
        [kind.name, str(int(kind)), ", ".join([*fields, *([row.tail] if row.tail else [])])]
        for kind, row in RECORDS.items()
        for fields in [
            [
                f"{name} {types[code]}"
                for name, code in zip(row.fields, row.layout.format[2:], strict=True)
            ]
        ]
    ]
    text = (ROOT / "docs" / "internals" / "journal-format.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in text.splitlines()]
    shown = [cell for cell in cells if len(cell) == 3 and cell[0] in Kind.__members__]
    assert sorted(shown) == sorted(rows)


def test_a_fresh_job_has_its_bytes_for_ever() -> None:
    record = job_record.HEADER.pack(7, 1500, 500, 60_000, 3, 1, State.DELAYED, Flag.NONE)
    assert record == bytes.fromhex(FRESH)
    assert len(record) == job_record.HEADER_BYTES == 42
    assert job_parts.body_of(record + b"body") == b"body"
    assert tally_of(record) == Tally(delay_ms=1000)


def test_a_job_that_was_worked_on_has_its_bytes_for_ever() -> None:
    fresh = bytes.fromhex(FRESH) + b"body"
    record = transitions.released(fresh, due_ms=2000, delay_ms=10, priority=4)
    assert record == bytes.fromhex(WORKED_ON) + b"body"
    assert len(record) == job_parts.HEADER_AND_TALLY + 4 == 74
    assert record[job_record.FLAGS_AT] == Flag.TALLY
    assert tally_of(record) == Tally(delay_ms=10, reserves=1, releases=1)


def whole() -> bytes:
    """A job with all the parts that there are."""
    fresh = job_record.HEADER.pack(7, 1500, 500, 60_000, 3, 1, State.READY, Flag.NONE)
    failure = Failure(Reason.NACKED, 2, 1900)
    record = transitions.rescheduled(fresh, due_ms=2000, delay_ms=10, wall_ms=0x0102030405060708)
    record = transitions.amend(record, State.BURIED, reserves=5, timeouts=1, buries=1)
    record = transitions.amend(record, State.BURIED, rank=0x200000001, failure=failure)
    retry, note = Retry((15_000, 180_000), 9, 10), Note("mail", "oé")
    tail = {
        Flag.KEY: job_parts.pack_key("or-1é".encode()),
        Flag.NOTE: job_parts.pack_note(note),
        **job_parts.pack_parts(Own(retry, b"PUT https://a.b\nA: ")),
    }
    return job_parts.with_parts(record, tail, b"body")


def test_a_job_with_all_parts_has_its_bytes_for_ever() -> None:
    record = whole()
    assert record == bytes.fromhex(ALL_PARTS) + b"body"
    assert job_parts.body_of(record) == b"body"
    assert job_parts.head_bytes_of(record) == len(record) - 4
    assert tally_of(record) == (10, 5, 1, 0, 1, 0)
    assert job_parts.wall_of(record) == 0x0102030405060708
    assert job_parts.rank_of(record) == 0x200000001
    assert job_parts.failure_of(record) == (Reason.NACKED, 2, 1900)
    assert job_parts.attempts_of(record) == 3
    assert job_parts.key_of(record) == "or-1é".encode()
    assert job_parts.retry_of(record) == ((15_000, 180_000), 9, 10)
    assert job_parts.note_of(record) == ("mail", "oé")
    assert job_parts.target_of(record) == b"PUT https://a.b\nA: "


def test_parts_are_told_apart_whichever_there_are() -> None:
    for flags in (*range(128), *range(256, 384), *range(512, 640), 768, 895):
        parts_are_told_apart(flags)


def parts_are_told_apart(flags: int) -> None:
    """This set of parts is built, read, and taken through every change."""
    wall_ms = 77 if flags & Flag.WALL else None
    state = State.BURIED if flags & Flag.RANK else State.READY
    failure = Failure(Reason.RELEASED, 0, 9) if flags & Flag.FAILURE else None
    key = b"key" if flags & Flag.KEY else b""
    retry = Retry((5,), 6, 7) if flags & Flag.RETRY else None
    note = Note("", "why") if flags & Flag.NOTE else None
    target = b"POST https://a.b/" if flags & Flag.TARGET else b""
    group = b"of" if flags & Flag.GROUP else b""
    record = job_record.HEADER.pack(7, 2000, 500, 60_000, 3, 1, state, Flag.NONE)
    if flags & (Flag.TALLY | Flag.WALL | Flag.RANK | Flag.FAILURE):
        record = transitions.amend(record, state, due_ms=2000, wall_ms=wall_ms, failure=failure)
    tail = {Flag.KEY: job_parts.pack_key(key), Flag.NOTE: job_parts.pack_note(note)}
    record = job_parts.with_parts(
        record, tail | job_parts.pack_parts(Own(retry, target, group)), b"body"
    )
    for change in (
        lambda record: record,
        lambda record: job_parts.with_parts(record, {}, b"body"),
        lambda record: transitions.with_note(record, note),
        lambda record: transitions.placed_anew(record, 2000),
        transitions.kicked,
        transitions.returned,
        lambda record: transitions.buried(record, 9, rank=5),
        lambda record: transitions.amended(record, 5, 4, 77, 60_000, 3, State.READY),
    ):
        record = change(record)
        assert (
            job_parts.key_of(record),
            job_parts.retry_of(record),
            job_parts.note_of(record),
        ) == (key, retry, note)
        assert (job_parts.target_of(record), job_parts.group_of(record)) == (target, group)
        assert job_parts.body_of(record) == b"body"
        is_buried = job_record.state_of(record) is State.BURIED
        assert is_buried or not record[job_record.FLAGS_AT] & Flag.RANK
        assert job_parts.wall_of(record) in {None, 77}
        assert job_parts.head_bytes_of(record) == len(record) - 4
    assert job_parts.key_of(transitions.without_key(record)) == b""
    assert job_parts.target_of(transitions.without_key(record)) == target
    assert job_parts.body_of(transitions.without_key(record)) == b"body"
    assert job_parts.note_of(transitions.with_note(record, None)) is None


def test_the_document_shows_a_job_with_all_that_a_failure_leaves() -> None:
    text = (ROOT / "docs" / "internals" / "journal-format.md").read_text(encoding="utf-8")
    block = text.split("with the words `no`:\n")[1].strip().split("\n\n")[0]
    shown = "".join(line.strip().split("  ")[0] for line in block.splitlines())
    record = bytes.fromhex(shown)
    fresh = job_record.HEADER.pack(7, NOW_MS, NOW_MS - 2048, 60_000, 0, 1, State.READY, Flag.NONE)
    failure = Failure(Reason.NACKED, 0, NOW_MS)
    delayed = transitions.amend(fresh, State.DELAYED, reserves=1, failure=failure)
    delayed = transitions.amend(delayed, State.DELAYED, due_ms=NOW_MS + 15_000, delay_ms=15_000)
    note, retry = Note("", "no"), Retry((15_000, 180_000))
    tail = {Flag.KEY: job_parts.pack_key(b"a-17"), Flag.NOTE: job_parts.pack_note(note)}
    assert record == job_parts.with_parts(delayed, tail | job_parts.pack_parts(Own(retry)), b"hi")


def test_a_count_stops_at_its_limit() -> None:
    record = job_record.HEADER.pack(7, 0, 0, 1, 0, 1, State.READY, Flag.NONE)
    full = transitions.amend(record, State.READY, kicks=COUNT_MAX)
    assert tally_of(transitions.kicked(full)).kicks == COUNT_MAX


def test_a_job_with_a_history_has_its_bytes_for_ever() -> None:
    fresh = bytes.fromhex(FRESH)
    flagged = fresh[: job_record.FLAGS_AT] + b"\x80"
    attempts = [
        job_parts.Attempt(0x0102, 0x0304, Reason.NACKED, job_parts.AttemptOutcome.MOVED, "me", "n"),
        job_parts.Attempt(5, 0, Reason.TTR_RAN_OUT, job_parts.AttemptOutcome.BURIED, "", ""),
    ]
    record = job_parts.with_parts(fresh, {Flag.HISTORY: job_parts.pack_history(attempts)}, b"body")
    golden = bytes.fromhex(
        "0480 2b00 0201000000000000 0403000000000000 01 04 02 01 6d65 6e"
        "0500000000000000 0000000000000000 03 03 00 00"
    )
    assert record == flagged + golden + b"body"
    assert job_parts.history_of(record) == attempts
    assert job_parts.word_of(record) == 4


def test_a_job_of_a_group_has_its_bytes_for_ever() -> None:
    """With a target beside it and without; both need a PARTS record."""
    fresh = bytes.fromhex(FRESH)
    flagged = fresh[: job_record.FLAGS_AT] + b"\x90"
    both = Own(target=b"GET u", group="mül".encode())
    tail = {Flag.KEY: job_parts.pack_key(b"k"), **job_parts.pack_parts(both)}
    record = job_parts.with_parts(fresh, tail, b"body")
    golden = bytes.fromhex("016b 0380 0500 4745542075 0400 6dc3bc6c")
    assert record == flagged + golden + b"body"
    assert (job_parts.word_of(record), job_parts.flags_of(record)) == (
        3,
        Flag.KEY | Flag.TARGET | Flag.GROUP,
    )
    assert job_parts.texts_of(record) == {"group": "mül"}
    alone = job_parts.with_parts(record, {Flag.TARGET: b""})
    assert alone == flagged + bytes.fromhex("016b 0280 0400 6dc3bc6c") + b"body"
    assert (job_parts.target_of(alone), job_parts.group_of(alone)) == (b"", "mül".encode())
    assert job_parts.head_bytes_of(alone) == len(alone) - 4
    pushed = job_parts.with_parts(record, {Flag.GROUP: b""})
    assert pushed == flagged + bytes.fromhex("016b 0500 4745542075") + b"body"
    assert (job_parts.word_of(pushed), job_parts.texts_of(pushed)) == (0, {})
