"""The calls about topics: which there are, what holds for them, what is done to them."""

import random
from typing import Any, Final

import pytest

from delayd import turns as turns_module
from delayd.access.scopes import Scope
from delayd.core.errors import TargetRefused
from delayd.core.operations.put import put_alike
from delayd.core.operations.topics import configure
from delayd.core.policy import FIELDS, Patterns, Policy
from delayd.core.targets import Target
from delayd.core.times import RequestMs
from delayd.http.answer_forms import PolicyAnswer
from delayd.limits import (
    EMERGENCY_BYTES,
    HTTP_TOPICS_PAGE_MAX,
    HTTP_TOPICS_STEP,
    TASK_SLICE_US,
    TASK_STEP_JOBS,
)
from tests.rigs.http import HttpRig, SliceWatch, request


def put(rig: HttpRig, topic: str, **fields: object) -> int:
    """Put a job, and return its id."""
    told = rig.ok("POST", f"/v1/topics/{topic}/jobs", {"body": None, **fields})
    return int(told["id"])


def reserve(rig: HttpRig, topic: str) -> dict[str, Any]:
    (job,) = rig.ok("POST", f"/v1/topics/{topic}/reserve", {})["jobs"]
    return dict(job)


def bury(rig: HttpRig, topic: str, jobs: int) -> list[int]:
    """Put jobs and bury them, in this order."""
    job_ids = []
    for _ in range(jobs):
        put(rig, topic)
        job = reserve(rig, topic)
        rig.ok("POST", f"/v1/jobs/{job['id']}/bury", {"token": job["token"]})
        job_ids.append(job["id"])
    return job_ids


def names(told: dict[str, Any]) -> list[str]:
    return [topic["name"] for topic in told["topics"]]


# --- Which there are -----------------------------------------------------------------------------


def test_pages_of_topics_hold_each_of_them_once(rng: random.Random) -> None:
    with HttpRig() as rig:
        expected = {f"{rng.choice('abc')}.{number}" for number in range(150)}
        for name in expected:
            rig.engine.store.topic(name).users += 1
        seen: list[str] = []
        path = "/v1/topics?limit=7"
        after = ""
        while True:
            told = rig.ok("GET", path + after)
            seen += names(told)
            if told["after"] is None:
                break
            assert len(told["topics"]) == 7
            after = f"&after={told['after']}"
        assert seen == sorted(seen)
        assert {*seen} - {"default"} == expected
        assert len(seen) == len({*seen})


def test_a_full_page_that_is_the_last_one_says_so() -> None:
    with HttpRig() as rig:
        put(rig, "a")
        put(rig, "b")  # beside "default", which is always there
        told = rig.ok("GET", "/v1/topics?limit=2&after=a")
        assert (names(told), told["after"]) == (["b", "default"], None)


def test_only_topics_are_listed_that_the_token_is_good_for() -> None:
    with HttpRig(needs_token=True) as rig:
        admin = rig.token()
        token = rig.token(Scope.STATS, topics=("mail.*",))
        for topic in ("mail.a", "mail.b", "sms"):
            rig.ok("POST", f"/v1/topics/{topic}/jobs", {"body": 1}, token=admin)
        assert names(rig.ok("GET", "/v1/topics", token=token)) == ["mail.a", "mail.b"]
        told = rig.ok("GET", "/v1/topics?limit=1", token=token)
        assert (names(told), told["after"]) == (["mail.a"], "mail.a")
        told = rig.ok("GET", "/v1/topics?limit=1&after=mail.a", token=token)
        assert (names(told), told["after"]) == (["mail.b"], None)


def test_thousands_of_topics_are_gone_through_in_slices() -> None:
    with HttpRig(is_checked=False, slice_now_ns=SliceWatch()) as rig:
        for number in range(4_000):
            rig.engine.store.topic(f"t{number}").users += 1
        before = rig.turns_taken
        told = rig.ok("GET", f"/v1/topics?limit={HTTP_TOPICS_PAGE_MAX}")
        assert len(told["topics"]) == HTTP_TOPICS_PAGE_MAX
        assert rig.turns_taken - before >= 4_000 // HTTP_TOPICS_STEP + HTTP_TOPICS_PAGE_MAX


def test_a_name_that_cannot_be_is_refused() -> None:
    with HttpRig() as rig:
        for method, path in (("GET", ""), ("GET", "/policy"), ("GET", "/jobs"), ("POST", "/clear")):
            answer = rig.call(method, f"/v1/topics/-x{path}")
            assert (answer.status, answer.word) == (422, "BAD_FORMAT")


# --- Policies ------------------------------------------------------------------------------------


def test_without_a_policy_of_its_own_a_topic_has_the_configurations() -> None:
    with HttpRig() as rig:
        configure(rig.engine, Patterns({"mail.*": Policy(ttr_ms=5_000)}))
        configured = {"policy": {"ttr": "5s"}, "source": "configuration"}
        assert rig.ok("GET", "/v1/topics/mail.new/policy") == configured
        rig.ok("PUT", "/v1/topics/mail.new/policy", {"ttr": "1m"})
        assert rig.ok("DELETE", "/v1/topics/mail.new/policy") == configured
        rig.ok("PUT", "/v1/topics/mail.new/policy", {"ttr": "1m"})
        assert rig.ok("PUT", "/v1/topics/mail.new/policy", {}) == configured


def test_everything_that_is_wrong_with_a_policy_is_told_at_once() -> None:
    with HttpRig() as rig:
        wrong = {"ttr": 0, "retry": "15s soon", "jobs_max": -1, "on_close": "x", "jobs_mx": 1}
        answer = rig.call("PUT", "/v1/topics/mail/policy", wrong)
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")
        assert answer.fields == list(wrong)
        assert "did you mean jobs_max" in answer.json["errors"][-1]["detail"]
        assert "mail" not in rig.engine.store.topics.by_name


def test_a_field_that_is_given_twice_is_a_mistake() -> None:
    with HttpRig() as rig:
        data = b'{"ttr": 1, "ttr": 2}'
        answer = rig.call("PUT", "/v1/topics/mail/policy", data=data)
        assert (answer.status, answer.fields) == (422, ["ttr"])


@pytest.mark.parametrize(("data", "status"), [(b"{", 400), (b"", 400), (b"[]", 422), (b"7", 422)])
def test_a_policy_is_an_object(data: bytes, status: int) -> None:
    with HttpRig() as rig:
        assert rig.call("PUT", "/v1/topics/mail/policy", data=data).status == status


def test_a_policy_is_answered_with_the_fields_that_the_core_knows() -> None:
    assert set(PolicyAnswer.__struct_fields__) == {row.name for row in FIELDS}


def test_who_moves_exhausted_jobs_must_be_good_for_where_they_go() -> None:
    with HttpRig(needs_token=True) as rig:
        token = rig.token(Scope.ADMIN, topics=("mail*",))
        path = "/v1/topics/mail/policy"
        refused = rig.call("PUT", path, {"ttr": 1, "exhausted": "sms"}, token=token)
        assert (refused.status, refused.word) == (403, "FORBIDDEN")
        rig.ok("PUT", path, {"ttr": 1, "exhausted": "mail.failed"}, token=token)
        rig.ok("PUT", path, {"ttr": 1, "exhausted": "bury"}, token=token)


HOOK: Final = {"url": "https://example.com/due?key=s3cret", "headers": {"Authorization": "s3cret"}}


def test_who_sets_a_target_needs_the_scope_webhook_too_and_admin_where_jobs_go() -> None:
    with HttpRig(needs_token=True) as rig:
        rig.engine.vet_target = lambda target: target
        path = "/v1/topics/mail/policy"
        admin = rig.token(Scope.ADMIN, topics=("mail*",))
        for push in (HOOK, {"topic": "mail.out"}):
            refused = rig.call("PUT", path, {"push": push}, token=admin)
            assert (refused.status, refused.word) == (403, "FORBIDDEN")
            assert "webhook" in refused.json["detail"]
        both = rig.token(Scope.ADMIN, Scope.WEBHOOK, topics=("mail*",))
        assert rig.call("PUT", path, {"push": {"topic": "sms"}}, token=both).status == 403
        rig.ok("PUT", path, {"push": {"topic": "mail.out"}}, token=both)
        assert rig.ok("PUT", path, {"push": HOOK}, token=both)["policy"] == {"push": HOOK}


def test_what_may_be_secret_of_a_target_is_shown_to_admins_only() -> None:
    with HttpRig(needs_token=True) as rig:
        rig.engine.vet_target = lambda target: target
        admin, watcher = rig.token(*Scope), rig.token(Scope.STATS)
        rig.ok("PUT", "/v1/topics/mail/policy", {"push": HOOK}, token=admin)
        for path in ("/v1/topics/mail/policy", "/v1/topics/mail"):
            assert rig.ok("GET", path, token=admin)["policy"]["push"] == HOOK
            assert rig.ok("GET", path, token=watcher)["policy"]["push"] == {
                "url": "https://example.com/due?***",
                "headers": {"Authorization": "***"},
            }


def test_a_target_that_is_refused_names_field_and_rule() -> None:
    def refuse(target: Target) -> Target:
        raise TargetRefused(f"url {target.url!r}", "must be https")

    with HttpRig() as rig:
        answer = rig.call("PUT", "/v1/topics/mail/policy", {"push": HOOK})
        assert (answer.status, answer.word, answer.fields) == (422, "PUSH_IS_OFF", [])
        rig.engine.vet_target = refuse
        answer = rig.call("PUT", "/v1/topics/mail/policy", {"push": HOOK})
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["push.url"])
        assert answer.json["detail"] == f"url {HOOK['url']!r} must be https"
        assert "mail" not in rig.engine.store.topics.by_name


def test_each_field_of_a_target_that_is_wrong_is_named_and_no_header_is_shown() -> None:
    with HttpRig() as rig:
        push = {"url": "ftp://x", "concurrency": 0, "headers": {"X-Key": "s3cret\n"}, "colour": 1}
        answer = rig.call("PUT", "/v1/topics/mail/policy", {"ttr": "x", "push": push})
        assert answer.status == 422
        fields = ["push.colour", "push.concurrency", "push.headers", "push.url", "ttr"]
        assert sorted(answer.fields) == fields
        assert "s3cret" not in str(answer.json)
        for wrong in ({}, 3, {"url": "https://x.example/", "sink": "y"}):
            answer = rig.call("PUT", "/v1/topics/mail/policy", {"push": wrong})
            assert (answer.status, answer.fields) == (422, ["push"])


# --- Pause and resume ----------------------------------------------------------------------------


def test_resuming_ends_a_pause_at_once_for_who_waits() -> None:
    with HttpRig() as rig:
        put(rig, "mail")
        rig.ok("POST", "/v1/topics/mail/pause", {"duration": "1h"})
        worker = rig.send("POST", "/v1/topics/mail/reserve", {"wait": "30s"})
        assert worker.answer is None
        assert rig.ok("POST", "/v1/topics/mail/resume") == {"paused_until": None}
        assert worker.the_answer.status == 200
        assert rig.after_restart().store.topics.by_name["mail"].paused_until_ms is None


# --- Kick and clear ------------------------------------------------------------------------------


def test_a_kick_at_a_rate_makes_them_ready_one_after_the_other() -> None:
    with HttpRig(is_virtual=True) as rig:
        bury(rig, "mail", 3)
        assert rig.ok("POST", "/v1/topics/mail/kick", {"per_second": 2}) == {"kicked": 3}
        for _ in range(3):
            reserve(rig, "mail")
            assert rig.call("POST", "/v1/topics/mail/reserve").status == 204
            rig.pass_ms(500)


def test_a_kick_that_finds_no_more_space_says_how_far_it_came() -> None:
    with HttpRig() as rig:
        bury(rig, "mail", 5)
        rig.engine.log_space.limit(70, lambda *_: -1)
        answer = rig.call("POST", "/v1/topics/mail/kick")
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        done = answer.json["kicked"]
        assert 0 < done < 5
        assert len(rig.engine.store.topics.by_name["mail"].queues.ready) == done


def test_others_are_served_while_a_million_are_kicked(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpRig(is_checked=False) as rig:
        jobs = 20 * TASK_STEP_JOBS
        topic = rig.engine.store.topic("mail")
        topic.users += 1
        put_alike(
            rig.engine, topic, 0, 3_600_000, 1_000, [b"x"] * jobs, RequestMs(rig.clock.now_ms())
        )
        looks = iter(range(0, 10**12, TASK_SLICE_US * 1_000))
        monkeypatch.setattr(turns_module, "monotonic_ns", looks.__next__)
        admin = rig.send("POST", "/v1/topics/mail/jobs/kick", is_settled=False)
        other = rig.send("GET", "/healthz", is_settled=False)
        served = 0
        for _ in range(10_000):
            if admin.answer is not None:
                break
            rig.step()
            if other.answer is not None:
                served += 1
                other.say("GET", request("GET", "/healthz"))
        assert admin.the_answer.json == {"kicked": jobs}
        assert served > 20, "others wait for all of it"


# --- Who may -------------------------------------------------------------------------------------


def test_who_may_not_see_a_topic_learns_nothing_of_whether_it_is_there() -> None:
    with HttpRig(needs_token=True) as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1}, token=rig.token())
        token = rig.token(Scope.STATS, Scope.PEEK, topics=("sms",))
        for path in ("", "/policy", "/jobs"):
            there = rig.call("GET", f"/v1/topics/mail{path}", token=token)
            gone = rig.call("GET", f"/v1/topics/m4il{path}", token=token)
            assert there.body == gone.body.replace(b"m4il", b"mail")


def test_space_for_emergencies_is_no_hindrance_to_looking() -> None:
    with HttpRig() as rig:
        put(rig, "mail")
        rig.engine.log_space.limit(min(10, EMERGENCY_BYTES), lambda *_: -1)
        for path in ("/v1/topics", "/v1/topics/mail", "/v1/topics/mail/jobs", "/v1/calendar"):
            assert rig.call("GET", path).status == 200
