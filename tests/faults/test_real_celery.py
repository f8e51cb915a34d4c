"""Celery under kills: workers and the daemon die while ten thousand tasks come due.

Every task is due later than its ttr, so a broker that held it in a worker would have handed it out
again. Each has to be done; more than once only if the worker that did it was killed, or the daemon.
"""

import datetime as dt
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from celery import Celery

from delayd.testing.daemon import Daemon
from tests.faults.conftest import Runs
from tests.integration.celery_project import Project, Run
from tests.rigs.process import daemon_of
from tests.rigs.waiting import until
from tests.servers import HOST, free_port

TTR_S: Final = 5
PUT_S: Final = 60.0
"""So long all puts may take; the first task is due then."""
SPREAD_S: Final = 30.0
UNSURE_S: Final = 2.0
"""What a worker began so shortly before a kill may not have been acknowledged on disk."""
WORKERS: Final = (
    ("--pool=prefork", "--concurrency=2", "--prefetch-multiplier=32"),
    ("--pool=threads", "--concurrency=4", "--prefetch-multiplier=1"),
    ("--pool=prefork", "--concurrency=1", "--prefetch-multiplier=1"),
)


def serving(directory: Path, port: int) -> Daemon:
    return daemon_of(directory, "--line", f"{HOST}:{port}")


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.long
@pytest.mark.parametrize("acks_late", [False, True])
def test_every_task_is_done_and_twice_only_where_something_died(
    tmp_path: Path, runs: Runs, acks_late: bool
) -> None:
    count = runs.times(500, 10_000)
    rng = random.Random(count)
    settings: dict[str, Any] = {
        "broker_transport_options": {"ttr": TTR_S},
        "task_acks_late": acks_late,
        "task_reject_on_worker_lost": acks_late,
        "broker_connection_max_retries": None,
        "task_ignore_result": True,
    }
    with (
        free_port() as port,
        Project(tmp_path, f"delayd://{HOST}:{port}", **settings) as project,
    ):
        directory = tmp_path / "data"
        kills: list[tuple[float, set[int]]] = []
        with serving(directory, port) as daemon:
            first_s = time.time() + max(TTR_S + 5, PUT_S * count / 10_000)
            put(project, count, first_s, rng)
            workers = [project.worker(*flags) for flags in WORKERS]
            until(lambda: all("ready." in project.log_of(worker) for worker in workers))
            before_kib = [memory_kib(worker.pid) for worker in workers]
            while time.time() < first_s:
                time.sleep(0.1)
            for worker, kib in zip(workers, before_kib, strict=True):
                assert memory_kib(worker.pid) < kib + 5 * 1_024, "tasks are not in the workers"
            for number, flags in enumerate(WORKERS):
                time.sleep(SPREAD_S / 8)
                kills.append((time.time(), family(workers[number].pid)))
                project.kill(workers[number])
                workers[number] = project.worker(*flags)
            daemon.kill()
            kills.append((time.time(), set()))
        with serving(directory, port):
            until(lambda: numbers(project.runs()) == set(range(count)), 300)
            time.sleep(TTR_S + 2)
            for worker in workers:
                project.stop(worker)
        found = project.runs()
        early = [run for run in found if run.at_s < run.what[1] - 0.001]
        assert not early
        twice = [again for again in by_number(found).values() if len(again) > 1]
        for again in twice:
            for run in again[:-1]:
                assert is_excused(run, kills), (again, kills)
        runs.count("Celery", count, "tasks")
        runs.count("Celery", len(twice), "tasks done twice since something was killed")


def put(project: Project, count: int, first_s: float, rng: random.Random) -> None:
    app = producer(project)
    for number in range(count):
        at_s = first_s + rng.random() * SPREAD_S
        eta = dt.datetime.fromtimestamp(at_s, dt.UTC)
        app.send_task("tests.integration.celery_tasks.due", (number, at_s), eta=eta)
    app.close()


def producer(project: Project) -> Celery:
    app = Celery("producer", broker=project.broker_url, set_as_current=False)
    app.conf.update(broker_transport="delayd.kombu:Transport", **project.settings)
    return app


def family(pid: int) -> set[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return {pid, *map(int, children.split())}


def numbers(runs: list[Run]) -> set[int]:
    return {run.what[0] for run in runs}


def by_number(runs: list[Run]) -> dict[int, list[Run]]:
    found = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.at_s):
        found[run.what[0]].append(run)
    return found


def is_excused(run: Run, kills: list[tuple[float, set[int]]]) -> bool:
    """Whether its worker, or the daemon, died before the run was acknowledged."""
    return any(
        (run.pid in pids or not pids) and killed_s - UNSURE_S < run.at_s < killed_s + UNSURE_S
        for killed_s, pids in kills
    )


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with free_port() as port, serving(tmp_path / "data", port):
        url, options = f"delayd://{HOST}:{port}", {"ttr": 3}
        with Project(tmp_path, url, broker_transport_options=options) as project:
            yield project


@pytest.mark.long
def test_a_lease_is_extended_while_a_task_runs_whatever_the_pool_does(project: Project) -> None:
    app, pools = producer(project), ("prefork", "threads", "solo")
    for pool in pools:
        for _ in range(2):
            project.worker(f"--pool={pool}", "--concurrency=1", f"--queues={pool}")
        app.send_task("tests.integration.celery_tasks.slow", (pool, 8), queue=pool)
    until(lambda: len(project.runs()) == 6)
    time.sleep(4)
    for worker in project.workers:
        assert project.stop(worker) == 0
    done = [[what, pool] for what in ("slow", "slow over") for pool in pools]
    assert sorted(run.what for run in project.runs()) == sorted(done)


@pytest.mark.long
def test_a_task_whose_process_is_killed_is_done_by_another(project: Project) -> None:
    project.worker("--concurrency=2")
    producer(project).send_task("tests.integration.celery_tasks.kills", ("victim",))
    until(lambda: len(project.runs()) == 2)
    assert len({run.pid for run in project.runs()}) == 2
