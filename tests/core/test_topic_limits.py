"""Defaults, caps and limits of topics, as producers and consumers meet them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.core.errors import BodyTooBig, CapReached, DelayTooLong
from delayd.core.job_record import HEADER_BYTES, State
from delayd.core.operations.ack import delete, delete_batch
from delayd.core.operations.attempts import bury, nack, release
from delayd.core.operations.change import change, reschedule
from delayd.core.operations.put import Conflict, Outcome, put_alike, put_keyed
from delayd.core.operations.reserve import reserve_job
from delayd.core.operations.sessions import close_session
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.topics import configure, pause, set_policy
from delayd.core.policy import Policy
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.scan import Wanted
from delayd.core.session import Session
from delayd.core.times import PlayedMs
from tests.core import views
from tests.core.check import check
from tests.rigs.engine import EngineRig
from tests.rigs.engine import put as put_job

HOUR_MS = 3_600_000


def rig_with(**fields: object) -> EngineRig:
    rig = EngineRig()
    set_policy(rig.engine, "mail", Policy.from_fields(fields), rig.now_ms)
    return rig


# --- Defaults and caps ---------------------------------------------------------------------------


def test_a_put_that_asks_for_no_ttr_and_no_delay_gets_the_topics() -> None:
    rig = rig_with(ttr="2m", delay="5s")
    for delay_ms, ttr_ms in ((0, 0), (1_000, 0), (0, 9_000)):
        rig.put("mail", delay_ms=delay_ms, ttr_ms=ttr_ms)
    seen = [views.view_job(rig.engine, job_id, rig.now_ms) for job_id in (1, 2, 3)]
    assert [(job.delay_ms, job.ttr_ms) for job in seen] == [
        (5_000, 120_000),
        (1_000, 120_000),
        (5_000, 9_000),
    ]
    rig.put("other", ttr_ms=0)
    assert views.view_job(rig.engine, 4, rig.now_ms).ttr_ms == 1_000


def test_a_job_for_a_moment_gets_the_topics_ttr_and_no_other_delay() -> None:
    rig = rig_with(ttr="2m", delay="5s", delay_max="1h")
    topic = rig.engine.store.topic("mail")
    for due_ms in (0, HOUR_MS):
        put_job(
            rig.engine, topic, priority=0, due_wall_ms=due_ms, ttr_ms=0, body=b"", now_ms=rig.now_ms
        )
    seen = [views.view_job(rig.engine, job_id, rig.now_ms) for job_id in (1, 2)]
    assert [(job.left_ms, job.ttr_ms) for job in seen] == [(0, 120_000), (HOUR_MS, 120_000)]
    with pytest.raises(DelayTooLong, match=r"is 1h, and this would be 1h1ms$") as refused:
        put_job(
            rig.engine,
            topic,
            priority=0,
            due_wall_ms=HOUR_MS + 1,
            ttr_ms=0,
            body=b"",
            now_ms=rig.now_ms,
        )
    assert refused.value.is_moment


def test_a_delay_of_0_that_is_meant_is_one_whatever_the_topic_says() -> None:
    rig = rig_with(ttr="2m", delay="5s")
    topic = rig.engine.store.topic("mail")
    for at_once, state in ((False, State.DELAYED), (True, State.READY)):
        first_id = put_alike(rig.engine, topic, 0, 0, 0, (b"", b""), rig.now_ms, at_once=at_once)
        keyed_id, _ = put_keyed(
            rig.engine,
            topic,
            b"%d" % at_once,
            priority=0,
            ttr_ms=0,
            body=b"",
            now_ms=rig.now_ms,
            at_once=at_once,
        )
        for job_id in (first_id, first_id + 1, keyed_id):
            job = views.view_job(rig.engine, job_id, rig.now_ms)
            assert (job.state, job.ttr_ms) == (state, 120_000)


def test_a_put_over_a_cap_is_refused_with_cap_value_and_use_and_the_rest_is_safe() -> None:
    rig = rig_with(jobs_max=3)
    for _ in range(3):
        rig.put("mail")
    with pytest.raises(CapReached, match=r"^jobs_max of topic 'mail' is 3 and 3 are in use$"):
        rig.put("mail")
    rig.put("other")
    delete(rig.engine, rig.client(), 2, rig.now_ms)
    rig.put("mail")
    assert rig.engine.store.topics.by_name["mail"].jobs == 3


def test_an_extend_needs_no_bytes_whatever_body_comes_with_it() -> None:
    rig = rig_with(bytes_max=200)

    def put(body: bytes, on: Conflict) -> Outcome:
        _, outcome = put_keyed(
            rig.engine,
            rig.engine.store.topic("mail"),
            b"a",
            on,
            priority=0,
            delay_ms=5_000,
            ttr_ms=9_000,
            body=body,
            now_ms=rig.now_ms,
        )
        return outcome

    assert put(b"x" * 100, Conflict.REJECT) is Outcome.CREATED
    with pytest.raises(CapReached):
        put(b"x" * 180, Conflict.REPLACE)
    assert put(b"x" * 180, Conflict.EXTEND) is Outcome.EXTENDED


def test_a_run_of_puts_is_accepted_whole_or_not_at_all() -> None:
    rig = rig_with(jobs_max=5)
    topic = rig.engine.store.topics.by_name["mail"]
    put: dict[str, Any] = {"priority": 0, "delay_ms": 0, "ttr_ms": 9, "now_ms": 0}
    put_alike(rig.engine, topic, bodies=[b""] * 3, **put)
    with pytest.raises(CapReached):
        put_alike(rig.engine, topic, bodies=[b""] * 3, **put)
    assert topic.jobs == 3
    put_alike(rig.engine, topic, bodies=[b""] * 2, **put)


def test_bytes_are_those_of_records_and_come_free_with_their_jobs() -> None:
    rig = rig_with(bytes_max=2 * (HEADER_BYTES + 100))
    rig.put("mail", body=b"x" * 100)
    rig.put("mail", body=b"x" * 100)
    over = r"^bytes_max of topic 'mail' is 284, 284 are in use and 42 more are needed$"
    with pytest.raises(CapReached, match=over):
        rig.put("mail", body=b"")
    me = rig.client("mail")
    delete_batch(rig.engine, me, rig.reserve_all(me), rig.now_ms)
    assert rig.engine.store.topics.by_name["mail"].bytes == 0
    rig.put("mail", body=b"x" * 242)


def test_bodies_and_delays_have_caps_of_their_own() -> None:
    rig = rig_with(body_bytes_max=10, delay_max="1h")
    rig.put("mail", body=b"x" * 10, delay_ms=HOUR_MS)
    over = r"^body_bytes_max of topic 'mail' is 10, and this body has 11 bytes$"
    with pytest.raises(BodyTooBig, match=over):
        rig.put("mail", body=b"x" * 11)
    over = r"^delay_max of topic 'mail' is 1h, and this would be 1h1ms$"
    with pytest.raises(DelayTooLong, match=over) as refused:
        rig.put("mail", delay_ms=HOUR_MS + 1)
    assert not refused.value.is_moment
    rig.put("other", body=b"x" * 11, delay_ms=HOUR_MS + 1)


def test_the_cap_on_delays_judges_new_ones_only(rig: EngineRig) -> None:
    engine = rig.engine
    job_id = rig.put(delay_ms=300_000)
    set_policy(engine, "default", Policy(delay_ms_max=60_000), rig.now_ms)
    change(engine, job_id, rig.now_ms, priority=3)
    change(engine, job_id, rig.now_ms, body=b"longer than it was")
    for ask in (
        lambda: change(engine, job_id, rig.now_ms, delay_ms=60_001),
        lambda: reschedule(engine, job_id, 60_001, rig.now_ms),
        lambda: reschedule(engine, job_id, 0, rig.now_ms, rig.now_ms + 60_002),
        lambda: Bulk(engine, "default", Wanted(), Action.reschedule(60_001)),
    ):
        with pytest.raises(DelayTooLong, match=r"is 1m, and this would be 1m[12]ms$"):
            ask()
    reschedule(engine, job_id, 60_000, rig.now_ms)


def test_there_are_caps_on_all_topics_together(rig: EngineRig) -> None:
    rig.put("a", body=b"x")
    configure(rig.engine, None, jobs_max=3, bytes_max=200)
    rig.put("b", body=b"x" * 50)
    assert (rig.engine.log_space.jobs, rig.engine.record_bytes) == (2, 2 * HEADER_BYTES + 51)
    assert (rig.engine.jobs_max, rig.engine.bytes_max) == (3, 200)
    over = r"^bytes_max of this daemon is 200, 135 are in use and 72 more are needed$"
    with pytest.raises(CapReached, match=over):
        rig.put("c", body=b"x" * 30)
    rig.put("c")
    with pytest.raises(CapReached, match=r"^jobs_max of this daemon is 3 and 3 are in use$"):
        rig.put("c")
    check(rig.engine)


def test_the_caps_on_all_topics_count_what_a_restart_finds(rig: EngineRig) -> None:
    for _ in range(3):
        rig.put()
    rig.restart()
    configure(rig.engine, None, jobs_max=3)
    with pytest.raises(CapReached):
        rig.put()


# --- Limits on handing out -----------------------------------------------------------------------

ENDS: dict[str, Callable[[EngineRig, Session, int], object]] = {
    "delete": lambda rig, me, job: delete(rig.engine, me, job, rig.now_ms),
    "delete_batch": lambda rig, me, job: delete_batch(rig.engine, me, (job,), rig.now_ms),
    "release": lambda rig, me, job: release(rig.engine, me, job, 9, 0, rig.now_ms),
    "release later": lambda rig, me, job: release(rig.engine, me, job, 0, 99, rig.now_ms),
    "nack": lambda rig, me, job: nack(rig.engine, me, job, rig.now_ms, delay_ms=99),
    "bury": lambda rig, me, job: bury(rig.engine, me, job, 0, rig.now_ms),
    "close": lambda rig, me, _job: close_session(rig.engine, me, rig.now_ms),
    "lapse": lambda rig, _me, _job: rig.run(60_000),
    "look at a lapse": lambda rig, _me, job: lapse_by_a_look(rig, job),
}


def lapse_by_a_look(rig: EngineRig, job_id: int) -> None:
    rig.engine.store.time_ms = PlayedMs(60_000)
    views.view_job(rig.engine, job_id, rig.now_ms)


@pytest.mark.parametrize("end", ENDS)
def test_no_more_jobs_are_held_than_may_be_and_the_next_goes_to_who_waits(end: str) -> None:
    rig = rig_with(reserved_max=2)
    for _ in range(4):
        rig.put("mail", priority=5)
    one, two, three = (rig.client("mail") for _ in range(3))
    held = rig.reserve(one)
    assert rig.reserve(two)
    assert not rig.reserve(three)
    assert not rig.reserve_all(three)
    rig.wait(three)
    ENDS[end](rig, one, held)
    ((session, _),) = rig.delivered()
    assert session is three
    both_ran_out = end == "lapse"
    assert rig.engine.store.topics.by_name["mail"].reserved == (1 if both_ran_out else 2)
    check(rig.engine)


def test_a_moved_job_makes_space_in_the_topic_that_it_leaves() -> None:
    rig = rig_with(reserved_max=1, attempts_max=1, exhausted="dead")
    rig.put("mail")
    rig.put("mail")
    one, two = rig.client("mail"), rig.client("mail")
    rig.reserve(one)
    rig.wait(two)
    nack(rig.engine, one, 1, rig.now_ms)
    assert rig.delivered() == [(two, 2)]
    check(rig.engine)


def test_a_batch_takes_no_more_than_may_be_held() -> None:
    rig = rig_with(reserved_max=3)
    for _ in range(9):
        rig.put("mail")
    me = rig.client("mail")
    assert rig.reserve_all(me) == [1, 2, 3]
    assert rig.reserve_all(me) == []
    delete(rig.engine, me, 2, rig.now_ms)
    assert rig.reserve_all(rig.client("mail", "other")) == [4]


def test_by_its_id_a_job_is_handed_out_whatever_the_limits() -> None:
    rig = rig_with(reserved_max=1, rate_per_s=1)
    rig.put("mail")
    rig.put("mail")
    me = rig.client("mail")
    assert rig.reserve(me) == 1
    reserve_job(rig.engine, me, 2, rig.now_ms)
    assert rig.engine.store.topics.by_name["mail"].reserved == 2
    delete(rig.engine, me, 1, rig.now_ms)
    check(rig.engine)
    assert not rig.reserve(me)


def test_a_topic_that_is_full_does_not_stand_in_the_way_of_another() -> None:
    rig = rig_with(reserved_max=1)
    rig.put("mail", priority=0)
    rig.put("mail", priority=0)
    rig.put("other", priority=9)
    me = rig.client("mail", "other")
    assert [rig.reserve(me), rig.reserve(me), rig.reserve(me)] == [1, 3, 0]


def test_what_was_held_before_a_restart_counts_after_it() -> None:
    rig = rig_with(reserved_max=1)
    rig.put("mail", ttr_ms=5_000)
    rig.put("mail")
    assert rig.reserve(rig.client("mail")) == 1
    rig.restart()
    check(rig.engine)
    me = rig.client("mail")
    assert not rig.reserve(me)
    rig.wait(me)
    rig.play(5_000)
    assert rig.delivered() == [(me, 1)]


def test_jobs_are_handed_out_at_the_rate_to_those_who_wait_and_to_those_who_ask() -> None:
    rig = rig_with(rate_per_s=4)
    for _ in range(8):
        rig.put("mail")
    times_ms = []
    for n in range(8):
        me = rig.client("mail")
        if n % 2 and not rig.reserve(me):
            rig.wait(me)
            while me.waiting:
                rig.play(next_deadline(rig.engine) or 0)
        else:
            rig.play((n + 3) * 250 // 2)
            while not rig.reserve(me):
                rig.play(next_deadline(rig.engine) or 0)
        times_ms.append(rig.time_ms)
        check(rig.engine)
    gaps_ms = [later - sooner for sooner, later in pairwise(times_ms)]
    assert min(gaps_ms) == 250


def test_a_batch_takes_what_a_rest_was_worth_and_an_idle_topic_wakes_nobody() -> None:
    rig = rig_with(rate_per_s=50)
    for _ in range(20):
        rig.put("mail")
    me = rig.client("mail")
    assert rig.reserve_all(me) == [1, 2, 3, 4, 5]
    rig.play(39)
    assert len(rig.reserve_all(me)) == 1
    rig.play(40)
    assert len(rig.reserve_all(me)) == 1
    rig.play(1_000)
    assert len(rig.reserve_all(me)) == 5
    rig.play(1_100)
    assert not rig.engine.store.alarms.rows


def test_a_policy_without_limits_lets_those_go_on_who_wait() -> None:
    rig = rig_with(reserved_max=1, rate_per_s=0.001)
    for _ in range(3):
        rig.put("mail")
    one, two = rig.client("mail"), rig.client("mail")
    assert rig.reserve(one)
    rig.wait(two)
    set_policy(rig.engine, "mail", Policy(reserved_max=5, rate_per_s=0.001), rig.now_ms)
    assert not rig.delivered()
    set_policy(rig.engine, "mail", None, rig.now_ms)
    assert rig.delivered() == [(two, 2)]
    check(rig.engine)
    assert not rig.engine.store.alarms.rows


def test_a_pause_and_a_limit_hold_at_once() -> None:
    rig = rig_with(reserved_max=1)
    rig.put("mail")
    rig.put("mail")
    me = rig.client("mail")
    assert rig.reserve(me)
    pause(rig.engine, "mail", 1_000, rig.now_ms)
    delete(rig.engine, me, 1, rig.now_ms)
    assert not rig.reserve(me)
    check(rig.engine)
    rig.play(1_000)
    assert rig.reserve(me) == 2


@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(("wait", "batch", "delete", "put")))),
)
def test_in_no_second_is_more_handed_out_than_the_rate_and_a_burst(
    rate: int, reserved_max: int, steps: list[tuple[int, str]]
) -> None:
    rig = rig_with(rate_per_s=rate, reserved_max=reserved_max)
    topic = rig.engine.store.topics.by_name["mail"]
    sessions: list[Session] = []
    times_ms: list[int] = []

    def note() -> None:
        held = sum(len(session.deadlines) for session in sessions)
        assert held <= reserved_max

    for pause_ms, doing in steps:
        until_ms = rig.time_ms + pause_ms
        while (next_ms := next_deadline(rig.engine)) is not None and next_ms <= until_ms:
            rig.run(next_ms)
            times_ms += [next_ms] * len(rig.delivered())
        rig.run(until_ms)
        session = rig.client("mail")
        sessions.append(session)
        match doing:
            case "wait":
                rig.wait(session) if topic.blocks or not topic.queues.ready else None
            case "batch":
                times_ms += [rig.time_ms] * len(rig.reserve_all(session))
            case "delete":
                for each in sessions:
                    delete_batch(rig.engine, each, [*each.deadlines], rig.now_ms)
            case _:
                for _ in range(10):
                    rig.put("mail", ttr_ms=HOUR_MS)
        times_ms += [rig.time_ms] * len(rig.delivered())
        note()
        check(rig.engine)
    burst = max(1, rate // 10)
    for first, begins_ms in enumerate(times_ms):
        within = sum(time_ms <= begins_ms + 1_000 for time_ms in times_ms[first:])
        assert within <= rate + burst
