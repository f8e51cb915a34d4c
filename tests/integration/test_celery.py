"""Celery with workers as processes, on a real daemon."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

from delayd.client import Client
from delayd.testing.daemon import Daemon, running_daemon
from tests.client.worlds import line_url
from tests.integration.celery_project import Project
from tests.pages import Reader
from tests.rigs.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as found:
        yield found


@pytest.fixture(scope="module")
def project(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    url = f"delayd://127.0.0.1:{daemon.address[1]}"
    with Project(tmp_path_factory.mktemp("celery"), url, broker_pool_limit=2) as found:
        found.worker("--concurrency=2", "-E")
        yield found


@pytest.fixture(scope="module")
def app(project: Project) -> Iterator[Celery]:
    app = project.app()
    yield app
    app.close()


@pytest.fixture
def tasks(app: Celery) -> ModuleType:
    from tests.integration import celery_tasks

    return celery_tasks


def test_groups_chains_chords_and_retries(tasks: ModuleType) -> None:
    add, total = tasks.add, tasks.total
    results = [
        group(add.s(n, n) for n in range(5))(),
        chain(add.s(1, 2), add.s(3), add.s(4))(),
        chord([add.s(n, 1) for n in range(4)])(total.s()),
        tasks.fails_twice.delay("a"),
        add.apply_async((5, 5), countdown=0.3),
    ]
    assert [each.get(timeout=60) for each in results] == [[0, 2, 4, 6, 8], 10, 10, 2, 10]


def test_control_inspect_and_events(app: Celery, project: Project, tasks: ModuleType) -> None:
    until(lambda: app.control.ping(timeout=1, limit=1))  # it is there
    (worker,) = app.control.ping(timeout=5, limit=1)
    (name,) = worker
    assert app.control.inspect([name], timeout=5).active_queues()[name][0]["name"] == "celery"
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection)
        seen: list[str] = []

        def see(event: dict[str, Any]) -> None:
            seen.append(event["type"])
            receiver.should_stop = event["type"] == "task-succeeded"
            tasks.add.delay(1, 1)

        receiver.handlers["*"] = see
        receiver.capture(limit=None, timeout=30, wakeup=True)
    assert "task-succeeded" in seen


def test_a_revoked_task_is_told_at_once_and_never_run(
    daemon: Daemon, project: Project, tasks: ModuleType
) -> None:
    result = tasks.add.apply_async((7, 7), countdown=3_600)
    with Client(line_url(daemon)) as client:
        assert client.find("celery", result.id).state == "delayed"
        result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(timeout=60)
        until(lambda: not [*client.find_key(result.id)])  # a worker has dropped it
    assert ["add", 7, 7] not in [run.what for run in project.runs()]


def test_a_worker_that_is_killed_gives_back_and_one_that_stops_ends_what_it_has_begun(
    daemon: Daemon, tmp_path: Path, tasks: ModuleType
) -> None:
    url = f"delayd://127.0.0.1:{daemon.address[1]}"
    with Project(tmp_path, url, task_default_queue="other") as project:
        first = project.worker("--pool=threads", "--concurrency=2")
        tasks.slow.apply_async(("killed", 3_600), queue="other")
        until(project.runs)
        project.kill(first)
        with Client(line_url(daemon)) as client:
            until(lambda: client.topic("other").ready)
            client.cancel_many("other")
            tasks.slow.apply_async(("stopped", 0.5), queue="other")
            second = project.worker("--pool=solo", "--without-gossip")
            until(lambda: len(project.runs()) == 2)
            assert project.stop(second) == 0
            assert [run.what for run in project.runs()][-1] == ["slow over", "stopped"]
            left = [topic.name for topic in client.topics()]
            assert "other" not in left
            assert not [name for name in left if name.startswith("w1+40test")]


def test_a_wrong_url_ends_a_worker_with_a_sentence_and_a_daemon_that_is_away_is_waited_for(
    tmp_path: Path,
) -> None:
    with Project(tmp_path, "delayd://127.0.0.1/0") as project:
        worker = project.worker("--pool=solo")
        assert worker.wait(60) != 0
        assert "must be delayd://HOST:PORT" in project.log_of(worker)
    with Project(tmp_path, "delayd://127.0.0.1:1") as project:
        worker = project.worker("--pool=solo")
        until(lambda: "no delayd answers at beanstalk://127.0.0.1:1" in project.log_of(worker))


def test_a_newcomer_sees_what_the_page_says(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        reader = Reader(tmp_path, daemon)
        reader.environment["PYTHONWARNINGS"] = "ignore"  # of Celery
        reader.follow("celery.md")
