"""Who waits for a job gets it: the oldest waiter first, one job each, or the end of the wait."""

import pytest

from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import kick_job
from delayd.core.operations.reserve import reserve_job, touch
from delayd.core.operations.sessions import close_session
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.topics import pause
from delayd.core.operations.waiting import cancel_wait
from delayd.core.session import WaitEnd
from delayd.core.stats.counters import Operation
from delayd.core.times import PlayedMs, RequestMs
from tests.core import views
from tests.core.check import check
from tests.rigs.engine import EngineRig


def test_the_longest_waiting_is_served_first() -> None:
    rig = EngineRig()
    clients = [rig.client() for _ in range(4)]
    for client in (clients[2], clients[0], clients[3], clients[1]):
        rig.wait(client)
    for _ in range(4):
        rig.put()
    order = [clients[2], clients[0], clients[3], clients[1]]
    assert rig.delivered() == [(client, job_id) for job_id, client in enumerate(order, 1)]


def test_who_waits_again_goes_to_the_end_of_the_queue() -> None:
    rig = EngineRig()
    first, second = rig.client(), rig.client()
    rig.wait(first)
    rig.wait(second)
    cancel_wait(rig.engine, first)
    rig.wait(first)
    rig.put()
    assert rig.delivered() == [(second, 1)]


def test_a_waiter_on_several_topics_gets_one_job_and_leaves_all_queues() -> None:
    rig = EngineRig()
    me = rig.client("a", "b", "c")
    rig.wait(me)
    rig.put("b")
    assert rig.delivered() == [(me, 1)]
    assert not any(topic.waiters for topic in rig.engine.store.topics.listing)
    rig.put("a")
    rig.put("c")
    assert not rig.delivered()
    check(rig.engine)


def test_the_oldest_waiter_is_served_though_it_waits_for_other_topics_too() -> None:
    rig = EngineRig()
    broad, narrow = rig.client("a", "b"), rig.client("b")
    rig.wait(broad)
    rig.wait(narrow)
    rig.put("b")
    rig.put("b")
    assert rig.delivered() == [(broad, 1), (narrow, 2)]


@pytest.mark.parametrize("wait_ms", [1, 999, 5000, 100_000_000])
def test_a_wait_ends_at_its_millisecond(wait_ms: int) -> None:
    rig = EngineRig()
    me = rig.client()
    rig.wait(me, wait_ms)
    rig.play(wait_ms - 1)
    assert not rig.delivered()
    rig.play(wait_ms)
    assert rig.delivered() == [(me, WaitEnd.TIMED_OUT)]
    rig.put()
    assert not rig.delivered()
    assert next_deadline(rig.engine) is None or next_deadline(rig.engine) == wait_ms


def test_a_wait_without_end_lasts_for_years_and_needs_no_wake_up() -> None:
    rig = EngineRig()
    me = rig.client()
    rig.wait(me)
    assert next_deadline(rig.engine) is None
    rig.run(10**12)
    rig.put()
    assert rig.delivered() == [(me, 1)]


def test_a_job_that_comes_in_time_ends_the_wait_and_its_alarm() -> None:
    rig = EngineRig()
    me = rig.client()
    rig.wait(me, 5000)
    rig.put()
    assert rig.delivered() == [(me, 1)]
    rig.run(10_000)
    assert not rig.delivered()
    assert not rig.engine.store.alarms.rows


def test_a_job_and_the_end_of_the_wait_at_one_instant_give_one_of_them_and_lose_nothing() -> None:
    rig = EngineRig()
    me = rig.client()
    rig.wait(me, 5000)
    rig.put(delay_ms=5000)
    rig.run(5000)
    [(session, outcome)] = rig.delivered()
    assert session is me
    assert outcome == 1 or (outcome is WaitEnd.TIMED_OUT and rig.reserve(me) == 1)


def test_a_pause_and_a_wait_that_end_at_one_instant_give_one_delivery() -> None:
    rig = EngineRig()
    rig.put()
    pause(rig.engine, "default", 5000, rig.now_ms)
    early, late = rig.client(), rig.client()
    rig.wait(early, 5000)
    rig.wait(late, 5000)
    rig.run(5000)
    assert sorted(rig.delivered(), key=str) == sorted(
        [(early, 1), (late, WaitEnd.TIMED_OUT)], key=str
    )


def test_deadline_soon_ends_a_wait_a_second_before_the_hold_ends() -> None:
    rig = EngineRig()
    rig.put(ttr_ms=5000)
    me = rig.client()
    rig.reserve(me)
    rig.wait(me)
    rig.play(3999)
    assert not rig.delivered()
    rig.play(4000)
    assert rig.delivered() == [(me, WaitEnd.DEADLINE_SOON)]


def test_a_hold_of_a_second_is_always_soon_over() -> None:
    rig = EngineRig()
    rig.put(ttr_ms=1000)
    me = rig.client()
    assert not me.deadline_soon(rig.now_ms)
    rig.reserve(me)
    assert me.deadline_soon(rig.now_ms)


def test_deadline_soon_counts_from_the_soonest_of_all_holds() -> None:
    rig = EngineRig()
    for ttr_ms in (9000, 3000, 6000):
        rig.put(ttr_ms=ttr_ms)
    me = rig.client()
    rig.reserve_all(me)
    rig.play(1999)
    assert not me.deadline_soon(rig.now_ms)
    rig.play(2000)
    assert me.deadline_soon(rig.now_ms)
    delete(rig.engine, me, 2, rig.now_ms)
    assert not me.deadline_soon(rig.now_ms)


def test_a_touch_ends_deadline_soon() -> None:
    rig = EngineRig()
    rig.put(ttr_ms=5000)
    me = rig.client()
    rig.reserve(me)
    rig.play(4500)
    assert me.deadline_soon(rig.now_ms)
    touch(rig.engine, me, 1, rig.now_ms)
    assert not me.deadline_soon(rig.now_ms)


def test_the_end_of_the_wait_comes_before_deadline_soon_when_it_is_earlier() -> None:
    rig = EngineRig()
    rig.put(ttr_ms=5000)
    me = rig.client()
    rig.reserve(me)
    rig.wait(me, 3000)
    rig.play(3000)
    assert rig.delivered() == [(me, WaitEnd.TIMED_OUT)]


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


@pytest.mark.parametrize("how", ["put", "release", "kick", "lapse", "close", "delay", "resume"])
def test_whatever_makes_a_job_ready_serves_who_waits(how: str) -> None:
    rig = EngineRig()
    holder, me = rig.client(), rig.client()
    rig.put(ttr_ms=5000, delay_ms=1 if how == "delay" else 0)
    if how in {"release", "kick", "lapse", "close"}:
        rig.reserve(holder)
    if how == "kick":
        bury(rig.engine, holder, 1, 0, RequestMs(rig.engine.store.time_ms))
    if how in {"resume", "put"}:
        pause(rig.engine, "default", 60_000, rig.now_ms)
    rig.wait(me)
    assert not rig.delivered()
    if how == "put":
        rig.put("b")
        pause(rig.engine, "default", 0, rig.now_ms)
    elif how == "release":
        release(rig.engine, holder, 1, 0, 0, rig.now_ms)
    elif how == "kick":
        kick_job(rig.engine, 1, rig.now_ms)
    elif how == "close":
        close_session(rig.engine, holder, rig.now_ms)
    elif how == "resume":
        pause(rig.engine, "default", 0, rig.now_ms)
    rig.play(5000)
    assert rig.delivered() == [(me, 1)]
    check(rig.engine)


def test_a_client_that_goes_away_is_forgotten_by_all_queues() -> None:
    rig = EngineRig()
    me = rig.client("a", "b")
    rig.wait(me, 5000)
    close_session(rig.engine, me, rig.now_ms)
    rig.put("a")
    rig.run(10_000)
    assert not rig.delivered()
    assert not rig.engine.store.alarms.rows


def test_closing_a_session_returns_its_jobs_in_the_order_it_got_them() -> None:
    rig = EngineRig()
    for priority in (3, 1, 2):
        rig.put(priority=priority)
    holder = rig.client()
    assert rig.reserve_all(holder) == [2, 3, 1]
    waiters = [rig.client() for _ in range(3)]
    for waiter in waiters:
        rig.wait(waiter)
    close_session(rig.engine, holder, rig.now_ms)
    assert rig.delivered() == list(zip(waiters, [2, 3, 1], strict=True))


def test_closing_a_session_returns_its_jobs_at_once_and_counts_no_timeout() -> None:
    rig = EngineRig()
    rig.put()
    holder = rig.client()
    rig.reserve(holder)
    close_session(rig.engine, holder, rig.now_ms)
    assert rig.reserve(rig.client()) == 1
    seen = views.view_job(rig.engine, 1, rig.now_ms)
    assert (
        seen.timeouts,
        seen.reserves,
        rig.engine.store.counters.operations[Operation.TIMEOUT],
    ) == (0, 2, 0)
