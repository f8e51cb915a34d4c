"""Putting jobs: what is kept of them, when they come, under which key, and why not."""

import base64
from typing import Any

import orjson
import pytest

from delayd.access.scopes import Scope
from delayd.core.errors import TargetRefused
from delayd.core.job_parts import body_of
from delayd.core.operations.attempts import fail_call
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.put import find_key
from delayd.core.session import Session
from delayd.core.targets import Target
from tests.rigs.clock import FakeClock
from tests.rigs.http import JOBS, RESERVE, Answer, HttpRig, put, reserved


def looked_at(rig: HttpRig, job_id: int = 1) -> dict[str, Any]:
    return dict(rig.ok("GET", f"/v1/jobs/{job_id}"))


# --- What is answered -----------------------------------------------------------------------------


HOOK: dict[str, Any] = {
    "url": "https://example.com/due?key=s3cret",
    "method": "PUT",
    "headers": {"X-Team": "mail", "Authorization": "s3cret"},
}
SHOWN_TO_OTHERS: dict[str, Any] = {
    "url": "https://example.com/due?***",
    "method": "PUT",
    "headers": {"X-Team": "***", "Authorization": "***"},
}


def with_push(*, needs_token: bool = False) -> HttpRig:
    """A daemon that may call whatever is https."""

    def vet(target: Target) -> Target:
        if not target.url.startswith("https:"):
            raise TargetRefused(f"url {target.url!r}", "must be https")
        return target

    rig = HttpRig(needs_token=needs_token)
    rig.engine.vet_target = vet
    return rig


def target_in(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told[name] for name in HOOK if name in told}


def test_where_a_job_is_sent_is_kept_and_told() -> None:
    with with_push() as rig:
        put(rig, body=1, **HOOK)
        put(rig, body=1, url="https://example.com/")
        put(rig, body=1)
        assert target_in(looked_at(rig, 1)) == HOOK
        assert target_in(looked_at(rig, 2)) == {"url": "https://example.com/", "method": "POST"}
        assert target_in(looked_at(rig, 3)) == {}
        assert [target_in(job) for job in rig.ok("POST", RESERVE, {"max": 3})["jobs"]] == [
            HOOK,
            {"url": "https://example.com/", "method": "POST"},
            {},
        ]


def test_what_may_be_secret_of_a_jobs_target_is_shown_to_admins_only() -> None:
    with with_push(needs_token=True) as rig:
        admin, reader = rig.token(*Scope), rig.token(Scope.PEEK, Scope.RESERVE)
        rig.ok("POST", JOBS, {"body": 1, **HOOK}, token=admin)
        assert target_in(rig.ok("GET", "/v1/jobs/1", token=admin)) == HOOK
        assert target_in(rig.ok("GET", "/v1/jobs/1", token=reader)) == SHOWN_TO_OTHERS
        (job,) = rig.ok("POST", RESERVE, {}, token=reader)["jobs"]
        assert target_in(job) == SHOWN_TO_OTHERS


def fail_the_call(rig: HttpRig, error: str) -> None:
    """Have the job be called, and refused with that."""
    engine, session, now_ms = rig.engine, Session(), rig.api.now_ms()
    (lane,) = take_fresh(engine)
    called = reserve_call(engine, session, lane, 60_000, now_ms)
    assert called is not None
    fail_call(engine, session, called[0], now_ms, error=error)


def test_of_a_calls_answer_only_admins_see_more_than_the_first_line() -> None:
    with with_push(needs_token=True) as rig:
        admin, reader = rig.token(*Scope), rig.token(Scope.PEEK)
        rig.ok("POST", JOBS, {"body": 1, **HOOK}, token=admin)
        fail_the_call(rig, "503 Service Unavailable\nTraceback: s3cret")
        for path in ("/v1/jobs/1", JOBS):
            for token, error in (
                (admin, "503 Service Unavailable\nTraceback: s3cret"),
                (reader, "503 Service Unavailable"),
            ):
                told = rig.ok("GET", path, token=token)
                (job,) = told.get("jobs", [told])
                assert (job["failure"]["reason"], job["failure"]["error"]) == ("push_failed", error)


def test_what_a_worker_has_said_of_its_failure_is_told_whole() -> None:
    with HttpRig(needs_token=True) as rig:
        admin, reader = rig.token(*Scope), rig.token(Scope.PEEK)
        rig.ok("POST", JOBS, {"body": 1}, token=admin)
        (job,) = rig.ok("POST", RESERVE, {}, token=admin)["jobs"]
        nack = {"token": job["token"], "error": "one\ntwo"}
        rig.ok("POST", "/v1/jobs/1/nack", nack, token=admin)
        assert rig.ok("GET", "/v1/jobs/1", token=reader)["failure"]["error"] == "one\ntwo"


KEYED = "/v1/topics/mail/keys/a"


def test_a_url_needs_the_scope_webhook_besides_put() -> None:
    with with_push(needs_token=True) as rig:
        producer = rig.token(Scope.PUT)
        job: dict[str, Any] = {"body": 1, **HOOK}
        for method, path, given in (
            ("POST", JOBS, job),
            ("PUT", KEYED, job),
            ("POST", JOBS, {"jobs": [{"body": 1}, job]}),
        ):
            refused = rig.call(method, path, given, token=producer)
            assert (refused.status, refused.word) == (403, "FORBIDDEN")
            assert "webhook" in refused.json["detail"]
        assert not rig.engine.store.jobs
        both = rig.token(Scope.PUT, Scope.WEBHOOK, topics=("mail",))
        rig.ok("POST", JOBS, job, token=both)
        rig.ok("PUT", KEYED, job, token=both)


def test_a_url_that_may_not_be_called_is_refused_with_field_and_rule() -> None:
    with with_push() as rig:
        job = {"body": 1, "url": "http://example.com/"}
        for method, path in (("POST", JOBS), ("PUT", KEYED)):
            refused = rig.call(method, path, job)
            assert (refused.status, refused.word, refused.fields) == (422, "BAD_FORMAT", ["url"])
            assert refused.json["detail"] == "url 'http://example.com/' must be https"
        batch = rig.call("POST", JOBS, {"jobs": [job, {"body": 2}, {"body": 3, **HOOK}]})
        assert (batch.status, [one["status"] for one in batch.json["results"]]) == (
            207,
            [422, 201, 201],
        )
        assert batch.json["results"][0]["problem"]["errors"][0]["field"] == "url"
        rig.engine.vet_target = None
        assert rig.call("POST", JOBS, job).word == "PUSH_IS_OFF"


def test_a_batch_and_lines_keep_the_target_of_each_job() -> None:
    with with_push() as rig:
        jobs = [{"body": 1}, {"body": 2, **HOOK}, {"body": 3}, {"body": 4, **HOOK, "key": "k"}]
        rig.ok("POST", JOBS, {"jobs": jobs})
        lines = b"\n".join(map(orjson.dumps, (jobs[0], jobs[1])))
        rig.call("POST", JOBS, data=lines, headers={"Content-Type": "application/x-ndjson"})
        targets = [target_in(looked_at(rig, job_id)) for job_id in range(1, 7)]
        assert targets == [{}, HOOK, {}, HOOK, {}, HOOK]


def test_a_batch_keeps_the_group_of_each_job_and_tells_workers_and_lists() -> None:
    with HttpRig() as rig:
        jobs = [{"body": 1}, {"body": 1, "group": "a"}, {"body": 1, "group": "b"}, {"body": 1}]
        rig.ok("POST", JOBS, {"jobs": jobs})
        groups = [None, "a", "b", None]
        assert [job.get("group") for job in rig.ok("GET", JOBS)["jobs"]] == groups
        handed = rig.ok("POST", "/v1/topics/mail/reserve", {"max": 4})["jobs"]
        assert [job.get("group") for job in handed] == groups
        for group in ("", "a b", "g" * 201, 7):
            refused = rig.call("POST", JOBS, {"body": 1, "group": group})
            assert (refused.status, refused.fields) == (422, ["group"])


def test_a_long_request_keeps_the_target_and_refuses_headers_that_are_too_many() -> None:
    with with_push() as rig:
        put(rig, body="x" * 20_000, **HOOK)
        assert target_in(looked_at(rig)) == HOOK
        many = {f"X-{number}": "x" * 100 for number in range(500)}
        for given in (
            {"body": 1, **HOOK, "headers": many},
            {"jobs": [{"body": 1, **HOOK, "headers": many}]},
        ):
            refused = rig.call("POST", JOBS, given)
            assert refused.status == 422
            assert refused.fields[0].endswith("headers")
        assert len(rig.engine.store.jobs) == 1


def test_the_same_idempotency_key_makes_one_job_with_a_url() -> None:
    with with_push() as rig:
        headers = {"Idempotency-Key": "4711"}
        for _ in range(2):
            rig.call("POST", JOBS, {"body": 1, **HOOK}, headers=headers)
        other = rig.call("POST", JOBS, {"body": 1, **HOOK, "method": "POST"}, headers=headers)
        assert other.word == "IDEMPOTENCY_KEY_REUSED"
        assert rig.ok("GET", "/v1/topics/mail")["jobs"] == 1


def test_what_is_not_said_has_a_default() -> None:
    with HttpRig(is_virtual=True) as rig:
        rig.ok("POST", JOBS, {"body": None})
        told = looked_at(rig)
        assert (told["state"], told["priority"], told["ttr"]) == ("ready", 65_536, 60.0)
        assert not {"key", "retry", "max_attempts", "failure"} & told.keys()


@pytest.mark.parametrize("delay", [0, 0.0, "0s"])
def test_a_delay_of_0_that_is_said_is_one_whatever_the_topics_policy_says(delay: object) -> None:
    with HttpRig(is_virtual=True) as rig:
        rig.ok("PUT", "/v1/topics/mail/policy", {"delay": "10s"})
        put(rig, delay=delay)
        put(rig, delay=delay, key="a")
        put(rig, delay=delay, retry="1s")
        rig.ok("POST", JOBS, {"jobs": [{"body": 1, "delay": delay}] * 2 + [{"body": 1}] * 2})
        rig.ok("PUT", "/v1/topics/mail/keys/b", {"body": 1, "delay": delay})
        again = {"body": 1, "delay": delay, "key": "b"}
        for on in ("extend", "replace"):
            rig.ok("POST", JOBS, again | {"on_conflict": on})
        states = [looked_at(rig, job_id)["state"] for job_id in range(1, 9)]
        assert states == ["ready"] * 5 + ["delayed"] * 2 + ["ready"]
        put(rig, key="b", on_conflict="replace")
        assert looked_at(rig, 8)["state"] == "delayed"


# --- Bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{ "a" :  1.0,\n"b":[ ]\t}',
        b"1.0",
        b"-0",
        b"1e2",
        b"123456789012345678901234567890123456789012345678901234567890",
        b'{"a":1,"a":2}',
        rb'"\u00e9\/\u0041"',
        '"käse ✓"'.encode(),
        b"null",
        b"false",
        b'""',
        b"[" * 900 + b"]" * 900,
    ],
)
def test_a_json_body_comes_back_as_the_very_text(body: bytes) -> None:
    with HttpRig() as rig:
        for data in (b'{"body":%b}', b'{"body" : %b }', b'{"jobs":[{"body": %b}]}'):
            assert rig.call("POST", JOBS, data=data % body).status == 201
            answer = rig.call("POST", RESERVE)
            assert answer.body.endswith(b'"body":%b}]}' % body)
        record = rig.engine.store.jobs.get(1)
        assert record is not None
        assert body_of(record) == body
        assert b'"body":%b}' % body in rig.call("GET", "/v1/jobs/1").body


@pytest.mark.parametrize("body", [b"", b"hello", b"\0\xff", b" 1", b"1\n", b"1 2", b"NaN", b"{a}"])
def test_bytes_that_are_no_json_come_back_in_base64(body: bytes) -> None:
    text = base64.b64encode(body).decode()
    with HttpRig() as rig:
        rig.ok("POST", JOBS, {"body_base64": text})
        job = reserved(rig)
        assert job["body_base64"] == text
        assert "body" not in job


def test_bytes_that_are_json_come_back_as_json_unless_base64_is_asked_for() -> None:
    text = base64.b64encode(b'{"a": 1}').decode()
    with HttpRig() as rig:
        for _ in range(2):
            rig.ok("POST", JOBS, {"body_base64": text})
        assert reserved(rig)["body"] == {"a": 1}
        (job,) = rig.ok("POST", RESERVE, {"bodies": "base64"})["jobs"]
        assert job["body_base64"] == text
        assert "body" not in job


def test_of_a_name_that_is_there_twice_the_last_counts() -> None:
    with HttpRig() as rig:
        assert rig.call("POST", JOBS, data=b'{"body":1,"priority":3,"body":2}').status == 201
        assert reserved(rig)["body"] == 2


# --- Times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "due"),
    [
        (0, "2023-11-14T22:13:20.000Z"),
        (0.05, "2023-11-14T22:13:20.050Z"),
        (90, "2023-11-14T22:14:50.000Z"),
        ("50ms", "2023-11-14T22:13:20.050Z"),
        ("1h30m", "2023-11-14T23:43:20.000Z"),
        ("7d", "2023-11-21T22:13:20.000Z"),
        ("1.5", "2023-11-14T22:13:21.500Z"),
        (4_294_967_295, "2159-12-22T04:41:35.000Z"),
    ],
)
def test_a_delay_is_seconds_or_a_text(delay: object, due: str) -> None:
    with HttpRig(is_virtual=True) as rig:
        assert put(rig, delay=delay)["due"] == due


@pytest.mark.parametrize(
    ("at", "due"),
    [
        ("2023-11-14T22:13:25Z", "2023-11-14T22:13:25.000Z"),
        ("2023-11-14t22:13:25.5z", "2023-11-14T22:13:25.500Z"),
        ("2023-11-15T00:13:25+02:00", "2023-11-14T22:13:25.000Z"),
        ("2023-11-14 17:13:25-05:00", "2023-11-14T22:13:25.000Z"),
        (1_700_000_005, "2023-11-14T22:13:25.000Z"),
        (1_700_000_005.25, "2023-11-14T22:13:25.250Z"),
    ],
)
def test_a_moment_is_rfc_3339_or_seconds_since_1970(at: object, due: str) -> None:
    with HttpRig(is_virtual=True) as rig:
        assert put(rig, at=at)["due"] == due
        assert looked_at(rig)["state"] == "delayed"


@pytest.mark.parametrize("at", ["2023-11-14T22:13:20Z", "1970-01-01T00:00:00Z", 0])
def test_a_moment_that_is_past_is_now(at: object) -> None:
    with HttpRig(is_virtual=True) as rig:
        put(rig, at=at)
        assert reserved(rig)["id"] == 1


def test_a_moment_follows_the_wall_clock_and_a_delay_does_not() -> None:
    with HttpRig() as rig:
        put(rig, body="at", at="2023-11-14T23:13:20Z")
        put(rig, body="delay", delay="1h")
        assert isinstance(rig.clock, FakeClock)
        rig.clock.step_wall(3_600_000)
        rig.pass_ms(10)
        assert reserved(rig)["body"] == "at"
        assert rig.call("POST", RESERVE).status == 204


@pytest.mark.parametrize("key", [{}, {"key": "a"}])
@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_moment_is_one_of_the_wall_clock_of_now_and_not_of_the_start(
    step_ms: int, key: dict[str, str]
) -> None:
    with HttpRig() as rig:
        waiting = rig.send("POST", RESERVE, {"wait": "30s"})
        assert isinstance(rig.clock, FakeClock)
        rig.clock.step_wall(step_ms)
        put(rig, at=(rig.clock.wall_ms() + 10_000) / 1_000, **key)
        rig.pass_ms(9_999)
        assert waiting.answer is None
        rig.pass_ms(2)
        assert waiting.the_answer.json["jobs"][0]["id"] == 1


# --- Keys -----------------------------------------------------------------------------------------


def put_key(rig: HttpRig, method: str, **fields: object) -> Answer:
    """Put under the key a, by one call or the other."""
    if method == "POST":
        return rig.call("POST", JOBS, {"key": "a", **fields})
    return rig.call("PUT", "/v1/topics/mail/keys/a", fields)


def test_a_post_rejects_and_a_put_replaces_where_nothing_is_said() -> None:
    with HttpRig() as rig:
        assert put_key(rig, "PUT", body="old").json["outcome"] == "created"
        assert put_key(rig, "POST", body="new").status == 409
        assert put_key(rig, "PUT", body="new").json["outcome"] == "replaced"


# --- Durability -----------------------------------------------------------------------------------


def test_a_job_comes_though_the_daemon_was_killed() -> None:
    with HttpRig() as rig:
        put(rig, body={"a": 1.0}, key="a", retry="1s", at="2023-11-14T23:00:00Z")
        again = rig.after_restart()
        for engine in (again, rig.engine):
            assert find_key(engine, "mail", b"a") == 1
        assert again.store.jobs.get(1) == rig.engine.store.jobs.get(1)
