"""The calls about many jobs: pages, calendars, and one thing done to all of them."""

import random
from typing import Any

import pytest

from delayd import turns as turns_module
from delayd.access.scopes import Scope
from delayd.core.operations.attempts import bury
from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import open_session, watch
from delayd.core.operations.topics import clear
from delayd.core.times import RequestMs
from delayd.http.handlers import many_jobs
from delayd.limits import (
    ERROR_BYTES_MAX,
    HTTP_CALENDAR_TOPICS_MAX,
    HTTP_ITEMS_FEW,
    HTTP_PAGE_BYTES_MAX,
    SEARCH_JOBS_MAX,
    TASK_SLICE_US,
    TASK_STEP_JOBS,
)
from tests.rigs.clock import FakeClock
from tests.rigs.http import HttpRig, SliceWatch

JOBS = "/v1/topics/mail/jobs"
HOUR_MS = 3_600_000


def put(rig: HttpRig, **fields: object) -> int:
    told = rig.ok("POST", JOBS, {"body": None, **fields})
    return int(told["id"])


def ids(told: dict[str, Any]) -> list[int]:
    return [job["id"] for job in told["jobs"]]


def listed(rig: HttpRig, query: str = "") -> list[int]:
    return ids(rig.ok("GET", f"{JOBS}?{query}" if query else JOBS))


def one_of_each(rig: HttpRig) -> dict[str, int]:
    """A job in each state, by the state's name."""
    jobs = {}
    for state in ("buried", "reserved"):
        jobs[state] = put(rig)
        (job,) = rig.ok("POST", "/v1/topics/mail/reserve")["jobs"]
        if state == "buried":
            rig.ok("POST", f"/v1/jobs/{job['id']}/bury", {"token": job["token"]})
    jobs["ready"] = put(rig)
    jobs["delayed"] = put(rig, delay="1h")
    return jobs


# --- Pages ---------------------------------------------------------------------------------------


def test_a_row_tells_where_its_job_is_sent() -> None:
    with HttpRig(needs_token=True) as rig:
        rig.engine.vet_target = lambda target: target
        admin, looks = rig.token(*Scope), rig.token(Scope.PEEK)
        url = "https://example.com/due"
        sent = {"body": 1, "delay": "1h", "url": f"{url}?key=s3", "headers": {"X-Key": "s3"}}
        rig.ok("POST", "/v1/topics/mail/jobs", sent, token=admin)
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": "2h"}, token=admin)
        for token, query in ((admin, "key=s3"), (looks, "***")):
            first, second = rig.ok("GET", "/v1/topics/mail/jobs", token=token)["jobs"]
            assert (first["url"], first["method"]) == (f"{url}?{query}", "POST")
            assert not {"url", "method", "headers"} & second.keys()


def test_a_page_of_long_errors_ends_where_there_are_enough() -> None:
    with HttpRig(is_checked=False) as rig:
        engine, topic = rig.engine, rig.engine.store.topic("mail")
        now_ms = rig.clock.now_ms()
        put_alike(engine, topic, 0, 0, 60_000, [b"{}"] * SEARCH_JOBS_MAX, RequestMs(now_ms))
        session = open_session(engine)
        watch(engine, session, "mail")
        for job_id, _ in reserve_batch(
            engine, session, SEARCH_JOBS_MAX, 1 << 20, RequestMs(now_ms)
        ):
            bury(engine, session, job_id, 0, RequestMs(now_ms), "\1" * ERROR_BYTES_MAX)
        found: list[int] = []
        for query in ("", "&bodies=true"):
            before = len(found)
            told: dict[str, Any] = {"after": None}
            while len(found) == before or told["after"] is not None:
                after = "" if told["after"] is None else f"&after={told['after']}"
                answer = rig.call("GET", f"{JOBS}?limit={SEARCH_JOBS_MAX}{query}{after}")
                assert len(answer.body) < HTTP_PAGE_BYTES_MAX + 200 * SEARCH_JOBS_MAX
                told = answer.json
                found += ids(told)
        assert found == [*range(1, SEARCH_JOBS_MAX + 1)] * 2


def test_the_span_counts_from_now_or_from_moments_and_has_an_open_end() -> None:
    with HttpRig(is_virtual=True) as rig:
        for hours in range(4):
            put(rig, delay=f"{hours}h")
        rig.pass_ms(HOUR_MS)
        assert listed(rig, "from=0&to=2h") == [2, 3]
        assert listed(rig, "from=0&to=7200.001") == [2, 3, 4]
        assert listed(rig, "from=-1h&to=0") == [1]
        assert listed(rig, "from=-1h&to=0.001") == [1, 2]
        assert listed(rig, "from=2023-11-15T00:13:20Z") == [3, 4]
        assert listed(rig, "to=2023-11-15T01:13:20%2B01:00") == [1, 2]
        assert listed(rig, "to=2023-11-15T00:13:20.001Z") == [1, 2, 3]


def test_a_moment_is_one_of_the_wall_clock_however_it_was_set() -> None:
    with HttpRig() as rig:
        put(rig, delay="1h")
        assert isinstance(rig.clock, FakeClock)
        rig.clock.step_wall(HOUR_MS)
        assert listed(rig, "from=2023-11-15T00:13:00Z&to=2023-11-15T00:14:00Z") == [1]
        assert listed(rig, "from=2023-11-14T23:13:00Z&to=2023-11-14T23:14:00Z") == []


def test_a_prefix_that_is_no_text_finds_nothing_and_breaks_nothing() -> None:
    with HttpRig() as rig:
        put(rig, key="order")
        for escaped in ("%FF", "%ED%A0%80", "%00", "%"):
            assert rig.call("GET", f"{JOBS}?prefix={escaped}").status in {200, 422}


def test_pages_hold_each_job_once_that_stays_as_it_is(rng: random.Random) -> None:
    with HttpRig() as rig:
        still = {put(rig, delay=rng.randrange(1, 1_000)) for _ in range(60)}
        moving = {put(rig, delay=rng.randrange(1, 1_000)) for _ in range(40)}
        told = rig.ok("GET", f"{JOBS}?limit=7")
        seen = ids(told)
        while told["after"] is not None:
            some = rng.choice(sorted(moving))
            if rng.random() < 0.5:
                rig.ok("PATCH", f"/v1/jobs/{some}", {"delay": rng.randrange(1, 1_000)})
            else:
                rig.ok("DELETE", f"/v1/jobs/{some}")
                moving.discard(some)
                moving.add(put(rig, delay=rng.randrange(1, 1_000)))
            told = rig.ok("GET", f"{JOBS}?limit=7&after={told['after']}")
            seen += ids(told)
        assert sorted(job_id for job_id in seen if job_id in still) == sorted(still)


def test_a_page_behind_a_job_that_has_gone_goes_on_from_there() -> None:
    with HttpRig() as rig:
        for delay in (1, 2, 3):
            put(rig, delay=delay)
        told = rig.ok("GET", f"{JOBS}?limit=2")
        assert ids(told) == [1, 2]
        rig.ok("DELETE", "/v1/jobs/2")
        rest = rig.ok("GET", f"{JOBS}?limit=2&after={told['after']}")
        assert (ids(rest), rest["after"]) == ([3], None)


def test_a_mark_that_was_made_up_is_only_a_place() -> None:
    with HttpRig() as rig:
        put(rig, delay=1)
        assert listed(rig, "after=0-1") == [1]
        assert listed(rig, f"after={'f' * 16}-{'9' * 20}") == []


def test_bodies_come_as_they_were_put() -> None:
    with HttpRig() as rig:
        rig.ok("POST", JOBS, {"body": {"a": 1.0}})
        rig.ok("POST", JOBS, {"body_base64": "/w=="})
        first, second = rig.ok("GET", f"{JOBS}?bodies=true")["jobs"]
        assert (first["body"], second["body_base64"]) == ({"a": 1.0}, "/w==")
        assert not {"body", "body_base64"} & rig.ok("GET", f"{JOBS}?bodies=false")["jobs"][0].keys()


def test_a_page_of_long_bodies_ends_where_there_are_enough() -> None:
    with HttpRig(is_checked=False) as rig:
        rig.engine.body_bytes_max = HTTP_PAGE_BYTES_MAX * 2
        topic = rig.engine.store.topic("mail")
        third = b"x" * (HTTP_PAGE_BYTES_MAX // 3)
        for body in (third, third, third, third, third * 4, b"y"):
            put_alike(rig.engine, topic, 0, 0, 1_000, (body,), RequestMs(rig.clock.now_ms()))
        pages = []
        told = rig.ok("GET", f"{JOBS}?bodies=true")
        pages.append(ids(told))
        while told["after"] is not None:
            told = rig.ok("GET", f"{JOBS}?bodies=true&after={told['after']}")
            pages.append(ids(told))
        assert pages == [[1, 2, 3], [4], [5], [6]]


def test_a_job_that_goes_while_bodies_are_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpRig(is_checked=False, slice_now_ns=SliceWatch()) as rig:
        topic = rig.engine.store.topic("mail")
        jobs = HTTP_ITEMS_FEW + 1
        put_alike(rig.engine, topic, 0, 0, 1_000, [b"x"] * jobs, RequestMs(rig.clock.now_ms()))
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


def test_what_is_listed_is_durable() -> None:
    with HttpRig() as rig:
        rig.disk.hold()
        rig.send("POST", JOBS, {"body": 1})
        looking = rig.send("GET", JOBS)
        assert looking.answer is None
        rig.disk.release()
        rig.settle()
        assert ids(looking.the_answer.json) == [1]


def test_who_goes_away_is_searched_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpRig(is_checked=False) as rig:
        topic = rig.engine.store.topic("mail")
        bodies = [b"x"] * (40 * TASK_STEP_JOBS)
        put_alike(rig.engine, topic, 0, HOUR_MS, 1_000, bodies, RequestMs(rig.clock.now_ms()))
        looks = iter(range(0, 10**12, TASK_SLICE_US * 1_000))
        monkeypatch.setattr(turns_module, "monotonic_ns", looks.__next__)
        client = rig.send("DELETE", f"{JOBS}?all=true", is_settled=False)
        while topic.jobs == len(bodies):
            rig.step()
        client.hang_up()
        rig.settle()
        assert not rig.tasks.has_more
        assert 0 < topic.jobs < len(bodies), "what was done stays done, and no more is"


# --- Many at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?prefix=", "?all=false", "?all=true&prefix=a"])
def test_a_forgotten_filter_cancels_nothing(query: str) -> None:
    with HttpRig() as rig:
        put(rig)
        answer = rig.call("DELETE", JOBS + query)
        assert (answer.status, answer.fields) == (422, ["all"])
        assert rig.ok("DELETE", f"{JOBS}?dry_run=true") == {"matched": 1}
        assert len(listed(rig)) == 1


def test_every_job_of_a_topic_is_cancelled_by_an_admin_only() -> None:
    with HttpRig(needs_token=True) as rig:
        rig.ok("POST", JOBS, {"body": 1}, token=rig.token())
        answer = rig.call("DELETE", f"{JOBS}?all=true", token=rig.token(Scope.DELETE))
        assert (answer.status, answer.word) == (403, "FORBIDDEN")
        assert "admin" in answer.json["detail"]
        token = rig.token(Scope.DELETE, Scope.ADMIN)
        assert rig.ok("DELETE", f"{JOBS}?all=true", token=token) == {"cancelled": 1}


def test_rescheduling_by_a_filter_to_a_moment_follows_the_wall_clock() -> None:
    with HttpRig(is_virtual=True) as rig:
        jobs = one_of_each(rig)
        moment = "2070-01-01T07:00:00.000Z"
        answer = rig.ok("POST", f"{JOBS}/reschedule", {"at": moment})
        assert answer == {"rescheduled": 2}
        for state in ("delayed", "ready"):
            assert rig.ok("GET", f"/v1/jobs/{jobs[state]}")["due"] == moment


def test_a_delay_beyond_what_the_policy_allows_is_refused() -> None:
    with HttpRig() as rig:
        put(rig)
        rig.ok("PUT", "/v1/topics/mail/policy", {"delay_max": "1h"})
        answer = rig.call("POST", f"{JOBS}/reschedule", {"delay": "2h"})
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["delay"])
        answer = rig.call("POST", f"{JOBS}/reschedule", {"at": "2030-01-01T00:00:00Z"})
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["at"])
        assert answer.json["rescheduled"] == 0


def test_a_reschedule_that_finds_no_more_space_says_how_far_it_came() -> None:
    with HttpRig() as rig:
        for _ in range(5):
            put(rig, delay="1h")
        rig.engine.log_space.limit(150, lambda *_: -1)
        answer = rig.call("POST", f"{JOBS}/reschedule", {"delay": "2h"})
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        done = answer.json["rescheduled"]
        assert 0 < done < 5
        assert len(listed(rig, "from=90m")) == done


# --- The calendar --------------------------------------------------------------------------------


def test_a_calendar_tells_how_much_comes_due_when() -> None:
    with HttpRig(is_virtual=True) as rig:
        for delay in ("30m", "90m", "100m", "5h"):
            put(rig, delay=delay)
        put(rig)
        rig.ok("POST", "/v1/topics/sms/jobs", {"body": 1, "delay": "2h"})
        rig.ok("POST", "/v1/topics/fax/jobs", {"body": 1})
        assert rig.ok("GET", "/v1/calendar?horizon=3h&bins=3") == {
            "from": "2023-11-14T22:13:20.000Z",
            "bin": 3_600.0,
            "topics": [{"name": "mail", "counts": [1, 2, 0]}, {"name": "sms", "counts": [0, 0, 1]}],
            "after": None,
        }
        told = rig.ok("GET", "/v1/calendar?topic=sms&topic=fax&topic=sms&horizon=4h&bins=1")
        assert told["topics"] == [{"name": "sms", "counts": [1]}, {"name": "fax", "counts": [0]}]
        assert len(rig.ok("GET", "/v1/calendar")["topics"][0]["counts"]) == 24


def test_a_calendar_begins_where_it_is_asked_to() -> None:
    with HttpRig(is_virtual=True) as rig:
        for delay in ("30m", "90m", "100m", "5h"):
            put(rig, delay=delay)
        for begin in ("1h", "2023-11-14T23:13:20Z"):
            told = rig.ok("GET", f"/v1/calendar?from={begin}&horizon=1h&bins=6")
            assert (told["from"], told["bin"]) == ("2023-11-14T23:13:20.000Z", 600.0)
            assert told["topics"][0]["counts"] == [0, 0, 0, 1, 1, 0]
        told = rig.ok("GET", "/v1/calendar?from=-1h&horizon=2h&bins=2")
        assert told["topics"][0]["counts"] == [0, 1]  # what is past has come
        assert rig.ok("GET", "/v1/calendar?from=6h")["topics"][0]["counts"] == [0] * 24


def test_a_calendar_of_very_many_topics_comes_in_pages() -> None:
    with HttpRig(is_checked=False) as rig:
        count = HTTP_CALENDAR_TOPICS_MAX + 5
        for number in range(count):
            topic = rig.engine.store.topic(f"t{number:03}")
            put_alike(rig.engine, topic, 0, HOUR_MS, 1_000, (b"",), RequestMs(rig.clock.now_ms()))
        told = rig.ok("GET", "/v1/calendar?bins=1")
        assert len(told["topics"]) == HTTP_CALENDAR_TOPICS_MAX
        rest = rig.ok("GET", f"/v1/calendar?bins=1&after={told['after']}")
        assert rest["after"] is None
        names = [topic["name"] for topic in told["topics"] + rest["topics"]]
        assert names == [f"t{number:03}" for number in range(count)]
        assert all(topic["counts"] == [1] for topic in told["topics"] + rest["topics"])


def test_a_calendar_leaves_out_what_the_token_may_not_see() -> None:
    with HttpRig(needs_token=True) as rig:
        admin = rig.token()
        token = rig.token(Scope.PEEK, topics=("mail",))
        for topic in ("mail", "sms"):
            given = {"body": 1, "delay": "1h"}
            rig.ok("POST", f"/v1/topics/{topic}/jobs", given, token=admin)
        told = rig.ok("GET", "/v1/calendar", token=token)
        assert [topic["name"] for topic in told["topics"]] == ["mail"]
        assert rig.call("GET", "/v1/calendar?topic=sms", token=token).status == 403
        assert rig.call("GET", "/v1/calendar", token=rig.token(Scope.STATS)).status == 403
