"""What holders say of their jobs, and what is said to those who hold them no more."""

import random
from typing import TYPE_CHECKING, Any, cast

import pytest

from delayd.access.scopes import Scope
from delayd.core.operations.ack import delete
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session, watch
from delayd.core.times import PlayedMs, RequestMs
from delayd.http.handlers.job_responses import parse_token
from delayd.http.handlers.reserve import holder_of
from delayd.http.problems import ReservationLost
from delayd.limits import HTTP_BATCH_MAX, HTTP_LOOK_ITEMS
from tests.rigs.http import Answer, HttpRig, SliceWatch

if TYPE_CHECKING:
    from delayd.http.api import Api

JOBS = "/v1/topics/mail/jobs"
RESERVE = "/v1/topics/mail/reserve"
ACTS = ("ack", "nack", "touch", "bury")


def put(rig: HttpRig, **fields: object) -> int:
    return int(rig.ok("POST", JOBS, {"body": None, **fields})["id"])


def reserved(rig: HttpRig, **fields: object) -> dict[str, Any]:
    """A job in somebody's hands; put for that if there is none ready."""
    answer = rig.call("POST", RESERVE)
    if answer.status == 204:
        put(rig, **fields)
        answer = rig.call("POST", RESERVE)
    (job,) = answer.json["jobs"]
    return dict(job)


def say(rig: HttpRig, act: str, job: dict[str, Any], **fields: object) -> Answer:
    """Say this of a job, under its token."""
    return rig.call("POST", f"/v1/jobs/{job['id']}/{act}", {"token": job["token"], **fields})


def looked_at(rig: HttpRig, job_id: int = 1) -> dict[str, Any]:
    return dict(rig.ok("GET", f"/v1/jobs/{job_id}"))


def state(rig: HttpRig, job_id: int = 1) -> str:
    """The state of a job; empty if it is gone."""
    answer = rig.call("GET", f"/v1/jobs/{job_id}")
    return str(answer.json["state"]) if answer.status == 200 else ""


# --- One by one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "status", "word"),
    [*((act, 422, "BAD_FORMAT") for act in ACTS[:3]), ("bury", 409, "RESERVED")],
)
def test_without_its_token_nothing_is_done_to_a_job_in_hand(
    act: str, status: int, word: str
) -> None:
    with HttpRig() as rig:
        reserved(rig)
        answer = rig.call("POST", f"/v1/jobs/1/{act}", {})
        assert (answer.status, answer.word) == (status, word)
        assert state(rig) == "reserved"


@pytest.mark.parametrize("job_id", ["0", "x", "-1", "1.0", "18446744073709551616", "9" * 21, "%31"])
def test_what_is_no_job_is_not_acknowledged(job_id: str) -> None:
    with HttpRig() as rig:
        reserved(rig)
        answer = rig.call("POST", f"/v1/jobs/{job_id}/ack", {"token": "1-0-1"})
        assert answer.status in {404, 409, 422}
        assert state(rig) == "reserved"


# --- Too late ------------------------------------------------------------------------------------


def lost(rig: HttpRig, job: dict[str, Any]) -> None:
    """Whatever its holder was, of this job it can say nothing any more, and disturbs nobody."""
    before = looked_at(rig, job["id"])
    for act in ACTS:
        answer = say(rig, act, job)
        assert (answer.status, answer.word) == (409, "NOT_RESERVED")
        assert answer.json["job_id"] == job["id"]
    for path, given in (
        ("/v1/ack", {"tokens": [job["token"]]}),
        ("/v1/nack", {"nacks": [{"token": job["token"]}]}),
    ):
        answer = rig.call("POST", path, given)
        assert (answer.status, answer.json["results"][0]["status"]) == (207, 409)
    assert looked_at(rig, job["id"]) == before


def test_the_reservation_ends_with_the_ttr_and_not_when_somebody_notices() -> None:
    with HttpRig() as rig:
        job = reserved(rig, ttr=5)
        rig.engine.store.time_ms = PlayedMs(rig.engine.store.time_ms + 5001)
        record = rig.engine.store.jobs.get(1)
        assert record is not None
        with pytest.raises(ReservationLost):
            holder_of(rig.api, parse_token(job["token"]), record)


@pytest.mark.parametrize("act", ["ack", "nack", "touch", "bury"])
def test_who_holds_a_job_is_told_which_scope_is_missing(act: str) -> None:
    with HttpRig(needs_token=True) as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1}, token=rig.token())
        token = rig.token(Scope.RESERVE)
        (job,) = rig.ok("POST", "/v1/topics/mail/reserve", {}, token=token)["jobs"]
        answer = rig.call("POST", f"/v1/jobs/1/{act}", {"token": job["token"]}, token=token)
        assert (answer.status, answer.word) == (403, "FORBIDDEN")
        assert "the token lacks the scope" in answer.json["detail"]
        guessed = job["token"][:-1] + "2"
        answer = rig.call("POST", f"/v1/jobs/1/{act}", {"token": guessed}, token=token)
        assert (answer.status, answer.word) == (404, "NOT_FOUND")


def test_each_bad_token_of_a_batch_is_named() -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", "/v1/ack", {"tokens": ["1-0-1", "x", 7, "1-0-2", "y"]})
        assert answer.status == 422
        assert answer.fields == ["tokens[1]", "tokens[2]", "tokens[4]"]


@pytest.mark.parametrize("act", ACTS)
def test_a_token_of_another_job_is_good_for_none_but_that(act: str) -> None:
    with HttpRig() as rig:
        first, second = reserved(rig), reserved(rig)
        answer = say(rig, act, {**first, "token": second["token"]})
        assert (answer.status, answer.fields) == (422, ["token"])
        made_up = "1-" + second["token"].partition("-")[2][:-1] + "9"
        answer = say(rig, act, {**first, "token": made_up})
        assert (answer.status, answer.word) == (409, "NOT_RESERVED")
        assert [state(rig, job_id) for job_id in (1, 2)] == ["reserved"] * 2


def test_a_job_that_is_held_on_the_line_is_none_of_https() -> None:
    with HttpRig() as rig:
        put(rig)
        session = open_session(rig.engine)
        watch(rig.engine, session, "mail")
        assert reserve(rig.engine, session, rig.api.now_ms()) is not None
        record = rig.engine.store.jobs.get(1)
        assert record is not None
        created = record[16:24]
        token = f"1-{int.from_bytes(created, 'little'):x}-1"
        lost(rig, {"id": 1, "token": token})
        assert state(rig) == "reserved"


# --- After a restart -----------------------------------------------------------------------------


class Again:
    """As much of an API as `holder_of` needs, over an engine that was played back."""

    def __init__(self, rig: HttpRig) -> None:
        self.engine = rig.after_restart()


@pytest.mark.parametrize("reserves", [1, 2])
def test_a_token_is_good_after_a_restart_until_the_ttr_has_run_out(reserves: int) -> None:
    with HttpRig() as rig:
        job = reserved(rig, ttr=5)
        for _ in range(reserves - 1):
            say(rig, "nack", job)
            job = reserved(rig)
        rig.pass_ms(4_000)
        for delta, is_good in ((0, True), (990, True), (11, False)):
            rig.pass_ms(delta)
            again = Again(rig)
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
            delete(engine, session, 1, RequestMs(engine.store.time_ms))
            assert engine.log_space.jobs == 0


# --- Many ----------------------------------------------------------------------------------------


def many(rig: HttpRig, count: int) -> list[dict[str, Any]]:
    rig.ok("POST", JOBS, {"jobs": [{"body": number} for number in range(count)]})
    return [dict(job) for job in rig.ok("POST", RESERVE, {"max": count})["jobs"]]


def test_many_are_acknowledged_in_one_commit() -> None:
    with HttpRig() as rig:
        jobs = many(rig, HTTP_BATCH_MAX)
        before = len(rig.disk.frames)
        answer = rig.call("POST", "/v1/ack", {"tokens": [job["token"] for job in jobs]})
        assert answer.status == 200
        assert answer.json["results"] == [{"id": job["id"], "status": 200} for job in jobs]
        assert len(rig.disk.frames) == before + 1
        assert rig.engine.log_space.jobs == 0


def test_of_many_each_is_told_whether_it_was_still_theirs() -> None:
    with HttpRig() as rig:
        put(rig, ttr=1)
        late = reserved(rig)
        jobs = many(rig, 3)
        other = reserved(rig)
        rig.pass_ms(1_001)
        tokens = [
            jobs[0]["token"],
            late["token"],
            jobs[1]["token"],
            "99-0-1",
            jobs[0]["token"],
            other["token"],
            jobs[1]["token"][:-1] + "2",
        ]
        answer = rig.call("POST", "/v1/ack", {"tokens": tokens})
        assert answer.status == 207
        results = answer.json["results"]
        assert [one["id"] for one in results] == [2, 1, 3, 99, 2, 5, 3]
        assert [one["status"] for one in results] == [200, 409, 200, 404, 404, 200, 409]
        words = [one["problem"]["word"] for one in results if "problem" in one]
        assert words == ["NOT_RESERVED", "NOT_FOUND", "NOT_FOUND", "NOT_RESERVED"]
        assert [state(rig, job_id) for job_id in range(1, 6)] == ["ready", "", "", "reserved", ""]


def test_of_many_nacks_each_is_told_what_became_of_its_job() -> None:
    with HttpRig(is_virtual=True) as rig:
        jobs = many(rig, 2)
        put(rig, max_attempts=1)
        last = reserved(rig)
        nacks = [
            {"token": jobs[0]["token"], "delay": 5, "error": "later"},
            {"token": jobs[1]["token"], "priority": 3},
            {"token": last["token"]},
            {"token": jobs[1]["token"]},
            {"token": "99-0-1"},
        ]
        answer = rig.call("POST", "/v1/nack", {"nacks": nacks})
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
        assert (
            b'{"results":[{"status":200,"id":1,"state":"delayed","topic":"mail","due":'
            in answer.body
        )
        assert b'{"id":99,"status":404,"problem":' in answer.body, (
            "as clients have always read them"
        )
        assert looked_at(rig, 1)["failure"]["error"] == "later"


def test_nacks_that_all_went_well_are_simply_so() -> None:
    with HttpRig() as rig:
        nacks = [{"token": job["token"]} for job in many(rig, 5)]
        before = len(rig.disk.frames)
        answer = rig.call("POST", "/v1/nack", {"nacks": nacks})
        assert (answer.status, len(answer.json["results"])) == (200, 5)
        assert len(rig.disk.frames) == before + 1


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_long_batches_are_carried_out_in_slices_with_turns_of_others_between(verb: str) -> None:
    with HttpRig() as rig:
        jobs = 40 if verb == "nack" else 12 * HTTP_LOOK_ITEMS
        tokens = [job["token"] for job in many(rig, jobs)]
        tokens[20] = tokens[3]
        given: dict[str, Any] = {"tokens": tokens}
        if verb == "nack":
            given = {"nacks": [{"token": token, "delay": 5} for token in tokens]}
        rig.api.loop_time.now_ns = SliceWatch()
        before = len(rig.disk.frames)
        worker = rig.send("POST", f"/v1/{verb}", given, is_settled=False)
        still_reserved = set()
        while worker.answer is None:
            other = rig.send("GET", "/healthz", is_settled=False)
            for _ in range(4):
                rig.step()
            still_reserved.add(len(rig.engine.store.leases.sessions))
            assert other.the_answer.status == 200
        assert len(still_reserved) > (8 if verb == "nack" else 3), "others were answered meanwhile"
        assert len(rig.disk.frames) > before + (30 if verb == "nack" else 10)
        statuses = [one["status"] for one in worker.the_answer.json["results"]]
        assert statuses == [200] * 20 + [404 if verb == "ack" else 409] + [200] * (jobs - 21)
        assert len(rig.engine.store.leases.sessions) == 1, "the one that was not named"


def test_where_the_disk_is_full_jobs_can_be_acknowledged_and_no_errors_kept() -> None:
    with HttpRig() as rig:
        jobs = many(rig, 3)
        rig.engine.log_space.limit(0, lambda *_: -1)
        answer = say(rig, "nack", jobs[0])
        assert (answer.status, answer.word) == (507, "OUT_OF_MEMORY")
        nacks = [{"token": job["token"], "error": "x"} for job in jobs]
        answer = rig.call("POST", "/v1/nack", {"nacks": nacks})
        assert [one["status"] for one in answer.json["results"]] == [507] * 3
        answer = rig.call("POST", "/v1/ack", {"tokens": [job["token"] for job in jobs]})
        assert answer.status == 200
        assert rig.engine.log_space.jobs == 0


def test_whatever_is_said_in_any_order_only_the_latest_token_counts(rng: random.Random) -> None:
    for _ in range(20):
        with HttpRig() as rig:
            put(rig, ttr=2)
            latest: dict[str, Any] | None = None
            stale: list[dict[str, Any]] = []
            for _ in range(30):
                if (answer := rig.call("POST", RESERVE)).status == 200:
                    if latest is not None:
                        stale.append(latest)
                    (latest,) = answer.json["jobs"]
                act = rng.choice(ACTS[1:])
                for job in rng.sample(stale, min(2, len(stale))):
                    assert say(rig, act, job).status == 409
                if rng.random() < 0.3:
                    rig.pass_ms(rng.choice([500, 2_001]))
                if latest is not None and rng.random() < 0.5:
                    was = state(rig)
                    assert say(rig, act, latest).status == (200 if was == "reserved" else 409)
                if state(rig) == "buried":
                    rig.ok("POST", "/v1/jobs/1/kick")
