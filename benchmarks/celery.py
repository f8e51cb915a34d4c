"""Celery on delayd, on Redis and on RabbitMQ, in turn: `make bench-celery`.

    put              tasks a second that one producer sends, one after the other
    run              tasks a second that a worker with two processes runs; they do nothing
    late p50, p99    of tasks with a countdown on an idle worker, 20 a second: from when a task was
                     due to its first line, in ms
    memory           how much a worker grows while so many tasks wait for an hour, in MiB
    twice, lost      of tasks that are due later than the ttr or the visibility timeout of 5 s, with
                     acks_late, while one of two workers is killed

delayd syncs each put (`--sync always`), Redis too (`appendfsync always`); RabbitMQ has a quorum
queue and native delayed delivery, and confirms each publish. The tasks and workers are those of the
tests: tests/integration/celery_tasks.py.
"""

import argparse
import datetime as dt
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from celery import Celery

from benchmarks.arguments import names_of, positive
from benchmarks.table import render
from delayd.testing.daemon import running_daemon
from tests.brokers import rabbitmq, redis_server
from tests.integration.celery_project import Project, until

TASK: Final = "tests.integration.celery_tasks.due"
SHORT_S: Final = 5
"""The ttr, and the visibility timeout."""
PER_SECOND: Final = 20
WAIT_S: Final = 60.0
QUORUM: Final[Mapping[str, Any]] = {
    "broker_native_delayed_delivery_queue_type": "quorum",
    "task_default_exchange_type": "topic",
    "task_default_queue_type": "quorum",
}


class Broker(NamedTuple):
    """A broker that runs."""

    url: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    """Of its transport."""
    short: Mapping[str, Any]
    """With these too it hands a task out again after SHORT_S."""


@contextmanager
def delayd(_directory: Path) -> Iterator[Broker]:
    """Run delayd, which syncs before it answers."""
    with running_daemon() as daemon:
        url = f"delayd://127.0.0.1:{daemon.address[1]}"
        yield Broker(url, {}, {}, {"ttr": SHORT_S})


@contextmanager
def redis(directory: Path) -> Iterator[Broker]:
    """Run Redis, which syncs before it answers."""
    with redis_server(directory) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        yield Broker(url, {"broker_transport": None}, {}, {"visibility_timeout": SHORT_S})


@contextmanager
def rabbit(directory: Path) -> Iterator[Broker]:
    """Run RabbitMQ, with quorum queues."""
    with rabbitmq(directory) as server:
        url = f"amqp://127.0.0.1:{server.port}//"
        confirmed = {"confirm_publish": True}
        yield Broker(url, {"broker_transport": None, **QUORUM}, confirmed, {})


BROKERS: Final = {"delayd": delayd, "redis": redis, "rabbitmq": rabbit}


def send(project: Project, dues: list[float], lasts_s: float = 0.0) -> float:
    """Send a task for each moment, 0 for now; return how many a second."""
    app = Celery("producer", broker=project.broker_url, set_as_current=False)
    app.conf.update({"broker_transport": "delayd.kombu:Transport", **project.settings})
    began_s = time.monotonic()
    for number, at_s in enumerate(dues):
        eta = dt.datetime.fromtimestamp(at_s, dt.UTC) if at_s else None
        app.send_task(TASK, (number, at_s, lasts_s), eta=eta)
    took_s = time.monotonic() - began_s
    app.close()
    return len(dues) / took_s


def begin(project: Project, *flags: str) -> int:
    """Start a worker; return its process when it is ready."""
    worker = project.worker(*flags)
    until(lambda: "ready." in project.log_of(worker), WAIT_S)
    return worker.pid


def rates(project: Project, count: int) -> tuple[float, float]:
    """Return tasks put and tasks run a second."""
    put = send(project, [0.0] * count)
    begin(project, "--concurrency=2")
    until(lambda: len(project.runs()) == count, 10 * WAIT_S)
    times = [run.at_s for run in project.runs()]
    return put, (count - 1) / (max(times) - min(times))


def lateness(project: Project, count: int) -> tuple[float, float]:
    """Return the median and the 99th percentile, in ms."""
    begin(project, "--concurrency=2")
    first_s = time.time() + 3 + count / 500
    send(project, [first_s + number / PER_SECOND for number in range(count)])
    until(lambda: len(project.runs()) == count, count / PER_SECOND + WAIT_S)
    late = sorted((run.at_s - run.what[1]) * 1_000 for run in project.runs())
    return statistics.median(late), late[int(0.99 * len(late))]


def memory(project: Project, count: int) -> float:
    """Return by how many MiB a worker grows."""
    pid = begin(project, "--concurrency=1")
    time.sleep(1)
    before = resident_mib(pid)
    send(project, [time.time() + 3_600] * count)
    time.sleep(5)
    return resident_mib(pid) - before


def killed(project: Project, count: int) -> tuple[int, int]:
    """Return how many tasks were done twice, and how many never."""
    for _ in range(2):
        begin(project, "--concurrency=1", "--prefetch-multiplier=16")
    due_s = time.time() + 2 * SHORT_S + count / 500
    send(project, [due_s] * count, 0.02)
    time.sleep(max(0.0, due_s + 1 - time.time()))
    project.kill(project.workers[0])
    begin(project, "--concurrency=1", "--prefetch-multiplier=16")
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s and len({run.what[0] for run in project.runs()}) < count:
        time.sleep(0.1)
    time.sleep(2 * SHORT_S)
    times = Counter(run.what[0] for run in project.runs())
    return sum(each > 1 for each in times.values()), count - len(times)


def resident_mib(pid: int) -> float:
    """Return the memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1_024


def measured(name: str, count: int) -> list[str]:
    """Return the line of a broker; each figure has a new one."""

    def on_a_new_one(measure: Callable[[Project], Any], **settings: object) -> Any:  # noqa: ANN401 - of `measure`
        with tempfile.TemporaryDirectory() as place:
            directory = Path(place)
            with BROKERS[name](directory) as broker:
                options = {**broker.options, **(broker.short if settings else {})}
                chosen = {**broker.settings, **settings, "broker_transport_options": options}
                with Project(directory, broker.url, **chosen) as project:
                    return measure(project)

    put, ran = on_a_new_one(lambda project: rates(project, count))
    middle_ms, p99_ms = on_a_new_one(lambda project: lateness(project, count // 10))
    grew_mib = on_a_new_one(lambda project: memory(project, count))
    twice, lost = on_a_new_one(
        lambda project: killed(project, count // 10),
        task_acks_late=True,
        task_reject_on_worker_lost=True,
    )
    return [
        *(name, f"{put:,.0f}/s", f"{ran:,.0f}/s", f"{middle_ms:.1f}", f"{p99_ms:.1f}"),
        *(f"{grew_mib:.1f}", f"{twice} of {count // 10}", str(lost)),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=positive, default=5_000, help="of a row (%(default)s)")
    parser.add_argument(
        "--brokers", type=names_of(BROKERS), default=list(BROKERS), help="with commas between"
    )
    options = parser.parse_args()
    headings = ("broker", "put", "run", "late p50", "late p99", "memory", "twice", "lost")
    print(render([measured(name, options.tasks) for name in options.brokers], headings))


if __name__ == "__main__":
    main()
