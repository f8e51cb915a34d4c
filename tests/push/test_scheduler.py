"""Which due jobs are delivered next, and what becomes of them, on two clocks that tests move."""

from collections import Counter
from collections.abc import Container, Mapping
from random import Random
from typing import Any

import pytest

from delayd.core.errors import JobNotFound
from delayd.core.job_parts import attempts_of
from delayd.core.job_record import State
from delayd.core.operations.ack import delete
from delayd.core.operations.reserve import reserve_job
from delayd.core.operations.tick import caught_up
from delayd.core.operations.topics import configure, pause, set_policy
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Session
from delayd.core.targets import pack_own
from delayd.core.throttle import PushBlock
from delayd.limits import (
    BREAKER_FAILURES,
    BREAKER_FIRST_PROBE_MS,
    BREAKER_FIRST_PROBES_MAX,
    BREAKER_OPEN_MS,
    BREAKER_OPEN_MS_MAX,
    BREAKER_SPARES_MS,
    PUSH_LEASE_EXTRA_MS,
    PUSH_PLACES_KEPT_MAX,
    PUSH_RETRY_AFTER_MS_MAX,
    PUSH_STEPS_PER_TURN,
)
from delayd.push.breaker import BreakerState, Probe
from delayd.push.scheduler import BreakerTurn, PushCall
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from tests.push.rig import AT_MS, GONE, OUTAGE, REFUSED, TIMEOUT_MS, URL, SchedulerRig

STEP_MS = 1_000
"""The first step of the ladder that the rig gives every topic."""


def own_url(host: str, number: int) -> bytes:
    return pack_own("POST", f"https://{host}.example:443/{number}", ())


def ids(calls: list[PushCall]) -> list[int]:
    return [call.job_id for call in calls]


def topics(calls: list[PushCall]) -> dict[str, int]:
    return dict(Counter(call.topic for call in calls))


@pytest.fixture
def rig() -> SchedulerRig:
    return SchedulerRig()


@pytest.fixture
def job_id(rig: SchedulerRig) -> int:
    """A job of a topic that sends its jobs to a host."""
    rig.sends("mail", "a")
    return rig.put("mail")


# --- What begins ---------------------------------------------------------------------------------


def test_a_job_is_called_when_it_is_due_and_not_before(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    job_id = rig.put("mail", delay_ms=500)
    assert rig.take() == []
    rig.pass_ms(499)
    assert rig.take() == []
    rig.pass_ms(1)
    assert ids(rig.take()) == [job_id]
    assert rig.state(job_id) is State.RESERVED


def test_a_call_says_where_the_job_goes_and_how_long_it_may_take(rig: SchedulerRig) -> None:
    rig.sends("mail", "a", timeout="2s", method="PUT")
    rig.sends("bulk", "a")
    rig.puts("mail", 1)
    rig.puts("bulk", 1)
    calls = {call.topic: call for call in rig.take()}
    assert (calls["mail"].target.method, calls["mail"].timeout_ms) == ("PUT", 2_000)
    assert (calls["bulk"].target.method, calls["bulk"].timeout_ms) == ("POST", TIMEOUT_MS)


def test_no_more_than_the_bound_of_all_calls_are_under_way() -> None:
    rig = SchedulerRig(calls_max=3)
    for topic in ("a", "b"):
        rig.sends(topic, topic)
        rig.puts(topic, 5)
    first = rig.take()
    assert (len(first), rig.take()) == (3, [])
    rig.ends(first[0])
    assert len(rig.take()) == 1


def test_no_more_than_the_bound_of_one_place_are_under_way_there() -> None:
    rig = SchedulerRig(per_place=2)
    rig.sends("mail", "a")
    rig.sends("bulk", "a")
    rig.puts("mail", 3)
    rig.puts("bulk", 3)
    first = rig.take()
    assert len(first) == 2
    rig.ends(first[0])
    assert len(rig.take()) == 1


def test_a_target_that_says_its_concurrency_has_as_many_beside_the_others() -> None:
    rig = SchedulerRig(per_place=2)
    rig.sends("mail", "a", concurrency=3)
    rig.sends("bulk", "a")
    rig.puts("mail", 9)
    rig.puts("bulk", 9)
    assert topics(rig.take()) == {"mail": 3, "bulk": 2}


def test_places_take_turns_whatever_waits_at_one_of_them() -> None:
    rig = SchedulerRig(calls_max=4)
    for topic, jobs in (("a", 100), ("b", 2), ("c", 2)):
        rig.sends(topic, topic)
        rig.puts(topic, jobs)
    calls = rig.take()
    assert [call.topic for call in calls] == ["a", "b", "c", "a"]
    rig.all_end(calls)
    assert [call.topic for call in rig.take()] == ["b", "c", "a", "a"]


def test_topics_that_share_a_place_take_turns() -> None:
    rig = SchedulerRig(per_place=4)
    rig.sends("mail", "a")
    rig.sends("bulk", "a")
    rig.puts("mail", 100)
    rig.puts("bulk", 2)
    assert topics(rig.take()) == {"mail": 2, "bulk": 2}


def test_a_full_place_keeps_no_other_waiting() -> None:
    rig = SchedulerRig(calls_max=8, per_place=2)
    rig.sends("slow", "a")
    rig.sends("quick", "b")
    rig.puts("slow", 1_000)
    assert topics(rig.take()) == {"slow": 2}
    rig.puts("quick", 6)
    for _ in range(3):
        calls = rig.take()
        assert topics(calls) == {"quick": 2}
        rig.all_end(calls)
    assert rig.scheduler.in_flight == 2


def test_other_topics_and_sinks_are_places_too() -> None:
    rig = SchedulerRig(per_place=1)
    rig.sends("a", topic="next")
    rig.sends("b", topic="next")
    rig.sends("c", sink="stream")
    for topic in "abc":
        rig.puts(topic, 1)
    first = rig.take()
    assert topics(first) == {"a": 1, "c": 1}
    rig.ends(first[0])
    assert topics(rig.take()) == {"b": 1}


def test_jobs_with_urls_of_their_own_go_there_and_share_its_bound() -> None:
    rig = SchedulerRig(per_place=2)
    rig.sends("bulk", "a")
    own = [rig.put("mail", target=own_url("a", number)) for number in range(3)]
    other = rig.put("mail", target=own_url("b", 7))
    rig.puts("bulk", 3)
    calls = rig.take()
    assert topics(calls) == {"bulk": 1, "mail": 2}
    urls = {call.job_id: call.target.url for call in calls}
    assert urls[other] == "https://b.example:443/7"
    assert urls[own[0]] == "https://a.example:443/0"


def test_a_target_of_the_topic_wins_over_those_of_its_jobs(rig: SchedulerRig) -> None:
    job_id = rig.put("mail", target=own_url("a", 1))
    rig.sends("mail", "b")
    (call,) = rig.take()
    assert (call.job_id, call.target.url) == (job_id, URL.format("b"))


def test_a_target_that_is_removed_and_set_again_gets_the_jobs() -> None:
    rig = SchedulerRig(per_place=1)
    rig.sends("mail", "a")
    rig.puts("mail", 2)
    (call,) = rig.take()
    set_policy(rig.engine, "mail", Policy(), rig.now_ms)
    rig.ends(call)
    assert rig.take() == []
    assert (kept(rig), rig.engine.store.push_lanes.heard) == (0, set())
    rig.sends("mail", "a")
    assert len(rig.take()) == 1


def test_a_target_that_is_set_away_and_back_while_its_place_is_full_gets_the_jobs() -> None:
    rig = SchedulerRig(per_place=1)
    configured = Policy.from_fields({"push": {"url": URL.format("a")}})
    configure(rig.engine, Patterns({"mail": configured}), None, None)
    rig.puts("mail", 4)
    (first,) = rig.take()
    rig.sends("mail", "b")
    (second,) = rig.take()
    set_policy(rig.engine, "mail", None, rig.now_ms)
    assert rig.take() == []
    rig.all_end((first, second))
    for _ in range(2):
        (call,) = rig.take()
        assert call.target.url == URL.format("a")
        rig.ends(call)
    assert (rig.take(), kept(rig)) == ([], 0)


def test_a_lane_that_ran_dry_is_called_again_when_it_has_jobs(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    for _ in range(3):
        rig.puts("mail", 2)
        calls = rig.take()
        assert len(calls) == 2
        rig.all_end(calls)


def test_a_paused_topic_is_not_called_until_the_pause_ends(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    rig.puts("mail", 1)
    pause(rig.engine, "mail", 500, rig.now_ms)
    assert rig.take() == []
    rig.pass_ms(500)
    assert len(rig.take()) == 1


def test_a_topic_as_full_as_its_policy_allows_goes_on_when_a_call_has_ended(
    rig: SchedulerRig,
) -> None:
    rig.sends("mail", "a", {"reserved_max": 1})
    rig.puts("mail", 2)
    (call,) = rig.take()
    assert rig.take() == []
    rig.ends(call)
    assert len(rig.take()) == 1


def test_the_rate_of_a_topic_holds_for_calls(rig: SchedulerRig) -> None:
    rig.sends("mail", "a", {"rate_per_s": 10})
    rig.puts("mail", 100)
    taken = 0
    for _ in range(20):
        calls = rig.take()
        rig.all_end(calls)
        taken += len(calls)
        rig.pass_ms(100)
    assert 20 <= taken <= 21


def test_the_rate_of_a_target_holds_on_the_clock_that_never_stops(rig: SchedulerRig) -> None:
    rig.sends("mail", "a", rate_per_s=10)
    rig.puts("mail", 100)
    taken = len(rig.take())
    rig.play(rig.time_ms + 60_000)
    assert rig.take() == [], "delayd time alone allows nothing"
    for _ in range(20):
        assert rig.scheduler.wake_ms is not None
        rig.at_ms = rig.scheduler.wake_ms
        calls = rig.take()
        rig.all_end(calls)
        taken += len(calls)
    assert (taken, rig.at_ms) == (21, 50_000 + 2_000)


def test_the_rate_of_a_target_holds_for_jobs_that_come_one_by_one(rig: SchedulerRig) -> None:
    rig.sends("mail", "a", rate_per_s=1)
    for _ in range(3):
        rig.puts("mail", 1)
        rig.all_end(rig.take())
    assert len(rig.engine.store.topics.by_name["mail"].queues.ready) == 2


def test_a_target_that_is_set_anew_gets_the_next_jobs() -> None:
    rig = SchedulerRig(per_place=1)
    rig.sends("mail", "a")
    rig.puts("mail", 3)
    (call,) = rig.take()
    rig.sends("mail", "b")
    assert call.target.url.startswith("https://a.")
    (other,) = rig.take()
    assert other.target.url.startswith("https://b.")
    rig.ends(call)
    assert rig.take() == [], "the new place is full"


def test_a_target_that_is_removed_gets_no_more_jobs() -> None:
    rig = SchedulerRig(per_place=1)
    rig.sends("mail", "a")
    rig.puts("mail", 3)
    (call,) = rig.take()
    set_policy(rig.engine, "mail", Policy(), rig.now_ms)
    rig.ends(call)
    assert rig.take() == []


def test_a_turn_takes_a_bounded_number_of_steps() -> None:
    rig = SchedulerRig(calls_max=10_000, per_place=10_000)
    rig.sends("mail", "a")
    rig.puts("mail", 3 * PUSH_STEPS_PER_TURN)
    calls = rig.scheduler.take_calls(rig.now_ms, rig.at_ms)
    assert 0 < len(calls) <= PUSH_STEPS_PER_TURN
    assert rig.scheduler.has_more
    assert len(calls) + len(rig.take()) == 3 * PUSH_STEPS_PER_TURN


# --- What became of it ---------------------------------------------------------------------------


def test_a_job_that_is_delivered_is_gone(rig: SchedulerRig, job_id: int) -> None:
    rig.all_end(rig.take())
    assert rig.state(job_id) is None


def test_a_failed_attempt_is_repeated_by_the_ladder_until_that_is_exhausted(
    rig: SchedulerRig, job_id: int
) -> None:
    for delay_ms in (1_000, 2_000):
        rig.all_end(rig.take(), REFUSED)
        assert rig.state(job_id) is State.DELAYED
        rig.pass_ms(delay_ms - 1)
        assert rig.take() == []
        rig.pass_ms(1)
    rig.all_end(rig.take(), REFUSED)
    assert rig.state(job_id) is State.BURIED


def test_what_will_never_be_taken_is_a_dead_letter_at_once(rig: SchedulerRig, job_id: int) -> None:
    rig.all_end(rig.take(), GONE)
    assert (rig.state(job_id), rig.error(job_id)) == (State.BURIED, "410 Gone")


@pytest.mark.parametrize(
    ("asked_ms", "becomes_ms"),
    [
        (0, STEP_MS),
        (STEP_MS - 1, STEP_MS),
        (STEP_MS + 1, STEP_MS + 1),
        (PUSH_RETRY_AFTER_MS_MAX + 1, PUSH_RETRY_AFTER_MS_MAX),
    ],
)
def test_what_a_receiver_asks_for_is_kept_to_within_bounds(
    rig: SchedulerRig, job_id: int, asked_ms: int, becomes_ms: int
) -> None:
    rig.all_end(rig.take(), REFUSED._replace(retry_after_ms=asked_ms))
    rig.pass_ms(becomes_ms - 1)
    assert rig.state(job_id) is State.DELAYED
    rig.pass_ms(1)
    assert rig.state(job_id) is State.READY


def test_the_error_and_the_beginning_of_the_answer_are_kept_without_control_characters(
    rig: SchedulerRig, job_id: int
) -> None:
    answer = b"\x1b[2Jno\xffroom\r\n" + 2_000 * b"x"
    end = AttemptEnd(Result.FAILED, "503 Service\nUnavailable", answer)
    rig.all_end(rig.take(), end)
    first, _, rest = rig.error(job_id).partition("\n")
    assert first == r"503 Service\nUnavailable"
    assert rest.startswith("\\x1b[2Jno\N{REPLACEMENT CHARACTER}room\\r\\nxxx")
    assert len(rest) <= 1_100


def test_what_was_not_attempted_is_ready_again_and_the_attempt_does_not_count(
    rig: SchedulerRig,
) -> None:
    rig.sends("mail", "a", {"retry": "1s"})
    (job_id,) = rig.puts("mail", 1)
    for _ in range(5):
        rig.all_end(rig.take(), None)
        assert rig.state(job_id) is State.READY
    rig.all_end(rig.take(), REFUSED)
    assert rig.state(job_id) is State.DELAYED, "the first failed attempt of two"


def test_a_job_is_held_for_longer_than_an_attempt_may_take(rig: SchedulerRig, job_id: int) -> None:
    rig.take()
    rig.pass_ms(TIMEOUT_MS + PUSH_LEASE_EXTRA_MS - 1)
    assert rig.state(job_id) is State.RESERVED
    rig.pass_ms(1)
    assert rig.state(job_id) is State.DELAYED


@pytest.mark.parametrize("end", [AttemptEnd(Result.DELIVERED), REFUSED, GONE, None])
def test_an_answer_that_comes_when_the_lease_is_over_changes_nothing(
    rig: SchedulerRig, job_id: int, end: AttemptEnd | None
) -> None:
    (call,) = rig.take()
    rig.pass_ms(TIMEOUT_MS + PUSH_LEASE_EXTRA_MS)
    rig.ends(call, end)
    assert rig.state(job_id) is State.DELAYED


@pytest.mark.parametrize("end", [AttemptEnd(Result.DELIVERED), REFUSED, GONE, None])
def test_an_answer_for_a_job_that_is_gone_changes_nothing(
    rig: SchedulerRig, job_id: int, end: AttemptEnd | None
) -> None:
    (call,) = rig.take()
    rig.pass_ms(TIMEOUT_MS + PUSH_LEASE_EXTRA_MS)
    delete(rig.engine, Session(), job_id, rig.now_ms)
    rig.ends(call, end)
    assert rig.state(job_id) is None
    assert rig.scheduler.in_flight == 0


def test_an_answer_of_an_earlier_call_does_not_end_the_present_one(
    rig: SchedulerRig, job_id: int
) -> None:
    (early,) = rig.take()
    rig.pass_ms(TIMEOUT_MS + PUSH_LEASE_EXTRA_MS)
    rig.pass_ms(STEP_MS)
    (late,) = rig.take()
    rig.ends(early, REFUSED)
    assert rig.state(job_id) is State.RESERVED
    rig.ends(late)
    assert rig.state(job_id) is None


def test_a_pause_while_a_call_is_under_way_lets_it_end(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    (one, other) = rig.puts("mail", 2)
    first, second = rig.take()
    pause(rig.engine, "mail", 60_000, rig.now_ms)
    rig.ends(first)
    rig.ends(second, REFUSED)
    assert (rig.state(one), rig.state(other)) == (None, State.DELAYED)
    rig.pass_ms(STEP_MS)
    assert rig.take() == []


def test_a_job_under_way_cannot_be_taken_by_its_id(rig: SchedulerRig, job_id: int) -> None:
    rig.take()
    with pytest.raises(JobNotFound):
        reserve_job(rig.engine, Session(), job_id, rig.now_ms)


def test_a_call_that_is_settled_and_goes_on_keeps_its_place_and_nothing_else() -> None:
    rig = SchedulerRig(calls_max=2, per_place=1)
    rig.sends("stuck", "a")
    rig.sends("quick", "b")
    rig.puts("stuck", 2)
    (stray,) = rig.take()
    rig.scheduler.settle(stray, OUTAGE, rig.now_ms, rig.at_ms)
    rig.puts("quick", 1)
    assert topics(rig.take()) == {"quick": 1}
    assert rig.scheduler.in_flight == 1
    rig.scheduler.release(stray)
    assert topics(rig.take()) == {"stuck": 1}


# --- Breakers ------------------------------------------------------------------------------------


def failing(rig: SchedulerRig, topic: str = "mail") -> None:
    """Open the breaker of the topic's place."""
    rig.puts(topic, BREAKER_FAILURES + 1)
    for _ in range(BREAKER_FAILURES):
        call = rig.take()[0]
        rig.ends(call, OUTAGE)


def test_while_a_breaker_is_open_jobs_stay_ready_and_no_attempt_counts() -> None:
    rig = SchedulerRig(per_place=1)
    rig.sends("mail", "a")
    failing(rig)
    (waiting,) = (job for job in range(1, 7) if rig.state(job) is State.READY)
    rig.pass_ms(BREAKER_OPEN_MS - 1)
    assert [call for call in rig.take() if call.job_id == waiting] == []
    assert rig.scheduler.wake_ms == rig.at_ms + 1


def test_when_its_time_is_over_one_probe_is_made_and_decides(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    failing_ids = rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.puts("mail", 3)
    assert (rig.take(), rig.scheduler.breakers) == ([], [0, 1, 0])
    rig.at_ms += BREAKER_OPEN_MS
    (probe,) = rig.take()
    assert (probe.probe, rig.scheduler.breakers) == (Probe.OF_HOST, [0, 0, 1])
    rig.ends(probe, OUTAGE)
    rig.at_ms += 2 * BREAKER_OPEN_MS - 1
    assert rig.take() == []
    rig.at_ms += 1
    (probe,) = rig.take()
    rig.ends(probe)
    assert len(rig.take()) == 2, "the probe that failed, and the third"
    assert rig.scheduler.breakers == [1, 0, 0]
    assert len(failing_ids) == BREAKER_FAILURES


def fails(rig: SchedulerRig, topic: str) -> None:
    """Have so many jobs of the topic fail that its breaker opens."""
    rig.puts(topic, BREAKER_FAILURES)
    for _ in range(BREAKER_FAILURES):
        calls = rig.take()
        rig.all_end(calls, OUTAGE)


def attempts(rig: SchedulerRig, job_id: int) -> int:
    """How many attempts of the job count."""
    record = rig.engine.store.jobs.get(job_id)
    assert record is not None
    return attempts_of(record)


def an_outage(rig: SchedulerRig, waiting: int, rules: Mapping[str, object]) -> list[int]:
    """Open the breaker of a place, and have so many jobs wait for it."""
    rig.sends("mail", "a")
    rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.sends("bulk", "a", rules)
    job_ids = rig.puts("bulk", waiting)
    for call in rig.take():
        assert call.probe is Probe.FIRST
        rig.ends(call, OUTAGE)
    assert rig.take() == []
    return job_ids


def probes(rig: SchedulerRig, hours: int, end: AttemptEnd = OUTAGE) -> list[PushCall]:
    """All probes of so many hours, which end in this way."""
    made = []
    ends_ms = rig.at_ms + hours * 3_600_000
    while rig.at_ms < ends_ms:
        for call in rig.take():
            assert call.probe is Probe.OF_HOST
            made.append(call)
            rig.ends(call, end)
        rig.pass_ms(BREAKER_OPEN_MS)
    return made


def test_probes_cost_no_attempt_while_others_wait_for_the_place(rig: SchedulerRig) -> None:
    job_ids = an_outage(rig, 3, {"max_attempts": 1})
    made = probes(rig, hours=1)
    assert len(made) > 50
    assert {call.job_id for call in made} >= set(job_ids)
    for job_id in job_ids:
        assert (rig.state(job_id), attempts(rig, job_id)) == (State.READY, 0)
        assert rig.error(job_id) == OUTAGE.error
    rig.pass_ms(BREAKER_OPEN_MS_MAX)
    while calls := rig.take():
        rig.all_end(calls)
    assert [rig.state(job_id) for job_id in job_ids] == [None] * 3


def test_jobs_that_fail_for_ever_do_not_keep_the_breaker_open_for_the_others(
    rig: SchedulerRig,
) -> None:
    job_ids = an_outage(rig, 4, {})
    bad, good = job_ids[:3], job_ids[3]
    while rig.state(good) is not None:
        assert rig.at_ms < AT_MS + 600_000
        for call in rig.take():
            rig.ends(call, OUTAGE if call.job_id in {*bad, 1, 2, 3, 4, 5} else DELIVERED)
        rig.pass_ms(BREAKER_OPEN_MS)


def test_a_lone_job_goes_its_ladder_whatever_the_breaker_does(rig: SchedulerRig) -> None:
    rig.sends("mail", "a", {"retry": ["1s"] * 20})
    job_id = rig.put("mail")
    made = 0
    while rig.state(job_id) is not State.BURIED:
        for call in rig.take():
            made += 1
            rig.ends(call, OUTAGE)
        rig.pass_ms(BREAKER_OPEN_MS)
    assert made == 21


def test_of_a_spared_probe_the_answer_is_not_kept(rig: SchedulerRig) -> None:
    """It could be read without the scope admin: its reason is not that of a call."""
    job_ids = an_outage(rig, 2, {})
    probes(rig, hours=1, end=OUTAGE._replace(answer=b"secret"))
    assert [rig.error(job_id) for job_id in job_ids] == [OUTAGE.error] * 2


def test_a_probe_that_the_place_answers_is_an_attempt(rig: SchedulerRig) -> None:
    job_ids = an_outage(rig, 2, {"max_attempts": 1})
    while not (mine := [call for call in rig.take() if call.job_id in job_ids]):
        rig.pass_ms(BREAKER_OPEN_MS)
    rig.ends(mine[0], REFUSED)
    assert rig.state(mine[0].job_id) is State.BURIED


def test_it_is_told_why_jobs_are_not_called() -> None:
    rig = SchedulerRig(per_place=2)
    rig.sends("mail", "a")
    topic = rig.engine.store.topic("mail")

    def blocks() -> list[PushBlock]:
        return rig.scheduler.blocks_of(topic, rig.at_ms)

    assert blocks() == []
    rig.puts("mail", BREAKER_FAILURES + 2)
    calls = rig.take()
    assert blocks() == [PushBlock.FULL]
    while calls:
        rig.all_end(calls, OUTAGE)
        calls = rig.take()
    assert blocks() == [PushBlock.OPEN]
    rig.pass_ms(BREAKER_OPEN_MS)
    (probe,) = rig.take()
    assert blocks() == [PushBlock.OPEN]
    rig.ends(probe)
    assert blocks() == []


def test_it_is_told_of_jobs_with_urls_of_their_own_and_of_rates(rig: SchedulerRig) -> None:
    rig.sends("slow", "a", rate_per_s=1)
    rig.puts("slow", 3)
    for number in range(BREAKER_FAILURES + 1):
        rig.put("own", target=own_url("b", number))
    rig.put("other", target=own_url("c", 1))
    calls = rig.take()
    rig.all_end([call for call in calls if call.topic == "own"], OUTAGE)
    rig.put("own", target=own_url("b", 9))
    told = {
        name: rig.scheduler.blocks_of(rig.engine.store.topic(name), rig.at_ms)
        for name in ("slow", "own", "other")
    }
    assert told == {"slow": [PushBlock.SLOW], "own": [PushBlock.OPEN], "other": []}


def test_settling_tells_whether_the_job_is_a_dead_letter_now(rig: SchedulerRig) -> None:
    rig.sends("mail", "a", {"max_attempts": 2})
    rig.sends("moves", "a", {"max_attempts": 1, "exhausted": "dead"})
    first, second = rig.put("mail"), rig.put("moves")
    calls = {call.job_id: call for call in rig.take()}

    def settled(call: PushCall, end: AttemptEnd) -> bool:
        return rig.scheduler.settle(call, end, rig.now_ms, rig.at_ms)

    assert not settled(calls[first], REFUSED)
    assert settled(calls[second], REFUSED)
    rig.pass_ms(STEP_MS)
    (again,) = (call for call in rig.take() if call.job_id == first)
    assert settled(again, REFUSED)
    rig.puts("mail", 2)
    one, two = rig.take()
    assert settled(one, GONE)
    assert not settled(two, DELIVERED)


def test_after_a_day_of_failures_probes_count_again(rig: SchedulerRig) -> None:
    job_ids = an_outage(rig, 3, {"max_attempts": 1})
    rig.at_ms += BREAKER_SPARES_MS
    rig.play(rig.time_ms + BREAKER_SPARES_MS)
    probes(rig, hours=1)
    assert [rig.state(job_id) for job_id in job_ids] == [State.BURIED] * 3


def test_without_breakers_failures_do_not_stop_calls() -> None:
    rig = SchedulerRig(has_breakers=False)
    rig.sends("mail", "a")
    rig.puts("mail", 2 * BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.puts("mail", 1)
    assert len(rig.take()) >= 1
    assert rig.scheduler.breakers == [1, 0, 0]


def test_a_refusal_of_one_job_is_no_failure_of_the_place() -> None:
    rig = SchedulerRig(per_place=1)
    rig.sends("mail", "a")
    rig.puts("mail", 20)
    for _ in range(10):
        (call,) = rig.take()
        rig.ends(call, REFUSED)


def test_a_probe_that_was_never_made_does_not_close_the_breaker(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.puts("mail", 2)
    rig.at_ms += BREAKER_OPEN_MS
    (probe,) = rig.take()
    rig.ends(probe, REFUSED._replace(is_ours=True))
    assert rig.state(probe.job_id) is not State.READY, "the job's attempt has failed"
    (probe,) = rig.take()
    assert rig.scheduler.breakers == [0, 0, 1]


def test_a_probe_that_is_given_back_is_made_again(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.puts("mail", 1)
    rig.at_ms += BREAKER_OPEN_MS
    (probe,) = rig.take()
    rig.ends(probe, None)
    (probe,) = rig.take()
    assert probe.probe


def test_the_breaker_of_one_place_is_not_that_of_another(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    rig.sends("bulk", "b")
    rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.puts("mail", 1)
    rig.puts("bulk", 2)
    assert topics(rig.take()) == {"bulk": 2}


def test_a_breaker_is_remembered_when_the_place_has_no_jobs(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.pass_ms(BREAKER_OPEN_MS - 1)
    rig.puts("mail", 1)
    assert rig.take() == []


def test_what_opens_and_closes_is_told_once_with_the_reason_and_without_the_path(
    rig: SchedulerRig,
) -> None:
    rig.sends("mail", url="https://a.example:443/secret?token=1")
    rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    where = "https://a.example:443", "mail"
    assert rig.scheduler.take_turned() == [BreakerTurn(*where, True, "503 Service Unavailable")]
    rig.puts("mail", 1)
    for _ in range(2):
        rig.at_ms += 60_000
        rig.all_end(rig.take(), OUTAGE)
        assert rig.scheduler.take_turned() == [], "it is still open"
        rig.pass_ms(STEP_MS)
        rig.puts("mail", 1)
    rig.at_ms += 60_000
    rig.all_end(rig.take()[:1])
    assert rig.scheduler.take_turned() == [BreakerTurn(*where, False, "")]
    assert rig.scheduler.breakers[BreakerState.OPEN] == 0


# --- One topic and another at the same host ------------------------------------------------------


@pytest.mark.parametrize("per_place", [1, 8])
def test_a_topic_that_fails_keeps_no_job_of_another_waiting(per_place: int) -> None:
    rig = SchedulerRig(per_place=per_place)
    rig.sends("bad", "a")
    rig.sends("good", "a")
    fails(rig, "bad")
    rig.puts("bad", 20)
    for _ in range(150):
        job_ids = rig.puts("good", 3)
        while any(rig.state(job_id) is not None for job_id in job_ids):
            calls = rig.take()
            assert calls, "a good job waits"
            for call in calls:
                rig.ends(call, OUTAGE if call.topic == "bad" else DELIVERED)
        rig.pass_ms(500)


def test_a_probe_that_hangs_keeps_no_job_of_another_topic_waiting(rig: SchedulerRig) -> None:
    rig.sends("bad", "a")
    rig.sends("good", "a")
    fails(rig, "bad")
    rig.all_end([call for call in rig.take() if call.topic == "bad"], OUTAGE)
    rig.pass_ms(BREAKER_OPEN_MS)
    (probe,) = rig.take()
    assert (probe.topic, probe.probe) == ("bad", Probe.OF_HOST)
    (job_id,) = rig.puts("good", 1)
    assert ids(rig.take()) == [job_id]


def rounds(rig: SchedulerRig, down: Container[str], ms: int) -> Counter[str]:
    """Play so long, with calls that end at once; those of topics that are down fail."""
    made: Counter[str] = Counter()
    ends_ms = rig.at_ms + ms
    while rig.at_ms < ends_ms:
        while calls := rig.take():
            made.update(call.topic for call in calls)
            rig.all_end((call for call in calls if call.topic not in down), DELIVERED)
            rig.all_end((call for call in calls if call.topic in down), OUTAGE)
        rig.pass_ms(500)
    return made


def many_topics(rig: SchedulerRig, jobs: int, **push: object) -> list[str]:
    """Topics that send their jobs to one host, where the first has failed already."""
    names = [f"t{number}" for number in range(30)]
    for name in names:
        rig.sends(name, "a", **push)
    fails(rig, names[0])
    for name in names[1:]:
        rig.puts(name, jobs)
    return names


@pytest.mark.parametrize("push", [{}, {"concurrency": 20}])
def test_a_host_that_is_gone_is_found_out_with_one_call_of_each_topic(
    rig: SchedulerRig, push: Mapping[str, object]
) -> None:
    names = many_topics(rig, 20, **push)
    most = 0
    for _ in names[1:]:
        (call,) = rig.take()
        most = max(most, rig.scheduler.in_flight)
        assert (call.probe, call.is_spared) == (Probe.FIRST, True)
        rig.ends(call, OUTAGE)
    assert (most, rig.take()) == (1, [])
    assert rig.scheduler.breakers == [0, len(names), 0]
    made = rounds(rig, names, 62_000)
    assert made.total() == 5, "one probe for all of them after 1, 2, 4, 8 and 16 s"
    assert len(made) == 5, "of another topic each"


def test_a_host_that_answers_one_topic_again_gets_the_jobs_of_all_at_once(
    rig: SchedulerRig,
) -> None:
    names = many_topics(rig, 3)
    rounds(rig, names, 20_000)
    while not (calls := rig.take()):
        rig.pass_ms(100)
    rig.all_end(calls)
    while calls := rig.take():
        rig.all_end(calls)
    assert not any(rig.engine.store.topic(name).queues.ready for name in names)
    assert rig.scheduler.breakers == [0, 0, 0]


def test_a_topic_that_hangs_keeps_the_others_from_seeing_for_themselves_for_a_second() -> None:
    rig = SchedulerRig(per_place=20)
    many_topics(rig, 3)
    first = rig.take()
    assert len(first) == 1
    rig.pass_ms(BREAKER_FIRST_PROBE_MS - 1)
    assert rig.take() == []
    assert rig.scheduler.wake_ms == rig.at_ms + 1
    rig.pass_ms(1)
    (second,) = (call for call in rig.take() if call.probe is Probe.FIRST)
    rig.ends(second)
    rig.take()
    assert rig.scheduler.in_flight == 20, "the host answers, and gets all that it may have"


def test_so_many_topics_at_once_see_for_themselves_at_a_host_that_hangs(rig: SchedulerRig) -> None:
    many_topics(rig, 3, concurrency=5)
    calls = rig.take()
    for _ in range(3 * BREAKER_FIRST_PROBES_MAX):
        rig.pass_ms(BREAKER_FIRST_PROBE_MS)
        calls += [call for call in rig.take() if call.probe is Probe.FIRST]
    assert len(calls) == len(topics(calls)) == BREAKER_FIRST_PROBES_MAX
    rig.ends(calls[0], OUTAGE)
    assert len(rig.take()) == 1


def test_a_topic_with_one_job_that_hangs_sends_the_others_when_the_host_answers(
    rig: SchedulerRig,
) -> None:
    names = many_topics(rig, 3)
    (hanging,) = rig.take()
    rig.pass_ms(BREAKER_FIRST_PROBE_MS)
    (other,) = (call for call in rig.take() if call.probe is Probe.FIRST)
    rig.ends(other)
    assert topics(rig.take())[hanging.topic] == 1
    assert hanging.topic in names


def test_topics_at_hosts_that_come_and_go_leave_nothing_behind(rng: Random) -> None:
    rig = SchedulerRig(calls_max=12, per_place=4)
    hosts, names = "abc", [f"t{number}" for number in range(9)]
    for number, name in enumerate(names):
        rules = {"retry": ["1s"] * 30}
        push = {"concurrency": 2} if number % 3 == 2 else {}
        rig.sends(name, hosts[number % 3], rules, **push)
    under_way: list[PushCall] = []
    down: set[str] = set()
    for step in range(1_000):
        if step % 50 == 0:
            down = {each for each in (*hosts, *names) if rng.random() < 0.3}
        if rng.random() < 0.3:
            name = rng.choice(names)
            if rng.random() < 0.2:
                rig.sends(name, rng.choice(hosts), {"retry": ["1s"] * 30})
            rig.puts(name, rng.randrange(4))
            rig.put("own", target=own_url(rng.choice(hosts), step))
        under_way += rig.take()
        rng.shuffle(under_way)
        while under_way and rng.random() < 0.6:
            call = under_way.pop()
            host = call.target.url.removeprefix("https://")[0]
            is_down = host in down or call.topic in down
            rig.ends(call, None if rng.random() < 0.05 else OUTAGE if is_down else DELIVERED)
        consistent(rig)
        rig.pass_ms(rng.randrange(200))
    rig.all_end(under_way)
    for _ in range(40):
        rounds(rig, (), 500)
        rig.pass_ms(BREAKER_OPEN_MS_MAX // 10)
    for name in names:
        rig.puts(name, 1)
    rounds(rig, (), 1_000)
    idle = sum(rig.scheduler.breakers)  # topics that have failed and go elsewhere now
    assert kept(rig) <= 3 * idle


def consistent(rig: SchedulerRig) -> None:
    """What is counted is what is there."""
    scheduler: Any = rig.scheduler
    routes = scheduler._routes.values()
    assert scheduler.breakers == [
        sum(route.breaker.state is state for route in routes) for state in BreakerState
    ]
    for host in scheduler._hosts.values():
        own = [route for route in routes if route.host is host]
        assert (len(own), host.breaker.firsts) == (
            host.routes,
            sum(route.breaker.has_first for route in own),
        )


def test_a_topic_that_goes_elsewhere_at_its_turn_leaves_the_turn_to_the_next(
    rig: SchedulerRig,
) -> None:
    many_topics(rig, 3)
    (call,) = rig.take()
    rig.ends(call, OUTAGE)
    rig.sends("t2", "c")
    calls: list[PushCall] = []
    while "t3" not in topics(calls):
        calls = rig.take()
        assert calls, "the next topic waits"
        rig.all_end(calls, OUTAGE)


# --- Memory --------------------------------------------------------------------------------------


def kept(rig: SchedulerRig) -> int:
    """How many things the scheduler remembers."""
    names: tuple[str, ...] = (
        "_alarms",
        "_calls",
        "_heard",
        "_hosts",
        "_idle",
        "_known",
        "_places",
        "_queue",
    )
    names += ("_rates", "_returning", "_routes")
    return sum(len(getattr(rig.scheduler, name)) for name in names)


def test_nothing_is_kept_for_a_job_that_waits() -> None:
    rig = SchedulerRig(per_place=1)
    rig.sends("mail", "a")
    rig.puts("mail", 10)
    rig.take()
    before = kept(rig)
    rig.puts("mail", 1_000)
    rig.take()
    assert kept(rig) == before


def test_nothing_is_kept_for_a_job_that_waits_for_a_breaker_but_one_alarm_for_all(
    rig: SchedulerRig,
) -> None:
    rig.sends("mail", "a")
    rig.puts("mail", BREAKER_FAILURES)
    rig.all_end(rig.take(), OUTAGE)
    rig.puts("mail", 1_000)
    assert rig.take() == []
    assert kept(rig) == 4, "the alarm, the lane, the host, the topic at the host"


def test_a_place_that_answered_is_forgotten_with_its_last_job(rig: SchedulerRig) -> None:
    rig.sends("mail", "a")
    rig.puts("mail", 4)
    rig.all_end(rig.take())
    assert rig.take() == []
    assert (kept(rig), rig.scheduler.breakers) == (0, [0, 0, 0])


def test_so_many_places_without_jobs_are_remembered_for_their_failures_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delayd.push.scheduler.PUSH_PLACES_KEPT_MAX", 3)
    rig = SchedulerRig()
    for number in range(6):
        rig.sends(f"t{number}", f"h{number}")
        rig.puts(f"t{number}", 1)
        rig.all_end(rig.take(), OUTAGE)
    assert kept(rig) == 9, "three hosts with a topic each, which are also ordered by age"
    assert sum(rig.scheduler.breakers) == 3
    assert PUSH_PLACES_KEPT_MAX > 3


def test_rates_of_which_nothing_is_used_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.push.scheduler.PUSH_PLACES_KEPT_MAX", 3)
    rig = SchedulerRig()
    for number in range(12):
        rig.sends(f"t{number}", "a", rate_per_s=10)
        rig.puts(f"t{number}", 1)
        rig.all_end(rig.take())
        rig.pass_ms(1_000)
    rates: Any = getattr(rig.scheduler, "_rates")  # noqa: B009
    assert len(rates) <= 4


# --- The end -------------------------------------------------------------------------------------


def test_at_the_end_nothing_begins_and_all_that_is_under_way_is_given_back_uncounted() -> None:
    rig = SchedulerRig(per_place=2)
    rig.sends("mail", "a", {"retry": "1s"})
    jobs = rig.puts("mail", 3)
    first, second = rig.take()
    rig.scheduler.is_stopping = True
    rig.ends(first)
    assert rig.take() == []
    rig.scheduler.give_back_all(rig.now_ms, rig.at_ms)
    assert [rig.state(job) for job in jobs] == [None, State.READY, State.READY]
    assert rig.scheduler.in_flight == 0
    rig.restart()
    record, state = caught_up(rig.engine, second.job_id, rig.now_ms)
    assert (state, len(record) > 0) == (State.READY, True)
