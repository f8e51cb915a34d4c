"""Django's tasks with a real daemon: docs/django.md, the worker's signals, the line protocol."""

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.test import override_settings
from django.utils import timezone

from delayd.client import Client
from delayd.django import DelaydBackend, drain
from delayd.django.contract import LIBRARY, task_backends
from delayd.testing.daemon import Daemon, running_daemon
from tests.django.conftest import SETTINGS
from tests.django.project import tasks
from tests.pages import Reader
from tests.rigs.waiting import line_with

pytestmark = pytest.mark.process
ROOT: Final = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon("--http", "127.0.0.1:0") as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(f"http://{daemon.http_listens_on}") as found:
        yield found
        found.clear("default")


def test_who_follows_the_page_has_tasks_in_five_minutes(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        reader = Reader(tmp_path, daemon, {"from django.tasks": f"from {LIBRARY}"})
        reader.environment["PYTHONPATH"] = str(ROOT)
        reader.follow("django.md")


def test_over_the_line_tasks_wait_fail_and_have_results_as_over_http(
    daemon: Daemon, client: Client
) -> None:
    with Client(f"beanstalk://{daemon.listens_on}") as line:
        options = {"client": line, "results_ttl": "1h"}
        backend = {"BACKEND": DelaydBackend.PATH, "OPTIONS": options}
        with override_settings(TASKS={"default": backend}):
            later = tasks.add.using(run_after=timezone.now() + dt.timedelta(hours=1)).enqueue(1)
            past = tasks.add.using(run_after=timezone.now() - dt.timedelta(hours=1)).enqueue(2)
            failed = tasks.fail.enqueue("words")
            assert drain() == 2
            line.set_policy("default", {"retry": "1h"})
            again = tasks.fail.enqueue("words")
            assert drain() == 1
            seen = []
            for result in (later, past, failed, again):
                found = task_backends["default"].get_result(result.id)
                seen.append((str(found.status), len(found.errors)))
            assert seen == [("READY", 0), ("SUCCESSFUL", 0), ("FAILED", 1), ("READY", 1)]
        (dead,) = line.dead_letters("default")
        assert dead.failure is not None
        assert dead.failure.error.startswith("ValueError: words (tasks.py:")
        states = {job.key: job.state for job in client.jobs("default")}
        assert states == {later.id: "delayed", failed.id: "buried", again.id: "delayed"}
        due = client.find("default", later.id).due
        assert due is not None
        assert later.task.run_after is not None
        assert due >= later.task.run_after
        line.clear_policy("default")


# --grace, whether a task takes long, how many signals there are, and the exit code
ENDS: Final = (("600", False, 1, 0), ("600", True, 2, 130), ("0.1", True, 1, 130))


@pytest.mark.parametrize(("grace", "is_long", "signals", "code"), ENDS)
def test_a_worker_lets_tasks_finish_and_gives_back_those_that_take_too_long(
    daemon: Daemon, client: Client, grace: str, is_long: bool, signals: int, code: int
) -> None:
    long = client.put("default", {"task": f"{tasks.__name__}.work", "args": [600]})
    short = client.put("default", {"task": f"{tasks.__name__}.work", "args": [0.3]})
    if not is_long:
        client.cancel(long.id)
    how = ("--concurrency", "2", "--grace", grace)
    worker = subprocess.Popen(
        [sys.executable, "-m", "django", "delayd_worker", "--no-reload", *how],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PROJECT_URL": f"http://{daemon.http_listens_on}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for _ in range(2 if is_long else 1):
            line_with("begins", worker.stdout)
        worker.send_signal(signal.SIGTERM)
        line_with(f"stopping: tasks may finish for {grace} s", worker.stdout)
        if signals == 2:
            while short.id in _ids(client):
                time.sleep(0.01)
            worker.send_signal(signal.SIGINT)
        told, _ = worker.communicate(timeout=60)
        assert worker.returncode == code, told
    finally:
        worker.kill()
        worker.communicate()
    if is_long:
        given_back = client.get(long.id)
        assert (given_back.state, given_back.attempts) == ("ready", 0)
    else:
        assert not _ids(client)


def _ids(client: Client) -> list[int]:
    return [job.id for job in client.jobs("default")]
