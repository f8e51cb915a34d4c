"""Who waits for a job gets it: the oldest waiter first, one job each, or the end of the wait."""

from delayd.core.operations.reserve import reserve_job
from delayd.core.operations.tick import next_deadline
from delayd.core.session import WaitEnd
from delayd.core.times import PlayedMs
from tests.core import views
from tests.rigs.engine import EngineRig


def test_a_wait_without_end_lasts_for_years_and_needs_no_wake_up() -> None:
    rig = EngineRig()
    me = rig.client()
    rig.wait(me)
    assert next_deadline(rig.engine) is None
    rig.run(10**12)
    rig.put()
    assert rig.delivered() == [(me, 1)]


def test_a_wait_is_not_cut_short_by_an_alarm_that_has_lost_its_reason() -> None:
    rig = EngineRig(skew_ms=1)
    rig.put(ttr_ms=2000)
    me = rig.client("quiet")
    reserve_job(rig.engine, me, 1, rig.now_ms)
    rig.wait(me, 3999)
    # The daemon stood still. Somebody looks at the job, which ends its hold, before the alarm that
    # was set for it rings: a millisecond before the wait ends.
    rig.engine.store.time_ms = PlayedMs(3999)
    assert views.view_job(rig.engine, 1, rig.now_ms).timeouts == 1
    rig.run(3999)
    assert not rig.delivered()
    rig.run(4000)
    assert rig.delivered() == [(me, WaitEnd.TIMED_OUT)]
