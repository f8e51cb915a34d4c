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
from delayd.limits import BODY_BYTES_DEFAULT, JOB_ID_MAX
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


@pytest.mark.parametrize("state", ["delayed", "ready", "reserved", "buried"])
def test_a_job_is_the_same_by_id_and_by_key(state: str) -> None:
    with HttpRig() as rig:
        in_state(rig, state)
        told = rig.ok("GET", BY_ID)
        assert (told["state"], told["body"], told["key"]) == (state, "hello", "a")
        assert rig.ok("GET", BY_KEY) == told


def test_what_has_happened_to_a_job_is_told() -> None:
    with HttpRig(is_virtual=True) as rig:
        put(rig, ttr=5, retry="1s 1s 1s")
        reserved(rig)
        rig.pass_ms(6_000)
        job = reserved(rig)
        rig.ok("POST", f"{BY_ID}/nack", {"token": job["token"]})
        rig.pass_ms(1_000)
        told = rig.ok("GET", BY_ID)
        assert (told["attempts"], told["reserves"]) == (2, 2)
        assert (told["timeouts"], told["releases"]) == (1, 1)
        assert told["failure"]["reason"] == "nacked"
        reserved(rig)
        told = rig.ok("GET", BY_ID)
        assert (told["state"], told["attempts"], told["reserves"]) == ("reserved", 3, 3)
        assert told["expires"] == "2023-11-14T22:13:32.000Z"


def test_a_body_that_is_no_json_is_told_in_base64() -> None:
    with HttpRig() as rig:
        rig.ok("POST", JOBS, {"body_base64": "/w=="})
        told = rig.ok("GET", BY_ID)
        assert told["body_base64"] == "/w=="
        assert "body" not in told


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
def test_what_is_not_there_is_not_found(method: str, path: str, given: object) -> None:
    with HttpRig() as rig:
        put(rig)
        for where in ("/v1/jobs/2", f"/v1/jobs/{JOB_ID_MAX}", f"/v1/jobs/{JOB_ID_MAX + 1}"):
            answer = rig.call(method, where + path, given)
            assert (answer.status, answer.word) == (404, "NOT_FOUND")
        assert rig.call(method, f"/v1/jobs/0{path}", given).status == 404
        for where in ("/v1/topics/mail/keys/b", "/v1/topics/sms/keys/a"):
            answer = rig.call(method, where + path, given)
            assert (answer.status, answer.word) == (404, "NOT_FOUND")
        rig.ok("DELETE", BY_ID)
        for where in (BY_ID, BY_KEY):
            assert rig.call(method, where + path, given).status == 404
        assert "sms" not in rig.engine.store.topics.by_name


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
def test_what_is_given_of_a_job_is_changed_and_nothing_else(path: str, state: str) -> None:
    with HttpRig(is_virtual=True) as rig:
        in_state(rig, state)
        before = rig.ok("GET", path)
        for given, changed in (
            ({"priority": 3}, {"priority": 3}),
            ({"ttr": "2m"}, {"ttr": 120.0}),
            ({"group": "a"}, {"group": "a"}),
            ({"group": "b", "priority": 4}, {"group": "b", "priority": 4}),
            ({"body": {"a": 1}}, {"body": {"a": 1}}),
        ):
            answer = rig.call("PATCH", path, given)
            assert (answer.status, answer.json["id"]) == (200, 1)
            before |= changed
            assert rig.ok("GET", path) == before
        rig.ok("PATCH", path, {"group": None})
        assert rig.ok("GET", path) == {n: said for n, said in before.items() if n != "group"}
        assert rig.after_restart().store.jobs.get(1) == rig.engine.store.jobs.get(1)


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


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, [""]),
        ({"delay": 1, "at": 2}, ["at"]),
        ({"body": 1, "body_base64": ""}, ["body_base64"]),
        ({"priority": -1, "ttr": "x", "delay": None}, ["delay", "priority", "ttr"]),
        ({"key": "b", "ttr": 1}, ["key"]),
        ({"max_attempts": 1}, ["", "max_attempts"]),
        ({"group": ""}, ["group"]),
    ],
)
def test_a_change_that_is_wrong_is_refused(given: dict[str, object], fields: list[str]) -> None:
    with HttpRig() as rig:
        put(rig)
        before = rig.ok("GET", BY_ID)
        for path in (BY_ID, BY_KEY):
            answer = rig.call("PATCH", path, given)
            assert (answer.status, sorted(answer.fields)) == (422, fields)
        assert rig.ok("GET", BY_ID) == before


HOOK: dict[str, object] = {
    "url": "https://b.example/due",
    "method": "PUT",
    "headers": {"X": "1"},
}


def target_of(rig: HttpRig) -> dict[str, Any]:
    told = rig.ok("GET", BY_ID)
    return {name: told[name] for name in HOOK if name in told}


@pytest.mark.parametrize("path", [BY_ID, BY_KEY])
@pytest.mark.parametrize("state", ["delayed", "ready", "buried"])
def test_where_a_job_is_sent_can_be_changed_and_taken_away(path: str, state: str) -> None:
    with HttpRig() as rig:
        rig.engine.vet_target = lambda target: target
        in_state(rig, state)
        before = rig.ok("GET", BY_ID)
        for given, target in (
            (HOOK, HOOK),
            ({"priority": 7}, HOOK),
            ({"url": "https://c.example/"}, {"url": "https://c.example/", "method": "POST"}),
            ({"url": None}, {}),
        ):
            rig.ok("PATCH", path, given)
            assert target_of(rig) == target
        assert rig.ok("GET", BY_ID) == {**before, "priority": 7}


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


def test_a_change_is_bounded_as_a_put_is() -> None:
    with HttpRig() as rig:
        rig.ok("PUT", "/v1/topics/mail/policy", {"delay_max": "1h", "bytes_max": 1_000})
        put(rig)
        answer = rig.call("PATCH", BY_ID, {"body": "x" * BODY_BYTES_DEFAULT})
        assert (answer.status, answer.word) == (413, "JOB_TOO_BIG")
        answer = rig.call("PATCH", BY_ID, {"delay": "2h"})
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["delay"])
        answer = rig.call("PATCH", BY_ID, {"at": "2030-01-01T00:00:00Z"})
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["at"])
        answer = rig.call("PATCH", BY_ID, {"body": "x" * 1_000})
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        assert answer.headers["retry-after"]
        assert rig.ok("GET", BY_ID)["body"] == "hello"


# --- Cancelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [BY_ID, BY_KEY])
@pytest.mark.parametrize("state", ["delayed", "ready", "buried"])
def test_a_job_that_nobody_works_on_can_be_cancelled(path: str, state: str) -> None:
    with HttpRig() as rig:
        in_state(rig, state)
        assert rig.ok("DELETE", path) == {"id": 1}
        assert rig.after_restart().log_space.jobs == 0
        assert "mail" not in rig.engine.store.topics.by_name


@pytest.mark.parametrize(("method", "path", "given"), CALLS[1:])
@pytest.mark.parametrize("where", [BY_ID, BY_KEY])
def test_a_job_that_somebody_works_on_is_theirs(
    where: str, method: str, path: str, given: object
) -> None:
    with HttpRig() as rig:
        in_state(rig, "reserved")
        before = rig.ok("GET", BY_ID)
        answer = rig.call(method, where + path, given)
        assert (answer.status, answer.word) == (409, "RESERVED")
        assert answer.json["job_id"] == 1
        assert rig.ok("GET", BY_ID) == before


@pytest.mark.parametrize(("method", "path", "given"), CALLS[1:])
def test_a_job_whose_ttr_has_just_run_out_is_nobodys(method: str, path: str, given: object) -> None:
    with HttpRig() as rig:
        put(rig, ttr=5, retry="1h")
        reserved(rig)
        rig.engine.store.time_ms = PlayedMs(
            rig.engine.store.time_ms + 5001
        )  # nobody has noticed yet
        assert rig.call(method, BY_ID + path, given).status == 200


# --- Kicking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [BY_ID, BY_KEY])
@pytest.mark.parametrize("state", ["delayed", "buried"])
def test_a_kick_makes_a_job_ready(path: str, state: str) -> None:
    with HttpRig() as rig:
        in_state(rig, state)
        assert rig.ok("POST", f"{path}/kick") == {"id": 1}
        assert rig.ok("GET", BY_ID)["kicks"] == 1
        assert reserved(rig)["id"] == 1


@pytest.mark.parametrize("path", [BY_ID, BY_KEY])
def test_a_job_that_is_ready_cannot_be_kicked(path: str) -> None:
    with HttpRig() as rig:
        in_state(rig, "ready")
        answer = rig.call("POST", f"{path}/kick")
        assert (answer.status, answer.word) == (409, "WRONG_STATE")
        assert answer.json["job_id"] == 1
        assert rig.ok("GET", BY_ID)["kicks"] == 0


# --- Burying -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [BY_ID, BY_KEY])
@pytest.mark.parametrize("state", ["delayed", "ready"])
def test_a_job_that_waits_is_buried_until_it_is_kicked(path: str, state: str) -> None:
    with HttpRig() as rig:
        in_state(rig, state)
        asked = {"error": "wrong amount", "priority": 3}
        answer = rig.ok("POST", f"{path}/bury", asked)
        assert answer == {"id": 1, "state": "buried", "topic": "mail"}
        told = rig.ok("GET", BY_ID)
        assert (told["state"], told["priority"], told["buries"]) == ("buried", 3, 1)
        assert (told["attempts"], told["reserves"]) == (0, 0)
        assert (told["failure"]["reason"], told["failure"]["error"]) == ("buried", "wrong amount")
        assert rig.call("POST", RESERVE).status == 204
        assert rig.after_restart().store.topics.by_name["mail"].queues.buried
        rig.ok("POST", f"{path}/kick")
        assert reserved(rig)["attempt"] == 1


@pytest.mark.parametrize("given", [None, {}])
def test_who_does_not_say_why_a_job_is_buried_leaves_that_it_was_by_hand(given: object) -> None:
    with HttpRig() as rig:
        in_state(rig, "ready")
        rig.ok("POST", f"{BY_ID}/bury", given)
        assert rig.ok("GET", BY_ID)["failure"]["error"] == "by hand"


@pytest.mark.parametrize("path", [BY_ID, BY_KEY])
def test_a_job_that_is_buried_cannot_be_buried_again(path: str) -> None:
    with HttpRig() as rig:
        in_state(rig, "buried")
        answer = rig.call("POST", f"{path}/bury")
        assert (answer.status, answer.word) == (409, "WRONG_STATE")
        assert rig.ok("GET", BY_ID)["buries"] == 1


def test_the_holder_of_a_job_buries_it_by_its_id() -> None:
    with HttpRig() as rig:
        put(rig)
        token = reserved(rig)["token"]
        answer = rig.call("POST", f"{BY_KEY}/bury", {"token": token})
        assert (answer.status, answer.fields) == (422, ["token"])


# --- Durability and scopes -----------------------------------------------------------------------


def test_nothing_is_answered_before_it_is_durable() -> None:
    with HttpRig() as rig:
        rig.ok("POST", JOBS, {"jobs": [{"body": n, "key": f"{n}", "delay": 9} for n in "abc"]})
        rig.disk.hold()
        clients = [
            rig.send("GET", BY_ID),
            rig.send("PATCH", BY_ID, {"priority": 1}),
            rig.send("DELETE", "/v1/jobs/2"),
            rig.send("POST", "/v1/topics/mail/keys/c/kick"),
            rig.send("GET", BY_ID),
        ]
        assert [client.answer for client in clients[1:]] == [None] * 4
        rig.disk.release()
        rig.settle()
        assert [client.the_answer.status for client in clients] == [200] * 5
        assert clients[4].the_answer.json["priority"] == 1


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


@pytest.mark.parametrize(
    ("method", "path", "given", "scope"),
    [
        ("GET", "", None, Scope.PEEK),
        ("PATCH", "", {"priority": 1}, Scope.PUT),
        ("DELETE", "", None, Scope.DELETE),
        ("POST", "/kick", None, Scope.KICK),
        ("POST", "/ack", {"token": "1-0-1"}, Scope.DELETE),
        ("POST", "/nack", {"token": "1-0-1"}, Scope.RELEASE),
        ("POST", "/touch", {"token": "1-0-1"}, Scope.RELEASE),
        ("POST", "/bury", {"token": "1-0-1"}, Scope.BURY),
        ("POST", "/bury", {}, Scope.BURY),
    ],
)
def test_who_may_not_see_a_job_is_told_that_there_is_none(
    method: str, path: str, given: object, scope: Scope
) -> None:
    with HttpRig(needs_token=True) as rig:
        admin = rig.token()
        rig.ok("POST", JOBS, {"body": 1, "key": "a", "delay": 9}, token=admin)
        missing = rig.call(method, f"/v1/jobs/2{path}", _for_2(given), token=admin)
        assert missing.status == 404
        for scopes, topics, status in (
            ((scope,), ("sms",), 404),
            ((scope, Scope.PEEK), ("sms",), 404),
            ((Scope.PEEK,), ("mail",), 403),
        ):
            token = rig.token(*scopes, topics=topics)
            answer = rig.call(method, f"{BY_ID}{path}", given, token=token)
            if scope is Scope.PEEK and topics == ("mail",):
                assert answer.status == 200
                continue
            assert answer.status == status
            if status == 404:
                told = {**answer.json, "detail": ""}
                assert told == {**missing.json, "detail": ""}
        token = rig.token(scope, topics=("mail",))
        answer = rig.call(method, f"{BY_ID}{path}", given, token=token)
        assert answer.status in {200, 409}, "it is let in"


def _for_2(given: object) -> object:
    return {"token": "2-0-1"} if isinstance(given, dict) and "token" in given else given


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
