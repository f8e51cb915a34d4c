"""The backend does what the library's own backends do: with `DummyBackend` as the reference for
what is enqueued, and with `ImmediateBackend` for what becomes of it."""

import asyncio
import contextlib
import datetime as dt
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.dispatch import Signal
from django.test import override_settings

from delayd.django import drain
from delayd.django.contract import (
    LIBRARY,
    AnyResult,
    AnyTask,
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.django.conftest import Configure
from tests.django.project import tasks

LATER: Final = dt.datetime(2030, 1, 1, 9, 30, 0, 123_456, tzinfo=dt.UTC)
QUEUES: Final = ["default", "mail"]


@contextlib.contextmanager
def reference(backend: str) -> Iterator[None]:
    path = f"{LIBRARY}.backends.{backend.lower()}.{backend}Backend"
    with override_settings(TASKS={"default": {"BACKEND": path, "QUEUES": QUEUES}}):
        yield


@contextlib.contextmanager
def signals() -> Iterator[list[tuple[str, str]]]:
    """The signals that are sent, each with the status that its result has."""
    seen: list[tuple[str, str]] = []
    with contextlib.ExitStack() as stack:
        for name, signal in (
            ("enqueued", task_enqueued),
            ("started", task_started),
            ("finished", task_finished),
        ):

            def receive(*, task_result: AnyResult, _name: str = name, **_more: object) -> None:
                seen.append((_name, str(task_result.status)))

            signal.connect(receive)
            stack.callback(signal.disconnect, receive)
        yield seen


# --- What is enqueued ----------------------------------------------------------------------------

ENQUEUED: Final[tuple[Callable[[], AnyResult], ...]] = (
    lambda: tasks.add.enqueue(1),
    lambda: tasks.add_async.enqueue(1, b=2),
    lambda: tasks.look.enqueue((1, "two"), {"three": None}),
    lambda: tasks.add.using(run_after=LATER, priority=-100, queue_name="mail").enqueue(1),
    lambda: asyncio.run(tasks.add.aenqueue(1)),
)
OWN: Final = ("id", "enqueued_at")


def fields_of(result: AnyResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__slots__ if name not in OWN}  # type: ignore[attr-defined]


@pytest.mark.parametrize("enqueue", ENQUEUED)
def test_what_is_enqueued_is_what_the_library_enqueues_and_is_found_again(
    configure: Configure, enqueue: Callable[[], AnyResult]
) -> None:
    with reference("Dummy"), signals() as expected:
        wanted = enqueue()
    backend = configure(results_ttl="1h")
    with signals() as seen:
        result = enqueue()
    assert fields_of(result) == fields_of(wanted)
    assert seen == expected == [("enqueued", "READY")]
    assert backend.get_result(result.id) == result
    assert asyncio.run(backend.aget_result(result.id)) == result
    before = fields_of(result)
    result.refresh()
    asyncio.run(result.arefresh())
    assert fields_of(result) == before


REFUSED: Final[tuple[Callable[[], object], ...]] = (
    lambda: tasks.add.enqueue(dt.datetime(2030, 1, 1)),  # type: ignore[arg-type]  # noqa: DTZ001
    lambda: tasks.add.enqueue(b"\xff"),  # type: ignore[arg-type]
    lambda: tasks.add.using(run_after=dt.datetime(2030, 1, 1)),  # noqa: DTZ001
    lambda: tasks.add.using(priority=101),
    lambda: tasks.add.using(queue_name="nowhere"),
    lambda: asyncio.run(tasks.add.using(queue_name="nowhere").aenqueue(1)),
    lambda: tasks.add.get_result("123"),
    lambda: asyncio.run(tasks.add.aget_result("1 2")),
    lambda: tasks.add.get_result(tasks.add_async.enqueue(1).id),
)


@pytest.mark.parametrize("call", REFUSED)
def test_what_the_library_refuses_is_refused_in_the_same_words(
    configure: Configure, call: Callable[[], object]
) -> None:
    with reference("Dummy"), pytest.raises(Exception) as wanted:
        call()
    configure(results_ttl="1h")
    with pytest.raises(type(wanted.value)) as refused:
        call()
    assert str(refused.value) == str(wanted.value)


def test_a_task_is_enqueued_at_once_also_within_a_transaction(configure: Configure) -> None:
    backend = configure()
    with transaction.atomic():
        tasks.add.enqueue(1)
        assert backend.client.topic("default").ready == 1


def test_with_an_outbox_a_task_is_enqueued_with_its_transaction_or_not_at_all(
    configure: Configure,
) -> None:
    backend = configure(outbox="default", topic_prefix="shop.", results_ttl="1h")
    call_command("migrate", verbosity=0)
    with transaction.atomic():
        tasks.add.enqueue(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        result = tasks.add.using(run_after=LATER, priority=1).enqueue(2)
    with connection.cursor() as cursor:
        cursor.execute("SELECT topic, body, options FROM delayd_outbox")
        ((topic, body, options),) = cursor.fetchall()
        cursor.execute("DELETE FROM delayd_outbox")
    assert not backend.client.topic("default").jobs
    backend.client.put(topic, bytes(body), **json.loads(options))  # as the relay does
    assert backend.get_result(result.id) == result
    found = backend.client.find("shop.default", result.id)
    assert (found.state, found.priority) == ("delayed", 65_535)


def test_an_enqueue_whose_answer_was_lost_may_be_sent_again(configure: Configure) -> None:
    backend = configure()
    result = tasks.add.enqueue(1)
    backend._put(result.task, result)
    assert backend.client.topic("default").ready == 1


def test_a_task_of_other_settings_is_checked_again_when_it_is_enqueued(
    configure: Configure,
) -> None:
    configure()
    task = tasks.add.using(queue_name="mail")
    backend = configure(queues=("default",))
    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid for backend"):
        task.enqueue(1)
    assert backend.client.topics()[0].jobs == 0


def test_without_a_time_to_live_there_are_no_results(configure: Configure) -> None:
    backend = configure()
    result = tasks.add.enqueue(1)
    assert drain() == 1
    assert [topic.name for topic in backend.client.topics()] == ["default"]
    assert not backend.supports_get_result
    with reference("Immediate"), pytest.raises(NotImplementedError) as wanted:
        task_backends["default"].get_result(result.id)
    for look in (lambda: backend.get_result(result.id), result.refresh):
        with pytest.raises(NotImplementedError, match=str(wanted.value)):
            look()


# --- What becomes of it --------------------------------------------------------------------------

RUN: Final[tuple[tuple[AnyTask, tuple[object, ...]], ...]] = (
    *((tasks.add, (1,)), (tasks.add_async, (1,)), (tasks.look, ("x",)), (tasks.add, ())),
    *((tasks.give, (what,)) for what in ("nothing", "tuple", "bytes", "set", "raw")),
    *((tasks.fail, ("words",)), (tasks.leave, ())),
)


def outcome_of(result: AnyResult) -> tuple[object, ...]:
    errors = [(each.exception_class, each.traceback.splitlines()[-1]) for each in result.errors]
    times = result.enqueued_at, result.started_at, result.finished_at
    assert None not in times
    assert sorted(times) == list(times)  # type: ignore[type-var]
    assert result.last_attempted_at == result.started_at
    value = result.return_value if result.status == "SUCCESSFUL" else None
    about = result.task, result.args, result.kwargs, result.backend, result.attempts
    return (*about, str(result.status), value, errors)


@pytest.mark.parametrize(("task", "arguments"), RUN)
def test_what_becomes_of_a_task_is_what_the_library_makes_of_it(
    configure: Configure, task: AnyTask, arguments: tuple[object, ...]
) -> None:
    with reference("Immediate"), signals() as expected:
        wanted = outcome_of(task.enqueue(*arguments))
    configure(results_ttl="1h")
    with signals() as seen:
        result = task.enqueue(*arguments)
        assert drain() == 1
    result.refresh()
    assert outcome_of(result) == wanted
    assert seen == expected
    assert task.get_result(result.id) == result


def test_a_receiver_that_raises_neither_fails_a_task_nor_repeats_it(configure: Configure) -> None:
    def raises(**_more: object) -> None:
        raise RuntimeError

    backend = configure(results_ttl="1h")
    result = tasks.add.enqueue(1)
    for signal in (task_started, task_finished):
        assert isinstance(signal, Signal)
        signal.connect(raises)
    try:
        assert drain() == 1
    finally:
        for signal in (task_started, task_finished):
            signal.disconnect(raises)
    assert backend.get_result(result.id).return_value == 2


def test_what_is_enqueued_is_at_the_daemon_as_the_options_say(configure: Configure) -> None:
    backend = configure(topic_prefix="shop.", ttr="5m")
    result = tasks.look.using(run_after=LATER).enqueue(1)
    job = backend.client.find("shop.mail", result.id)
    assert (job.priority, job.ttr, job.state) == (65_529, 300.0, "delayed")
    assert job.due == LATER.replace(microsecond=124_000)  # never early
    with pytest.raises(TaskResultDoesNotExist):
        configure(results_ttl="1h", topic_prefix="other.").get_result(result.id)
