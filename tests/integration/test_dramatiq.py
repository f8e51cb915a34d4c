"""The broker for Dramatiq: what every broker does, over its own stub and ours, and what ours adds.

A fact of the first kind is told once and runs over Dramatiq's StubBroker, and over delayd by HTTP
and by the line protocol. Delays are a few milliseconds of the real clock.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import ConnectionFailed, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Middleware, SkipMessage
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from delayd.client import BodyTooBig, Client, TopicNotFound, WrongProtocol
from delayd.dramatiq import DelaydBroker, DelaydConsumer, DelaydMessage
from delayd.testing.daemon import Daemon, running_daemon
from tests.client.worlds import http_url, line_url
from tests.http_client import HTTP
from tests.pages import Reader
from tests.rigs.process import daemon_of
from tests.rigs.waiting import until

QUEUES: Final = itertools.count(1)
TIMEOUT_MS: Final = 20
"""How long a consumer waits in these tests, and so how long the end of a worker takes."""
JOIN_MS: Final = 2_000
Sent = dramatiq.Message[Any]
KINDS: Final = ("stub", "http", "line")


class Log(Middleware):
    """What the middleware is told of messages, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - each of the events
        if name.startswith(("before_", "after_")) and "thread" not in name:
            return lambda *_args, **_more: self.events.append(name)
        return super().__getattribute__(name)


class Rig:
    """One broker, and a queue that no other test has."""

    def __init__(self, kind: str, broker: dramatiq.Broker) -> None:
        self.kind = kind
        self.broker = broker
        self.queue = f"queue-{next(QUEUES)}"
        broker.declare_queue(self.queue)

    @property
    def ours(self) -> DelaydBroker:
        assert isinstance(self.broker, DelaydBroker)
        return self.broker

    @property
    def client(self) -> Client:
        return self.ours.client

    def actor(self, function: Callable[..., Any], **options: Any) -> dramatiq.Actor[..., Any]:  # noqa: ANN401 - theirs
        name = f"actor-{next(QUEUES)}"
        how = {"broker": self.broker, "queue_name": self.queue, "actor_name": name, **options}

        def called(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - a method has no module
            return function(*args, **named)

        return cast("dramatiq.Actor[..., Any]", dramatiq.actor(**how)(called))

    @contextlib.contextmanager
    def working(self, threads: int = 1) -> Iterator[dramatiq.Worker]:
        worker = dramatiq.Worker(
            self.broker, queues={self.queue}, worker_timeout=TIMEOUT_MS, worker_threads=threads
        )
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()

    def join(self, timeout: int = JOIN_MS) -> None:
        how = {"fail_fast": False} if self.kind == "stub" else {"interval": 5}
        self.broker.join(self.queue, timeout=timeout, **how)

    def work(self, threads: int = 1) -> None:
        """Work until nothing is left."""
        with self.working(threads) as worker:
            self.join()
            worker.join()

    def dead(self) -> list[str]:
        """The ids of the dead letters."""
        if isinstance(self.broker, StubBroker):
            return [each.message_id for each in self.broker.dead_letters_by_queue[self.queue]]
        return [key for state, key in self.states() if state == "buried"]

    def consumer(self, prefetch: int = 1) -> Any:  # noqa: ANN401 - of either broker
        return self.broker.consume(self.queue, prefetch=prefetch, timeout=TIMEOUT_MS)

    def send(self, *args: object, **options: Any) -> Sent:  # noqa: ANN401 - theirs
        """Send a message that no worker looks at."""
        message: Sent = dramatiq.Message(self.queue, "nobody", args, {}, options)
        return self.broker.enqueue(message)

    def states(self) -> list[tuple[str, str]]:
        """The states and keys of all jobs."""
        try:
            return sorted((job.state, job.key) for job in self.client.jobs(self.queue))
        except TopicNotFound:
            return []


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon(*HTTP) as daemon:
        yield daemon


@contextlib.contextmanager
def rig_of(kind: str, daemon: Daemon) -> Iterator[Rig]:
    if kind == "stub":
        yield Rig(kind, StubBroker())
        return
    broker = DelaydBroker(http_url(daemon) if kind == "http" else line_url(daemon))
    yield Rig(kind, broker)
    broker.close()


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Rig]:
    """Each broker."""
    with rig_of(request.param, daemon) as rig:
        yield rig


@pytest.fixture(params=KINDS[1:])
def ours(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Rig]:
    """Ours, over each protocol."""
    with rig_of(request.param, daemon) as rig:
        yield rig


# --- What every broker does ----------------------------------------------------------------------


def test_each_message_is_done_once_in_whichever_thread(rig: Rig) -> None:
    done: list[tuple[int, str]] = []
    actor = rig.actor(lambda number, word: done.append((number, word)))
    for number in range(40):
        actor.send(number, word="x")
    rig.work(threads=4)
    assert sorted(done) == [(number, "x") for number in range(40)]


def test_a_queue_has_to_be_declared_before_it_is_consumed_or_joined(rig: Rig) -> None:
    log = Log()
    rig.broker.add_middleware(log)
    log.events.clear()
    for _ in range(2):
        rig.broker.declare_queue("declared")
    expected = ["before_declare_queue", "after_declare_queue"]
    assert [event for event in log.events if "delay" not in event] == expected
    assert {rig.queue, "declared"} <= rig.broker.get_declared_queues()
    for act in (rig.broker.consume, rig.broker.join):
        with pytest.raises(QueueNotFound):
            act("undeclared")


def fails() -> None:
    raise RuntimeError("the mail server is away")


class Skip(Middleware):
    def before_process_message(self, broker: dramatiq.Broker, message: Any) -> None:  # noqa: ANN401 - theirs
        raise SkipMessage


ENQUEUED: Final = "before_enqueue after_enqueue"
RUN: Final = "before_process_message after_process_message"
ACKED: Final = "before_ack after_ack"
NACKED: Final = "before_nack after_nack"


@pytest.mark.parametrize(
    ("function", "options", "events"),
    [
        (int, {}, f"{ENQUEUED} {RUN} {ACKED}"),
        (fails, {"max_retries": 0}, f"{ENQUEUED} {RUN} {NACKED}"),
        (int, {"max_age": 1}, f"{ENQUEUED} before_process_message after_skip_message {NACKED}"),
        (
            fails,
            {"max_retries": 1, "min_backoff": 1, "max_backoff": 1},
            f"{ENQUEUED} {RUN.split()[0]} {ENQUEUED} {RUN.split()[1]} {ACKED} {RUN} {NACKED}",
        ),
    ],
)
def test_middleware_is_told_of_everything_in_order(
    rig: Rig, function: Callable[..., object], options: dict[str, Any], events: str
) -> None:
    actor = rig.actor(function, **options)
    log = Log()
    rig.broker.add_middleware(log, before=dramatiq.middleware.AgeLimit)
    log.events.clear()
    message = actor.send()
    time.sleep(0.002)  # it is older then than the oldest that may run
    rig.work()
    told = [event for event in log.events if "worker" not in event and "declare" not in event]
    if rig.kind == "stub" and "min_backoff" in options:  # its worker moves it between two queues
        at = told.index("before_delay_message")
        told[at : at + 5] = []
    assert told == events.split()
    assert rig.dead() == ([message.message_id] if NACKED in events else [])


def test_a_message_of_no_actor_is_a_dead_letter_and_one_that_middleware_skips_is_done(
    rig: Rig,
) -> None:
    message = rig.send()
    rig.work()
    ran: list[int] = []
    rig.broker.add_middleware(Skip())
    rig.actor(ran.append).send(1)
    rig.work()
    assert (ran, rig.dead()) == ([], [message.message_id])


def test_delays_are_independent_of_each_other_and_never_too_short(rig: Rig) -> None:
    ran: list[tuple[int, bool]] = []
    begun_s = time.monotonic()
    actor = rig.actor(lambda ms: ran.append((ms, time.monotonic() - begun_s >= ms / 1_000)))
    for delay_ms in (90, 40):
        actor.send_with_options(args=(delay_ms,), delay=delay_ms)
    rig.work()
    assert ran == [(40, True), (90, True)]


def test_results_pipelines_and_groups_are_those_of_dramatiq(rig: Rig) -> None:
    backend = StubBackend()
    rig.broker.add_middleware(Results(backend=backend))
    add = rig.actor(lambda *numbers: sum(numbers), store_results=True)
    pipeline = dramatiq.pipeline([add.message(1, 2), add.message(3)], broker=rig.broker)
    group = dramatiq.group([add.message(1), add.message(2)], broker=rig.broker)
    with rig.working():
        pipeline.run(), group.run()
        messages = [pipeline.messages[-1], *group.children]
        results = [
            cast("dramatiq.Message[int]", each).get_result(backend=backend, block=True)
            for each in messages
        ]
    assert results == [6, 1, 2]


def test_a_join_that_takes_too_long_is_told_so_and_a_flush_empties_all(rig: Rig) -> None:
    rig.send()
    with pytest.raises(QueueJoinTimeout):
        rig.join(timeout=1)
    rig.actor(fails, max_retries=0).send()
    rig.work()
    rig.send()
    assert len(rig.dead()) == 2
    rig.broker.flush_all()
    rig.join(timeout=1)
    assert rig.dead() == []


def test_a_consumer_holds_no_more_than_its_prefetch(rig: Rig) -> None:
    sent = [rig.send(number).message_id for number in range(4)]
    consumer = rig.consumer(prefetch=2)
    first, second = next(consumer), next(consumer)
    assert next(consumer) is None
    consumer.ack(first)
    third = next(consumer)
    assert next(consumer) is None
    consumer.nack(second), consumer.nack(third)
    fourth = next(consumer)
    assert [each.message_id for each in (first, second, third, fourth)] == sent
    assert sorted(rig.dead()) == sorted(sent[1:3])


# --- What is delayd's own ------------------------------------------------------------------------


def test_a_delayed_message_waits_in_the_daemon_under_its_id(ours: Rig) -> None:
    sent = ours.actor(int).send_with_options(delay=3_600_000)
    with ours.working() as worker:
        assert ours.states() == [("delayed", sent.message_id)]
        assert list(worker.consumers) == [ours.queue]
    ours.broker.enqueue(sent)
    ours.broker.enqueue(sent, delay=3_600_000)
    assert ours.states() == [("delayed", sent.message_id)], "one replaces the other"
    ours.broker.enqueue(sent)
    ours.work()
    assert ours.states() == []


def test_priorities_count_for_all_that_wait(ours: Rig) -> None:
    ran: list[str] = []
    low, high = ours.actor(ran.append, priority=10), ours.actor(ran.append)
    for number in range(4):
        low.send(f"low {number}")
        high.send(f"high {number}")
    high.send_with_options(args=("first",), broker_priority=5)
    ours.work()
    assert ran == ["first", *(f"{word} {n}" for word in ("high", "low") for n in range(4))]
    with pytest.raises(TypeError, match="broker_priority must be a whole number, and not 'x'"):
        ours.send(broker_priority="x")


def test_the_end_of_a_worker_gives_back_what_it_has_not_begun(ours: Rig) -> None:
    ran: list[int] = []

    def slow(number: int) -> None:
        ran.append(number)
        time.sleep(0.1)

    ours.client.set_policy(ours.queue, {"retry": "1h", "max_attempts": 2})
    actor = ours.actor(slow)
    for number in range(4):
        actor.send(number)
    with ours.working():
        while not ran:
            time.sleep(0.005)
    jobs = [*ours.client.jobs(ours.queue)]
    assert [(job.state, job.attempts) for job in jobs] == [("ready", 0)] * (4 - len(ran))
    assert jobs
    ours.work()
    assert sorted(ran) == [*range(4)]


def test_reservations_are_extended_before_and_while_a_message_runs(ours: Rig) -> None:
    ran: list[int] = []

    def slow(number: int) -> None:
        ran.append(number)
        time.sleep(0.2)

    ours.client.set_policy(ours.queue, {"ttr": "150ms"})
    actor = ours.actor(slow)
    actor.send(1), actor.send(2)
    ours.work()
    assert ran == [1, 2]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"hello", "this is no message of Dramatiq: "),
        ([], "this is no message of Dramatiq: "),
        (b"[" * 60_000, "this is no message of Dramatiq: "),
        ({"options": None}, "this is no message of Dramatiq: options is None, and no dict"),
        ({"message_id": 7}, "this is no message of Dramatiq: message_id is 7, and no str"),
        ({"surprise": 7}, "this is no message of Dramatiq: "),
    ],
)
def test_what_is_no_message_is_a_dead_letter_and_the_next_one_runs(
    ours: Rig, body: object, reason: str
) -> None:
    ran: list[int] = []
    if isinstance(body, dict):
        plain: Sent = dramatiq.Message(ours.queue, "nobody", (), {}, {})
        body = {**plain.asdict(), **body}
    ours.client.put(ours.queue, body)
    ours.actor(ran.append).send(1)
    ours.work()
    [dead] = ours.client.dead_letters(ours.queue)
    assert dead.failure is not None
    assert dead.failure.error.startswith(reason)
    assert ran == [1]


def test_a_message_that_another_program_put_without_a_key_runs(ours: Rig) -> None:
    ran: list[int] = []
    message = ours.actor(ran.append).message(1)
    ours.client.put(ours.queue, dataclasses.replace(message, queue_name="elsewhere").encode())
    ours.work()
    assert ran == [1]


def test_a_message_of_another_broker_waits_in_the_daemon_until_it_is_due(
    ours: Rig, daemon: Daemon
) -> None:
    ran: list[str] = []
    actor, now_ms = ours.actor(ran.append), time.time() * 1_000
    ours.broker.enqueue(actor.message_with_options(args=("past",), eta=now_ms))
    later = ours.broker.enqueue(actor.message_with_options(args=("later",), eta=now_ms + 3_600_000))
    with ours.working():
        until(lambda: ours.states() == [("delayed", later.message_id)])
    assert ran == ["past"]
    with Client(http_url(daemon)) as client:
        due = client.find(ours.queue, later.message_id).due
    assert due is not None
    assert due.timestamp() * 1_000 >= later.options["eta"]


def test_a_message_whose_eta_is_beyond_all_delays_holds_up_no_other(ours: Rig) -> None:
    ran: list[str] = []
    actor, now_us = ours.actor(ran.append), time.time() * 1_000_000
    ours.broker.enqueue(actor.message_with_options(args=("in microseconds",), eta=now_us))
    actor.send("next")
    with ours.working():
        until(lambda: [state for state, _ in ours.states()] == ["delayed"])
    assert ran == ["next"]


# --- A message that is enqueued again while it is in hand ----------------------------------------


class Killed(BaseException):
    """The worker's process ends here."""


def attempt(rig: Rig, consumer: DelaydConsumer, end: str) -> None:
    """Work on the next message, which fails, and let it end so."""
    message = next(consumer)
    assert message is not None
    job = message.job
    if end == "killed before the retry":
        raise Killed
    if end == "its reservation ended":
        rig.client.keep_no_more(job)
        rig.client.nack(job, counts=False)
    if end == "its retry is refused":
        rig.client.set_policy(rig.queue, {"body_bytes_max": 1})
        with pytest.raises(BodyTooBig):
            rig.broker.enqueue(message.copy(options={"retries": 1}), delay=1)
        rig.client.clear_policy(rig.queue)
    else:
        rig.broker.enqueue(message.copy(options={"retries": 1}), delay=1)
    if end == "killed after the retry":
        raise Killed
    consumer.ack(message)


@pytest.mark.parametrize(
    ("end", "retries"),
    [
        ("acknowledged", 1),
        ("killed before the retry", None),
        ("killed after the retry", 1),
        ("its reservation ended", None),
        ("its retry is refused", None),
    ],
)
def test_a_message_that_is_retried_comes_once_more_however_its_worker_ends(
    ours: Rig, daemon: Daemon, end: str, retries: int | None
) -> None:
    ours.client.set_policy(ours.queue, {"ttr": "300ms"})
    sent = ours.send()
    with rig_of(ours.kind, daemon) as killed:
        killed.queue = ours.queue
        killed.broker.declare_queue(ours.queue)
        with contextlib.suppress(Killed):
            attempt(killed, cast("DelaydConsumer", killed.consumer()), end)
            assert killed.ours.in_hand == {}
        for held in killed.ours.in_hand.values():
            killed.client.keep_no_more(held.job)
    again: list[DelaydMessage] = []
    consumer, begun_s = ours.consumer(prefetch=2), time.monotonic()
    while not again or ours.states() or time.monotonic() < begun_s + 0.1:
        if (message := next(consumer)) is not None:
            again.append(message)
            while len(ours.states()) > 1:  # the first one comes without its key, and is dropped
                assert next(consumer) is None
            consumer.ack(message)
    assert [each.message_id for each in again] == [sent.message_id]
    assert again[0].options.get("retries") == retries
    assert ours.states() == []


def test_a_message_whose_reservation_ended_before_it_ran_is_left_to_the_others(ours: Rig) -> None:
    ours.send()
    consumer = ours.consumer(prefetch=2)
    assert consumer._reserve()
    [job] = consumer._jobs
    ours.client.keep_no_more(job)
    ours.client.nack(job, counts=False)
    job.is_lost = True
    again = next(consumer)
    assert again.job.id == job.id
    assert again.job is not job


# --- Starts --------------------------------------------------------------------------------------


def told_at_start(url: str) -> BaseException:
    broker = DelaydBroker(url)
    broker.declare_queue("mail")
    with pytest.raises(Exception, match=url) as raised:
        dramatiq.Worker(broker, worker_threads=1).start()
    broker.close()
    return raised.value


def test_a_worker_that_cannot_work_ends_at_its_start_with_a_sentence(daemon: Daemon) -> None:
    told = told_at_start("http://127.0.0.1:1")
    assert isinstance(told, ConnectionFailed)
    assert "http://127.0.0.1:1" in str(told)
    wrong = told_at_start(f"http://{daemon.listens_on}")
    assert isinstance(wrong, WrongProtocol)
    assert "beanstalk" in str(wrong)
    with pytest.raises(ValueError, match="must be http://HOST:PORT"):
        DelaydBroker("redis://127.0.0.1")


def test_another_dramatiq_is_told_at_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "delayd.dramatiq")
    monkeypatch.setattr(dramatiq, "__version__", "1.16.0")
    too_old = "Dramatiq 1.16.0 is too old: pip install 'delayd[dramatiq]' for 1.17"
    with pytest.raises(ImportError, match=re.escape(too_old)):
        importlib.import_module("delayd.dramatiq")
    monkeypatch.setitem(sys.modules, "dramatiq", None)
    missing = "there is no Dramatiq here: pip install 'delayd[dramatiq]'"
    with pytest.raises(ImportError, match=re.escape(missing)):
        importlib.import_module("delayd.dramatiq")


# --- Processes -----------------------------------------------------------------------------------

PROGRAM: Final = """
import os, threading, time
import dramatiq
from delayd.dramatiq import DelaydBroker

dramatiq.set_broker(DelaydBroker("{url}"))


def note(word, number):
    with open("{file}", "a") as file:
        file.write(f"{{word}} {{number}} {{os.getpid()}} {{threading.get_ident()}}\\n")


@dramatiq.actor(max_retries=0)
def work(number):
    note("begun", number)
    time.sleep(0.03)
    note("done", number)
"""
FORK: Final = """
work.send(1)
client = dramatiq.get_broker().client
child = os.fork()
work.send(2 if child else 3)
if not child:
    os._exit(dramatiq.get_broker().client is client)
assert os.waitpid(child, 0)[1] == 0
"""


def noted(file: Path, word: str) -> list[int]:
    """The numbers of the messages that were begun or done, in order."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith(word)]


def put_numbers(broker: DelaydBroker, numbers: Iterable[int], ttr: str) -> None:
    """Enqueue a message for each number; every other one is delayed."""
    broker.client.set_policy("default", {"ttr": ttr})
    for number in numbers:
        message: Sent = dramatiq.Message("default", "work", (number,), {}, {})
        broker.enqueue(message, delay=200 if number % 2 else None)


@contextlib.contextmanager
def workers(directory: Path) -> Iterator["subprocess.Popen[str]"]:
    how = ("--processes", "2", "--threads", "2")
    process = subprocess.Popen(
        [sys.executable, "-m", "dramatiq", "program", *how],
        cwd=directory,
        env={**os.environ, "dramatiq_worker_timeout": "100"},
        text=True,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_processes_that_are_killed_lose_nothing_and_do_again_only_what_they_died_in(
    tmp_path: Path,
) -> None:
    file = tmp_path / "noted"

    with daemon_of(tmp_path / "data", *HTTP) as daemon:
        url, place = http_url(daemon), daemon.http_listens_on
        program = PROGRAM.format(url=url, file=file)
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        broker = DelaydBroker(url)
        broker.declare_queue("default")
        put = functools.partial(put_numbers, broker)
        put(range(30), ttr="300ms")
        with workers(tmp_path):
            until(lambda: len(noted(file, "done")) > 8)
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
        last = {(pid, thread): int(number) for _, number, pid, thread in lines}
        with workers(tmp_path) as process:
            until(lambda: len(noted(file, "done")) == 30)
            put(range(30, 60), ttr="10s")
            until(lambda: len(noted(file, "done")) > 38)
            daemon.kill()
            with daemon_of(tmp_path / "data", "--http", place):
                until(lambda: len(noted(file, "done")) == 60)
                process.send_signal(signal.SIGTERM)
                _, told = process.communicate(timeout=60)
                assert broker._count("default") == 0
                broker.close()
    assert process.returncode == 0
    assert "Traceback" not in told
    begun = Counter(noted(file, "begun"))
    assert set(noted(file, "done")) == set(begun) == set(range(60))
    again = {number for number, times in begun.items() if times > 1}
    assert again <= set(last.values())  # perhaps it was done, and not acknowledged yet
    assert begun.total() == 60 + len(again)


def test_a_fork_has_connections_of_its_own(daemon: Daemon, tmp_path: Path) -> None:
    program = PROGRAM.format(url=http_url(daemon), file="") + FORK
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    with Client(http_url(daemon)) as client:
        bodies = [job.body or b"" for job in client.jobs("default", bodies=True)]
    assert sorted(json.loads(body)["args"] for body in bodies) == [[1], [2], [3]]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    with running_daemon(*HTTP) as daemon:
        reader = Reader(tmp_path, daemon)
        command = tmp_path / ".bin" / "dramatiq"
        command.write_text(f'#!/bin/sh\nPYTHONPATH=. exec {sys.executable} -m dramatiq "$@"\n')
        command.chmod(0o755)
        reader.environment["dramatiq_worker_timeout"] = "100"
        reader.follow("dramatiq.md")
