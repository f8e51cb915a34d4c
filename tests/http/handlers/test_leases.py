"""What holders say of their jobs, and what is said to those who hold them no more."""

import random
from typing import Any

import pytest

from delayd.core.operations.ack import delete
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session, watch
from delayd.core.times import PlayedMs, RequestMs
from delayd.http.handlers.reserve import holder_of
from delayd.http.problems import ReservationLost
from delayd.limits import HTTP_LOOK_ITEMS
from tests.rigs.http import JOBS, RESERVE, Answer, HttpRig, SliceWatch, put, reserved

ACTS = ("ack", "nack", "touch", "bury")


def say(rig: HttpRig, act: str, job: dict[str, Any], **fields: object) -> Answer:
    """Say this of a job, under its token."""
    return rig.call("POST", f"/v1/jobs/{job['id']}/{act}", {"token": job["token"], **fields})


def many(rig: HttpRig, count: int) -> list[dict[str, Any]]:
    rig.ok("POST", JOBS, {"jobs": [{"body": number} for number in range(count)]})
    return [dict(job) for job in rig.ok("POST", RESERVE, {"max": count})["jobs"]]


def test_the_reservation_ends_with_the_ttr_and_not_when_somebody_notices(rig: HttpRig) -> None:
    put(rig, ttr=5)
    job = reserved(rig)
    store = rig.engine.store
    store.time_ms = PlayedMs(store.time_ms + 5_001)
    record = store.jobs.get(1)
    assert record is not None
    with pytest.raises(ReservationLost):
        holder_of(rig.engine, 1, job["token"], record)


def test_a_job_that_is_held_on_the_line_is_none_of_https(rig: HttpRig) -> None:
    put(rig)
    session = open_session(rig.engine)
    watch(rig.engine, session, "mail")
    assert reserve(rig.engine, session, rig.api.now_ms()) is not None
    record = rig.engine.store.jobs.get(1)
    assert record is not None
    token = f"1-{int.from_bytes(record[16:24], 'little'):x}-1"
    before = rig.ok("GET", "/v1/jobs/1")
    for act in ACTS:
        answer = say(rig, act, {"id": 1, "token": token})
        assert (answer.status, answer.word) == (409, "NOT_RESERVED")
    for path, given in (("ack", {"tokens": [token]}), ("nack", {"nacks": [{"token": token}]})):
        answer = rig.call("POST", f"/v1/{path}", given)
        assert (answer.status, answer.json["results"][0]["status"]) == (207, 409)
    assert rig.ok("GET", "/v1/jobs/1") == before


@pytest.mark.parametrize("reserves", [1, 2])
def test_a_token_is_good_after_a_restart_until_the_ttr_has_run_out(
    rig: HttpRig, reserves: int
) -> None:
    put(rig, ttr=5)
    job = reserved(rig)
    for _ in range(reserves - 1):
        say(rig, "nack", job)
        job = reserved(rig)
    rig.pass_ms(4_000)
    token = job["token"]
    later = token.removesuffix(str(reserves)) + str(reserves + 1)
    for delta, is_good in ((0, True), (990, True), (11, False)):
        rig.pass_ms(delta)
        engine = rig.after_restart()
        record = engine.store.jobs.get(1)
        assert record is not None
        if not is_good:
            with pytest.raises(ReservationLost):
                holder_of(engine, 1, token, record)
            continue
        session = holder_of(engine, 1, token, record)
        with pytest.raises(ReservationLost):
            holder_of(engine, 1, later, record)
        delete(engine, session, 1, RequestMs(engine.store.time_ms))
        assert engine.log_space.jobs == 0


def test_the_results_of_nacks_are_written_as_clients_have_always_read_them() -> None:
    with HttpRig(is_virtual=True) as rig:
        (job,) = many(rig, 1)
        nacks = [{"token": job["token"], "delay": 5}, {"token": "99-0-1"}]
        body = rig.call("POST", "/v1/nack", {"nacks": nacks}).body
        assert body.startswith(
            b'{"results":[{"status":200,"id":1,"state":"delayed","topic":"mail","due":'
        )
        assert b'{"id":99,"status":404,"problem":' in body


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_long_batches_are_carried_out_in_slices_with_turns_of_others_between(
    rig: HttpRig, verb: str
) -> None:
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
    for _ in rig.meanwhile(worker):
        still_reserved.add(len(rig.engine.store.leases.sessions))
    assert len(still_reserved) > (8 if verb == "nack" else 3), "others were answered meanwhile"
    assert len(rig.disk.frames) > before + (30 if verb == "nack" else 10)
    statuses = [one["status"] for one in worker.the_answer.json["results"]]
    assert statuses == [200] * 20 + [404 if verb == "ack" else 409] + [200] * (jobs - 21)
    assert len(rig.engine.store.leases.sessions) == 1, "the one that was not named"


@pytest.mark.walk(1, 10)
def test_whatever_is_said_in_any_order_only_the_latest_token_counts(
    rng: random.Random, number: int
) -> None:
    del number  # of which `rng` knows

    def state(rig: HttpRig) -> str:
        return str(rig.ok("GET", "/v1/jobs/1")["state"])

    for _ in range(5):
        with HttpRig() as rig:
            put(rig, ttr=2)
            latest: dict[str, Any] | None = None
            stale: list[dict[str, Any]] = []
            for _ in range(30):
                if (answer := rig.call("POST", RESERVE)).status == 200:
                    stale += [latest] if latest is not None else []
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
