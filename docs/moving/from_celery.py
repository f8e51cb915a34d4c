"""Tasks by name, with a delay and retries: what countdown, eta and autoretry_for do in Celery."""

import os
import signal
from collections.abc import Callable
from typing import Any

from delayd.client import Client, Job, Worker

TASKS: dict[str, Callable[..., object]] = {}


def task(function: Callable[..., object]) -> Callable[..., object]:
    TASKS[function.__name__] = function
    return function


def apply_async(client: Client, name: str, *arguments: Any, **options: Any) -> int:
    """Run it later: `delay="30m"` for a countdown, `at=` for an eta, `key=` for a task_id."""
    return client.put("tasks", {"task": name, "args": arguments}, **options).id


def run(job: Job) -> None:
    call = job.json()
    TASKS[call["task"]](job, *call["args"])


@task
def remind(job: Job, user: str) -> None:
    if job.attempt == 1:
        raise ConnectionError("the mail server is away")  # the ladder decides when it comes again
    print(f"sent the reminder to {user}, attempt {job.attempt}", flush=True)


def complain(error: BaseException, job: object) -> None:
    print(error, flush=True)  # without it, the log has the traceback


with Client(os.environ.get("DELAYD_URL", "http://127.0.0.1:11301")) as client:
    client.set_policy("tasks", {"retry": "1s 2s 5s", "jitter_percent": 10})
    apply_async(client, "remind", "ada", delay="1s", key="remind-ada")
    worker = Worker(client, "tasks", run, concurrency=8, on_error=complain)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
