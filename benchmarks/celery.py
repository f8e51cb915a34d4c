"""Celery on delayd, on Redis and on RabbitMQ: the chapter `celery`.

    put            tasks a second that one producer sends, one after the other
    run            tasks a second that a worker with two processes runs; they do nothing
    due            how late tasks with a countdown are on an idle worker, 20 a second: from when a
                   task was due to its first line
    wait           how much a worker grows for each task that waits for an hour
    worker killed  how many tasks were run again, and how many never, when one of two workers is
                   killed. They have acks_late, and are due later than the ttr or the visibility
                   timeout of 5 s; what the worker had in hand may be run twice

delayd syncs each put (`--sync always`), Redis too (`appendfsync always`); RabbitMQ has a quorum
queue and native delayed delivery, and confirms each publish. The tasks and workers are those of the
tests: tests/integration/celery_tasks.py. Each reading has a broker of its own.
"""

import datetime as dt
import functools
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.line import HOST
from benchmarks.processes import held_bytes
from benchmarks.registry import Bench, Case, Durability, NotMeasuredError, Values
from benchmarks.servers.delayd import running
from benchmarks.table import percentile
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from tests.integration.celery_project import Project

TASK: Final = "tests.integration.celery_tasks.due"
TASKS: Final = 1_000
FEW: Final = 10
"""Of the tasks, one in so many is put where each takes time: due, or when a worker is killed."""
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
def delayd(directory: Path) -> Iterator[Broker]:
    """Run delayd, which syncs before it answers."""
    with running(directory, http=False) as daemon:
        yield Broker(f"delayd://{HOST}:{daemon.port}", {}, {}, {"ttr": SHORT_S})


@contextmanager
def redis(directory: Path) -> Iterator[Broker]:
    """Run Redis, which syncs before it answers."""
    from tests.brokers import redis_server  # noqa: PLC0415

    with redis_server(directory) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        yield Broker(url, {"broker_transport": None}, {}, {"visibility_timeout": SHORT_S})


@contextmanager
def rabbit(directory: Path) -> Iterator[Broker]:
    """Run RabbitMQ, with quorum queues."""
    from tests.brokers import rabbitmq  # noqa: PLC0415

    with rabbitmq(directory) as server:
        url = f"amqp://127.0.0.1:{server.port}//"
        confirmed = {"confirm_publish": True}
        yield Broker(url, {"broker_transport": None, **QUORUM}, confirmed, {})


class Contestant(NamedTuple):
    """A broker that is measured."""

    run: Callable[[Path], Any]
    program: str
    """Without which it cannot be."""
    settings: str


BROKERS: Final[Mapping[str, Contestant]] = MappingProxyType(
    {
        "delayd": Contestant(delayd, sys.executable, "delayd serve --sync always"),
        "Redis": Contestant(redis, "redis-server", "redis-server --appendfsync always"),
        "RabbitMQ, quorum queue": Contestant(rabbit, "rabbitmq-server", str(dict(QUORUM))),
    }
)


def send(project: "Project", dues: Sequence[float], lasts_s: float = 0.0) -> float:
    """Send a task for each moment, 0 for now; return how many a second."""
    from celery import Celery  # noqa: PLC0415

    app = Celery("producer", broker=project.broker_url, set_as_current=False)
    app.conf.update({"broker_transport": "delayd.kombu:Transport", **project.settings})
    began_s = time.monotonic()
    for number, at_s in enumerate(dues):
        eta = dt.datetime.fromtimestamp(at_s, dt.UTC) if at_s else None
        app.send_task(TASK, (number, at_s, lasts_s), eta=eta)
    took_s = time.monotonic() - began_s
    app.close()
    return len(dues) / took_s


def begin(project: "Project", *flags: str) -> int:
    """Start a worker; return its process when it is ready."""
    worker = project.worker(*flags)
    until(lambda: "ready." in project.log_of(worker), WAIT_S)
    return worker.pid


def finished(project: "Project", count: int, patience_s: float) -> None:
    """Wait until so many tasks have run."""
    until(lambda: len(project.runs()) == count, patience_s)


# --- What is measured ----------------------------------------------------------------------------


def put(project: "Project", count: int) -> Values:
    """Send tasks."""
    return {"rate": send(project, [0.0] * count)}


def run(project: "Project", count: int) -> Values:
    """Run tasks that wait already."""
    send(project, [0.0] * count)
    begin(project, "--concurrency=2")
    finished(project, count, 10 * WAIT_S)
    times = [one.at_s for one in project.runs()]
    return {"rate": (count - 1) / (max(times) - min(times))}


def due(project: "Project", count: int) -> Values:
    """Send tasks that are due one after the other."""
    begin(project, "--concurrency=2")
    first_s = time.time() + 3 + count / 500
    send(project, [first_s + number / PER_SECOND for number in range(count)])
    finished(project, count, count / PER_SECOND + WAIT_S)
    late_ms = [(one.at_s - one.what[1]) * 1_000 for one in project.runs()]
    return {
        "p50_ms": percentile(late_ms, 50),
        "p99_ms": percentile(late_ms, 99),
        "worst_ms": max(late_ms),
        "early": sum(ms < 0 for ms in late_ms),
    }


def wait(project: "Project", count: int) -> Values:
    """Send tasks that are due in an hour."""
    pid = begin(project, "--concurrency=1")
    time.sleep(1)
    before = held_bytes(pid)
    send(project, [time.time() + 3_600] * count)
    time.sleep(5)
    return {"entry_bytes": (held_bytes(pid) - before) / count}


def worker_killed(project: "Project", count: int) -> Values:
    """Kill one of two workers."""
    for _ in range(2):
        begin(project, "--concurrency=1", "--prefetch-multiplier=16")
    due_s = time.time() + 2 * SHORT_S + count / 500
    send(project, [due_s] * count, 0.02)
    time.sleep(max(0.0, due_s + 1 - time.time()))
    project.kill(project.workers[0])
    begin(project, "--concurrency=1", "--prefetch-multiplier=16")
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s and len({one.what[0] for one in project.runs()}) < count:
        time.sleep(0.1)
    time.sleep(2 * SHORT_S)
    times = Counter(one.what[0] for one in project.runs())
    return {"again": sum(each > 1 for each in times.values()), "lost": count - len(times)}


LATE: Final = MappingProxyType({"task_acks_late": True, "task_reject_on_worker_lost": True})
OPERATIONS: Final[Mapping[str, tuple[Callable[["Project", int], Values], int]]] = MappingProxyType(
    {
        "put": (put, TASKS),
        "run": (run, TASKS),
        "due": (due, TASKS // FEW),
        "wait": (wait, TASKS),
        "worker killed": (worker_killed, TASKS // FEW),
    }
)

ONCE: Final = ("wait", "worker killed")
"""These take most of the time, and vary least."""


def reading(name: str, operation: str, bench: Bench) -> Values:
    """Measure a broker of its own."""
    from tests.integration.celery_project import Project  # noqa: PLC0415

    measure, count = OPERATIONS[operation]
    contestant = BROKERS[name]
    if shutil.which(contestant.program) is None:
        raise NotMeasuredError(f"there is no {contestant.program}")
    is_killed = measure is worker_killed
    with tempfile.TemporaryDirectory(dir=bench.directory) as place:
        directory = Path(place)
        with contestant.run(directory) as broker:
            options = {**broker.options, **(broker.short if is_killed else {})}
            chosen = {**broker.settings, **(LATE if is_killed else {})}
            chosen |= {"broker_transport_options": options}
            with Project(directory, broker.url, **chosen) as project:
                return measure(project, bench.entries(count))


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [
        Case(
            chapter="celery",
            operation=operation,
            size={"tasks": count},
            subject=name,
            measure=functools.partial(reading, name, operation),
            policy=Durability.BEFORE_ANSWER,
            settings=contestant.settings,
            runs_max=1 if operation in ONCE else None,
        )
        for operation, (_, count) in OPERATIONS.items()
        for name, contestant in BROKERS.items()
    ]
