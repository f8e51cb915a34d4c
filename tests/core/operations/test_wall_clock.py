"""Absolute times follow the wall clock: their bytes, in slices, over restarts. More: facts.txt."""

from pathlib import Path
from typing import Final

import pytest

from delayd.core.dump import Dump
from delayd.core.engine import Engine
from delayd.core.errors import DelayTooLong
from delayd.core.job_parts import FIXED_END, Flag, wall_of
from delayd.core.job_record import DUE_AT, FLAGS_AT, U64
from delayd.core.log_records import Kind, UnknownRecord
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.replay import Replay
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import PlayedMs
from delayd.core.transitions import came_due
from delayd.limits import WALL_STEPS_MAX
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig

HOUR_MS: Final = 3_600_000
NOW_MS: Final = 1_700_000_000_000
IN_1970_MS: Final = 600_000
IN_2106_MS: Final = 4_294_967_300_000
WHOLE: Final = 1 << 40
TESTS: Final = Path(__file__).parents[2]


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig(time_ms=NOW_MS)


def test_coming_due_keeps_the_moment(rig: EngineRig) -> None:
    rig.put(due_wall_ms=NOW_MS + 5)
    assert wall_of(came_due(rig.record(1))) == NOW_MS + 5
    assert U64.unpack_from(rig.record(1), DUE_AT) == (NOW_MS + 5,)


def test_a_delay_and_a_moment_that_are_too_far_are_told_apart(rig: EngineRig) -> None:
    rig.set_policy(delay_ms_max=HOUR_MS)
    for delay_ms, wall_ms in ((HOUR_MS + 1, None), (0, NOW_MS + HOUR_MS + 1)):
        with pytest.raises(DelayTooLong) as refused:
            rig.put(delay_ms=delay_ms, due_wall_ms=wall_ms)
        assert refused.value.is_moment == (wall_ms is not None)


# --- The log -------------------------------------------------------------------------------------


def test_a_record_of_an_absolute_job_has_its_bytes_for_ever_as_the_document_shows_them(
    rig: EngineRig,
) -> None:
    follow_wall(rig.engine, -1)
    rig.put(due_wall_ms=NOW_MS + 4, body=b"hi")
    payload, must_sync = rig.take_log()
    assert must_sync
    assert payload.hex(" ") == (
        "01 00 68 e5 cf 8b 01 00 00"  # TURN
        " 0f ff ff ff ff ff ff ff ff"  # OFFSET
        " 02 01 00 00 00 07 64 65 66 61 75 6c 74"  # TOPIC
        " 03 34 00 00 00"  # PUT
        " 01 00 00 00 00 00 00 00 05 68 e5 cf 8b 01 00 00 00 68 e5 cf 8b 01 00 00"
        " 60 ea 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 02"
        " 04 68 e5 cf 8b 01 00 00 68 69"
    )
    dumped = list(Dump().records(payload))
    assert dumped[1].fields == {"offset_ms": -1}
    assert (dumped[3].fields["wall_ms"], dumped[3].body) == (NOW_MS + 4, b"hi")
    text = (TESTS.parent / "docs" / "internals" / "journal-format.md").read_text(encoding="utf-8")
    block = text.split("as it stands in the log:\n")[1].split("\n\n")[0]
    shown = "".join(line.strip().split("  ")[0] for line in block.splitlines())
    assert bytes.fromhex(shown) == payload


def test_what_the_first_delayd_with_absolute_times_wrote_is_read_for_ever() -> None:
    """`golden/moments-log` is never changed; `golden/moments-state` is what it must lead to."""
    golden = TESTS / "core" / "golden"
    replay = Replay(Engine(start_ms=NOW_MS))
    replay.play(bytes.fromhex((golden / "moments-log").read_text()))
    replay.finish(PlayedMs(NOW_MS))
    check(replay.engine)
    said = "".join(f"{unranked(each)!r}\n" for each in canonical(replay.engine))
    assert said == (golden / "moments-state").read_text()


def unranked(said: tuple[str | int | bytes | None, ...]) -> tuple[str | int | bytes | None, ...]:
    """What was said of a job before its record said how long it has been buried."""
    if isinstance(record := said[-2], bytes) and record[FLAGS_AT] & Flag.RANK:
        flags = record[FLAGS_AT] & ~Flag.RANK
        head, end = record[:FLAGS_AT] + bytes((flags,)), FIXED_END[flags]
        said = *said[:3], head + record[FLAGS_AT + 1 : end] + record[end + 8 :], *said[4:]
    return said


def test_a_job_whose_offset_no_record_says_and_flags_without_their_parts_are_refused(
    rig: EngineRig,
) -> None:
    rig.put(due_wall_ms=NOW_MS + 5)
    rig.reschedule(1, 0, NOW_MS + 9)
    payload, _ = rig.take_log()
    at = payload.index(bytes((Kind.OFFSET,)), 9)
    without = payload[:at] + payload[at + 9 :]
    with pytest.raises(UnknownRecord, match="no record says where the time of 1 is"):
        Replay(Engine(start_ms=0)).play(without)
    flags_at = payload.index(bytes((Kind.PUT,)), 30) + 5 + FLAGS_AT
    short = r"shorter than (its parts|a job.s header and tally)"
    for flags in (0x80, 0x82, 0xFF):
        changed = payload[:flags_at] + bytes((flags,)) + payload[flags_at + 1 :]
        with pytest.raises(UnknownRecord):
            Replay(Engine(start_ms=0)).play(changed)
        with pytest.raises(UnknownRecord, match=short):
            list(Dump().records(changed))


# --- Slices --------------------------------------------------------------------------------------


def test_one_call_places_sixty_four_jobs_at_most_and_takes_turns_with_what_is_due(
    rig: EngineRig,
) -> None:
    rig.put_many(1_000, due_wall_ms=NOW_MS + HOUR_MS)
    relative_id = rig.put("other", delay_ms=5)
    follow_wall(rig.engine, -HOUR_MS)
    assert next_deadline(rig.engine) == NOW_MS
    left = 1_000
    slices = 0
    while rig.advance(NOW_MS + 5):
        unplaced = len(rig.engine.store.wall_times.ids()[1])
        assert left - 64 <= unplaced <= left
        left = unplaced
        slices += 1
        if slices == 2:
            assert relative_id in rig.topic("other").queues.ready
    assert slices >= 1_000 // 64
    assert left == 0
    deadline_ms = next_deadline(rig.engine)
    assert deadline_ms is not None
    assert NOW_MS + 5 < deadline_ms <= NOW_MS + 2 * HOUR_MS


def test_no_copy_begins_while_jobs_are_placed(rig: EngineRig) -> None:
    rig.put(due_wall_ms=NOW_MS + HOUR_MS)
    follow_wall(rig.engine, 5)
    with pytest.raises(AssertionError, match="placed anew"):
        SnapshotCopy(rig.engine.store)


@pytest.mark.thorough
def test_one_step_more_than_are_remembered_places_the_oldest_at_once(rig: EngineRig) -> None:
    layers = rig.engine.store.wall_times.layers
    for number in range(3 * WALL_STEPS_MAX):
        rig.put_many(70, due_wall_ms=NOW_MS + HOUR_MS)
        follow_wall(rig.engine, -number - 1)
        assert len(layers) <= WALL_STEPS_MAX
        if number % 8 == 0:
            rig.agree_with_the_log()
    rig.run(NOW_MS)
    assert not layers
    assert rig.view(1).left_ms == HOUR_MS + 3 * WALL_STEPS_MAX
    rig.agree_with_the_log()
