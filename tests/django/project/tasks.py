"""Tasks of each kind; a module of a project, whose settings are beside it."""

import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

from delayd.django.contract import LIBRARY

if TYPE_CHECKING:
    from django_tasks import TaskContext, task
else:
    task = import_module(LIBRARY).task

no_task = print


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
async def add_async(a: int, b: int = 1) -> int:
    return a + b


@task(takes_context=True, queue_name="mail", priority=7)
def look(context: "TaskContext", *arguments: object) -> list[object]:
    result = context.task_result
    is_own = result.task.queue_name == "mail" and result.status == "RUNNING"
    return [context.attempt, is_own, result.worker_ids.count("unknown"), *arguments]


@task
def give(what: str) -> object:
    return {
        "nothing": None,
        "tuple": (1, (2,)),
        "bytes": b"text",
        "set": {1},
        "raw": b"\xff",
        "much": "x" * 70_000,
        "infinite": float("inf"),
    }[what]


@task
def fail(words: str) -> None:
    raise ValueError(ValueError(words))


@task
def fail_strangely() -> None:
    raise ValueError("\ud800")


@task
def leave() -> None:
    sys.exit("left")


@task
def work(seconds: float) -> None:
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    time.sleep(seconds)
    sys.stdout.write("ends\n")
    sys.stdout.flush()
