"""Killed at any moment, the daemon comes back with everything that it had acknowledged."""

import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.line_client import LineClient

PRODUCERS: Final = 4
ACKNOWLEDGED_BEFORE_THE_KILL: Final = 2_000
PEEKS_AT_ONCE: Final = 1_000
"""More may be there than both ends of a connection hold."""


def test_a_delayed_job_comes_at_its_time_though_the_daemon_was_killed(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        put_s = time.monotonic()
        client.send(b"put 0 1.5 60 5\r\nhello\r\n")
        assert client.reply() == b"INSERTED 1\r\n"
        daemon.kill()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert client.ask("reserve") == "RESERVED 1 5\r\nhello"
        came_s = time.monotonic()
    assert came_s - put_s >= 1.5


def test_a_job_that_came_due_while_nobody_ran_is_there_at_once(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        client.put(b"hello", delay=1)
        daemon.kill()
    time.sleep(1.1)
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert client.ask("reserve-with-timeout 0") == "RESERVED 1 5\r\nhello"


def test_a_job_in_hand_comes_back_when_its_time_is_over(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        client.put(b"hello", ttr=2)
        reserved_s = time.monotonic()
        client.ask("reserve")
        client.put(b"synced with it")
        daemon.kill()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert client.ask("delete 2") == "DELETED"
        assert client.ask("touch 1") == "NOT_FOUND", "it is in nobody's hands any more"
        state = client.stats("stats-job 1")["state"]
        assert state == "reserved" or time.monotonic() - reserved_s >= 2
        assert client.ask("reserve") == "RESERVED 1 5\r\nhello"
        assert time.monotonic() - reserved_s >= 2
        # Where this machine stops for two seconds, its time may be over once more.
        assert int(client.stats("stats-job 1")["timeouts"]) >= 1


class Producer(threading.Thread):
    """Puts, and deletes some of what it has put, until the connection breaks."""

    def __init__(self, daemon: Daemon, number: int, enough: threading.Semaphore) -> None:
        super().__init__()
        self.client = LineClient(daemon.address)
        self.number = number
        self.enough = enough
        self.rng = random.Random(number)
        self.put: dict[int, bytes] = {}
        """Jobs whose put was acknowledged and whose delete was not sent."""
        self.deleted: set[int] = set()
        """Jobs whose delete was acknowledged."""

    def run(self) -> None:
        with suppress(OSError, EOFError), self.client:
            while True:
                self.put_some()
                self.delete_one()

    def put_some(self) -> None:
        bodies = [b"%d of %d" % (self.rng.getrandbits(40), self.number) for _ in range(8)]
        self.client.send(
            b"".join(b"put 0 3600 60 %d\r\n%b\r\n" % (len(body), body) for body in bodies)
        )
        for body in bodies:
            word, _, job_id = self.client.reply().partition(b" ")
            if word != b"INSERTED":
                raise EOFError
            self.put[int(job_id)] = body
            self.enough.release()

    def delete_one(self) -> None:
        job_id = self.rng.choice(list(self.put))
        del self.put[job_id]
        if self.client.ask(f"delete {job_id}") == "DELETED":
            self.deleted.add(job_id)


@pytest.mark.parametrize("policy", ["always", "interval", "never"])
def test_what_was_acknowledged_under_load_survives_a_kill(tmp_path: Path, policy: str) -> None:
    enough = threading.Semaphore(0)
    with running_daemon("--sync", policy, data_dir=tmp_path) as daemon:
        producers = [Producer(daemon, number, enough) for number in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        for _ in range(ACKNOWLEDGED_BEFORE_THE_KILL):
            assert enough.acquire(timeout=60)
        daemon.kill()
        for producer in producers:
            producer.join(60)
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        for producer in producers:
            assert producer.put
            check_jobs(client, producer)


def check_jobs(client: LineClient, producer: Producer) -> None:
    job_ids = [*producer.put, *producer.deleted]
    for begun in range(0, len(job_ids), PEEKS_AT_ONCE):
        some_ids = job_ids[begun : begun + PEEKS_AT_ONCE]
        client.send(b"".join(b"peek %d\r\n" % job_id for job_id in some_ids))
        for job_id in some_ids:
            body = producer.put.get(job_id)
            found = b"" if body is None else b"FOUND %d %d\r\n%b\r\n" % (job_id, len(body), body)
            assert client.reply() == (found or b"NOT_FOUND\r\n")


def test_ids_go_on_after_a_kill(tmp_path: Path) -> None:
    for first_id in (1, 3, 5):
        with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
            assert client.put(b"a") == first_id
            assert client.put(b"b") == first_id + 1
            daemon.kill()
