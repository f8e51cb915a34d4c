"""Which due jobs are delivered next, and what becomes of them, on two clocks that tests move."""

from collections import Counter
from collections.abc import Container, Mapping
from random import Random
from typing import Any

import pytest

from delayd import limits
from delayd.core.job_parts import attempts_of
from delayd.core.job_record import State
from delayd.core.targets import pack_own
from delayd.push.breaker import BreakerState, Probe
from delayd.push.scheduler import PushCall
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from tests.push.rig import AT_MS, OUTAGE, REFUSED, SchedulerRig, kept

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


def test_a_turn_takes_a_bounded_number_of_steps() -> None:
    rig = SchedulerRig(calls_max=10_000, per_place=10_000)
    rig.sends("mail", "a")
    rig.puts("mail", 3 * limits.PUSH_STEPS_PER_TURN)
    calls = rig.scheduler.take_calls(rig.now_ms, rig.at_ms)
    assert 0 < len(calls) <= limits.PUSH_STEPS_PER_TURN
    assert rig.scheduler.has_more
    assert len(calls) + len(rig.take()) == 3 * limits.PUSH_STEPS_PER_TURN


# --- What became of it ---------------------------------------------------------------------------


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


# --- Breakers ------------------------------------------------------------------------------------


def fails(rig: SchedulerRig, topic: str) -> None:
    """Have so many jobs of the topic fail that its breaker opens."""
    rig.puts(topic, limits.BREAKER_FAILURES)
    for _ in range(limits.BREAKER_FAILURES):
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
    rig.puts("mail", limits.BREAKER_FAILURES)
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
        rig.pass_ms(limits.BREAKER_OPEN_MS)
    return made


@pytest.mark.thorough
def test_probes_cost_no_attempt_while_others_wait_for_the_place(rig: SchedulerRig) -> None:
    job_ids = an_outage(rig, 3, {"max_attempts": 1})
    made = probes(rig, hours=1)
    assert len(made) > 50
    assert {call.job_id for call in made} >= set(job_ids)
    for job_id in job_ids:
        assert (rig.state(job_id), attempts(rig, job_id)) == (State.READY, 0)
        assert rig.error(job_id) == OUTAGE.error
    rig.pass_ms(limits.BREAKER_OPEN_MS_MAX)
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
        rig.pass_ms(limits.BREAKER_OPEN_MS)


def test_a_lone_job_goes_its_ladder_whatever_the_breaker_does(rig: SchedulerRig) -> None:
    rig.sends("mail", "a", {"retry": ["1s"] * 20})
    job_id = rig.put("mail")
    made = 0
    while rig.state(job_id) is not State.BURIED:
        for call in rig.take():
            made += 1
            rig.ends(call, OUTAGE)
        rig.pass_ms(limits.BREAKER_OPEN_MS)
    assert made == 21


@pytest.mark.thorough
def test_of_a_spared_probe_the_answer_is_not_kept(rig: SchedulerRig) -> None:
    """It could be read without the scope admin: its reason is not that of a call."""
    job_ids = an_outage(rig, 2, {})
    probes(rig, hours=1, end=OUTAGE._replace(answer=b"secret"))
    assert [rig.error(job_id) for job_id in job_ids] == [OUTAGE.error] * 2


def test_a_probe_that_the_place_answers_is_an_attempt(rig: SchedulerRig) -> None:
    job_ids = an_outage(rig, 2, {"max_attempts": 1})
    while not (mine := [call for call in rig.take() if call.job_id in job_ids]):
        rig.pass_ms(limits.BREAKER_OPEN_MS)
    rig.ends(mine[0], REFUSED)
    assert rig.state(mine[0].job_id) is State.BURIED


def test_after_a_day_of_failures_probes_count_again(rig: SchedulerRig) -> None:
    job_ids = an_outage(rig, 3, {"max_attempts": 1})
    rig.at_ms += limits.BREAKER_SPARES_MS
    rig.play(rig.time_ms + limits.BREAKER_SPARES_MS)
    probes(rig, hours=1)
    assert [rig.state(job_id) for job_id in job_ids] == [State.BURIED] * 3


# --- One topic and another at the same host ------------------------------------------------------


@pytest.mark.thorough
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
    rig.pass_ms(limits.BREAKER_OPEN_MS)
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    rig.pass_ms(limits.BREAKER_FIRST_PROBE_MS - 1)
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
    for _ in range(3 * limits.BREAKER_FIRST_PROBES_MAX):
        rig.pass_ms(limits.BREAKER_FIRST_PROBE_MS)
        calls += [call for call in rig.take() if call.probe is Probe.FIRST]
    assert len(calls) == len(topics(calls)) == limits.BREAKER_FIRST_PROBES_MAX
    rig.ends(calls[0], OUTAGE)
    assert len(rig.take()) == 1


def test_a_topic_with_one_job_that_hangs_sends_the_others_when_the_host_answers(
    rig: SchedulerRig,
) -> None:
    names = many_topics(rig, 3)
    (hanging,) = rig.take()
    rig.pass_ms(limits.BREAKER_FIRST_PROBE_MS)
    (other,) = (call for call in rig.take() if call.probe is Probe.FIRST)
    rig.ends(other)
    assert topics(rig.take())[hanging.topic] == 1
    assert hanging.topic in names


@pytest.mark.thorough
def test_topics_at_hosts_that_come_and_go_leave_nothing_behind(rng: Random) -> None:
    rig = SchedulerRig(calls_max=12, per_place=4)
    hosts, names = "abc", [f"t{number}" for number in range(9)]
    for number, name in enumerate(names):
        rules = {"retry": ["1s"] * 30}
        push = {"concurrency": 2} if number % 3 == 2 else {}
        rig.sends(name, hosts[number % 3], rules, **push)
    under_way: list[PushCall] = []
    down: set[str] = set()
    for step in range(400):
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
        rig.pass_ms(limits.BREAKER_OPEN_MS_MAX // 10)
    for name in names:
        rig.puts(name, 1)
    rounds(rig, (), 1_000)
    idle = sum(rig.scheduler.breakers)  # topics that have failed and go elsewhere now
    assert kept(rig.scheduler) <= 3 * idle


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


def test_so_many_places_without_jobs_are_remembered_for_their_failures_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delayd.push.scheduler.PUSH_PLACES_KEPT_MAX", 3)
    rig = SchedulerRig()
    for number in range(6):
        rig.sends(f"t{number}", f"h{number}")
        rig.puts(f"t{number}", 1)
        rig.all_end(rig.take(), OUTAGE)
    assert kept(rig.scheduler) == 9, "three hosts with a topic each, which are also ordered by age"
    assert sum(rig.scheduler.breakers) == 3
    assert limits.PUSH_PLACES_KEPT_MAX > 3


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
