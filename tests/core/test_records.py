"""The bytes of every record: what is in a journal today must be readable for ever."""

import struct
from typing import Final

import pytest

from delayd.core import job, records
from delayd.core.job import COUNT_MAX, Flag, State, Tally, tally_of
from delayd.core.records import LAYOUTS, Kind
from tests.core.rigs import Rig, kinds_of

GOLDEN: Final = (
    (Kind.TURN, (0x0102030405060708,), "01 0807060504030201"),
    (Kind.TOPIC, (5, 3), "02 05000000 03"),
    (Kind.PUT, (42,), "03 2a000000"),
    (Kind.RESERVE, (7, 1000), "04 0700000000000000 e803000000000000"),
    (Kind.TOUCH, (7, 1000), "05 0700000000000000 e803000000000000"),
    (
        Kind.RELEASE,
        (7, 1000, 500, 2**32 - 1),
        "06 0700000000000000 e803000000000000 f401000000000000 ffffffff",
    ),
    (Kind.RETURN, (2**64 - 1,), "07 ffffffffffffffff"),
    (Kind.BURY, (7, 3), "08 0700000000000000 03000000"),
    (Kind.KICK, (7,), "09 0700000000000000"),
    (Kind.RESCHEDULE, (7, 1000, 500), "0a 0700000000000000 e803000000000000 f401000000000000"),
    (Kind.DELETE, (7,), "0b 0700000000000000"),
    (Kind.PAUSE, (5, 1000, 500), "0c 05000000 e803000000000000 f401000000000000"),
    (Kind.LAST, (9, 5), "0d 0900000000000000 05000000"),
    (Kind.RANK, (9, 5), "0e 0900000000000000 0500000000000000"),
    (Kind.OFFSET, (-2,), "0f feffffffffffffff"),
    (
        Kind.APPOINT,
        (9, 1000, 500, 2000),
        "10 0900000000000000 e803000000000000 f401000000000000 d007000000000000",
    ),
)

FRESH: Final = (
    "0700000000000000 dc05000000000000 f401000000000000 60ea000000000000 03000000 01000000 00 00"
)
WORKED_ON: Final = (
    "0700000000000000 d007000000000000 f401000000000000 60ea000000000000 04000000 01000000 00 01"
    "0a00000000000000 01000000 00000000 01000000 00000000 00000000"
)


@pytest.mark.parametrize(("kind", "values", "golden"), GOLDEN)
def test_each_kind_has_its_bytes_for_ever(kind: Kind, values: tuple[int, ...], golden: str) -> None:
    pack = getattr(records, f"pack_{kind.name.lower()}")
    assert pack(kind, *values) == bytes.fromhex(golden)
    assert LAYOUTS[kind].unpack(bytes.fromhex(golden)) == (kind, *values)


def test_every_kind_has_a_layout_and_a_golden_record() -> None:
    assert set(LAYOUTS) == set(Kind) == {kind for kind, _, _ in GOLDEN}
    assert len(GOLDEN) == len(Kind)
    assert {kind.value for kind in Kind} == set(range(1, len(Kind) + 1))


def test_a_fresh_job_has_its_bytes_for_ever() -> None:
    record = job.HEADER.pack(7, 1500, 500, 60_000, 3, 1, State.DELAYED, Flag.NONE)
    assert record == bytes.fromhex(FRESH)
    assert len(record) == job.HEADER_BYTES == 42
    assert job.body_of(record + b"body") == b"body"
    assert tally_of(record) == Tally(delay_ms=1000)


def test_a_job_that_was_worked_on_has_its_bytes_for_ever() -> None:
    fresh = bytes.fromhex(FRESH) + b"body"
    record = job.released(fresh, due_ms=2000, delay_ms=10, priority=4)
    assert record == bytes.fromhex(WORKED_ON) + b"body"
    assert len(record) == job.HEADER_AND_TALLY + 4 == 74
    assert record[job.FLAGS_AT] == Flag.TALLY
    assert tally_of(record) == Tally(delay_ms=10, reserves=1, releases=1)


def test_the_offsets_are_those_of_the_layout() -> None:
    record = job.HEADER.pack(1, 2, 3, 4, 5, 6, 7, 8)
    u64 = [job.ID_AT, job.DUE_AT, job.CREATED_AT, job.TTR_AT]
    assert [struct.unpack_from("<Q", record, at)[0] for at in u64] == [1, 2, 3, 4]
    u32 = [job.PRIORITY_AT, job.TOPIC_AT]
    assert [struct.unpack_from("<I", record, at)[0] for at in u32] == [5, 6]
    assert [record[job.STATE_AT], record[job.FLAGS_AT]] == [7, 8]


def test_what_happens_to_a_job_is_counted_and_the_rest_is_kept() -> None:
    record = job.HEADER.pack(7, 1500, 500, 60_000, 3, 1, State.DELAYED, Flag.NONE) + b"body"
    for change in (
        job.kicked,
        job.lapsed,
        job.returned,
        lambda record: job.buried(record, 9),
        lambda record: job.rescheduled(record, 5000, 4500),
        job.came_due,
        lambda record: job.released(record, 600, 0, 8),
    ):
        record = change(record)
    assert tally_of(record) == (0, 4, 1, 1, 1, 1)
    assert job.HEADER.unpack_from(record) == (7, 600, 500, 60_000, 8, 1, State.READY, Flag.TALLY)
    assert job.body_of(record) == b"body"


def test_a_count_stops_at_its_limit() -> None:
    record = job.HEADER.pack(7, 0, 0, 1, 0, 1, State.READY, Flag.NONE)
    full = job.amend(record, State.READY, kicks=COUNT_MAX)
    assert tally_of(job.kicked(full)).kicks == COUNT_MAX


def test_every_kind_but_the_snapshots_own_is_written_by_some_operation() -> None:
    rig = Rig()
    engine, me = rig.engine, rig.client()
    for _ in range(5):
        rig.put()
    rig.reserve_all(me)
    engine.touch(me, 1, rig.now_ms)  # the same deadline: recorded all the same
    engine.release(me, 1, 0, 5, rig.now_ms)
    engine.reschedule(1, 9, rig.now_ms)
    engine.reschedule_at(1, 9, rig.now_ms)
    engine.bury(me, 2, 0)
    engine.kick_job(2, rig.now_ms)
    engine.delete(me, 3, rig.now_ms)
    engine.pause("default", 1, rig.now_ms)
    engine.close_session(me, rig.now_ms)
    payload, must_sync = rig.take_log()
    assert must_sync
    assert set(kinds_of(payload)) == set(Kind) - {Kind.LAST, Kind.RANK}
