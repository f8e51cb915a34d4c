"""The lives of topics, what they cost while they have no jobs, and how many may have policies."""

import random

import pytest

from delayd.core.errors import PoliciesFull
from delayd.core.operations.put import take_id
from delayd.core.operations.tick import next_deadline
from delayd.core.policy import Policy
from delayd.limits import POLICIES_MAX, TIMER_STALE_ROWS
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig


def names(rig: EngineRig) -> list[str]:
    return [topic.name for topic in rig.engine.store.topics.listing]


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


def test_a_job_that_comes_from_another_topic_gives_a_topic_queues_of_its_own(
    rig: EngineRig,
) -> None:
    rig.set_policy(attempts_max=1, exhausted="dead")
    dead, without_jobs = rig.topic("dead"), rig.engine.store.without_jobs
    me = rig.client()
    rig.put()
    rig.reserve(me)
    assert dead.queues is without_jobs
    rig.nack(me, 1)
    check(rig.engine)
    assert rig.reserve(rig.client("dead")) == 1
    rig.clear("dead")
    assert dead.queues is not without_jobs, "the sweep takes entries out of what it had"
    check(rig.engine)


def test_a_batch_of_puts_is_what_single_puts_are() -> None:
    batch, single = EngineRig(), EngineRig()
    bodies = [b"x", b"", b"yy"]
    batch.put_alike(bodies, "a", priority=7, ttr_ms=9)
    for body in bodies:
        single.put("a", priority=7, ttr_ms=9, body=body)
    assert [*canonical(batch.engine)] == [*canonical(single.engine)]


def test_a_topic_that_vanished_comes_back_with_counters_at_zero(rig: EngineRig) -> None:
    rig.put("a", delay_ms=1000)
    rig.pause("a", 500)
    rig.delete(rig.client(), 1)
    rig.put("a")
    assert rig.view_topic("a") == ("a", 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert views.totals(rig.engine).jobs_put == 2


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


def test_ids_count_upwards_and_what_a_refused_put_took_is_not_given_again(rig: EngineRig) -> None:
    assert [rig.put(), take_id(rig.engine)] == [1, 2]
    rig.delete(rig.client(), 1)
    assert rig.put() == 3


@pytest.mark.thorough
def test_so_many_topics_may_have_policies_of_their_own_and_no_more(rig: EngineRig) -> None:
    policy = Policy(jobs_max=9)
    for number in range(POLICIES_MAX):
        rig.set_policy(f"t{number}", policy)
    rig.take_log()
    before = names(rig)
    with pytest.raises(PoliciesFull, match="'mail' would be one more than the 10000"):
        rig.set_policy("mail", policy)
    assert (names(rig), rig.take_log()) == (before, (b"", False))
    rig.set_policy("mail", Policy())  # which is none
    rig.set_policy("t7", Policy(jobs_max=8))
    rig.set_policy("t8", None)
    rig.set_policy("mail", policy)
    rig.engine.store.topics.check()
    rig.engine.store.drop_if_unwanted(rig.topic("t7"))
    assert "t7" in names(rig)
