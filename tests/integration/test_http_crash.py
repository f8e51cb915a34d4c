"""Killed between commit and answer, or with nobody there to read it: T-R8 of the fault tests.

Whoever does not know what became of a request sends it again. Under an Idempotency-Key that makes
one job, whatever happened the first time; and what was acknowledged stays gone. The daemon is the
real one, killed as often as there are loops, each time with requests on their way.
"""

import contextlib
import json
import random
import select
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from delayd.client import Client, TopicNotFound
from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP, Answer, HttpClient, request

JOBS: Final = "/v1/topics/mail/jobs"
RESERVE: Final = "/v1/topics/mail/reserve"
LOOPS: Final = 10
PUTS: Final = 8
"""In each loop, all at once."""
PAUSES_S: Final = (0, 0.003, 0.01, None)
"""Between the requests and the kill: before the commit, in its midst; None: until all answers are
there."""
ANSWER_S_MAX: Final = 60.0
LOST: Final = Answer(0)


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
    with Client(f"http://{daemon.http_listens_on}") as client, contextlib.suppress(TopicNotFound):
        for job in client.jobs("mail", bodies=True):
            jobs.setdefault(json.loads(job.text), []).append(job.id)
    return jobs


def reserved(daemon: Daemon, jobs_max: int) -> list[dict[str, Any]]:
    with HttpClient(daemon.http_address) as client:
        answer = client.ask("POST", RESERVE, {"max": jobs_max})
        return [] if answer.status == 204 else [dict(job) for job in answer.json["jobs"]]


class Ledger:
    """What a client knows of its jobs, by their bodies, and what it has to ask again."""

    def __init__(self) -> None:
        self.here: set[str] = set()
        self.gone: set[str] = set()
        self.puts: list[str] = []
        """Sent, and perhaps not answered."""
        self.acks: list[dict[str, Any]] = []

    def note(self, said: str | dict[str, Any], answer: Answer) -> None:
        """Take an answer to a put or an ack that was sent; status 0: there was none."""
        if answer == LOST:
            return
        if isinstance(said, str):
            assert answer.status == 201
            self.puts.remove(said)
            self.here.add(said)
        else:
            assert answer.status in {200, 404}, "acknowledged now, or before the kill"
            self.acks.remove(said)
            self.here.discard(said["body"])
            self.gone.add(said["body"])

    def ask_again(self, daemon: Daemon) -> None:
        """Say once more what was not answered; tokens are good for the next daemon, too."""
        with HttpClient(daemon.http_address) as client:
            for said in self.said():
                client.send(request_of(said))
                self.note(said, client.answer())

    def said(self) -> list[str | dict[str, Any]]:
        return [*self.puts, *self.acks]


def request_of(said: str | dict[str, Any]) -> bytes:
    if isinstance(said, str):
        return put(said)
    return request("POST", f"/v1/jobs/{said['id']}/ack", {"token": said["token"]})


def pause(for_s: float | None, clients: list[HttpClient]) -> None:
    if for_s is not None:
        time.sleep(for_s)
        return
    for client in clients:
        assert select.select([client.socket], [], [], ANSWER_S_MAX)[0]


def test_whatever_is_killed_in_between_a_put_sent_again_makes_one_job(
    tmp_path: Path, rng: random.Random
) -> None:
    ledger = Ledger()
    outcomes = {"answered": 0, "not": 0}
    for loop in range(LOOPS + 1):
        with running_daemon(*HTTP, data_dir=tmp_path) as daemon:
            ledger.ask_again(daemon)
            jobs = listed(daemon)
            assert {key: len(ids) for key, ids in jobs.items()} == dict.fromkeys(ledger.here, 1)
            assert not ledger.gone & jobs.keys(), "what was acknowledged stays gone"
            if loop == LOOPS:
                break
            ledger.puts = [f"{loop}-{number}" for number in range(PUTS)]
            ledger.acks = reserved(daemon, rng.randrange(1, 4))
            said = ledger.said()
            with ExitStack() as stack:
                clients = sent(daemon, stack, [*map(request_of, said)])
                dead = set(rng.sample(range(len(clients)), rng.randrange(len(clients))))
                for number in dead:
                    clients[number].die()
                living = [each for number, each in enumerate(clients) if number not in dead]
                pause(PAUSES_S[loop % len(PAUSES_S)], living)
                daemon.kill()
                for number, client in enumerate(clients):
                    answer = LOST if number in dead else client.answer()
                    outcomes["not" if answer == LOST else "answered"] += 1
                    ledger.note(said[number], answer)
    # Somebody lives in each loop, and all of those are answered before every fourth kill.
    assert outcomes["answered"] >= LOOPS // len(PAUSES_S), outcomes
    assert outcomes["not"], outcomes
