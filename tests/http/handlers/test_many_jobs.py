"""How long pages and calendars are, and what happens to jobs while they are written."""

import random
from typing import Any

import pytest

from delayd import limits
from delayd import turns as turns_module
from delayd.core.operations.attempts import bury
from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import open_session, watch
from delayd.core.operations.topics import clear
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.http.handlers import many_jobs
from tests.rigs.http import JOBS, HttpRig, SliceWatch, put, request

HOUR_MS = 3_600_000


def ids(told: dict[str, Any]) -> list[int]:
    return [job["id"] for job in told["jobs"]]


def fill(rig: HttpRig, topic: str, *bodies: bytes, delay_ms: int = 0) -> Topic:
    made = rig.engine.store.topic(topic)
    put_alike(rig.engine, made, 0, delay_ms, 60_000, bodies, RequestMs(rig.clock.now_ms()))
    return made


@pytest.mark.thorough
def test_a_page_of_long_errors_ends_where_there_are_enough() -> None:
    with HttpRig(is_checked=False) as rig:
        engine, now_ms = rig.engine, RequestMs(rig.clock.now_ms())
        fill(rig, "mail", *[b"{}"] * limits.SEARCH_JOBS_MAX)
        session = open_session(engine)
        watch(engine, session, "mail")
        for job_id, _ in reserve_batch(engine, session, limits.SEARCH_JOBS_MAX, 1 << 20, now_ms):
            bury(engine, session, job_id, 0, now_ms, "\1" * limits.ERROR_BYTES_MAX)
        found: list[int] = []
        for query in ("", "&bodies=true"):
            before = len(found)
            told: dict[str, Any] = {"after": None}
            while len(found) == before or told["after"] is not None:
                after = "" if told["after"] is None else f"&after={told['after']}"
                answer = rig.call("GET", f"{JOBS}?limit={limits.SEARCH_JOBS_MAX}{query}{after}")
                assert len(answer.body) < limits.HTTP_PAGE_BYTES_MAX + 200 * limits.SEARCH_JOBS_MAX
                told = answer.json
                found += ids(told)
        assert found == [*range(1, limits.SEARCH_JOBS_MAX + 1)] * 2


@pytest.mark.thorough
def test_pages_hold_each_job_once_that_stays_as_it_is(rig: HttpRig, rng: random.Random) -> None:
    still = {put(rig, delay=rng.randrange(1, 1_000))["id"] for _ in range(60)}
    moving = {put(rig, delay=rng.randrange(1, 1_000))["id"] for _ in range(40)}
    told = rig.ok("GET", f"{JOBS}?limit=7")
    seen = ids(told)
    while told["after"] is not None:
        some = rng.choice(sorted(moving))
        if rng.random() < 0.5:
            rig.ok("PATCH", f"/v1/jobs/{some}", {"delay": rng.randrange(1, 1_000)})
        else:
            rig.ok("DELETE", f"/v1/jobs/{some}")
            moving.discard(some)
            moving.add(put(rig, delay=rng.randrange(1, 1_000))["id"])
        told = rig.ok("GET", f"{JOBS}?limit=7&after={told['after']}")
        seen += ids(told)
    assert sorted(job_id for job_id in seen if job_id in still) == sorted(still)


def test_a_page_of_long_bodies_ends_where_there_are_enough() -> None:
    with HttpRig(is_checked=False) as rig:
        rig.engine.body_bytes_max = limits.HTTP_PAGE_BYTES_MAX * 2
        third = b"x" * (limits.HTTP_PAGE_BYTES_MAX // 3)
        fill(rig, "mail", third, third, third, third, third * 4, b"y")
        told = rig.ok("GET", f"{JOBS}?bodies=true")
        pages = [ids(told)]
        while told["after"] is not None:
            told = rig.ok("GET", f"{JOBS}?bodies=true&after={told['after']}")
            pages.append(ids(told))
        assert pages == [[1, 2, 3], [4], [5], [6]]


def test_a_job_that_goes_while_bodies_are_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpRig(is_checked=False, slice_now_ns=SliceWatch()) as rig:
        jobs = limits.HTTP_ITEMS_FEW + 1
        topic = fill(rig, "mail", *[b"x"] * jobs)
        told: list[bytes] = []

        def set_body(_job: object, body: bytes) -> None:
            told.append(body)

        monkeypatch.setattr(many_jobs, "set_body", set_body)
        client = rig.send("GET", f"{JOBS}?bodies=true", is_settled=False)
        while not told:
            rig.step()
        clear(rig.engine, topic)
        rig.settle()
        assert ids(client.the_answer.json) == list(range(1, 1 + len(told)))
        assert len(told) < jobs


@pytest.mark.parametrize("how", ["hang_up", "say_no_more"])
def test_who_goes_away_is_searched_for_no_more(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with HttpRig(is_checked=False) as rig:
        bodies = [b"x"] * (40 * limits.TASK_STEP_JOBS)
        topic = fill(rig, "mail", *bodies, delay_ms=HOUR_MS)
        looks = iter(range(0, 10**12, limits.TASK_SLICE_US * 1_000))
        monkeypatch.setattr(turns_module, "monotonic_ns", looks.__next__)
        client = rig.send("DELETE", f"{JOBS}?all=true", is_settled=False)
        while topic.jobs == len(bodies):
            rig.step()
        getattr(client, how)()
        rig.settle()
        assert client.is_closed
        assert not rig.tasks.has_more
        assert 0 < topic.jobs < len(bodies), "what was done stays done, and no more is"


def test_a_calendar_of_very_many_topics_comes_in_pages() -> None:
    with HttpRig(is_checked=False) as rig:
        count = limits.HTTP_CALENDAR_TOPICS_MAX + 5
        for number in range(count):
            fill(rig, f"t{number:03}", b"", delay_ms=HOUR_MS)
        told = rig.ok("GET", "/v1/calendar?bins=1")
        assert len(told["topics"]) == limits.HTTP_CALENDAR_TOPICS_MAX
        rest = rig.ok("GET", f"/v1/calendar?bins=1&after={told['after']}")
        assert rest["after"] is None
        names = [topic["name"] for topic in told["topics"] + rest["topics"]]
        assert names == [f"t{number:03}" for number in range(count)]
        assert all(topic["counts"] == [1] for topic in told["topics"] + rest["topics"])


def test_for_a_client_that_sends_no_more_it_is_not_begun(rig: HttpRig) -> None:
    put(rig)
    client = rig.connect()
    client.say("POST", request("POST", JOBS, {"body": 1}))
    client.say("DELETE", request("DELETE", f"{JOBS}?all=true"))
    rig.disk.hold()
    rig.settle()
    client.say_no_more()
    rig.settle()
    rig.disk.release()
    rig.settle()
    assert client.is_closed
    assert client.received.startswith(b"HTTP/1.1 201")
    assert rig.engine.store.topics.by_name["mail"].jobs == 2
