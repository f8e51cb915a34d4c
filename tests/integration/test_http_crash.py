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
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from delayd.client import Client, TopicNotFound
from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP, HttpClient, request

JOBS: Final = "/v1/topics/mail/jobs"
RESERVE: Final = "/v1/topics/mail/reserve"
PUTS: Final = 8
"""In each loop, all at once."""
PAUSES_S: Final = (0, 0.003, 0.01, None)
"""Between the requests and the kill: before the commit, in its midst; None: until all answers are
there."""
ANSWER_S_MAX: Final = 60.0


def put(key: str) -> bytes:
    """A put under this key; the body is the key, so that each job says whose it is."""
    return request("POST", JOBS, {"body": key, "ttr": 600}, f"Idempotency-Key: {key}")


def ack(job: dict[str, Any]) -> bytes:
    return request("POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]})


def listed(daemon: Daemon) -> list[str]:
    """The bodies of the jobs that there are."""
    with Client(f"http://{daemon.http_listens_on}") as client, contextlib.suppress(TopicNotFound):
        return [json.loads(job.text) for job in client.jobs("mail", bodies=True)]
    return []


def reserved(daemon: Daemon, jobs_max: int) -> list[dict[str, Any]]:
    with HttpClient(daemon.http_address) as client:
        answer = client.ask("POST", RESERVE, {"max": jobs_max})
        return [] if answer.status == 204 else [dict(job) for job in answer.json["jobs"]]


class Ledger:
    """The jobs that there have to be, by their bodies, and what has not been answered yet."""

    def __init__(self) -> None:
        self.here: set[str] = set()
        self.asked: list[tuple[bytes, str, bool]] = []
        """The request, the body of its job, and whether it is an ack."""

    def ask(self, keys: list[str], jobs: list[dict[str, Any]]) -> None:
        self.asked = [(put(key), key, False) for key in keys]
        self.asked += [(ack(job), job["body"], True) for job in jobs]

    def note(self, asked: tuple[bytes, str, bool], status: int) -> None:
        """Take an answer; an ack may be answered again, by a daemon to which its token is gone."""
        _, body, is_ack = asked
        assert status in ({200, 404} if is_ack else {201})
        self.asked.remove(asked)
        self.here ^= {body}

    def ask_again(self, daemon: Daemon) -> None:
        """Say once more what was not answered; tokens are good for the next daemon, too."""
        with HttpClient(daemon.http_address) as client:
            for asked in [*self.asked]:
                client.send(asked[0])
                self.note(asked, client.answer().status)


def pause(for_s: float | None, clients: list[HttpClient]) -> None:
    if for_s is not None:
        time.sleep(for_s)
        return
    for client in clients:
        assert select.select([client.socket], [], [], ANSWER_S_MAX)[0]


def test_whatever_is_killed_in_between_a_put_sent_again_makes_one_job(
    tmp_path: Path, rng: random.Random, often: Callable[[int, int], range]
) -> None:
    ledger = Ledger()
    answered = unanswered = 0
    loops = len(often(10, 100))
    for loop in range(loops + 1):
        with running_daemon(*HTTP, data_dir=tmp_path) as daemon:
            ledger.ask_again(daemon)
            assert sorted(listed(daemon)) == sorted(ledger.here), "one each, and none that is done"
            if loop == loops:
                break
            keys = [f"{loop}-{number}" for number in range(PUTS)]
            ledger.ask(keys, reserved(daemon, rng.randrange(1, 4)))
            with ExitStack() as stack:
                # Each on a connection of its own; nobody reads yet.
                clients = [
                    stack.enter_context(HttpClient(daemon.http_address)) for _ in ledger.asked
                ]
                for client, asked in zip(clients, ledger.asked, strict=True):
                    client.send(asked[0])
                dead = rng.sample(clients, rng.randrange(len(clients)))
                for client in dead:
                    client.die()
                pause(
                    PAUSES_S[loop % len(PAUSES_S)], [each for each in clients if each not in dead]
                )
                daemon.kill()
                for client, asked in zip(clients, [*ledger.asked], strict=True):
                    status = 0 if client in dead else client.answer().status
                    if status:
                        ledger.note(asked, status)
                        answered += 1
                    else:
                        unanswered += 1
    # Somebody lives in each loop, and all of those are answered before every fourth kill.
    assert answered >= loops // len(PAUSES_S)
    assert unanswered
