"""One job by its id or its key: looked at, changed, cancelled, kicked, buried."""

from typing import Any, cast
from urllib.parse import quote

import pytest

from delayd.access.principal import Principal
from delayd.access.scopes import Scope
from delayd.core.errors import JobNotFound
from delayd.core.operations.tick import reach
from delayd.core.times import PlayedMs
from delayd.http.api import Call
from tests.rigs.clock import FakeClock
from tests.rigs.http import HttpRig

JOBS = "/v1/topics/mail/jobs"
RESERVE = "/v1/topics/mail/reserve"
KEYS = ("order-17", "a/b", "größe", "100%", "%2F", "a?b#c&d", "..", "✓")
BY_ID = "/v1/jobs/1"
BY_KEY = "/v1/topics/mail/keys/a"


def put(rig: HttpRig, **fields: object) -> int:
    return int(rig.ok("POST", JOBS, {"body": "hello", "key": "a", **fields})["id"])


def reserved(rig: HttpRig) -> dict[str, Any]:
    (job,) = rig.ok("POST", RESERVE)["jobs"]
    return dict(job)


def buried(rig: HttpRig) -> None:
    job = reserved(rig)
    rig.ok("POST", f"/v1/jobs/{job['id']}/bury", {"token": job["token"]})


def in_state(rig: HttpRig, state: str) -> None:
    """Put job 1, with the key a, and bring it into the state."""
    put(rig, delay="1h" if state == "delayed" else 0)
    if state == "buried":
        buried(rig)
    if state == "reserved":
        reserved(rig)


# --- Looking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_a_key_in_the_path_is_any_text_in_percent_encoding(key: str) -> None:
    with HttpRig() as rig:
        path = f"/v1/topics/mail/keys/{quote(key, safe='')}"
        rig.ok("PUT", path, {"body": 1, "delay": 5})
        assert rig.ok("GET", path)["key"] == key
        rig.ok("PATCH", path, {"body": 2})
        assert rig.ok("GET", path)["body"] == 2
        rig.ok("POST", f"{path}/kick")
        assert rig.ok("GET", path)["state"] == "ready"
        rig.ok("DELETE", path)
        assert rig.call("GET", path).status == 404


@pytest.mark.parametrize("topic", ["a/b", "mail;x", "$x", "(a)"])
def test_a_topic_in_the_path_may_need_percent_encoding(topic: str) -> None:
    with HttpRig() as rig:
        path = f"/v1/topics/{quote(topic, safe='')}"
        rig.ok("POST", f"{path}/jobs", {"body": 1, "key": "a"})
        assert rig.ok("GET", f"{path}/keys/a")["topic"] == topic


CALLS = (
    ("GET", "", None),
    ("PATCH", "", {"priority": 1}),
    ("DELETE", "", None),
    ("POST", "/kick", None),
    ("POST", "/bury", None),
)


@pytest.mark.parametrize(("method", "path", "given"), CALLS)
def test_what_is_no_id_and_no_key_is_refused(method: str, path: str, given: object) -> None:
    with HttpRig() as rig:
        put(rig)
        for text in ("x", "-1", "1.0", "9" * 21, "%D9%A1", "1%20", "0x1"):
            answer = rig.call(method, f"/v1/jobs/{text}{path}", given)
            assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["id"])
        for text in ("a%20b", "%00", "%7F", "x" * 201, "%C2%A0"):
            answer = rig.call(method, f"/v1/topics/mail/keys/{text}{path}", given)
            assert (answer.status, answer.word) == (422, "BAD_FORMAT")
        answer = rig.call(method, f"/v1/topics/-mail/keys/a{path}", given)
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")


# --- Changing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [BY_ID, BY_KEY])
@pytest.mark.parametrize("state", ["delayed", "ready", "buried"])
@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({"delay": "2h"}, "2023-11-15T00:13:20.000Z"),
        ({"at": "2023-11-15T01:00:00+01:00"}, "2023-11-15T00:00:00.000Z"),
    ],
)
def test_a_new_time_makes_a_job_wait_for_it(
    given: dict[str, object], due: str, path: str, state: str
) -> None:
    with HttpRig(is_virtual=True) as rig:
        in_state(rig, state)
        assert rig.ok("PATCH", path, given) == {"id": 1, "due": due}
        told = rig.ok("GET", path)
        assert (told["state"], told["due"]) == ("delayed", due)


@pytest.mark.parametrize("given", [{"delay": 0}, {"at": 0}])
def test_a_time_that_is_past_makes_a_job_ready(given: dict[str, object]) -> None:
    with HttpRig() as rig:
        put(rig, delay="1h")
        rig.ok("PATCH", BY_ID, given)
        assert reserved(rig)["id"] == 1


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_new_moment_is_one_of_the_wall_clock_of_now(step_ms: int) -> None:
    with HttpRig() as rig:
        put(rig, delay="1h")
        waiting = rig.send("POST", RESERVE, {"wait": "30s"})
        assert isinstance(rig.clock, FakeClock)
        rig.clock.step_wall(step_ms)
        rig.ok("PATCH", BY_ID, {"at": (rig.clock.wall_ms() + 10_000) / 1_000})
        rig.pass_ms(9_999)
        assert waiting.answer is None
        rig.pass_ms(2)
        assert waiting.the_answer.json["jobs"][0]["id"] == 1


HOOK: dict[str, object] = {
    "url": "https://b.example/due",
    "method": "PUT",
    "headers": {"X": "1"},
}


def test_another_url_is_refused_where_it_would_be_refused_in_a_put() -> None:
    with HttpRig(needs_token=True) as rig:
        admin, producer = rig.token(*Scope), rig.token(Scope.PUT, Scope.PEEK)
        rig.ok("POST", JOBS, {"body": 1}, token=admin)
        assert rig.call("PATCH", BY_ID, HOOK, token=admin).word == "PUSH_IS_OFF"
        rig.engine.vet_target = lambda target: target
        assert rig.call("PATCH", BY_ID, HOOK, token=producer).word == "FORBIDDEN"
        rig.ok("PUT", "/v1/topics/mail/policy", {"push": {"topic": "out"}}, token=admin)
        refused = rig.call("PATCH", BY_ID, HOOK, token=admin)
        assert (refused.status, refused.fields) == (422, ["url"])
        wrong = rig.call("PATCH", BY_ID, {"method": "PUT", "headers": {"X": "1"}}, token=admin)
        assert wrong.fields == ["method", "headers"]
        assert "url" not in rig.ok("GET", BY_ID, token=admin)


# --- Cancelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "given"), CALLS[1:])
def test_a_job_whose_ttr_has_just_run_out_is_nobodys(method: str, path: str, given: object) -> None:
    with HttpRig() as rig:
        put(rig, ttr=5, retry="1h")
        reserved(rig)
        rig.engine.store.time_ms = PlayedMs(
            rig.engine.store.time_ms + 5001
        )  # nobody has noticed yet
        assert rig.call(method, BY_ID + path, given).status == 200


# --- Burying -------------------------------------------------------------------------------------


def test_the_holder_of_a_job_buries_it_by_its_id() -> None:
    with HttpRig() as rig:
        put(rig)
        token = reserved(rig)["token"]
        answer = rig.call("POST", f"{BY_KEY}/bury", {"token": token})
        assert (answer.status, answer.fields) == (422, ["token"])


# --- Durability and scopes -----------------------------------------------------------------------


def test_a_refusal_that_tells_of_a_change_is_answered_when_that_is_durable() -> None:
    with HttpRig() as rig:
        rig.ok("POST", JOBS, {"jobs": [{"body": 1, "key": "a", "delay": 9}, {"body": 2}]})
        held = {"token": reserved(rig)["token"]}
        rig.disk.hold()
        changes = [
            rig.send("DELETE", BY_ID),
            rig.send("POST", "/v1/jobs/2/ack", held),
            rig.send("POST", JOBS, {"body": 1, "key": "d"}),
            rig.send("POST", JOBS, {"body": 1}, headers={"Idempotency-Key": "e"}),
        ]
        told = [
            rig.send("DELETE", BY_ID),
            rig.send("GET", BY_KEY),
            rig.send("POST", "/v1/jobs/2/ack", held),
            rig.send("POST", JOBS, {"body": 1, "key": "d"}),
            rig.send("POST", JOBS, {"body": 2}, headers={"Idempotency-Key": "e"}),
        ]
        after_a_crash = rig.after_restart().store.jobs
        assert None not in {after_a_crash.get(1), after_a_crash.get(2)}
        assert [client.answer for client in changes + told] == [None] * 9
        rig.disk.release()
        rig.settle()
        assert [client.the_answer.status for client in changes] == [200, 200, 201, 201]
        words = [client.the_answer.word for client in told]
        assert words == [
            *("NOT_FOUND", "NOT_FOUND", "NOT_FOUND"),
            *("JOB_ALREADY_EXISTS", "IDEMPOTENCY_KEY_REUSED"),
        ]


def test_a_job_that_its_ttr_has_moved_is_judged_by_where_it_is_before_its_slice_comes() -> None:
    with HttpRig() as rig:
        policy = {"max_attempts": 1, "exhausted": "dead"}
        rig.ok("PUT", "/v1/topics/mail/policy", policy)
        put(rig, ttr=1)
        reserved(rig)
        assert isinstance(rig.clock, FakeClock)
        rig.clock.advance(1_001)
        reach(rig.engine, rig.clock.now_ms())  # very many run out at once: it is not its turn
        theirs = Principal("theirs", "0a1b2c3d", frozenset(Scope), ("mail",))
        call = Call(rig.api, Scope.DELETE, cast("Any", None), {}, theirs, b"", None, None)
        with pytest.raises(JobNotFound):
            call.allow_job(1)
        assert rig.engine.store.topics.by_name["dead"].jobs == 1
