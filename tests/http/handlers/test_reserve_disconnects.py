"""Those who go away while they wait or before they are answered: their jobs go to somebody else."""

import random
from typing import TYPE_CHECKING

import pytest

from delayd.core.operations.put import put_alike
from delayd.core.times import RequestMs
from tests.rigs.http import RESERVE, HttpRig, ids, put, stored, wait

if TYPE_CHECKING:
    from tests.rigs.http import Client


def put_unsettled(rig: HttpRig, delay_ms: int = 0) -> int:
    """Put a job without letting anything else happen."""
    topic = rig.engine.store.topics.by_name.get("mail") or rig.engine.store.topic("mail")
    now_ms = rig.clock.now_ms() + 1
    job_id = put_alike(rig.engine, topic, 0, delay_ms, 10**9, (b"1",), RequestMs(now_ms))
    rig.turns.ask()
    return job_id


# --- While waiting --------------------------------------------------------------------------------


def test_a_job_that_comes_as_its_waiter_goes_is_the_next_ones(rig: HttpRig) -> None:
    put(rig, delay=5)
    first, second = wait(rig), wait(rig)
    first.hang_up()
    rig.pass_ms(5_001)
    assert ids(second) == [1]
    assert second.the_answer.json["jobs"][0]["attempt"] == 1


@pytest.mark.parametrize("jobs_max", [1, 2])
@pytest.mark.parametrize("callbacks", [0, 1, 2, 3])
def test_a_job_that_is_put_as_its_waiter_goes_is_ready(
    rig: HttpRig, jobs_max: int, callbacks: int
) -> None:
    leaving = wait(rig, max=jobs_max)

    def put_after(callbacks: int) -> None:
        if callbacks:
            rig.loop.call_soon(put_after, callbacks - 1)
        else:
            put_unsettled(rig)

    put_after(callbacks)
    leaving.hang_up()
    rig.settle()
    job = stored(rig.engine)
    assert (job["state"], job["attempts"]) == ("ready", 0)


def gone_before_the_answer(rig: HttpRig, how: str) -> None:
    """Somebody reserves, and is gone before the answer is."""
    rig.disk.hold()
    client = wait(rig, max=10)
    assert client.answer is None
    if how == "while it is made durable":
        client.hang_up()
        rig.settle()
        rig.disk.release()
    elif how == "when it is durable":
        client.hang_up()
        rig.disk.release()
    elif how == "when the answer is about to leave":
        rig.disk.release()
        client.hang_up()
    elif how == "while the answer waits to be taken":
        client.takes = False
        rig.disk.release()
        rig.settle()
        client.hang_up()
    else:
        assert how == "as the answer is written"
        client.is_found_gone = True
        rig.disk.release()
    rig.settle()
    assert client.answer is None
    assert not client.received, "nothing of the answer has left"


HOW = (
    "while it is made durable",
    "when it is durable",
    "when the answer is about to leave",
    "as the answer is written",
    "while the answer waits to be taken",
)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("policy", [{}, {"retry": "1h 1h"}, {"max_attempts": 1}])
def test_a_job_whose_worker_has_gone_is_ready_at_once_and_was_not_attempted(
    rig: HttpRig, how: str, policy: dict[str, object]
) -> None:
    rig.ok("PUT", "/v1/topics/mail/policy", policy)
    put(rig)
    put(rig, delay="1h")
    for number in (1, 2, 3):
        gone_before_the_answer(rig, how)
        for engine in (rig.engine, rig.after_restart()):
            job = stored(engine)
            assert (job["state"], job["attempts"]) == ("ready", 0)
            assert (job["reserves"], job["timeouts"]) == (number, 0)
            assert job["failure"]["reason"] == "undelivered"
    (job,) = rig.ok("POST", RESERVE)["jobs"]
    assert (job["id"], job["attempt"]) == (1, 1)
    rig.ok("POST", "/v1/jobs/1/nack", {"token": job["token"]})
    state = {"retry": "delayed", "max_attempts": "buried", "": "ready"}[next(iter(policy), "")]
    assert stored(rig.engine)["state"] == state


@pytest.mark.parametrize("how", HOW)
def test_a_job_whose_worker_has_gone_is_handed_to_who_waits(rig: HttpRig, how: str) -> None:
    put(rig)
    rig.disk.hold()
    first, second = wait(rig), wait(rig)
    rig.disk.release()
    first.hang_up()
    rig.settle()
    assert ids(second) == [1]
    (job,) = second.the_answer.json["jobs"]
    assert (job["attempt"], job["token"].rpartition("-")[2]) == (1, "2")
    rig.ok("POST", "/v1/jobs/1/ack", {"token": job["token"]})


def test_attempts_from_before_stay_counted(rig: HttpRig) -> None:
    put(rig, retry="0.01 0.01")
    (job,) = rig.ok("POST", RESERVE)["jobs"]
    rig.ok("POST", "/v1/jobs/1/nack", {"token": job["token"], "error": "no luck"})
    rig.pass_ms(20)
    gone_before_the_answer(rig, HOW[0])
    (job,) = rig.ok("POST", RESERVE)["jobs"]
    assert (job["attempt"], job["failure"]["error"]) == (2, "no luck")


def test_who_goes_away_as_the_daemon_stops_is_in_nobodys_way(rig: HttpRig) -> None:
    leaving, waiting = wait(rig), wait(rig)
    leaving.hang_up()
    rig.loop.call_soon(rig.server.stop_accepting)
    rig.settle()
    assert waiting.the_answer.status == 503
    assert not rig.api.waiting


# --- All of it at once ----------------------------------------------------------------------------


@pytest.mark.thorough
def test_whoever_comes_and_goes_each_job_is_in_one_hand_or_ready(rng: random.Random) -> None:
    for _ in range(40):
        with HttpRig() as rig:
            clients: list[Client] = []
            jobs: set[int] = set()
            for _ in range(60):
                act = rng.randrange(7)
                if act == 0:
                    jobs.add(put_unsettled(rig, rng.choice([0, 0, 10])))
                elif act <= 2:
                    given = {"max": rng.choice([1, 3]), "wait": rng.choice([0, 1, 30])}
                    clients.append(rig.send("POST", RESERVE, given, is_settled=False))
                elif act == 3 and clients:
                    rng.choice(clients).hang_up()
                elif act == 4:
                    rig.disk.hold()
                elif act == 5:
                    rig.disk.release()
                else:
                    rig.pass_ms(rng.choice([0, 10, 1_001]))
                if rng.random() < 0.5:
                    rig.step()
            rig.disk.release()
            rig.pass_ms(20)
            heard = [
                job_id for client in clients if client.answer is not None for job_id in ids(client)
            ]
            assert len(heard) == len({*heard})
            for job_id in jobs:
                state = stored(rig.engine, job_id)["state"]
                assert state == ("reserved" if job_id in heard else "ready")
