"""Attempts that fail, jobs that are no tasks, and results in time."""

import json
import logging
from typing import Any, Final

import pytest
from django.db import connection

from delayd.client.tasks import NotATask
from delayd.django import drain
from delayd.django.bodies import amend, read, written
from delayd.django.contract import LIBRARY, AnyTask, TaskError, TaskResultDoesNotExist
from delayd.django.results import KeptResults
from delayd.django.runner import TaskRunner
from delayd.testing import FakeDelayd
from tests.django.conftest import Configure, sentences
from tests.django.project import tasks

PROJECT: Final = tasks.__name__

LATER: Final = ("READY", "delayed", "default")
DEAD: Final = ("FAILED", "buried", "default")
ELSEWHERE: Final = ("FAILED", "ready", "dead")
# the topic's policy and the job's own options; then after each failed attempt: the status of the
# result, the state of the job and its topic
FAILED: Final[tuple[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, str]]], ...]] = (
    ({}, {}, [DEAD]),
    ({"exhausted": "dead"}, {}, [ELSEWHERE]),
    ({"retry": "15s 3m"}, {}, [LATER, LATER, DEAD]),
    ({"max_attempts": 2}, {}, [("READY", "ready", "default"), DEAD]),
    ({"retry": "15s", "exhausted": "dead"}, {}, [LATER, ELSEWHERE]),
    ({}, {"retry": "15s"}, [LATER, DEAD]),
)


@pytest.mark.parametrize(("policy", "own", "outcomes"), FAILED)
def test_a_task_that_raises_is_tried_again_as_a_retry_rule_says_and_without_one_never(
    configure: Configure,
    fake_delayd: FakeDelayd,
    policy: dict[str, Any],
    own: dict[str, Any],
    outcomes: list[tuple[str, str, str]],
) -> None:
    backend = configure(results_ttl="1d")
    client = backend.client
    if policy:
        client.set_policy("default", policy)
    body = {"task": f"{PROJECT}.fail", "args": ["words"]}
    put = client.put("default", body, key="one", **own)
    for number, outcome in enumerate(outcomes, 1):
        fake_delayd.advance("3m")
        with client.reserve("default", timeout=0) as job:
            TaskRunner(backend).work(job)
        found, result = client.get(put.id), backend.get_result("one")
        assert (str(result.status), found.state, found.topic) == outcome
        assert (result.attempts, len(result.errors)) == (number, number)
        assert result.started_at is not None
        assert (result.finished_at is None) == (outcome[0] == "READY")
        assert found.failure is not None
        assert found.failure.error.startswith("ValueError: words (tasks.py:")
        assert result.errors[-1].traceback.splitlines()[1].endswith("in fail")


DEEP: Final = ("[" * 65_000, "the body of the job is not JSON")


@pytest.mark.parametrize(("body", "reason"), [*sentences("body", project=PROJECT), DEEP])
def test_a_job_that_is_no_task_is_buried_with_the_reason(
    configure: Configure, body: object, reason: str
) -> None:
    client = configure().client
    client.put("default", body)
    with pytest.raises(NotATask) as raised:
        drain()
    (dead,) = client.dead_letters("default")
    assert dead.failure is not None
    assert dead.failure.error == str(raised.value) == reason


def test_another_program_needs_only_the_name_of_a_task(configure: Configure) -> None:
    backend = configure(results_ttl="1d", topic_prefix="shop.")
    body = {"task": f"{PROJECT}.look", "args": [1], "of_a_later_version": True}
    put = backend.client.put("shop.mail", json.dumps(body))
    assert drain() == 1
    result = backend.get_result(f"job-{put.id}")
    assert result.return_value == [1, True, 0, 1]


def test_the_attempt_of_a_context_counts_workers_that_are_not_known(
    configure: Configure, fake_delayd: FakeDelayd
) -> None:
    client = configure().client
    client.put("mail", {"task": f"{PROJECT}.look"}, retry="1s 1s 1s")
    for _ in range(2):
        fake_delayd.advance("1s")
        client.reserve("mail").nack()
    fake_delayd.advance("1s")
    backend = configure(results_ttl="1d")
    with client.reserve("mail") as job:
        TaskRunner(backend).work(job)
    assert backend.get_result(f"job-{job.id}").return_value == [3, True, 2]


def test_an_attempt_without_a_word_of_its_worker_is_told_as_the_daemon_knows_it(
    configure: Configure, fake_delayd: FakeDelayd
) -> None:
    backend = configure(results_ttl="1d")
    backend.client.set_policy("default", {"max_attempts": 1})
    result = tasks.add.enqueue(1)
    backend.client.reserve("default")
    result.refresh()
    assert (str(result.status), result.started_at) == ("RUNNING", None)
    fake_delayd.advance("1m")
    result.refresh()
    assert str(result.status) == "FAILED"
    (error,) = result.errors
    assert (error.exception_class.__name__, error.traceback) == ("AttemptEnded", "ttr_ran_out")
    assert result.finished_at is not None
    backend.client.cancel("default", result.id)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_task_that_ends_while_its_result_is_looked_for_is_found(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(results_ttl="1h")
    result = tasks.add.enqueue(1)

    def gone(*_: object) -> None:
        assert drain() == 1

    monkeypatch.setattr(KeptResults, "_job_of_task", gone)
    result.refresh()
    assert result.return_value == 2


def test_of_errors_and_workers_the_last_ones_are_kept_and_of_a_traceback_its_end(
    configure: Configure,
) -> None:
    configure()
    result = tasks.add.enqueue(1)
    long = TaskError(exception_class_path="builtins.OSError", traceback="a" * 9_999 + "z")
    amend(result, errors=[long] * 30, worker_ids=[str(number) for number in range(300)])
    kept = read(written(result), backend="default", queue_name="", result_id="")
    assert [each.traceback for each in kept.errors] == ["a" * 3_999 + "z"] * 10
    assert kept.worker_ids == [str(number) for number in range(200, 300)]


def test_a_result_ends_with_its_time_to_live_and_a_worker_clears_it_away(
    configure: Configure, fake_delayd: FakeDelayd
) -> None:
    backend = configure(results_ttl="1h")
    result = tasks.add.enqueue(1)
    assert drain() == 1
    fake_delayd.advance("59m 59s")
    result.refresh()
    assert result.return_value == 2
    fake_delayd.advance("1s")
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    assert drain() == 0
    assert [topic.name for topic in backend.client.topics()] == ["default"]


def test_a_return_value_that_is_too_long_is_not_kept_and_the_task_is_not_repeated(
    configure: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    backend = configure(results_ttl="1h")
    result = tasks.give.enqueue("much")
    assert drain() == 1
    result.refresh()
    (error,) = result.errors
    assert (str(result.status), error.exception_class.__name__) == ("FAILED", "ResultTooLong")
    assert error.traceback.startswith("the task has run: ")
    assert backend.client.topic("default").jobs == 0
    assert [record.levelname for record in caplog.records if record.name == "delayd"] == ["ERROR"]


STRANGE: Final = ((tasks.give, ("infinite",)), (tasks.fail_strangely, ()))


@pytest.mark.parametrize(("task", "arguments"), STRANGE)
def test_what_json_cannot_hold_is_a_failure_and_not_repeated(
    configure: Configure,
    monkeypatch: pytest.MonkeyPatch,
    task: AnyTask,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setattr(logging.getLogger(LIBRARY), "disabled", True)  # pytest cannot hold it too
    configure(results_ttl="1h")
    result = task.enqueue(*arguments)
    assert drain() == 1
    result.refresh()
    assert str(result.status) == "FAILED"
    assert result.errors[0].exception_class is ValueError


def test_a_result_that_cannot_be_kept_does_not_fail_its_task(
    configure: Configure, fake_delayd: FakeDelayd, caplog: pytest.LogCaptureFixture
) -> None:
    token = fake_delayd.token(topics=("default",))
    backend = configure(client=fake_delayd.client(token=token), results_ttl="1h")
    tasks.add.enqueue(1)
    with backend.client.reserve("default") as job:
        TaskRunner(backend).work(job)
    assert backend.client.topic("default").jobs == 0
    assert caplog.text.count("could not be kept") == 2


def test_connections_of_the_database_are_looked_at_around_each_task(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure()
    connection.ensure_connection()
    connection.queries_log.append({"sql": "of the task before"})
    closed: list[str] = []
    monkeypatch.setattr(
        connection, "close_if_unusable_or_obsolete", lambda: closed.append("looked at")
    )
    tasks.fail.enqueue("words")
    assert drain() == 1
    assert closed == ["looked at"] * 2
    assert not connection.queries_log
