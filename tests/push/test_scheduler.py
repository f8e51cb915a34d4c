"""Which due jobs are delivered next, and what becomes of them: scheduler.txt, and what is long."""

from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from delayd import limits
from delayd.push.breaker import BreakerState
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from tests.fact_rows import Fact, rows
from tests.facts.rows import run
from tests.push.bench import ENDS, OUTAGE, PushBench

LATE: Final = {
    f"{end} when the {what}": Fact(
        f"sends mail a; put; take; go 20{then}", [(f"end 1 {end}", seen)]
    )
    for end in ENDS
    for what, then, seen in (
        ("lease is over", "", "1 delayed"),
        ("job is gone", "; cancel 1", "1 gone"),
    )
}
FACTS: Final = dict(rows(Path(__file__).parent / "scheduler.txt")) | LATE


@pytest.fixture
def bench() -> Iterator[PushBench]:
    made = PushBench()
    yield made
    made.close()


@pytest.mark.parametrize("name", FACTS)
def test_fact(bench: PushBench, name: str) -> None:
    run(FACTS[name], bench)


def test_a_turn_takes_a_bounded_number_of_steps(bench: PushBench) -> None:
    bench.bounds(calls=10_000, per_place=10_000)
    bench.sends("mail", "a")
    bench.fill("mail", 3 * limits.PUSH_STEPS_PER_TURN)
    calls = bench.begun_in_turn()
    assert 0 < len(calls) <= limits.PUSH_STEPS_PER_TURN
    assert bench.scheduler.has_more
    assert len(calls) + len(bench.take()) == 3 * limits.PUSH_STEPS_PER_TURN


def test_the_error_and_the_beginning_of_the_answer_are_kept_without_control_characters(
    bench: PushBench,
) -> None:
    bench.sends("mail", "a")
    bench.put()
    answer = b"\x1b[2Jno\xffroom\r\n" + 2_000 * b"x"
    bench.ended(bench.begun(), AttemptEnd(Result.FAILED, "503 Service\nUnavailable", answer))
    first, _, rest = bench.look(1)["error"].partition("\n")
    assert first == r"503 Service\nUnavailable"
    assert rest.startswith("\\x1b[2Jno\N{REPLACEMENT CHARACTER}room\\r\\nxxx")
    assert len(rest) <= 1_100


# --- One topic and another at the same host ------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("per_place", [1, 8])
def test_a_topic_that_fails_keeps_no_job_of_another_waiting(
    bench: PushBench, per_place: int
) -> None:
    bench.bounds(per_place=per_place)
    bench.sends("bad", "a")
    bench.sends("good", "a")
    bench.down("bad")
    bench.fill("bad", 20)
    for _ in range(150):
        job_ids = bench.fill("good", 3)
        while any(bench.engine.store.jobs.get(job_id) is not None for job_id in job_ids):
            calls = bench.begun()
            assert calls, "a good job waits"
            for call in calls:
                bench.ended([call], OUTAGE if call.topic == "bad" else DELIVERED)
        bench.go(0.5)


def rounds(bench: PushBench, down: Container[str], seconds: float) -> Counter[str]:
    """Play so long, with calls that end at once; those of topics that are down fail."""
    made: Counter[str] = Counter()
    ends_ms = bench.at_ms + seconds * 1_000
    while bench.at_ms < ends_ms:
        while calls := bench.begun():
            made.update(call.topic for call in calls)
            bench.ended(call for call in calls if call.topic not in down)
            bench.ended((call for call in calls if call.topic in down), OUTAGE)
        bench.go(0.5)
    return made


@pytest.mark.thorough
def test_topics_at_hosts_that_come_and_go_leave_nothing_behind(
    bench: PushBench, rng: Random
) -> None:
    bench.bounds(calls=12, per_place=4)
    ladder = ["1s"] * 30
    hosts, names = "abc", [f"t{number}" for number in range(9)]
    for number, name in enumerate(names):
        push = {"concurrency": 2} if number % 3 == 2 else {}
        bench.sends(name, hosts[number % 3], retry=ladder, push=push)
    under_way = bench.begun()
    down: set[str] = set()
    for step in range(400):
        if step % 50 == 0:
            down = {each for each in (*hosts, *names) if rng.random() < 0.3}
        if rng.random() < 0.3:
            name = rng.choice(names)
            if rng.random() < 0.2:
                bench.sends(name, rng.choice(hosts), retry=ladder)
            bench.fill(name, rng.randrange(4))
            bench.own("own", rng.choice(hosts))
        under_way += bench.begun()
        rng.shuffle(under_way)
        while under_way and rng.random() < 0.6:
            call = under_way.pop()
            host = call.target.url.removeprefix("https://")[0]
            is_down = host in down or call.topic in down
            end = None if rng.random() < 0.05 else OUTAGE if is_down else DELIVERED
            bench.ended([call], end)
        consistent(bench)
        bench.go(rng.randrange(200) / 1_000)
    bench.ended(under_way)
    for _ in range(40):
        rounds(bench, (), 0.5)
        bench.go(limits.BREAKER_OPEN_MS_MAX / 10_000)
    for name in names:
        bench.fill(name)
    rounds(bench, (), 1)
    idle = sum(bench.breakers())  # topics that have failed and go elsewhere now
    assert bench.kept() <= 3 * idle


def consistent(bench: PushBench) -> None:
    """What is counted is what is there."""
    scheduler: Any = bench.scheduler
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


# --- Memory --------------------------------------------------------------------------------------


def test_so_many_places_without_jobs_are_remembered_for_their_failures_and_no_more(
    bench: PushBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.push.scheduler.PUSH_PLACES_KEPT_MAX", 3)
    bench.bounds()
    for number in range(6):
        bench.sends(f"t{number}", f"h{number}")
        bench.fill(f"t{number}")
        bench.ended(bench.begun(), OUTAGE)
    assert bench.kept() == 9, "three hosts with a topic each, which are also ordered by age"
    assert sum(bench.breakers()) == 3
    assert limits.PUSH_PLACES_KEPT_MAX > 3


def test_rates_of_which_nothing_is_used_are_forgotten(
    bench: PushBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.push.scheduler.PUSH_PLACES_KEPT_MAX", 3)
    bench.bounds()
    for number in range(12):
        bench.sends(f"t{number}", "a", push={"rate_per_s": 10})
        bench.fill(f"t{number}")
        bench.ended(bench.begun())
        bench.go(1)
    rates: Any = getattr(bench.scheduler, "_rates")  # noqa: B009
    assert len(rates) <= 4
