"""Delays, holds, pauses and waits end when they should: never early, and in bounded slices."""

from collections.abc import Callable
from typing import Final

import pytest

from delayd.core.job_record import State
from delayd.core.session import Session, WaitEnd
from delayd.core.times import PlayedMs
from delayd.limits import ADVANCE_SLICE_JOBS
from tests.rigs.engine import EngineRig

YEAR_MS: Final = 365 * 86_400_000


DELAYED: Final[dict[str, Callable[[EngineRig, Session], object]]] = {
    # What is done to job 1, which is held, and to job 2, which is buried
    "put": lambda rig, _: rig.put(delay_ms=101),
    "release": lambda rig, me: rig.release(me, 1, 0, 101),
    "nack": lambda rig, me: rig.nack(me, 1, delay_ms=101),
    "kick_later": lambda rig, _: rig.kick_later(2, 101),
    "change": lambda rig, _: rig.change(2, delay_ms=101),
    "reschedule": lambda rig, _: rig.reschedule(rig.put(), 101),
}


@pytest.mark.parametrize("act", DELAYED)
def test_a_delay_ends_at_a_tick_and_not_before(act: str) -> None:
    rig = EngineRig(tick_ms=100)
    me = rig.client()
    rig.put_many(2)
    rig.reserve_all(me)
    rig.bury(me, 2)
    DELAYED[act](rig, me)
    seen = [rig.view(job_id) for job_id, _ in rig.engine.store.jobs]
    assert [job.left_ms for job in seen if job.state is State.DELAYED] == [200]


def test_jobs_of_one_topic_come_due_oldest_first_in_slices_that_are_bounded(rig: EngineRig) -> None:
    jobs = 3 * ADVANCE_SLICE_JOBS
    for number in range(jobs):
        rig.put(delay_ms=jobs - number)
    ready, seen = rig.topic().queues.ready, 0
    while rig.advance(jobs):
        assert len(ready) - seen <= ADVANCE_SLICE_JOBS
        seen = len(ready)
        # What has come is what is oldest, which was put last.
        assert list(ready) == list(range(jobs - seen + 1, jobs + 1))
    assert seen == jobs


def test_a_wait_is_not_cut_short_by_an_alarm_that_has_lost_its_reason() -> None:
    rig = EngineRig(skew_ms=1)
    rig.put(ttr_ms=2000)
    me = rig.client("quiet")
    rig.reserve_job(me, 1)
    rig.wait(me, 3999)
    # The daemon stood still. Somebody looks at the job, which ends its hold, before the alarm that
    # was set for it rings: a millisecond before the wait ends.
    rig.engine.store.time_ms = PlayedMs(3999)
    assert rig.view(1).timeouts == 1
    rig.run(3999)
    assert not rig.delivered()
    rig.run(4000)
    assert rig.delivered() == [(me, WaitEnd.TIMED_OUT)]
