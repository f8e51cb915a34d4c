"""The calls about topics: which there are, what holds for them, what is done to them."""

import random
from typing import Any

import pytest

from delayd import turns as turns_module
from delayd.access.scopes import Scope
from delayd.core.policy import BY_NAME, Patterns, Policy
from delayd.http.forms import PolicyBodyForm
from delayd.limits import (
    CAP_MAX,
    EMERGENCY_BYTES,
    HTTP_TOPICS_PAGE_MAX,
    HTTP_TOPICS_SLICE,
    TASK_SLICE_US,
    TASK_STEP_JOBS,
)
from tests.http.callers import request
from tests.http.scene import Scene


def put(scene: Scene, topic: str, **fields: object) -> int:
    """Put a job, and return its id."""
    told = scene.ok("POST", f"/v1/topics/{topic}/jobs", {"body": None, **fields})
    return int(told["id"])


def reserve(scene: Scene, topic: str) -> dict[str, Any]:
    (job,) = scene.ok("POST", f"/v1/topics/{topic}/reserve", {})["jobs"]
    return dict(job)


def bury(scene: Scene, topic: str, jobs: int) -> list[int]:
    """Put jobs and bury them, in this order."""
    job_ids = []
    for _ in range(jobs):
        put(scene, topic)
        job = reserve(scene, topic)
        scene.ok("POST", f"/v1/jobs/{job['id']}/bury", {"token": job["token"]})
        job_ids.append(job["id"])
    return job_ids


def names(told: dict[str, Any]) -> list[str]:
    return [topic["name"] for topic in told["topics"]]


# --- Which there are -----------------------------------------------------------------------------


def test_topics_are_told_by_name_with_their_counts() -> None:
    with Scene() as scene:
        for topic in ("sms", "mail", "fax"):
            put(scene, topic, delay="1h")
        put(scene, "mail", priority=1)
        put(scene, "mail")
        reserve(scene, "mail")
        told = scene.ok("GET", "/v1/topics")
        assert names(told) == sorted([*names(told)])
        assert {"fax", "mail", "sms"} <= {*names(told)}
        mail = next(topic for topic in told["topics"] if topic["name"] == "mail")
        counts = ("jobs", "delayed", "ready", "reserved", "buried", "urgent", "waiting")
        assert [mail[count] for count in counts] == [3, 1, 1, 1, 0, 0, 0]
        assert told["after"] is None


def test_pages_of_topics_hold_each_of_them_once(rng: random.Random) -> None:
    with Scene() as scene:
        expected = {f"{rng.choice('abc')}.{number}" for number in range(150)}
        for name in expected:
            scene.engine.store.topic(name).users += 1
        seen: list[str] = []
        path = "/v1/topics?limit=7"
        after = ""
        while True:
            told = scene.ok("GET", path + after)
            seen += names(told)
            if told["after"] is None:
                break
            assert len(told["topics"]) == 7
            after = f"&after={told['after']}"
        assert seen == sorted(seen)
        assert {*seen} - {"default"} == expected
        assert len(seen) == len({*seen})


def test_a_full_page_that_is_the_last_one_says_so() -> None:
    with Scene() as scene:
        put(scene, "a")
        put(scene, "b")  # beside "default", which is always there
        told = scene.ok("GET", "/v1/topics?limit=2&after=a")
        assert (names(told), told["after"]) == (["b", "default"], None)


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("limit=0", ["limit"]),
        (f"limit={HTTP_TOPICS_PAGE_MAX + 1}", ["limit"]),
        ("limit=x&after=-", ["limit", "after"]),
        ("limit=1&limit=2", ["limit"]),
        ("aftr=x", ["aftr"]),
    ],
)
def test_a_query_that_is_wrong_is_refused_with_each_field(query: str, fields: list[str]) -> None:
    with Scene() as scene:
        answer = scene.call("GET", f"/v1/topics?{query}")
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", fields)


def test_only_topics_are_listed_that_the_token_is_good_for() -> None:
    with Scene(needs_token=True) as scene:
        admin = scene.token()
        token = scene.token(Scope.STATS, topics=("mail.*",))
        for topic in ("mail.a", "mail.b", "sms"):
            scene.ok("POST", f"/v1/topics/{topic}/jobs", {"body": 1}, token=admin)
        assert names(scene.ok("GET", "/v1/topics", token=token)) == ["mail.a", "mail.b"]
        told = scene.ok("GET", "/v1/topics?limit=1", token=token)
        assert (names(told), told["after"]) == (["mail.a"], "mail.a")
        told = scene.ok("GET", "/v1/topics?limit=1&after=mail.a", token=token)
        assert (names(told), told["after"]) == (["mail.b"], None)


def test_thousands_of_topics_are_gone_through_in_slices() -> None:
    with Scene(is_checked=False) as scene:
        for number in range(4_000):
            scene.engine.store.topic(f"t{number}").users += 1
        before = scene.turns_taken
        told = scene.ok("GET", f"/v1/topics?limit={HTTP_TOPICS_PAGE_MAX}")
        assert len(told["topics"]) == HTTP_TOPICS_PAGE_MAX
        slices = 4_000 // HTTP_TOPICS_SLICE + HTTP_TOPICS_PAGE_MAX // HTTP_TOPICS_SLICE
        assert scene.turns_taken - before >= slices


def test_a_topic_that_is_not_there_is_not_found() -> None:
    with Scene() as scene:
        for method, path in (
            ("GET", ""),
            ("POST", "/resume"),
            ("POST", "/kick"),
            ("POST", "/clear"),
            ("GET", "/jobs"),
            ("DELETE", "/jobs"),
            ("POST", "/jobs/kick"),
        ):
            answer = scene.call(method, f"/v1/topics/nothing{path}")
            assert (answer.status, answer.word) == (404, "NOT_FOUND"), path
        assert "nothing" not in scene.engine.store.topics.by_name


def test_a_name_that_cannot_be_is_refused() -> None:
    with Scene() as scene:
        for method, path in (("GET", ""), ("GET", "/policy"), ("GET", "/jobs"), ("POST", "/clear")):
            answer = scene.call(method, f"/v1/topics/-x{path}")
            assert (answer.status, answer.word) == (422, "BAD_FORMAT")


# --- Policies ------------------------------------------------------------------------------------


def test_a_policy_is_set_told_and_dropped() -> None:
    with Scene() as scene:
        policy = {"retry": ["15s", "3m"], "jobs_max": 10, "exhausted": "mail.failed"}
        told = scene.ok("PUT", "/v1/topics/mail/policy", policy)
        assert told == {"policy": policy, "source": "run_time"}
        assert scene.ok("GET", "/v1/topics/mail/policy") == told
        whole = scene.ok("GET", "/v1/topics/mail")
        assert (whole["policy"], whole["source"]) == (policy, "run_time")
        assert scene.ok("DELETE", "/v1/topics/mail/policy") == {
            "policy": {},
            "source": "configuration",
        }
        assert "mail" not in scene.engine.store.topics.by_name


def test_a_policy_is_whole_what_was_not_said_is_gone() -> None:
    with Scene() as scene:
        scene.ok("PUT", "/v1/topics/mail/policy", {"ttr": "1m", "delay": "2s"})
        told = scene.ok("PUT", "/v1/topics/mail/policy", {"ttr": "1m", "delay": None})
        assert told["policy"] == {"ttr": "1m"}


def test_a_policy_is_durable_before_it_is_told() -> None:
    with Scene() as scene:
        scene.disk.hold()
        admin = scene.send("PUT", "/v1/topics/mail/policy", {"ttr": "1m"})
        assert admin.answer is None
        scene.disk.release()
        scene.settle()
        assert admin.the_answer.status == 200
        policy, _ = scene.after_restart().policy_of("mail")
        assert policy == Policy(ttr_ms=60_000)


def test_without_a_policy_of_its_own_a_topic_has_the_configurations() -> None:
    with Scene() as scene:
        scene.engine.configure(Patterns({"mail.*": Policy(ttr_ms=5_000)}))
        configured = {"policy": {"ttr": "5s"}, "source": "configuration"}
        assert scene.ok("GET", "/v1/topics/mail.new/policy") == configured
        scene.ok("PUT", "/v1/topics/mail.new/policy", {"ttr": "1m"})
        assert scene.ok("DELETE", "/v1/topics/mail.new/policy") == configured
        scene.ok("PUT", "/v1/topics/mail.new/policy", {"ttr": "1m"})
        assert scene.ok("PUT", "/v1/topics/mail.new/policy", {}) == configured


def test_everything_that_is_wrong_with_a_policy_is_told_at_once() -> None:
    with Scene() as scene:
        wrong = {"ttr": 0, "retry": "15s soon", "jobs_max": -1, "on_close": "x", "jobs_mx": 1}
        answer = scene.call("PUT", "/v1/topics/mail/policy", wrong)
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")
        assert answer.fields == list(wrong)
        assert "did you mean jobs_max" in answer.json["errors"][-1]["detail"]
        assert "mail" not in scene.engine.store.topics.by_name


def test_a_field_that_is_given_twice_is_a_mistake() -> None:
    with Scene() as scene:
        data = b'{"ttr": 1, "ttr": 2}'
        answer = scene.call("PUT", "/v1/topics/mail/policy", data=data)
        assert (answer.status, answer.fields) == (422, ["ttr"])


@pytest.mark.parametrize(("data", "status"), [(b"{", 400), (b"", 400), (b"[]", 422), (b"7", 422)])
def test_a_policy_is_an_object(data: bytes, status: int) -> None:
    with Scene() as scene:
        assert scene.call("PUT", "/v1/topics/mail/policy", data=data).status == status


def test_a_policy_has_the_fields_that_the_core_knows() -> None:
    assert set(PolicyBodyForm.__struct_fields__) == BY_NAME.keys()


def test_who_moves_exhausted_jobs_must_be_good_for_where_they_go() -> None:
    with Scene(needs_token=True) as scene:
        token = scene.token(Scope.ADMIN, topics=("mail*",))
        path = "/v1/topics/mail/policy"
        refused = scene.call("PUT", path, {"ttr": 1, "exhausted": "sms"}, token=token)
        assert (refused.status, refused.word) == (403, "FORBIDDEN")
        scene.ok("PUT", path, {"ttr": 1, "exhausted": "mail.failed"}, token=token)
        scene.ok("PUT", path, {"ttr": 1, "exhausted": "bury"}, token=token)


def test_a_policy_that_does_not_fit_the_journal_is_refused() -> None:
    with Scene() as scene:
        scene.engine.log_space.limit(100, lambda *_: -1)
        answer = scene.call("PUT", "/v1/topics/mail/policy", {"ttr": 1})
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        assert answer.headers["retry-after"]


# --- Pause and resume ----------------------------------------------------------------------------


def test_a_paused_topic_hands_out_nothing_until_its_time() -> None:
    with Scene(is_virtual=True) as scene:
        put(scene, "mail")
        told = scene.ok("POST", "/v1/topics/mail/pause", {"duration": "1h"})
        assert told == {"paused_until": "2023-11-14T23:13:20.000Z"}
        assert scene.ok("GET", "/v1/topics/mail")["paused_until"] == told["paused_until"]
        assert scene.call("POST", "/v1/topics/mail/reserve").status == 204
        scene.pass_ms(3_600_000)
        assert scene.ok("GET", "/v1/topics/mail")["paused_until"] is None
        reserve(scene, "mail")


def test_resuming_ends_a_pause_at_once_for_who_waits() -> None:
    with Scene() as scene:
        put(scene, "mail")
        scene.ok("POST", "/v1/topics/mail/pause", {"duration": "1h"})
        worker = scene.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        assert worker.answer is None
        assert scene.ok("POST", "/v1/topics/mail/resume") == {"paused_until": None}
        assert worker.the_answer.status == 200
        assert scene.after_restart().store.topics.by_name["mail"].paused_until_ms is None


def test_a_pause_survives_a_restart() -> None:
    with Scene() as scene:
        put(scene, "mail")
        scene.ok("POST", "/v1/topics/mail/pause", {"duration": "1h"})
        assert scene.after_restart().store.topics.by_name["mail"].paused_until_ms is not None


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, ["duration"]),
        ({"duration": 0}, ["duration"]),
        ({"duration": "soon", "until": 1}, ["duration", "until"]),
        ({"duration": -1}, ["duration"]),
    ],
)
def test_a_pause_says_how_long(given: dict[str, object], fields: list[str]) -> None:
    with Scene() as scene:
        put(scene, "mail")
        answer = scene.call("POST", "/v1/topics/mail/pause", given)
        assert (answer.status, answer.fields) == (422, fields)


# --- Kick and clear ------------------------------------------------------------------------------


def test_buried_jobs_are_kicked_the_longest_buried_first() -> None:
    with Scene() as scene:
        first, second, third = bury(scene, "mail", 3)
        put(scene, "mail", delay="1h")
        assert scene.ok("POST", "/v1/topics/mail/kick", {"max": 2}) == {"kicked": 2}
        assert [reserve(scene, "mail")["id"] for _ in range(2)] == [first, second]
        assert scene.ok("POST", "/v1/topics/mail/kick") == {"kicked": 1}
        assert reserve(scene, "mail")["id"] == third
        assert scene.ok("POST", "/v1/topics/mail/kick") == {"kicked": 0}


def test_a_kick_at_a_rate_makes_them_ready_one_after_the_other() -> None:
    with Scene(is_virtual=True) as scene:
        bury(scene, "mail", 3)
        assert scene.ok("POST", "/v1/topics/mail/kick", {"per_second": 2}) == {"kicked": 3}
        for _ in range(3):
            reserve(scene, "mail")
            assert scene.call("POST", "/v1/topics/mail/reserve").status == 204
            scene.pass_ms(500)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"max": 0}, ["max"]),
        ({"max": CAP_MAX + 1, "per_second": -1}, ["max", "per_second"]),
        ({"per_second": "fast"}, ["per_second"]),
        ({"per_second": 1e-20}, ["per_second"]),
        ({"maximum": 1}, ["maximum"]),
    ],
)
def test_a_kick_that_is_wrong_is_refused(given: dict[str, object], fields: list[str]) -> None:
    with Scene() as scene:
        put(scene, "mail")
        answer = scene.call("POST", "/v1/topics/mail/kick", given)
        assert (answer.status, answer.fields) == (422, fields)


def test_a_kick_that_finds_no_more_room_says_how_far_it_came() -> None:
    with Scene() as scene:
        bury(scene, "mail", 5)
        scene.engine.log_space.limit(70, lambda *_: -1)
        answer = scene.call("POST", "/v1/topics/mail/kick")
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        done = answer.json["kicked"]
        assert 0 < done < 5
        assert len(scene.engine.store.topics.by_name["mail"].queues.ready) == done


def test_a_clear_forgets_all_but_what_is_worked_on() -> None:
    with Scene() as scene:
        put(scene, "mail")
        job = reserve(scene, "mail")
        bury(scene, "sms", 1)
        bury(scene, "mail", 1)
        put(scene, "mail", delay="1h")
        put(scene, "mail")
        assert scene.ok("POST", "/v1/topics/mail/clear", {}) == {"cleared": 3}
        assert scene.ok("GET", "/v1/topics/mail")["jobs"] == 1
        assert scene.ok("POST", "/v1/topics/mail/clear") == {"cleared": 0}
        scene.ok("POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]})
        assert scene.after_restart().log_space.jobs == 1
        assert scene.ok("GET", "/v1/topics/sms")["buried"] == 1


def test_others_are_served_while_a_million_are_kicked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(is_checked=False) as scene:
        jobs = 20 * TASK_STEP_JOBS
        topic = scene.engine.store.topic("mail")
        topic.users += 1
        scene.engine.put_alike(topic, 0, 3_600_000, 1_000, [b"x"] * jobs, scene.clock.now_ms())
        looks = iter(range(0, 10**12, TASK_SLICE_US * 1_000))
        monkeypatch.setattr(turns_module, "monotonic_ns", looks.__next__)
        admin = scene.send("POST", "/v1/topics/mail/jobs/kick", is_settled=False)
        other = scene.send("GET", "/healthz", is_settled=False)
        served = 0
        for _ in range(10_000):
            if admin.answer is not None:
                break
            scene.step()
            if other.answer is not None:
                served += 1
                other.say("GET", request("GET", "/healthz"))
        assert admin.the_answer.json == {"kicked": jobs}
        assert served > 20, "others wait for all of it"


# --- Who may -------------------------------------------------------------------------------------

CALLS = (
    ("GET", "/v1/topics/mail", None, Scope.STATS),
    ("GET", "/v1/topics/mail/policy", None, Scope.STATS),
    ("PUT", "/v1/topics/mail/policy", {"ttr": 1}, Scope.ADMIN),
    ("POST", "/v1/topics/mail/pause", {"duration": 1}, Scope.PAUSE),
    ("POST", "/v1/topics/mail/resume", None, Scope.PAUSE),
    ("POST", "/v1/topics/mail/kick", None, Scope.KICK),
    ("GET", "/v1/topics/mail/jobs", None, Scope.PEEK),
    ("DELETE", "/v1/topics/mail/jobs?state=buried", None, Scope.DELETE),
    ("POST", "/v1/topics/mail/jobs/kick", None, Scope.KICK),
    ("POST", "/v1/topics/mail/jobs/reschedule", {"delay": "1h"}, Scope.PUT),
    ("GET", "/v1/calendar?topic=mail", None, Scope.PEEK),
    ("POST", "/v1/topics/mail/clear", None, Scope.ADMIN),
    ("DELETE", "/v1/topics/mail/policy", None, Scope.ADMIN),
)


@pytest.mark.parametrize(("method", "path", "given", "scope"), CALLS)
def test_a_call_needs_its_scope_for_its_topic_and_nothing_else(
    method: str, path: str, given: object, scope: Scope
) -> None:
    with Scene(needs_token=True) as scene:
        scene.ok("POST", "/v1/topics/mail/jobs", {"body": 1}, token=scene.token())
        before = [*scene.disk.frames]
        others = scene.token(*(other for other in Scope if other is not scope))
        elsewhere = scene.token(scope, topics=("sms", "mail.*"))
        answer = scene.call(method, path, given)
        assert (answer.status, answer.word) == (401, "UNAUTHORIZED")
        for token in (others, elsewhere):
            answer = scene.call(method, path, given, token=token)
            assert (answer.status, answer.word) == (403, "FORBIDDEN")
        assert scene.disk.frames == before
        good = scene.token(scope, topics=("ma*",))
        assert scene.call(method, path, given, token=good).status == 200


def test_who_may_not_see_a_topic_learns_nothing_of_whether_it_is_there() -> None:
    with Scene(needs_token=True) as scene:
        scene.ok("POST", "/v1/topics/mail/jobs", {"body": 1}, token=scene.token())
        token = scene.token(Scope.STATS, Scope.PEEK, topics=("sms",))
        for path in ("", "/policy", "/jobs"):
            there = scene.call("GET", f"/v1/topics/mail{path}", token=token)
            gone = scene.call("GET", f"/v1/topics/m4il{path}", token=token)
            assert there.body == gone.body.replace(b"m4il", b"mail")


def test_room_for_emergencies_is_no_hindrance_to_looking() -> None:
    with Scene() as scene:
        put(scene, "mail")
        scene.engine.log_space.limit(min(10, EMERGENCY_BYTES), lambda *_: -1)
        for path in ("/v1/topics", "/v1/topics/mail", "/v1/topics/mail/jobs", "/v1/calendar"):
            assert scene.call("GET", path).status == 200
