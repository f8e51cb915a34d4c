"""Absolute times follow the wall clock: whatever it is set to, whenever, in whatever slices."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from delayd.core.dump import Dump
from delayd.core.engine import Engine
from delayd.core.errors import (
    BodyTooBig,
    Draining,
    JobNotFound,
    OutOfSpace,
    Refusal,
    ValueOutOfRange,
)
from delayd.core.job_parts import FIXED_END, Flag, body_of, tally_of, wall_of
from delayd.core.job_record import DUE_AT, FLAGS_AT, U64, State
from delayd.core.log_records import Kind, UnknownRecord
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury
from delayd.core.operations.change import kick_job, reschedule
from delayd.core.operations.reserve import reserve
from delayd.core.operations.tick import next_deadline, reach
from delayd.core.operations.topics import pause as pause_topic
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.replay import Replay
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.transitions import came_due
from delayd.limits import WALL_MS_MAX, WALL_STEPS_MAX
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig, kinds_of, put

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR_MS: Final = 3_600_000
NOW_MS: Final = 1_700_000_000_000
IN_1970_MS: Final = 600_000
IN_2106_MS: Final = 4_294_967_300_000
WHOLE: Final = 1 << 40
ROOT: Final = Path(__file__).parents[3]


def put_at(rig: EngineRig, wall_ms: int, topic: str = "default", body: bytes = b"") -> int:
    return put(
        rig.engine,
        rig.engine.store.topic(topic),
        priority=0,
        due_wall_ms=wall_ms,
        ttr_ms=TTR_MS,
        body=body,
        now_ms=rig.now_ms,
    )


def state_of(rig: EngineRig, job_id: int) -> State:
    return views.view_job(rig.engine, job_id, rig.now_ms).state


def left_ms(rig: EngineRig, job_id: int) -> int:
    return views.view_job(rig.engine, job_id, rig.now_ms).left_ms


def set_wall(rig: EngineRig, wall_ms: int) -> None:
    """Let the wall clock say this now, and all jobs be placed."""
    follow_wall(rig.engine, wall_ms - rig.time_ms)
    rig.run(rig.time_ms)


def same(rig: EngineRig) -> None:
    """The log alone leads to the same state."""
    check(rig.engine)
    replayed = rig.replayed()
    check(replayed)
    assert list(canonical(replayed)) == list(canonical(rig.engine))


# --- One job and one clock -----------------------------------------------------------------------


@pytest.mark.parametrize("tick_ms", [1, 10, 1000])
@pytest.mark.parametrize("offset_ms", [0, 5, -5, HOUR_MS, IN_2106_MS, -NOW_MS + IN_1970_MS])
def test_a_job_comes_at_its_time_by_the_wall_clock_and_not_a_millisecond_before(
    tick_ms: int, offset_ms: int
) -> None:
    rig = EngineRig(time_ms=NOW_MS, tick_ms=tick_ms)
    follow_wall(rig.engine, offset_ms)
    job_id = put_at(rig, NOW_MS + offset_ms + 2_500)
    due_ms = -(-(NOW_MS + 2_500) // tick_ms) * tick_ms
    rig.run(due_ms - 1)
    assert state_of(rig, job_id) is State.DELAYED
    rig.run(due_ms)
    assert state_of(rig, job_id) is State.READY
    same(rig)


def test_ttr_pause_and_wait_do_not_follow_the_wall_clock() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    worker, waiter = rig.client(), rig.client("other")
    rig.put()
    rig.put("paused")
    assert rig.reserve(worker) == 1
    pause_topic(rig.engine, "paused", HOUR_MS, rig.now_ms)
    rig.wait(waiter, HOUR_MS)
    put_at(rig, NOW_MS + 10 * HOUR_MS)
    for to_ms in (IN_2106_MS, IN_1970_MS, NOW_MS):
        set_wall(rig, to_ms)
        assert left_ms(rig, 1) == (TTR_MS if to_ms != IN_2106_MS else left_ms(rig, 1))
        pause = views.view_topic(rig.engine, "paused", rig.now_ms)
        assert pause.pause_left_ms == HOUR_MS
        assert not rig.delivered()


def test_somebody_who_waits_gets_the_job_that_the_clock_was_set_past() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    waiter = rig.client()
    job_id = put_at(rig, NOW_MS + HOUR_MS)
    rig.wait(waiter)
    set_wall(rig, NOW_MS + HOUR_MS)
    assert rig.delivered() == [(waiter, job_id)]
    same(rig)


def test_the_tally_and_the_body_stand_beside_the_moment() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    me = rig.client()
    job_id = put_at(rig, NOW_MS, body=b"body")
    assert reserve(rig.engine, me, rig.now_ms) == (job_id, b"body")
    bury(rig.engine, me, job_id, 5, RequestMs(rig.engine.store.time_ms))
    record = rig.engine.store.jobs.get(job_id)
    assert record is not None
    assert (wall_of(record), body_of(record), tally_of(record).buries) == (NOW_MS, b"body", 1)
    kick_job(rig.engine, job_id, rig.now_ms)
    reschedule(rig.engine, job_id, 0, rig.now_ms, NOW_MS + HOUR_MS)
    view = views.view_job(rig.engine, job_id, rig.now_ms)
    assert (view.state, view.delay_ms, view.left_ms) == (State.DELAYED, HOUR_MS, HOUR_MS)
    assert (view.buries, view.kicks, view.priority) == (1, 1, 5)
    same(rig)


def test_a_record_of_an_absolute_job_has_its_bytes_for_ever() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    follow_wall(rig.engine, -1)
    put_at(rig, NOW_MS + 4, body=b"hi")
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
    assert dumped[3].fields["wall_ms"] == NOW_MS + 4
    assert dumped[3].body == b"hi"


def test_the_document_shows_these_bytes() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    follow_wall(rig.engine, -1)
    put_at(rig, NOW_MS + 4, body=b"hi")
    text = (ROOT / "docs" / "journal-format.md").read_text(encoding="utf-8")
    block = text.split("as it stands in the log:\n")[1].split("\n\n")[0]
    shown = "".join(line.strip().split("  ")[0] for line in block.splitlines())
    assert bytes.fromhex(shown) == rig.take_log()[0]


def test_what_the_first_delayd_with_absolute_times_wrote_is_read_for_ever() -> None:
    """`golden/moments-log` is never changed; `golden/moments-state` is what it must lead to."""
    golden = Path(__file__).parents[1] / "golden"
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


# --- What is refused, and what a log says --------------------------------------------------------


def test_what_is_refused_changes_nothing() -> None:
    rig = EngineRig(time_ms=NOW_MS, body_bytes_max=3)
    engine = rig.engine
    job_id = rig.put()
    rig.take_log()
    refusals: tuple[tuple[type[Refusal], Callable[[], object]], ...] = (
        (ValueOutOfRange, lambda: put_at(rig, -1)),
        (ValueOutOfRange, lambda: put_at(rig, WALL_MS_MAX + 1)),
        (BodyTooBig, lambda: put_at(rig, NOW_MS, body=b"long")),
        (ValueOutOfRange, lambda: reschedule(engine, job_id, 0, RequestMs(NOW_MS), -1)),
        (
            ValueOutOfRange,
            lambda: reschedule(engine, job_id, 0, RequestMs(NOW_MS), WALL_MS_MAX + 1),
        ),
        (JobNotFound, lambda: reschedule(engine, 99, 0, RequestMs(NOW_MS), NOW_MS)),
    )
    for refusal, operation in refusals:
        with pytest.raises(refusal):
            operation()
    engine.log_space.limit(0, lambda _missing, _body, _places: -1)
    with pytest.raises(OutOfSpace):
        put_at(rig, NOW_MS)
    with pytest.raises(OutOfSpace):
        reschedule(engine, job_id, 0, RequestMs(NOW_MS), NOW_MS + 5)
    engine.draining = True
    with pytest.raises(Draining):
        put_at(rig, NOW_MS)
    assert not engine.log
    assert not engine.store.wall_times.count


def test_the_latest_moment_is_the_end_of_the_year_9999() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    job_id = put_at(rig, WALL_MS_MAX)
    set_wall(rig, IN_1970_MS)
    assert left_ms(rig, job_id) == WALL_MS_MAX - IN_1970_MS
    same(rig)


def test_a_log_without_absolute_times_never_says_what_the_wall_clock_did() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    rig.put(delay_ms=5)
    set_wall(rig, IN_2106_MS)
    rig.put(delay_ms=5)
    copied = SnapshotCopy(rig.engine.store).take(WHOLE, WHOLE)
    assert Kind.OFFSET not in kinds_of(rig.take_log()[0] + copied)


def test_a_step_while_no_job_follows_is_said_before_the_next_one_that_does() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    me = rig.client()
    job_id = put_at(rig, NOW_MS + HOUR_MS)
    delete(rig.engine, me, job_id, rig.now_ms)
    set_wall(rig, NOW_MS + 7 * HOUR_MS)
    reschedule(rig.engine, rig.put(), 0, rig.now_ms, NOW_MS + 8 * HOUR_MS)
    assert left_ms(rig, 2) == HOUR_MS
    kinds = kinds_of(rig.take_log()[0])
    assert kinds.count(Kind.OFFSET) == 2
    same(rig)


def test_a_job_whose_offset_no_record_says_and_flags_without_their_parts_are_refused() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    put_at(rig, NOW_MS + 5)
    reschedule(rig.engine, 1, 0, rig.now_ms, NOW_MS + 9)
    payload, _ = rig.take_log()
    at = payload.index(bytes((Kind.OFFSET,)), 9)
    without = payload[:at] + payload[at + 9 :]
    with pytest.raises(UnknownRecord, match="no record says where the time of 1 is"):
        Replay(Engine(start_ms=0)).play(without)
    flags_at = payload.index(bytes((Kind.PUT,)), 30) + 5 + FLAGS_AT
    for flags in (0x80, 0x82, 0xFF):
        changed = payload[:flags_at] + bytes((flags,)) + payload[flags_at + 1 :]
        with pytest.raises(UnknownRecord):
            Replay(Engine(start_ms=0)).play(changed)
        with pytest.raises(
            UnknownRecord, match=r"shorter than (its parts|a job.s header and tally)"
        ):
            list(Dump().records(changed))


# --- Restarts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [0, HOUR_MS, -HOUR_MS, -NOW_MS + IN_1970_MS])
def test_the_clock_was_set_while_the_daemon_was_stopped(step_ms: int) -> None:
    rig = EngineRig(time_ms=NOW_MS)
    absolute_id = put_at(rig, NOW_MS + 2 * HOUR_MS)
    relative_id = rig.put(delay_ms=2 * HOUR_MS)
    rig.take_log()
    # As SystemClock.resume carries delayd time on: by the wall clock, never backwards.
    wall_ms = NOW_MS + step_ms
    rig.restart()
    start_ms = NOW_MS + max(0, step_ms)
    reach(rig.engine, PlayedMs(start_ms))
    follow_wall(rig.engine, wall_ms - start_ms)
    rig.run(start_ms)
    assert left_ms(rig, absolute_id) == NOW_MS + 2 * HOUR_MS - wall_ms
    assert left_ms(rig, relative_id) == NOW_MS + 2 * HOUR_MS - start_ms
    same(rig)


def test_a_restart_in_the_middle_of_placing_arrives_at_the_same() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    for seconds in range(400):
        put_at(rig, NOW_MS + 1_000 * seconds)
    follow_wall(rig.engine, 200_000)
    for _ in range(3):
        assert rig.advance(NOW_MS)
    assert rig.engine.store.wall_times.layers
    same(rig)
    rig.restart()
    assert not rig.engine.store.wall_times.layers
    assert rig.engine.store.wall_times.count == 199
    same(rig)


# --- Slices --------------------------------------------------------------------------------------


def test_one_call_places_sixty_four_jobs_at_most_and_takes_turns_with_what_is_due() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    for _ in range(1_000):
        put_at(rig, NOW_MS + HOUR_MS)
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
            assert relative_id in rig.engine.store.topics.by_name["other"].queues.ready
    assert slices >= 1_000 // 64
    assert left == 0
    deadline_ms = next_deadline(rig.engine)
    assert deadline_ms is not None
    assert NOW_MS + 5 < deadline_ms <= NOW_MS + 2 * HOUR_MS


def test_no_copy_begins_while_jobs_are_placed() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    put_at(rig, NOW_MS + HOUR_MS)
    follow_wall(rig.engine, 5)
    with pytest.raises(AssertionError, match="placed anew"):
        SnapshotCopy(rig.engine.store)


def test_one_step_more_than_are_remembered_places_the_oldest_at_once() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    for number in range(3 * WALL_STEPS_MAX):
        for _ in range(70):
            put_at(rig, NOW_MS + HOUR_MS)
        follow_wall(rig.engine, -number - 1)
        assert len(rig.engine.store.wall_times.layers) <= WALL_STEPS_MAX
        same(rig)
    rig.run(NOW_MS)
    assert not rig.engine.store.wall_times.layers
    assert left_ms(rig, 1) == HOUR_MS + 3 * WALL_STEPS_MAX
    same(rig)


# --- The index -----------------------------------------------------------------------------------


def test_coming_due_keeps_the_moment() -> None:
    rig = EngineRig(time_ms=NOW_MS)
    job_id = put_at(rig, NOW_MS + 5)
    record = rig.engine.store.jobs.get(job_id)
    assert record is not None
    assert wall_of(came_due(record)) == NOW_MS + 5
    assert U64.unpack_from(record, DUE_AT) == (NOW_MS + 5,)
