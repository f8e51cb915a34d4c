"""A project of Celery as users have it: an app and tasks, configured by the environment.

Each run of a task writes a line into the file RUNS: what it was told, its process, and when.
"""

import json
import os
import signal
import time
from pathlib import Path

from celery import Celery, Task

app = Celery("project")
app.conf.update(
    broker_transport="delayd.kombu:Transport",
    broker_connection_retry_on_startup=True,
    result_chord_retry_interval=0.1,
    worker_hijack_root_logger=False,
)
app.conf.update(json.loads(os.environ.get("PROJECT", "{}")))


def note(what: object) -> None:
    """Write a line, in one piece."""
    text = json.dumps([what, os.getpid(), time.time()]) + "\n"
    with Path(os.environ["RUNS"]).open("a", encoding="utf-8") as runs:
        runs.write(text)


@app.task
def add(first: int, second: int) -> int:
    note(["add", first, second])
    return first + second


@app.task
def total(numbers: list[int]) -> int:
    note(["total", numbers])
    return sum(numbers)


@app.task
def due(number: int, at_s: float, lasts_s: float = 0.0) -> None:
    """Be due at a moment."""
    note([number, at_s])
    time.sleep(lasts_s)


@app.task(bind=True, max_retries=5)
def fails_twice(self: Task, name: str) -> int:
    note(["fails_twice", name, self.request.retries])
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@app.task(acks_late=True, reject_on_worker_lost=True)
def kills(name: str) -> str:
    """Kill the process that runs it, the first time."""
    note(["kills", name])
    if Path(os.environ["RUNS"]).read_text(encoding="utf-8").count(f'"{name}"') == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@app.task(acks_late=True)
def slow(name: str, lasts_s: float) -> str:
    note(["slow", name])
    time.sleep(lasts_s)
    note(["slow over", name])
    return name
