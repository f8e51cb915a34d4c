"""What holders say of their jobs, and what is said to those who hold them no more."""

import random
from typing import TYPE_CHECKING, Any, cast

import pytest

from delayd.http.handlers.job_responses import parse_token
from delayd.http.handlers.reserve import holder_of
from delayd.http.problems import ReservationLost
from delayd.limits import ERROR_BYTES_MAX, HTTP_BATCH_MAX
from tests.http.callers import Answer
from tests.http.scene import Scene

if TYPE_CHECKING:
    from delayd.http.api import Api

JOBS = "/v1/topics/mail/jobs"
RESERVE = "/v1/topics/mail/reserve"
ACTS = ("ack", "nack", "touch", "bury")


def put(scene: Scene, **fields: object) -> int:
    return int(scene.ok("POST", JOBS, {"body": None, **fields})["id"])


def reserved(scene: Scene, **fields: object) -> dict[str, Any]:
    """A job in somebody's hands; put for that if there is none ready."""
    answer = scene.call("POST", RESERVE)
    if answer.status == 204:
        put(scene, **fields)
        answer = scene.call("POST", RESERVE)
    (job,) = answer.json["jobs"]
    return dict(job)


def say(scene: Scene, act: str, job: dict[str, Any], **fields: object) -> Answer:
    """Say this of a job, under its token."""
    return scene.call("POST", f"/v1/jobs/{job['id']}/{act}", {"token": job["token"], **fields})


def looked_at(scene: Scene, job_id: int = 1) -> dict[str, Any]:
    return dict(scene.ok("GET", f"/v1/jobs/{job_id}"))


def state(scene: Scene, job_id: int = 1) -> str:
    """The state of a job; empty if it is gone."""
    answer = scene.call("GET", f"/v1/jobs/{job_id}")
    return str(answer.json["state"]) if answer.status == 200 else ""


# --- One by one ----------------------------------------------------------------------------------


def test_an_acknowledged_job_is_gone_for_good() -> None:
    with Scene() as scene:
        job = reserved(scene)
        answer = say(scene, "ack", job)
        assert (answer.status, answer.json) == (200, {"id": 1})
        assert state(scene) == ""
        assert scene.after_restart().log_space.jobs == 0
        answer = say(scene, "ack", job)
        assert (answer.status, answer.word) == (404, "NOT_FOUND")


def test_without_a_rule_a_nacked_job_is_ready_again_and_says_why() -> None:
    with Scene(is_virtual=True) as scene:
        answer = say(scene, "nack", reserved(scene), error="connection refused")
        assert answer.json == {"id": 1, "topic": "mail", "state": "ready"}
        job = reserved(scene)
        assert job["attempt"] == 2
        assert job["failure"] == {
            "reason": "nacked",
            "at": "2023-11-14T22:13:20.000Z",
            "error": "connection refused",
        }


def test_a_nack_may_ask_for_a_delay_and_another_priority() -> None:
    with Scene(is_virtual=True) as scene:
        answer = say(scene, "nack", reserved(scene), delay="5s", priority=7)
        due = "2023-11-14T22:13:25.000Z"
        assert answer.json == {"id": 1, "topic": "mail", "state": "delayed", "due": due}
        told = looked_at(scene)
        assert (told["due"], told["priority"], told["releases"]) == (due, 7, 1)


def test_nacks_climb_the_ladder_until_it_ends() -> None:
    with Scene(is_virtual=True) as scene:
        put(scene, retry="10s 1m")
        answers = []
        for wait_ms in (0, 10_000, 60_000):
            scene.pass_ms(wait_ms)
            answers.append(say(scene, "nack", reserved(scene), error=f"{wait_ms}").json)
        assert [answer["state"] for answer in answers] == ["delayed", "delayed", "buried"]
        dues = [answer.get("due") for answer in answers]
        assert dues == ["2023-11-14T22:13:30.000Z", "2023-11-14T22:14:30.000Z", None]
        told = looked_at(scene)
        assert (told["attempts"], told["failure"]["error"]) == (3, "60000")


def test_an_exhausted_job_is_moved_where_the_policy_says() -> None:
    with Scene() as scene:
        policy = {"max_attempts": 1, "exhausted": "mail.failed"}
        scene.ok("PUT", "/v1/topics/mail/policy", policy)
        answer = say(scene, "nack", reserved(scene), error="no")
        assert answer.json == {"id": 1, "topic": "mail.failed", "state": "ready"}
        assert looked_at(scene)["failure"]["origin"] == "mail"


def test_of_a_long_error_so_much_is_kept() -> None:
    with Scene() as scene:
        say(scene, "nack", reserved(scene), error="é" * ERROR_BYTES_MAX)
        assert looked_at(scene)["failure"]["error"] == "é" * (ERROR_BYTES_MAX // 2)


def test_a_touch_lets_the_reservation_last_a_full_ttr_from_now() -> None:
    with Scene(is_virtual=True) as scene:
        job = reserved(scene, ttr=10)
        assert job["expires"] == "2023-11-14T22:13:30.000Z"
        scene.pass_ms(9_000)
        answer = say(scene, "touch", job)
        assert answer.json == {"id": 1, "expires": "2023-11-14T22:13:39.000Z"}
        scene.pass_ms(9_999)
        assert say(scene, "ack", job).status == 200


def test_a_buried_job_stays_until_it_is_kicked() -> None:
    with Scene() as scene:
        answer = say(scene, "bury", reserved(scene, priority=9), error="what is this?")
        assert answer.json == {"id": 1, "topic": "mail", "state": "buried"}
        told = looked_at(scene)
        assert (told["priority"], told["failure"]["error"]) == (9, "what is this?")
        assert scene.call("POST", RESERVE).status == 204
        scene.ok("POST", "/v1/jobs/1/kick")
        assert say(scene, "bury", reserved(scene), priority=3).status == 200
        assert looked_at(scene)["priority"] == 3


def test_what_a_holder_says_is_durable_before_it_is_answered() -> None:
    with Scene() as scene:
        jobs = [reserved(scene) for _ in ACTS]
        scene.disk.hold()
        clients = []
        for act, job in zip(ACTS, jobs, strict=True):
            given = {"token": job["token"]}
            clients.append(scene.send("POST", f"/v1/jobs/{job['id']}/{act}", given))
        assert [client.answer for client in clients] == [None] * 4
        assert len(scene.after_restart().store.leases.sessions) == 4
        scene.disk.release()
        scene.settle()
        assert [client.the_answer.status for client in clients] == [200] * 4
        assert len(scene.after_restart().store.leases.sessions) == 1, "that which was touched"


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, ["token"]),
        ({"token": ""}, ["token"]),
        ({"token": 7}, ["token"]),
        ({"token": "1-x-1"}, ["token"]),
        ({"token": "0-0-1"}, ["token"]),
        ({"token": "1-0-1 "}, ["token"]),
        ({"token": "2-0-1"}, ["token"]),
        ({"token": "1-0-1", "colour": 1}, ["colour"]),
    ],
)
def test_what_is_no_token_of_the_job_is_refused(
    act: str, given: dict[str, object], fields: list[str]
) -> None:
    with Scene() as scene:
        reserved(scene)
        answer = scene.call("POST", f"/v1/jobs/1/{act}", given)
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", fields)
        assert state(scene) == "reserved"


@pytest.mark.parametrize(
    ("act", "given", "fields"),
    [
        ("nack", {"delay": -1, "priority": -1, "error": 7}, ["delay", "error", "priority"]),
        ("bury", {"priority": 2**32, "error": None, "delay": 1}, ["delay", "error", "priority"]),
        ("touch", {"delay": 1}, ["delay"]),
        ("ack", {"error": ""}, ["error"]),
    ],
)
def test_all_that_is_wrong_with_what_a_holder_says_is_named(
    act: str, given: dict[str, object], fields: list[str]
) -> None:
    with Scene() as scene:
        answer = say(scene, act, reserved(scene), **given)
        assert (answer.status, sorted(answer.fields)) == (422, fields)
        assert state(scene) == "reserved"


@pytest.mark.parametrize("job_id", ["0", "x", "-1", "1.0", "18446744073709551616", "9" * 21, "%31"])
def test_what_is_no_job_is_not_acknowledged(job_id: str) -> None:
    with Scene() as scene:
        reserved(scene)
        answer = scene.call("POST", f"/v1/jobs/{job_id}/ack", {"token": "1-0-1"})
        assert answer.status in {404, 409, 422}
        assert state(scene) == "reserved"


# --- Too late ------------------------------------------------------------------------------------


def lost(scene: Scene, job: dict[str, Any]) -> None:
    """Whatever its holder was, of this job it can say nothing any more, and disturbs nobody."""
    before = looked_at(scene, job["id"])
    for act in ACTS:
        answer = say(scene, act, job)
        assert (answer.status, answer.word) == (409, "NOT_RESERVED")
        assert answer.json["job_id"] == job["id"]
    for path, given in (
        ("/v1/ack", {"tokens": [job["token"]]}),
        ("/v1/nack", {"nacks": [{"token": job["token"]}]}),
    ):
        answer = scene.call("POST", path, given)
        assert (answer.status, answer.json["results"][0]["status"]) == (207, 409)
    assert looked_at(scene, job["id"]) == before


def test_who_is_slower_than_the_ttr_has_lost_the_job() -> None:
    with Scene() as scene:
        job = reserved(scene, ttr=5)
        scene.pass_ms(5_001)
        lost(scene, job)
        assert state(scene) == "ready"


def test_the_reservation_ends_with_the_ttr_and_not_when_somebody_notices() -> None:
    with Scene() as scene:
        job = reserved(scene, ttr=5)
        scene.engine.store.time_ms += 5_001
        record = scene.engine.store.jobs.get(1)
        assert record is not None
        with pytest.raises(ReservationLost):
            holder_of(scene.api, parse_token(job["token"]), record)


def test_who_is_slower_than_the_ttr_does_not_disturb_the_next_holder() -> None:
    with Scene() as scene:
        first = reserved(scene, ttr=5)
        scene.pass_ms(5_001)
        second = reserved(scene)
        assert second["id"] == first["id"]
        lost(scene, first)
        assert say(scene, "ack", second).status == 200


def test_a_token_of_before_a_nack_is_not_good_after_it() -> None:
    with Scene() as scene:
        first = reserved(scene)
        say(scene, "nack", first)
        second = reserved(scene)
        lost(scene, first)
        say(scene, "bury", second)
        scene.ok("POST", "/v1/jobs/1/kick")
        reserved(scene)
        lost(scene, second)


def test_a_token_of_a_life_that_was_replaced_is_not_good_in_the_next_one() -> None:
    with Scene() as scene:
        scene.ok("PUT", "/v1/topics/mail/keys/a", {"body": 1, "ttr": 5})
        first = reserved(scene)
        scene.pass_ms(5_001)
        again = scene.ok("PUT", "/v1/topics/mail/keys/a", {"body": 2})
        assert (again["id"], again["outcome"]) == (1, "replaced")
        second = reserved(scene)
        assert second["token"].rpartition("-")[2] == first["token"].rpartition("-")[2] == "1"
        lost(scene, first)
        assert say(scene, "ack", second).status == 200


@pytest.mark.parametrize("act", ACTS)
def test_a_token_of_another_job_is_good_for_none_but_that(act: str) -> None:
    with Scene() as scene:
        first, second = reserved(scene), reserved(scene)
        answer = say(scene, act, {**first, "token": second["token"]})
        assert (answer.status, answer.fields) == (422, ["token"])
        made_up = "1-" + second["token"].partition("-")[2][:-1] + "9"
        answer = say(scene, act, {**first, "token": made_up})
        assert (answer.status, answer.word) == (409, "NOT_RESERVED")
        assert [state(scene, job_id) for job_id in (1, 2)] == ["reserved"] * 2


def test_a_job_that_is_held_on_the_line_is_none_of_https() -> None:
    with Scene() as scene:
        put(scene)
        session = scene.engine.open_session()
        scene.engine.watch(session, "mail")
        assert scene.engine.reserve(session, scene.api.now_ms()) is not None
        record = scene.engine.store.jobs.get(1)
        assert record is not None
        created = record[16:24]
        token = f"1-{int.from_bytes(created, 'little'):x}-1"
        lost(scene, {"id": 1, "token": token})
        assert state(scene) == "reserved"


# --- After a restart -----------------------------------------------------------------------------


class Again:
    """As much of an API as `holder_of` needs, over an engine that was played back."""

    def __init__(self, scene: Scene) -> None:
        self.engine = scene.after_restart()


@pytest.mark.parametrize("reserves", [1, 2])
def test_a_token_is_good_after_a_restart_until_the_ttr_has_run_out(reserves: int) -> None:
    with Scene() as scene:
        job = reserved(scene, ttr=5)
        for _ in range(reserves - 1):
            say(scene, "nack", job)
            job = reserved(scene)
        scene.pass_ms(4_000)
        for delta, is_good in ((0, True), (990, True), (11, False)):
            scene.pass_ms(delta)
            again = Again(scene)
            engine = again.engine
            record = engine.store.jobs.get(1)
            assert record is not None
            api = cast("Api", again)
            ticket = parse_token(job["token"])
            if not is_good:
                with pytest.raises(ReservationLost):
                    holder_of(api, ticket, record)
                continue
            session = holder_of(api, ticket, record)
            with pytest.raises(ReservationLost):
                holder_of(api, ticket._replace(reserves=reserves + 1), record)
            engine.delete(session, 1, engine.store.time_ms)
            assert engine.log_space.jobs == 0


# --- Many ----------------------------------------------------------------------------------------


def many(scene: Scene, count: int) -> list[dict[str, Any]]:
    scene.ok("POST", JOBS, {"jobs": [{"body": number} for number in range(count)]})
    return [dict(job) for job in scene.ok("POST", RESERVE, {"max": count})["jobs"]]


def test_many_are_acknowledged_in_one_commit() -> None:
    with Scene() as scene:
        jobs = many(scene, HTTP_BATCH_MAX)
        before = len(scene.disk.frames)
        answer = scene.call("POST", "/v1/ack", {"tokens": [job["token"] for job in jobs]})
        assert answer.status == 200
        assert answer.json["results"] == [{"id": job["id"], "status": 200} for job in jobs]
        assert len(scene.disk.frames) == before + 1
        assert scene.engine.log_space.jobs == 0


def test_of_many_each_is_told_whether_it_was_still_theirs() -> None:
    with Scene() as scene:
        put(scene, ttr=1)
        late = reserved(scene)
        jobs = many(scene, 3)
        other = reserved(scene)
        scene.pass_ms(1_001)
        tokens = [
            jobs[0]["token"],
            late["token"],
            jobs[1]["token"],
            "99-0-1",
            jobs[0]["token"],
            other["token"],
            jobs[1]["token"][:-1] + "2",
        ]
        answer = scene.call("POST", "/v1/ack", {"tokens": tokens})
        assert answer.status == 207
        results = answer.json["results"]
        assert [one["id"] for one in results] == [2, 1, 3, 99, 2, 5, 3]
        assert [one["status"] for one in results] == [200, 409, 200, 404, 404, 200, 409]
        words = [one["problem"]["word"] for one in results if "problem" in one]
        assert words == ["NOT_RESERVED", "NOT_FOUND", "NOT_FOUND", "NOT_RESERVED"]
        assert [state(scene, job_id) for job_id in range(1, 6)] == ["ready", "", "", "reserved", ""]


def test_of_many_nacks_each_is_told_what_became_of_its_job() -> None:
    with Scene(is_virtual=True) as scene:
        jobs = many(scene, 2)
        put(scene, max_attempts=1)
        last = reserved(scene)
        nacks = [
            {"token": jobs[0]["token"], "delay": 5, "error": "later"},
            {"token": jobs[1]["token"], "priority": 3},
            {"token": last["token"]},
            {"token": jobs[1]["token"]},
            {"token": "99-0-1"},
        ]
        answer = scene.call("POST", "/v1/nack", {"nacks": nacks})
        assert answer.status == 207
        results = answer.json["results"]
        assert [one["status"] for one in results] == [200, 200, 200, 409, 404]
        assert results[0] == {
            "status": 200,
            "id": 1,
            "topic": "mail",
            "state": "delayed",
            "due": "2023-11-14T22:13:25.000Z",
        }
        assert [one.get("state") for one in results[1:]] == ["ready", "buried", None, None]
        assert looked_at(scene, 1)["failure"]["error"] == "later"


def test_nacks_that_all_went_well_are_simply_so() -> None:
    with Scene() as scene:
        nacks = [{"token": job["token"]} for job in many(scene, 5)]
        before = len(scene.disk.frames)
        answer = scene.call("POST", "/v1/nack", {"nacks": nacks})
        assert (answer.status, len(answer.json["results"])) == (200, 5)
        assert len(scene.disk.frames) == before + 1


def test_where_the_disk_is_full_jobs_can_be_acknowledged_and_no_errors_kept() -> None:
    with Scene() as scene:
        jobs = many(scene, 3)
        scene.engine.log_space.limit(0, lambda *_: -1)
        answer = say(scene, "nack", jobs[0])
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        nacks = [{"token": job["token"], "error": "x"} for job in jobs]
        answer = scene.call("POST", "/v1/nack", {"nacks": nacks})
        assert [one["status"] for one in answer.json["results"]] == [507] * 3
        answer = scene.call("POST", "/v1/ack", {"tokens": [job["token"] for job in jobs]})
        assert answer.status == 200
        assert scene.engine.log_space.jobs == 0


@pytest.mark.parametrize(
    ("path", "given", "fields"),
    [
        ("/v1/ack", {}, ["tokens"]),
        ("/v1/ack", {"tokens": []}, ["tokens"]),
        ("/v1/ack", {"tokens": ["1-0-1"] * (HTTP_BATCH_MAX + 1)}, ["tokens"]),
        ("/v1/ack", {"tokens": ["x"]}, ["tokens[0]"]),
        ("/v1/nack", {"nacks": []}, ["nacks"]),
        ("/v1/nack", {"nacks": [{"token": "1-0-1"}] * (HTTP_BATCH_MAX + 1)}, ["nacks"]),
        (
            "/v1/nack",
            {"nacks": [{}, {"token": "x", "delay": "y"}]},
            ["nacks[0].token", "nacks[1].delay", "nacks[1].token"],
        ),
    ],
)
def test_many_that_are_wrong_are_refused_as_a_whole(
    path: str, given: dict[str, object], fields: list[str]
) -> None:
    with Scene() as scene:
        many(scene, 1)
        answer = scene.call("POST", path, given)
        assert (answer.status, sorted(answer.fields)) == (422, fields)


def test_whatever_is_said_in_any_order_only_the_latest_token_counts(rng: random.Random) -> None:
    for _ in range(20):
        with Scene() as scene:
            put(scene, ttr=2)
            latest: dict[str, Any] | None = None
            stale: list[dict[str, Any]] = []
            for _ in range(30):
                if (answer := scene.call("POST", RESERVE)).status == 200:
                    if latest is not None:
                        stale.append(latest)
                    (latest,) = answer.json["jobs"]
                act = rng.choice(ACTS[1:])
                for job in rng.sample(stale, min(2, len(stale))):
                    assert say(scene, act, job).status == 409
                if rng.random() < 0.3:
                    scene.pass_ms(rng.choice([500, 2_001]))
                if latest is not None and rng.random() < 0.5:
                    was = state(scene)
                    assert say(scene, act, latest).status == (200 if was == "reserved" else 409)
                if state(scene) == "buried":
                    scene.ok("POST", "/v1/jobs/1/kick")
