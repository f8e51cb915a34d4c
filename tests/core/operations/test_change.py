"""Changes of jobs that wait: another time, priority, ttr or body, all or nothing."""

from delayd.core.job_parts import note_of
from delayd.core.job_record import State
from delayd.core.operations.attempts import bury
from delayd.core.operations.change import bury_waiting, kick_later
from delayd.core.operations.wall_clock import follow_wall
from delayd.limits import ERROR_BYTES_MAX
from tests.core.operations.test_put_keyed import (
    HOUR_MS,
    agree_with_the_log,
    job_in,
    put,
    record_of,
    state_of,
)
from tests.core.views import view_job
from tests.rigs.engine import EngineRig

# --- Burying -------------------------------------------------------------------------------------


def test_an_error_is_cut_to_what_is_kept() -> None:
    rig, _ = job_in(State.READY)
    bury_waiting(rig.engine, 1, rig.now_ms, error="\u00e9" * 700)
    note = note_of(record_of(rig, 1))
    assert note is not None
    assert note.error == "\u00e9" * (ERROR_BYTES_MAX // 2)
    agree_with_the_log(rig)


def test_a_job_for_a_wall_clock_time_is_buried_and_no_longer_follows_the_clock() -> None:
    rig = EngineRig()
    put(rig, due_wall_ms=HOUR_MS)
    bury_waiting(rig.engine, 1, rig.now_ms)
    assert rig.engine.store.wall_times.count == 0
    follow_wall(rig.engine, 2 * HOUR_MS)
    rig.run(10)
    assert state_of(rig, 1) is State.BURIED
    agree_with_the_log(rig)


def test_a_job_that_is_kicked_for_later_comes_due_at_a_tick() -> None:
    rig = EngineRig(tick_ms=100)
    me = rig.client()
    job_id = rig.put()
    rig.reserve_all(me)
    bury(rig.engine, me, job_id, 0, rig.now_ms)
    kick_later(rig.engine, job_id, 101, rig.now_ms)
    assert view_job(rig.engine, job_id, rig.now_ms).left_ms == 200
