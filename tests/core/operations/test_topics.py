"""Ready order, the lives of topics, what one sees of them, kicks and batches."""

import random

import pytest

from delayd.core.errors import PoliciesFull
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import nack
from delayd.core.operations.put import put_alike, take_id
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.topics import clear, pause, set_policy
from delayd.core.policy import Policy
from delayd.core.times import RequestMs
from delayd.limits import POLICIES_MAX, TIMER_STALE_ROWS
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig


def names(rig: EngineRig) -> list[str]:
    return [topic.name for topic in rig.engine.store.topics.listing]


# --- Without jobs --------------------------------------------------------------------------------


def test_topics_that_have_had_no_job_share_queues_in_which_there_is_nothing() -> None:
    rig = EngineRig()
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


def test_a_job_that_comes_from_another_topic_gives_a_topic_queues_of_its_own() -> None:
    rig = EngineRig()
    set_policy(rig.engine, "default", Policy(attempts_max=1, exhausted="dead"), rig.now_ms)
    store = rig.engine.store
    dead = store.topics.by_name["dead"]
    rig.put()
    me = rig.client()
    rig.reserve(me)
    assert dead.queues is store.without_jobs
    nack(rig.engine, me, 1, rig.now_ms)
    check(rig.engine)
    assert rig.reserve(rig.client("dead")) == 1
    clear(rig.engine, dead)
    assert dead.queues is not store.without_jobs, "the sweep takes entries out of what it had"
    check(rig.engine)


# --- Batches -------------------------------------------------------------------------------------


def test_a_batch_of_puts_is_what_single_puts_are() -> None:
    batch, single = EngineRig(), EngineRig()
    for rig in (batch, single):
        rig.wait(rig.client("a"))
    bodies = [b"x", b"", b"yy"]
    put_alike(
        batch.engine,
        batch.engine.store.topic("a"),
        priority=7,
        delay_ms=0,
        ttr_ms=9,
        bodies=bodies,
        now_ms=RequestMs(0),
    )
    for body in bodies:
        single.put("a", priority=7, ttr_ms=9, body=body)
    assert [*canonical(batch.engine)] == [*canonical(single.engine)]
    assert [outcome for _, outcome in batch.delivered()] == [1]


def test_a_batch_ends_with_the_job_that_exceeds_its_bytes() -> None:
    rig = EngineRig()
    for _ in range(5):
        rig.put(body=b"12345")
    me = rig.client()
    jobs = [reserve_batch(rig.engine, me, 9, bytes_max, rig.now_ms) for bytes_max in (10, 0, -1)]
    assert [len(batch) for batch in jobs] == [3, 1, 0]


# --- The lives of topics -------------------------------------------------------------------------


def test_a_topic_vanishes_with_its_last_job_and_comes_back_with_counters_at_zero() -> None:
    rig = EngineRig()
    me = rig.client()
    rig.put("a", delay_ms=1000)
    pause(rig.engine, "a", 500, rig.now_ms)
    delete(rig.engine, me, 1, rig.now_ms)
    assert names(rig) == ["default"]
    rig.put("a")
    seen = views.view_topic(rig.engine, "a", rig.now_ms)
    assert seen == ("a", 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert views.totals(rig.engine).jobs_put == 2
    assert rig.reserve(rig.client("a")) == 2


def test_a_vanished_topic_leaves_nothing_behind_though_its_jobs_were_due_in_years(
    rng: random.Random,
) -> None:
    rig = EngineRig()
    me = rig.client()
    for number in range(5000):
        job_id = rig.put(f"t{number}", delay_ms=rng.randrange(10**11, 4 * 10**12))
        delete(rig.engine, me, job_id, rig.now_ms)
    assert len(rig.engine.store.timer_queue._rows) <= TIMER_STALE_ROWS
    assert next_deadline(rig.engine) is None
    assert not rig.engine.store.timer_queue._rows
    check(rig.engine)


# --- Kicks and peeks -----------------------------------------------------------------------------


def test_ids_count_upwards_and_what_a_refused_put_took_is_not_given_again() -> None:
    rig = EngineRig()
    assert rig.put() == 1
    assert take_id(rig.engine) == 2
    delete(rig.engine, rig.client(), 1, rig.now_ms)
    assert rig.put() == 3


def test_so_many_topics_may_have_policies_of_their_own_and_no_more() -> None:
    rig = EngineRig()
    policy = Policy(jobs_max=9)
    for number in range(POLICIES_MAX):
        set_policy(rig.engine, f"t{number}", policy, rig.now_ms)
    before = names(rig), rig.take_log()
    with pytest.raises(PoliciesFull, match="'mail' would be one more than the 10000"):
        set_policy(rig.engine, "mail", policy, rig.now_ms)
    assert (names(rig), rig.take_log()) == (before[0], (b"", False))
    set_policy(rig.engine, "mail", Policy(), rig.now_ms)  # which is none
    set_policy(rig.engine, "t7", Policy(jobs_max=8), rig.now_ms)
    set_policy(rig.engine, "t8", None, rig.now_ms)
    set_policy(rig.engine, "mail", policy, rig.now_ms)
    rig.engine.store.topics.check()
    rig.engine.store.drop_if_unwanted(rig.engine.store.topics.by_name["t7"])
    assert "t7" in names(rig)
