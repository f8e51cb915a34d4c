"""T-W: daemons that deliver and receivers of deliveries, both killed at any moment."""

import itertools
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from delayd.testing.daemon import Daemon
from tests.faults.conftest import Runs
from tests.faults.real_daemon import now_ms, started
from tests.faults.receiver import Arrival, Receiver
from tests.line_client import LineClient
from tests.rigs.waiting import until

TUBE: Final = "out"
POLICY: Final = {"retry": ["200ms"] * 200}
TIMEOUT: Final = "500ms"
"""Of a call; what was under way at a kill comes back five seconds later."""
ARRIVE_S_MAX: Final = 120.0
"""Until everything has arrived, on a busy machine."""
ROUNDING_MS: Final = 1.0
JOBS_MIN: Final = 7
"""Put in each life of a daemon, at least."""


@dataclass(slots=True)
class Job:
    """What a producer knows of a job that was acknowledged."""

    put_ms: float
    """Before it was put."""
    delay_ms: int
    cancelled_s: float = 0.0
    """When the producer was told that it is cancelled, by the wall clock; 0: it was not."""
    is_unsure: bool = False
    """Its cancel was not answered."""


Jobs = dict[str, Job]
"""All that were acknowledged, by what their bodies say."""


def produce(daemon: Daemon, jobs: Jobs, rng: random.Random, prefix: str) -> None:
    """Put jobs and cancel some, until the daemon goes away."""
    with suppress(OSError, EOFError, ValueError), LineClient(daemon.address) as client:
        client.ask(f"use {TUBE}")
        for number in itertools.count(1):
            put_and_maybe_cancel(client, jobs, rng, f"{prefix}-{number}")
            time.sleep(rng.uniform(0.0, 0.01))


def put_and_maybe_cancel(client: LineClient, jobs: Jobs, rng: random.Random, name: str) -> None:
    delay_ms = rng.choice((0, 50, 300))
    put_ms = now_ms()
    answer = client.ask(f"put 0 {delay_ms / 1_000} 60", name.encode())
    if not answer.startswith("INSERTED "):
        raise EOFError
    job = jobs[name] = Job(put_ms, delay_ms)
    if rng.random() < 0.2:
        job.is_unsure = True
        answer = client.ask(f"delete {answer.split()[1]}")
        job.is_unsure = not answer  # killed before it could tell
        if answer == "DELETED":
            job.cancelled_s = time.time()


@contextmanager
def delivering(directory: Path, receiver: Receiver) -> Iterator[Daemon]:
    with started(directory, environment=receiver.settings) as daemon:
        with LineClient(daemon.address) as client:
            policy = json.dumps(POLICY | {"push": {"url": receiver.url, "timeout": TIMEOUT}})
            answer = client.ask(f"set-policy {TUBE}", policy.encode())
            assert answer.startswith(("OK", "POLICY", "SET")), answer
        yield daemon


def wait_until_all_has_arrived(daemon: Daemon) -> None:
    """Wait until no job of the tube is left."""
    with LineClient(daemon.address) as client:

        def left() -> str:
            stats = client.stats(f"stats-tube {TUBE}")
            assert stats["current-jobs-buried"] == "0", "no job is exhausted"
            kinds = ("ready", "reserved", "delayed")
            return " ".join(stats[f"current-jobs-{kind}"] for kind in kinds)

        until(lambda: left() == "0 0 0", ARRIVE_S_MAX, seen=left)


def judge(jobs: Jobs, arrivals: list[Arrival]) -> None:
    """Assert what holds of every delivery."""
    by_body: dict[str, list[Arrival]] = {}
    ids: dict[str, int] = {}
    for arrival in arrivals:
        by_body.setdefault(arrival.body, []).append(arrival)
        assert ids.setdefault(arrival.message_id, arrival.job_id) == arrival.job_id
        assert arrival.message_id.endswith(f"_{arrival.job_id}")
    for name, job in jobs.items():
        came = by_body.get(name, [])
        if not job.cancelled_s and not job.is_unsure:
            assert came, f"{name} was acknowledged and did not arrive"
        assert len({arrival.message_id for arrival in came}) <= 1, f"{name} has several ids"
        for arrival in came:
            early_ms = job.put_ms + job.delay_ms - arrival.at_ms
            assert early_ms <= ROUNDING_MS, f"{name} came {early_ms} ms early"
            # A call that was given up before the cancel may be read by the receiver after it.
            if job.cancelled_s:
                late_s = arrival.begun_s - job.cancelled_s
                assert late_s <= 0, f"{name} was sent {late_s} s after it was cancelled"


def test_w1_daemon_and_receiver_killed_while_jobs_are_delivered(
    quick_path: Path, runs: Runs
) -> None:
    """T-W1: kill -9 of either at random times: all arrives, none early, none once cancelled."""
    for rng in runs.rng("T-W1", 1, 8):
        directory = quick_path / str(rng.random())
        directory.mkdir()
        jobs = Jobs()
        with Receiver(directory, fails_percent=10) as receiver:
            for number in range(runs.times(3, 6)):
                deliver_and_kill(directory / "data", receiver, jobs, rng, f"{number}")
                runs.count("T-W1", 1, "kills of a daemon")
            with delivering(directory / "data", receiver) as daemon:
                wait_until_all_has_arrived(daemon)
            receiver.kill()  # with whatever it still was about to write
            judge(jobs, receiver.arrivals())
        runs.count("T-W1", len(jobs), "jobs")
        runs.count("T-W1", len(receiver.arrivals()), "arrivals")


def deliver_and_kill(
    data: Path, receiver: Receiver, jobs: Jobs, rng: random.Random, name: str
) -> None:
    """One life of a daemon, in which the receiver may be killed and come back."""
    with ThreadPoolExecutor() as producers, delivering(data, receiver) as daemon:
        for number in range(3):
            each = random.Random(rng.random())
            producers.submit(produce, daemon, jobs, each, f"{name}-{number}")
        put = len(jobs)
        time.sleep(rng.uniform(0.1, 0.6))
        until(lambda: len(jobs) > put + JOBS_MIN)
        if rng.random() < 0.7:
            receiver.kill()
            time.sleep(rng.uniform(0.0, 0.4))
            receiver.start()
            time.sleep(rng.uniform(0.0, 0.3))
        daemon.kill()
