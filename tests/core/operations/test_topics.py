"""The lives of topics, what they cost while they have no jobs, and how many may have policies."""

import random

from delayd.core.operations.tick import next_deadline
from delayd.limits import TIMER_STALE_ROWS
from tests.core.check import check
from tests.rigs.engine import EngineRig


def test_topics_that_have_had_no_job_share_queues_in_which_there_is_nothing(rig: EngineRig) -> None:
    me = rig.client(*(f"t{number}" for number in range(100)))
    rig.wait(me)
    store = rig.engine.store
    assert all(topic.queues is store.without_jobs for topic in store.topics.listing)
    assert rig.put("t50", delay_ms=5) == 1
    own = [topic.name for topic in store.topics.listing if topic.queues is not store.without_jobs]
    assert own == ["t50"]
    rig.run(5)
    assert me.deadlines.keys() == {1}
    check(rig.engine)


def test_a_vanished_topic_leaves_nothing_behind_though_its_jobs_were_due_in_years(
    rig: EngineRig, rng: random.Random
) -> None:
    me, timers = rig.client(), rig.engine.store.timer_queue
    for number in range(5000):
        rig.delete(me, rig.put(f"t{number}", delay_ms=rng.randrange(10**11, 4 * 10**12)))
    assert len(timers._rows) <= TIMER_STALE_ROWS
    assert next_deadline(rig.engine) is None
    assert not timers._rows
    check(rig.engine)


def test_topics_vanish_in_the_order_in_which_a_run_empties_them(rig: EngineRig) -> None:
    """The last topic of the listing takes the place of one that vanishes, so the order shows."""
    for name in "aabcd":
        rig.put(name)
    me = rig.client()
    for job_id in (1, 2, 3):
        rig.reserve_job(me, job_id)
    rig.delete_batch(me, [1, 3, 2])
    assert [topic.name for topic in rig.engine.store.topics.listing] == ["default", "c", "d"]
