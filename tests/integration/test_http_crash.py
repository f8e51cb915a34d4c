"""Killed between commit and answer, or with nobody there to read it: T-R8 of the fault tests.

Whoever does not know what became of a request sends it again. Under an Idempotency-Key that makes
one job, whatever happened the first time; and what was acknowledged stays gone. The daemon is the
real one, killed as often as there are loops, each time with requests on their way.
"""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from delayd.testing.daemon import Daemon, running_daemon
from tests.faults.real_http import HTTP, Answer, HttpClient, request

JOBS: Final = "/v1/topics/mail/jobs"
RESERVE: Final = "/v1/topics/mail/reserve"
LOOPS: Final = 20
PUTS: Final = 8
"""In each loop, all at once."""
LOST: Final = Answer(0)


@contextmanager
def http_daemon(data_dir: Path) -> Iterator[Daemon]:
    with running_daemon(*HTTP, data_dir=data_dir) as daemon:
        yield daemon


def put(key: str) -> bytes:
    """A put under this key; the body is the key, so that each job says whose it is."""
    return request("POST", JOBS, {"body": key, "ttr": 600}, f"Idempotency-Key: {key}")


def sent(daemon: Daemon, stack: ExitStack, requests: list[bytes]) -> list[HttpClient]:
    """Send all of these, each on a connection of its own, and read nothing."""
    clients = [stack.enter_context(HttpClient(daemon.http_address)) for _ in requests]
    for client, data in zip(clients, requests, strict=True):
        client.send(data)
    return clients


def listed(daemon: Daemon) -> dict[str, list[int]]:
    """The jobs that there are, by whose they are."""
    jobs: dict[str, list[int]] = {}
    with HttpClient(daemon.http_address) as client:
        after = ""
        while True:
            told = client.ask("GET", f"{JOBS}?bodies=true&limit=1000{after}").json
            for job in told["jobs"]:
                jobs.setdefault(job["body"], []).append(job["id"])
            if told["after"] is None:
                return jobs
            after = f"&after={told['after']}"


def reserved(daemon: Daemon, jobs_max: int) -> list[dict[str, Any]]:
    with HttpClient(daemon.http_address) as client:
        answer = client.ask("POST", RESERVE, {"max": jobs_max})
        return [] if answer.status == 204 else [dict(job) for job in answer.json["jobs"]]


def test_whatever_is_killed_in_between_a_put_sent_again_makes_one_job(
    tmp_path: Path, rng: random.Random
) -> None:
    gone: set[str] = set()
    here: set[str] = set()
    unknown: list[str] = []
    acks: list[dict[str, Any]] = []
    outcomes = {"answered": 0, "lost": 0, "acked": 0}
    for loop in range(LOOPS + 1):
        with http_daemon(tmp_path) as daemon:
            with HttpClient(daemon.http_address) as client:
                for key in unknown:
                    client.send(put(key))
                    assert client.answer().status == 201
                    here.add(key)
                for job in acks:  # the token is good for the daemon that came after, too
                    answer = client.ask(
                        "POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]}
                    )
                    assert answer.status in {200, 404}, "acknowledged now, or before the kill"
                    here.discard(job["body"])
                    gone.add(job["body"])
            jobs = listed(daemon)
            assert {key: len(ids) for key, ids in jobs.items()} == dict.fromkeys(here, 1)
            assert not gone & jobs.keys(), "what was acknowledged stays gone"
            if loop == LOOPS:
                break
            with ExitStack() as stack:
                unknown = [f"{loop}-{number}" for number in range(PUTS)]
                acks = reserved(daemon, rng.randrange(3))
                said = [put(key) for key in unknown]
                said += [
                    request("POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]})
                    for job in acks
                ]
                clients = sent(daemon, stack, said)
                for client in rng.sample(clients, rng.randrange(len(clients))):
                    client.die()
                time.sleep(rng.random() * 0.01)
                daemon.kill()
                for key, client in zip([*unknown], clients, strict=False):
                    answer = heard(client)
                    outcomes["answered" if answer.status == 201 else "lost"] += 1
                    if answer.status == 201:
                        unknown.remove(key)
                        here.add(key)
                for job, client in zip([*acks], clients[PUTS:], strict=True):
                    if heard(client).status == 200:
                        outcomes["acked"] += 1
                        acks.remove(job)
                        here.discard(job["body"])
                        gone.add(job["body"])
    assert min(outcomes.values()) > 0, outcomes


def heard(client: HttpClient) -> Answer:
    """What the client was answered before the daemon was killed, if anything."""
    if client.socket.fileno() < 0:
        return LOST
    return client.answer()


def test_who_dies_before_it_reads_the_answer_has_put_one_job_all_the_same(tmp_path: Path) -> None:
    with http_daemon(tmp_path) as daemon:
        for number in range(LOOPS):
            for _ in range(3):
                client = HttpClient(daemon.http_address)
                client.send(put(f"{number}"))
                client.die()
        with HttpClient(daemon.http_address) as client:
            ids = []
            for number in range(LOOPS):
                client.send(put(f"{number}"))
                ids.append(client.answer().json["id"])
        assert listed(daemon) == {f"{number}": [job_id] for number, job_id in enumerate(ids)}


def test_who_dies_before_it_reads_its_jobs_has_lost_nobody_a_job(tmp_path: Path) -> None:
    with http_daemon(tmp_path) as daemon:
        with HttpClient(daemon.http_address) as client:
            for number in range(LOOPS):
                client.send(request("POST", JOBS, {"body": f"{number}", "ttr": 2}))
                assert client.answer().status == 201
            for _ in range(LOOPS):
                dying = HttpClient(daemon.http_address)
                dying.send(request("POST", RESERVE, {"max": 3, "wait": 1}))
                dying.die()
            seen: set[str] = set()
            until_s = time.monotonic() + 10
            while len(seen) < LOOPS and time.monotonic() < until_s:
                answer = client.ask("POST", RESERVE, {"max": LOOPS, "wait": 1})
                jobs = answer.json["jobs"] if answer.status == 200 else []
                tokens = [job["token"] for job in jobs]
                if tokens:
                    assert client.ask("POST", "/v1/ack", {"tokens": tokens}).status == 200
                assert seen.isdisjoint(job["body"] for job in jobs)
                seen.update(job["body"] for job in jobs)
        assert len(seen) == LOOPS
        assert listed(daemon) == {}
