"""Tasks, on the daemon in memory: what is put, what is called, and what no task can work on."""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import pytest

from delayd.client import AsyncJob, Job, NotATask, PutResult, Tasks
from delayd.testing.fake import FakeDelayd

if TYPE_CHECKING:
    from delayd.client.tasks import Later

App = Tasks[PutResult, Job]


@pytest.fixture
def fake() -> FakeDelayd:
    return FakeDelayd()


@pytest.fixture
def app(fake: FakeDelayd) -> App:
    return Tasks(fake.client())


def test_a_task_is_put_with_its_arguments_and_called_when_it_is_due(
    fake: FakeDelayd, app: App
) -> None:
    calls: list[tuple[str, str]] = []

    @app.task("mail", ttr="5m", priority=7)
    def send(to: str, subject: str = "Hello") -> None:
        calls.append((to, subject))

    put = send.put("ada", subject="Hi", delay="1h", key="ada", priority=8)
    job = app.client.get(put.id)
    assert (job.topic, job.key, job.ttr, job.priority) == ("mail", "ada", 300, 8)
    assert job.json() == {"task": "mail", "args": ["ada", "Hi"], "kwargs": {}}
    assert app.drain() == 0
    fake.advance("1h")
    assert app.drain() == 1
    send("bob")
    send.options(delay="1h", key="eve").put("eve")
    fake.advance("1h")
    assert app.drain() == 1
    assert calls == [("ada", "Hi"), ("bob", "Hello"), ("eve", "Hello")]
    with pytest.raises(TypeError):  # and type checkers know
        send.put()  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        send.options(delay="1h").put("ada", 7, 7)  # type: ignore[call-overload]


def test_an_option_with_the_name_of_a_parameter_is_an_argument(app: App) -> None:
    @app.task("fetch")
    def fetch(url: str, *, key: int = 0) -> None: ...

    put = fetch.options(key="mine").put("https://example.com", key=3)
    job = app.client.get(put.id)
    assert (job.key, job.json()["args"], job.json()["kwargs"]) == (
        *("mine", ["https://example.com"], {"key": 3}),
    )


def test_a_task_has_a_schedule_that_calls_it(fake: FakeDelayd, app: App) -> None:
    calls: list[tuple[str, str]] = []

    @app.task("reports", topic="low", ttr="5m", delay="1h", key="k")
    def report(name: str, limit: str = "none") -> None:
        calls.append((name, limit))

    made = report.schedule("nightly", "all", cron="30 2 * * *", priority=7, limit="few")
    assert (made.topic, made.definition["cron"], made.definition["ttr"]) == (
        *("low", "30 2 * * *", "5m"),
    )
    assert made.json() == {"task": "reports", "args": ["all", "few"], "kwargs": {}}
    assert "limit" not in made.definition  # it is a parameter of the function
    fake.advance("2d")
    assert [job.priority for job in app.client.jobs("low")] == [7, 7]
    assert app.drain() == 2
    assert calls == [("all", "few")] * 2
    for wrong in ({"crom": "@daily"}, {"cron": "@daily", "delay": "1h"}):
        with pytest.raises(TypeError, match="task 'reports': got an unexpected keyword argument"):
            report.schedule("other", "all", **wrong)


@pytest.mark.parametrize(
    ("arguments", "named", "words"),
    [
        ((), {}, "task 'mail': missing a required argument: 'to'"),
        (("a", "b", "c"), {}, "task 'mail': too many positional arguments"),
        (("a",), {"dealy": "1h"}, "task 'mail': got an unexpected keyword argument 'dealy'"),
        ((b"a",), {}, "task 'mail', argument 1: Object of type bytes is not JSON"),
        (("a",), {"subject": {1}}, "task 'mail', argument 2: Object of type set is not JSON"),
        (("a", [{"b": {1: "c"}}]), {}, "task 'mail', argument 2: 1 is a key of a dict, and only"),
    ],
)
def test_wrong_arguments_are_an_error_at_the_put(
    fake: FakeDelayd, app: App, arguments: list[Any], named: dict[str, Any], words: str
) -> None:
    @app.task("mail")
    def send(to: str, subject: str = "Hello") -> None: ...

    before = fake.requests
    with pytest.raises(TypeError, match=words):
        send.put(*arguments, **named)
    assert fake.requests == before


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"hello", "the body of the job is not JSON"),
        (b"[" * 60_000, "the body of the job is not JSON"),
        ([1], 'the body of the job is not {"task": NAME'),
        ({"task": "mail", "args": {}}, 'the body of the job is not {"task": NAME'),
        ({"task": 7}, 'the body of the job is not {"task": NAME'),
        ({"task": "male"}, "there is no task 'male'; there are mail, sms"),
        ({"task": "mail", "args": []}, "task 'mail': missing a required argument: 'to'"),
        ({"task": "mail", "kwargs": {"to": 1, "x": 2}}, "unexpected keyword argument 'x'"),
    ],
)
def test_a_job_that_no_task_can_work_on_is_buried_with_the_reason(
    app: App, body: object, words: str
) -> None:
    @app.task("sms")
    def text(to: str) -> None: ...

    @app.task("mail")
    def send(to: str) -> None: ...

    app.client.put("mail", body)
    with pytest.raises(NotATask) as caught:
        app.drain()
    assert words in str(caught.value)
    (dead,) = app.client.dead_letters("mail")
    assert dead.failure.error == str(caught.value)


@pytest.mark.parametrize("client", [FakeDelayd.client, FakeDelayd.async_client])
@pytest.mark.parametrize("is_later", [False, True])
def test_the_traceback_of_a_task_begins_with_its_function(
    fake: FakeDelayd, client: Callable[[FakeDelayd], Any], *, is_later: bool
) -> None:
    app: Any = Tasks(client(fake))
    app.middleware(contextlib.nullcontext)
    begins: list[str] = []

    def told(error: BaseException, _job: object) -> None:
        begins.append(extract_tb(error.__traceback__)[0].name)
        worker.stop()

    def plain() -> None:
        raise ValueError("no route to host")

    async def later() -> None:
        plain()

    app.task("mail")(later if is_later else plain)
    fake.client().put("mail", {"task": "mail"})
    worker = app.worker(on_error=told)
    ran = worker.run()
    if ran is not None:
        asyncio.run(ran)
    assert begins == ["later" if is_later else "plain"]


def test_a_task_knows_its_job_and_nothing_else_does(fake: FakeDelayd, app: App) -> None:
    seen: list[Job] = []

    @app.task("mail", ttr=60)
    def send() -> None:
        seen.append(app.job)
        app.job.touch()

    put = send.put()
    app.drain()
    assert seen[0].id == put.id
    assert seen[0].expires is not None
    with pytest.raises(LookupError, match="no task is running here"):
        app.job  # noqa: B018 - it raises


def test_middleware_is_around_each_call_the_first_outermost(app: App) -> None:
    steps: list[str] = []

    def noting(name: str) -> Any:  # noqa: ANN401 - a middleware
        @contextlib.contextmanager
        def around(job: Job) -> Iterator[None]:
            steps.append(f"{name} {job.topic}")
            try:
                yield
            finally:
                steps.append(f"{name} ends")

        return around

    app.middleware(noting("outer"))
    app.middleware(noting("inner"))

    @app.task("mail")
    def send() -> None:
        steps.append("send")

    send.put()
    app.drain()
    assert steps == ["outer mail", "inner mail", "send", "inner ends", "outer ends"]


def test_a_task_that_puts_another_is_drained_to_the_end(app: App) -> None:
    @app.task("count", topic="numbers")
    def count(left: int) -> None:
        if left:
            count.put(left - 1)

    count.put(3)
    assert app.drain() == 4
    assert app.topics == ["numbers"]


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "enqueue"])
def test_what_other_libraries_call_a_put_is_answered_with_what_to_use(app: App, name: str) -> None:
    @app.task("mail")
    def welcome(to: str) -> None: ...

    words = rf"a task has no {name}: use put .* as in welcome\.put\(\.\.\.\), and delay='1h'"
    with pytest.raises(AttributeError, match=words):
        getattr(welcome, name)
    assert not hasattr(welcome, "__wrapped__")  # what is asked of any function
    with pytest.raises(AttributeError, match="'Task' object has no attribute 'ptu'"):
        welcome.ptu("ada")  # type: ignore[attr-defined]  # and type checkers know


def test_a_name_is_of_one_task(app: App) -> None:
    app.task("mail")(lambda: None)
    with pytest.raises(ValueError, match="there is a task 'mail' already"):
        app.task("mail")


def test_a_client_and_its_worker_run_both_kinds_of_functions(fake: FakeDelayd, app: App) -> None:
    seen: list[str] = []

    @app.task("plain")
    def plain(word: str) -> None:
        seen.append(word)

    @app.task("later")
    async def later(word: str) -> None:
        await asyncio.sleep(0)
        seen.append(f"{word} {app.job.topic}")
        worker.stop()

    plain.put("a")
    later.put("b", delay="1d")
    worker = app.worker(concurrency=2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(60)
    assert seen == ["a", "b later"]
    assert not app.client.topics() or not [t for t in app.client.topics() if t.jobs]


async def test_with_asyncio_both_kinds_run_too(fake: FakeDelayd) -> None:
    app: Tasks[Later, AsyncJob] = Tasks(fake.async_client())
    seen: list[str] = []

    @app.task("plain")
    def plain(word: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(f"{word} {app.job.topic}")

    @app.task("later")
    async def later(word: str) -> None:
        await asyncio.sleep(0)
        seen.append(word)
        if word == "c":
            worker.stop()

    await plain.put("a")
    await later.put("b")
    assert await app.drain() == 2
    assert sorted(seen) == ["a plain", "b"]
    assert (await later.schedule("weekly", "c", every="7d")).topic == "later"
    worker = app.worker()
    await worker.run()
    assert seen[-1] == "c"


@pytest.mark.parametrize("signals", ["TERM TERM", "INT TERM", "TERM INT"])
@pytest.mark.parametrize("kind", ["plain", "asyncio"])
def test_a_second_signal_gives_the_jobs_back_and_waits_for_no_function(
    fake: FakeDelayd, caplog: pytest.LogCaptureFixture, kind: str, signals: str
) -> None:
    app: Any = Tasks(fake.client() if kind == "plain" else fake.async_client())
    may_end = threading.Event()

    def slow() -> None:
        for number in signals.split():
            os.kill(os.getpid(), signal.Signals[f"SIG{number}"])
            while not caplog.messages:
                time.sleep(0.001)
        may_end.wait(60)

    app.task("slow")(slow)
    job_id = fake.client().put("slow", {"task": "slow"}, retry="2h").id
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            app.run()
        assert not may_end.is_set()
        assert {signal.getsignal(number) for number in handlers} == {
            signal.default_int_handler,
            handlers[signal.SIGTERM],
        }
    finally:
        may_end.set()
        signal.signal(signal.SIGINT, handlers[signal.SIGINT])
    job = fake.client().get(job_id)
    assert (job.state, job.attempts) == ("ready", 0)
    told = f"job {job_id} of topic 'slow' was given back, and no attempt is counted"
    assert caplog.messages[1:] == [told]


def test_bodies_that_other_programs_put_may_leave_out_what_is_empty(app: App) -> None:
    seen: list[object] = []
    app.task("mail")(lambda *arguments, **named: seen.append((arguments, named)))
    app.client.put("mail", json.dumps({"task": "mail"}))
    app.client.put("mail", json.dumps({"task": "mail", "args": [1], "kwargs": {"a": 2}}))
    assert app.drain() == 2
    assert seen == [((), {}), ((1,), {"a": 2})]
