"""Idempotency-Key: however often a put is sent, it makes one job, for a day."""

import hashlib
import json
import random
from typing import Any

import pytest

from delayd.access.scopes import Scope
from delayd.core.engine import Engine
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import Conflict, put_keyed
from delayd.core.operations.topics import configure, pause
from delayd.core.policy import Patterns, Policy
from delayd.core.replay import Replay
from delayd.core.times import PlayedMs
from delayd.http.idempotency import TOPIC, Memos
from delayd.limits import IDEMPOTENCY_KEY_BYTES_MAX, IDEMPOTENCY_MS
from tests.rigs.clock import START_MS
from tests.rigs.http import Answer, HttpRig

JOBS = "/v1/topics/mail/jobs"
DELAY = "7d"
"""Longer than keys are remembered."""


def put(
    rig: HttpRig,
    key: str = "a",
    *,
    path: str = JOBS,
    token: str = "",
    **fields: object,
) -> Answer:
    given = {"body": 1, "delay": DELAY, **fields}
    return rig.call("POST", path, given, headers={"Idempotency-Key": key}, token=token)


def topics(rig: HttpRig) -> set[str]:
    return {*rig.engine.store.topics.by_name} - {"default"}


def jobs_of(engine: Engine, name: str) -> int:
    topic = engine.store.topics.by_name.get(name)
    return 0 if topic is None else topic.jobs


# --- The same again ------------------------------------------------------------------------------


def test_the_same_request_again_makes_no_second_job() -> None:
    with HttpRig() as rig:
        first = put(rig)
        for _ in range(3):
            rig.pass_ms(1_000)
            again = put(rig)
            assert (again.status, again.json) == (201, first.json)
            assert again.headers["location"] == first.headers["location"] == "/v1/jobs/1"
        assert jobs_of(rig.engine, "mail") == 1


def test_another_key_or_none_makes_another_job() -> None:
    with HttpRig() as rig:
        put(rig)
        assert put(rig, "b").status == 201
        rig.ok("POST", JOBS, {"body": 1, "delay": DELAY})
        assert jobs_of(rig.engine, "mail") == 3


@pytest.mark.parametrize(("field", "value"), [("body", 2), ("delay", 5), ("priority", 1)])
def test_another_request_under_the_same_key_is_refused(field: str, value: object) -> None:
    with HttpRig() as rig:
        put(rig)
        given = {"body": 1, "delay": DELAY, field: value}
        answer = rig.call("POST", JOBS, given, headers={"Idempotency-Key": "a"})
        assert (answer.status, answer.word) == (422, "IDEMPOTENCY_KEY_REUSED")
        assert jobs_of(rig.engine, "mail") == 1


def test_a_key_counts_for_one_topic() -> None:
    with HttpRig() as rig:
        put(rig)
        assert put(rig, path="/v1/topics/sms/jobs", body=2).status == 201


def test_a_key_is_its_callers_own() -> None:
    with HttpRig(needs_token=True) as rig:
        ann, bob = rig.token(Scope.PUT), rig.token(Scope.PUT)
        first, second = (put(rig, token=token, body=token).json["id"] for token in (ann, bob))
        assert first != second
        assert put(rig, token=ann, body=ann).json["id"] == first


def test_a_job_that_has_gone_since_is_not_made_again() -> None:
    with HttpRig() as rig:
        first = put(rig)
        rig.ok("DELETE", "/v1/jobs/1")
        again = put(rig)
        assert again.status == 201
        assert again.json == {"id": first.json["id"], "outcome": "created"}
        assert jobs_of(rig.engine, "mail") == 0


@pytest.mark.parametrize(
    "fields", [{"at": "2023-11-21T00:00:00Z", "delay": None}, {"retry": "1s"}, {"max_attempts": 3}]
)
def test_puts_of_every_kind_are_remembered(fields: dict[str, object]) -> None:
    with HttpRig() as rig:
        given = {"body": 1, "delay": DELAY, **fields}
        given = {name: value for name, value in given.items() if value is not None}
        answers = [
            rig.call("POST", JOBS, given, headers={"Idempotency-Key": "a"}) for _ in range(2)
        ]
        assert answers[0].json == answers[1].json
        assert jobs_of(rig.engine, "mail") == 1


def test_who_sends_it_twice_at_once_gets_one_job() -> None:
    with HttpRig() as rig:
        rig.disk.hold()
        given = {"body": 1, "delay": DELAY}
        headers = {"Idempotency-Key": "a"}
        clients = [rig.send("POST", JOBS, given, headers=headers) for _ in range(2)]
        assert [client.answer for client in clients] == [None, None], "the second one waits too"
        rig.disk.release()
        rig.settle()
        assert clients[0].the_answer.json == clients[1].the_answer.json
        assert jobs_of(rig.engine, "mail") == 1


# --- Where it does not count ---------------------------------------------------------------------


def test_beside_a_key_of_the_job_it_is_refused_and_a_put_by_key_needs_none() -> None:
    with HttpRig() as rig:
        assert put(rig, key="a", body=1).status == 201
        rig.ok("DELETE", "/v1/jobs/1")
        given = {"body": 1, "key": "order-17"}
        headers = {"Idempotency-Key": "b"}
        answer = rig.call("POST", JOBS, given, headers=headers)
        assert (answer.status, answer.fields) == (422, ["Idempotency-Key"])
        assert rig.call("POST", JOBS, given).status == 201
        path = "/v1/topics/mail/keys/order-17"
        for body in (1, 2):
            answer = rig.call("PUT", path, {"body": body}, headers=headers)
            assert answer.json["outcome"] == "replaced"
        assert jobs_of(rig.engine, TOPIC) == 1


def test_a_batch_takes_none() -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, {"jobs": [{"body": 1}]}, headers={"Idempotency-Key": "a"})
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")
        assert answer.fields == ["Idempotency-Key"]
        assert topics(rig) == set()


@pytest.mark.parametrize("key", ["", "x" * (IDEMPOTENCY_KEY_BYTES_MAX + 1)])
def test_a_key_that_is_too_long_or_none_is_refused(key: str) -> None:
    with HttpRig() as rig:
        answer = put(rig, key)
        assert (answer.status, answer.fields) == (422, ["Idempotency-Key"])
        assert topics(rig) == set()


@pytest.mark.parametrize("key", ["x" * IDEMPOTENCY_KEY_BYTES_MAX, "a b", '"quoted"', "größe"])
def test_a_key_is_any_text(key: str) -> None:
    with HttpRig() as rig:
        assert put(rig, key).json == put(rig, key).json


# --- Refused puts --------------------------------------------------------------------------------


def test_a_put_that_was_refused_may_be_tried_again() -> None:
    with HttpRig() as rig:
        rig.ok("PUT", "/v1/topics/mail/policy", {"jobs_max": 1})
        rig.ok("POST", JOBS, {"body": 0})
        assert put(rig).status == 507
        assert jobs_of(rig.engine, TOPIC) == jobs_of(rig.after_restart(), TOPIC) == 0
        assert TOPIC not in topics(rig), "nothing is left of it"
        rig.ok("DELETE", "/v1/jobs/1")
        assert put(rig).status == 201
        assert put(rig).status == 201
        assert jobs_of(rig.engine, "mail") == 1


def test_a_put_that_is_malformed_is_not_remembered() -> None:
    with HttpRig() as rig:
        assert put(rig, priority=-1).status == 422
        assert put(rig).status == 201


@pytest.mark.parametrize("free_bytes", range(0, 2_000, 50))
def test_where_the_disk_is_full_both_are_put_or_neither(free_bytes: int) -> None:
    with HttpRig() as rig:
        rig.engine.log_space.limit(64 * 1_024 + free_bytes, lambda *_: -1)
        status = put(rig).status
        for engine in (rig.engine, rig.after_restart()):
            jobs = jobs_of(engine, "mail"), jobs_of(engine, TOPIC)
            assert jobs == ((1, 1) if status == 201 else (0, 0))
        assert topics(rig) == ({"mail", TOPIC} if status == 201 else set())


def test_the_policies_of_other_topics_are_not_its_own() -> None:
    with HttpRig() as rig:
        theirs = Policy(delay_ms_max=1_000, body_bytes_max=10, jobs_max=1, attempts_max=1)
        configure(rig.engine, Patterns({"*": theirs, "?*": theirs}))
        assert put(rig, delay=1).status == 201
        assert put(rig, delay=1).status == 201
        assert put(rig, "b", path="/v1/topics/sms/jobs", delay=1).status == 201


def test_a_daemon_that_drains_still_tells_what_it_has_put() -> None:
    with HttpRig() as rig:
        first = put(rig)
        rig.engine.draining = True
        assert put(rig).json == first.json
        assert put(rig, "b").status == 503
        assert jobs_of(rig.engine, TOPIC) == 1


# --- Restarts ------------------------------------------------------------------------------------


def test_job_and_memo_are_in_one_commit() -> None:
    with HttpRig() as rig:
        put(rig)
        assert len(rig.disk.frames) == 1
        again = rig.after_restart()
        assert (jobs_of(again, "mail"), jobs_of(again, TOPIC)) == (1, 1)


def test_what_was_put_before_a_crash_is_remembered_after_it(rng: random.Random) -> None:
    with HttpRig() as rig:
        for number in range(5):
            put(rig, f"{number}", body=number)
        told = put(rig, "3", body=3).json
        frames = rig.disk.frames
    with HttpRig() as later:
        replay = Replay(later.engine)
        for frame in frames:
            replay.play(frame)
        replay.finish(PlayedMs(START_MS))
        later.api.memos.begin(later.api.now_ms())  # as at the start
        assert put(later, "3", body=3).json == told
        assert put(later, "3", body=4).status == 422
        assert put(later, "9").json["id"] > told["id"]
        later.pass_ms(IDEMPOTENCY_MS + 10)
        assert jobs_of(later.engine, TOPIC) == 0
        assert jobs_of(later.engine, "mail") == 6


# --- Too many -------------------------------------------------------------------------------------


def test_above_the_cap_a_new_key_is_refused_and_a_known_one_is_answered() -> None:
    with HttpRig() as rig:
        rig.api.memos.keys_max = 2
        told = [put(rig, key, body=key).json for key in "ab"]
        answer = put(rig, "c")
        assert (answer.status, answer.word) == (507, "IDEMPOTENCY_KEYS_FULL")
        assert answer.json["kind"] == "idempotency_keys_full"
        assert "http.idempotency_keys_max is 2" in answer.json["detail"]
        assert answer.headers["retry-after"] == "5"
        assert (jobs_of(rig.engine, "mail"), jobs_of(rig.engine, TOPIC)) == (2, 2)
        assert [put(rig, key, body=key).json for key in "ab"] == told
        assert put(rig, "a", body="other").word == "IDEMPOTENCY_KEY_REUSED"
        assert rig.ok("POST", JOBS, {"body": 1})["id"] > told[1]["id"]
        assert put(rig, "c", path="/v1/topics/fresh/jobs").status == 507
        assert "fresh" not in topics(rig), "a put that is refused leaves no topic"
        rig.pass_ms(IDEMPOTENCY_MS + 10)
        assert put(rig, "c").status == 201


# --- The end of the day --------------------------------------------------------------------------


def test_after_a_day_the_key_is_free_and_nothing_is_left_of_it() -> None:
    with HttpRig() as rig:
        put(rig)
        rig.pass_ms(IDEMPOTENCY_MS)
        assert put(rig).json["id"] == 1
        rig.pass_ms(2)
        assert topics(rig) == {"mail"}
        assert rig.after_restart().log_space.jobs == rig.engine.log_space.jobs == 1
        assert put(rig, body=2).status == 201
        assert jobs_of(rig.engine, "mail") == 2


def test_very_many_keys_are_forgotten_in_slices(rng: random.Random) -> None:
    with HttpRig(is_checked=False) as rig:
        for number in range(1_500):
            put(rig, f"{number}")
            if number == 700:
                rig.pass_ms(5_000)
        assert jobs_of(rig.engine, TOPIC) == 1_500
        rig.pass_ms(IDEMPOTENCY_MS - 5_000 + 10)
        assert jobs_of(rig.engine, TOPIC) == 1_500 - 701
        rig.pass_ms(5_000)
        assert topics(rig) == {"mail"}
        assert rig.after_restart().log_space.jobs == 1_500


def test_nobody_is_waited_for_where_there_is_nothing() -> None:
    with HttpRig() as rig:
        assert topics(rig) == set()
        memos = Memos(rig.engine, keys_max=1)
        memos.begin(rig.api.now_ms())
        assert topics(rig) == set()


# --- Jobs that clients of older daemons put there ------------------------------------------------


def memo_key(topic: str, key: str) -> str:
    return hashlib.sha256(f"everybody\0\0{topic}\0{key}".encode()).hexdigest()


def memo_body(rig: HttpRig) -> dict[str, Any]:
    """What the only memo says."""
    (memo,) = rig.ok("GET", f"/v1/topics/{TOPIC}/jobs?bodies=true")["jobs"]
    assert memo["key"] == memo_key("mail", "a")
    return dict(memo["body"])


def forge(rig: HttpRig, body: bytes) -> None:
    """Put something in the place of the memo, as clients could before that was refused."""
    with as_daemon(rig.engine):
        put_keyed(
            rig.engine,
            rig.engine.store.topics.by_name[TOPIC],
            memo_key("mail", "a").encode(),
            Conflict.REPLACE,
            priority=0,
            delay_ms=3_600_000,
            ttr_ms=60_000,
            body=body,
            now_ms=rig.api.now_ms(),
        )


@pytest.mark.parametrize(
    "body",
    [
        b"1",
        b'{"job": "x", "request": 7}',
        b'{"job": 0, "request": ""}',
        b'{"job": -1, "request": ""}',
        b"{}",
        b"\xff",
        b"",
    ],
)
def test_what_is_no_memo_breaks_nothing(body: bytes) -> None:
    with HttpRig() as rig:
        put(rig)
        memo_body(rig)
        forge(rig, body)
        answer = put(rig)
        assert (answer.status, answer.word) == (422, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.parametrize("job_id", [-1, 0, 2**64])
def test_a_memo_of_a_job_that_cannot_be_breaks_nothing(job_id: int) -> None:
    with HttpRig() as rig:
        put(rig)
        forge(rig, json.dumps({**memo_body(rig), "job": job_id}).encode())
        assert put(rig).word == "IDEMPOTENCY_KEY_REUSED"


def test_a_memo_that_is_due_and_still_there_is_one_all_the_same() -> None:
    with HttpRig() as rig:
        put(rig)
        with as_daemon(rig.engine):
            pause(rig.engine, TOPIC, 2 * IDEMPOTENCY_MS, rig.api.now_ms())
        rig.pass_ms(IDEMPOTENCY_MS + 10)
        assert put(rig).json["id"] == 1
        rig.pass_ms(IDEMPOTENCY_MS + 10)
        assert TOPIC not in topics(rig)


# --- Between the job and what is remembered of it ------------------------------------------------


def test_what_is_remembered_stands_behind_its_job_in_the_log() -> None:
    with HttpRig() as rig:
        job_id = put(rig).json["id"]
        memo = rig.engine.store.topics.by_name[TOPIC]
        (memo_id,) = memo.queues.delays.wheel.soonest(1)
        assert memo_id > job_id, "a crash between them would promise a job that is not there"


def test_a_put_that_cannot_be_remembered_is_refused_as_a_whole() -> None:
    with HttpRig() as rig:
        configure(rig.engine, jobs_max=1)
        answer = put(rig)
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        assert not topics(rig)
        said = "jobs_max of this daemon is 1, 0 are in use and 2 more are needed"
        assert answer.json["detail"] == said
        assert rig.call("POST", JOBS, {"body": 1}).status == 201, "there is room for one"


def test_a_refusal_says_what_job_and_memo_need_and_what_is_in_use_without_them() -> None:
    with HttpRig() as rig:
        for _ in range(2):
            rig.ok("POST", JOBS, {"body": 1})
        configure(rig.engine, jobs_max=3)
        said = "jobs_max of this daemon is 3, 2 are in use and 2 more are needed"
        assert put(rig).json["detail"] == said
        rig.ok("POST", JOBS, {"body": 1})
        assert put(rig).json["detail"] == "jobs_max of this daemon is 3 and 3 are in use"
        in_use = rig.engine.record_bytes
        configure(rig.engine, bytes_max=in_use + 100)
        answer = put(rig)
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        configure(rig.engine, None)
        before = rig.engine.record_bytes
        assert before == in_use, "nothing was left behind"
        assert put(rig).status == 201
        needed = rig.engine.record_bytes - before
        said = f"bytes_max of this daemon is {in_use + 100}, {in_use} are in use and {needed} more"
        assert answer.json["detail"] == f"{said} are needed"


def test_a_job_that_a_worker_has_already_stays_put_though_it_cannot_be_remembered() -> None:
    with HttpRig() as rig:
        configure(rig.engine, jobs_max=1)
        worker = rig.send("POST", "/v1/topics/mail/reserve", {"wait": "10s"})
        assert put(rig, delay=0).status == 201
        assert worker.answer is not None
        assert [job["id"] for job in worker.answer.json["jobs"]] == [1]
        assert topics(rig) == {"mail"}
