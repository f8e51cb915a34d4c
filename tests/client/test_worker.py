"""Workers, on the daemon in memory, and jobs that touch themselves."""

import asyncio
import functools
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from queue import Queue
from traceback import extract_tb
from typing import Any, Final

import pytest

from delayd.client import (
    AsyncJob,
    AsyncWorker,
    Client,
    ConnectionLost,
    DelaydError,
    Draining,
    Invalid,
    Job,
    NotReserved,
    PutOptions,
    Unreachable,
    Worker,
)
from delayd.client.attempts import Outage
from delayd.client.http_calls import HttpCalls
from delayd.client.steps import carried_out
from delayd.client.touching import Toucher, touched
from delayd.client.work_loop import FailurePause
from delayd.client.worker import CANCELLED, Trouble
from delayd.limits import ERROR_BYTES_MAX
from delayd.testing.daemon import Daemon
from delayd.testing.fake import FakeDelayd
from tests.client.working import Working
from tests.client.worlds import TOPICS, http_url, line_url


def test_a_worker_calls_its_handler_with_each_job_and_acknowledges_it(work: Working) -> None:
    work.client.put_many("mail", [{"body": n} for n in range(20)])
    seen: list[int] = []

    def handle(job: Job) -> None:
        seen.append(job.json())
        if len(seen) == 20:
            work.worker.stop()

    work.run(handle, concurrency=4)
    assert sorted(seen) == list(range(20))
    assert [topic.jobs for topic in work.client.topics()] == [0]


def test_a_handler_that_raises_has_failed_its_attempt_and_the_worker_goes_on(
    work: Working, caplog: pytest.LogCaptureFixture
) -> None:
    work.client.set_policy("mail", {"retry": "15s 3m", "exhausted": "bury"})
    put = work.client.put("mail", "x")
    told: list[tuple[str, int, str]] = []

    def note(error: BaseException, job: Job) -> None:
        told.append((str(error), job.id, extract_tb(error.__traceback__)[0].name))

    def fail(job: Job) -> None:
        if job.attempt == 3:
            work.worker.stop()
        raise ValueError(f"attempt {job.attempt}")

    work.run(fail, on_error=note)
    assert told == [(f"attempt {n}", put.id, "handle") for n in (1, 2, 3)]
    assert not caplog.records
    info = work.client.get(put.id)
    assert (info.state, info.attempts) == ("buried", 3)
    assert info.failure is not None
    assert info.failure.error.startswith("ValueError: attempt 3 (working.py:")


class Faulty:
    """Fails as often as it is told, and then does what the fake does."""

    def __init__(self, fake: FakeDelayd, errors: list[Exception]) -> None:
        self._inner = fake.client()
        self._errors = iter(errors)

    def run(self, steps: Any) -> Any:  # noqa: ANN401 - as what it stands for
        if (error := next(self._errors, None)) is not None:
            raise error
        return self._inner._run(steps)

    def close(self) -> None:
        """Nothing is open."""


def test_a_worker_waits_for_a_daemon_that_is_away_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeDelayd()
    fake.client().put("mail", "x")
    errors: list[Exception] = [
        Unreachable("http://h", "refused"),
        ConnectionLost("http://h", "closed", may_have_happened=True),
        Draining("not now"),
    ]
    client = Client.over(Faulty(fake, errors.copy()), HttpCalls())
    told: list[BaseException] = []
    pauses: list[float] = []

    def chance() -> float:
        pauses.append(1.0)
        return 0.0

    worker = Worker(
        client,
        "mail",
        lambda job: worker.stop(),
        on_error=lambda error, job: told.append(error),
        chance=chance,
    )
    worker.run()
    assert told == errors[:1]  # one outage, told once
    assert caplog.messages == ["the daemon is back"]
    assert len(pauses) == 3


def test_a_worker_raises_what_is_no_passing_trouble() -> None:
    client = Client.over(Faulty(FakeDelayd(), [NotReserved("never for a reserve")]), HttpCalls())
    with pytest.raises(NotReserved):
        Worker(client, "mail", print, concurrency=3).run()


def test_a_job_in_its_block_is_touched_until_the_block_ends() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put("mail", "x", ttr=60)
    job = client.reserve("mail", timeout=0)
    fake.advance(40)
    assert carried_out(touched(job))
    fake.advance(40)
    assert carried_out(touched(job))
    fake.advance(60)
    assert not carried_out(touched(job))
    assert job.is_lost


def touchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "delayd-touch"]


def in_hand(monkeypatch: pytest.MonkeyPatch) -> tuple[Job, "Queue[Job]"]:
    """A job that is to be touched every 10 ms, and the jobs that are."""
    client = FakeDelayd().client()
    client.put("mail", "x", ttr=0.03)
    touched_jobs: Queue[Job] = Queue()
    monkeypatch.setattr(client, "touch", touched_jobs.put)
    return client.reserve("mail", timeout=0), touched_jobs


def test_one_thread_touches_one_job_after_the_other_and_ends_some_time_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(touchers())
    job, touched_jobs = in_hand(monkeypatch)
    toucher = Toucher(linger_s=0.3)
    toucher.add(job, 0.03)
    assert touched_jobs.get(timeout=60) is job
    (thread,) = set(touchers()) - before
    toucher.discard(job)
    toucher.add(job, 0.03)
    assert touched_jobs.get(timeout=60) is job
    assert set(touchers()) - before == {thread}
    toucher.discard(job)
    thread.join(60)
    assert not thread.is_alive()


def test_a_toucher_that_is_closed_ends_with_its_last_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(touchers())
    job, touched_jobs = in_hand(monkeypatch)
    job.client.keep(job)
    (thread,) = set(touchers()) - before
    job.client.close()
    assert touched_jobs.get(timeout=60) is job
    job.client.keep_no_more(job)
    thread.join(60)
    assert not thread.is_alive()


# --- Handlers of the wrong kind ------------------------------------------------------------------


async def awaited(job: object) -> None:
    await asyncio.sleep(0)


def plain(job: object) -> None:
    pass


def yielding(job: object) -> Iterator[int]:
    yield 1


async def yielding_later(job: object) -> AsyncIterator[int]:
    yield 1


class Awaited:
    async def __call__(self, job: object) -> None:
        await awaited(job)


class Unawaited:
    def __call__(self, job: object) -> Any:  # noqa: ANN401 - a coroutine, or nothing
        return None


@functools.wraps(awaited)
def decorated(job: object) -> Coroutine[Any, Any, None]:
    return awaited(job)


@pytest.mark.parametrize(
    "handler",
    [awaited, functools.partial(awaited), Awaited(), Awaited().__call__, yielding, yielding_later],
)
def test_a_worker_refuses_a_handler_whose_call_only_begins_the_work(handler: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="give a coroutine function to an AsyncWorker"):
        Worker(FakeDelayd().client(), "mail", handler)


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_worker_of_nobody_is_refused(work: Working, concurrency: int) -> None:
    with pytest.raises(Invalid, match=f"^concurrency: must be at least 1, and is {concurrency}$"):
        work.run(lambda _job: None, concurrency=concurrency)


@pytest.mark.parametrize("begin", [awaited, yielding, yielding_later])
def test_a_handler_that_returns_unfinished_work_has_failed_its_attempt(
    begin: Callable[[Job], object],
) -> None:
    client = FakeDelayd().client()
    put = client.put("mail", "x", retry="1h")

    def handle(job: Job) -> object:
        worker.stop()
        return begin(job)

    worker = Worker(client, "mail", handle)
    worker.run()
    info = client.get(put.id)
    assert info.state == "delayed"
    assert info.failure is not None
    assert info.failure.error.startswith("TypeError: the handler returned")


@pytest.mark.parametrize(
    "handler", [plain, lambda job: None, functools.partial(plain), print, yielding]
)
def test_a_worker_with_asyncio_refuses_a_plain_function(handler: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="is no coroutine function"):
        AsyncWorker(Any, "mail", handler)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("handler", "state"),
    [
        *[(each, "done") for each in (awaited, functools.partial(awaited), Awaited(), decorated)],
        (Unawaited(), "delayed"),
    ],
)
def test_a_worker_with_asyncio_awaits_what_it_can_and_fails_what_it_cannot(
    handler: Any,  # noqa: ANN401 - the one or the other
    state: str,
) -> None:
    fake = FakeDelayd()
    fake.client().put("mail", "x", retry="1h")

    async def go() -> None:
        client = fake.async_client()
        worker = AsyncWorker(client, "mail", handler)
        (job,) = await client.reserve_many("mail", limit=1)
        await worker._handle(job)

    asyncio.run(go())
    left = [job.state for topic in fake.client().topics() for job in fake.client().jobs(topic.name)]
    assert left == [state] * (state != "done")


def test_a_handler_that_awaits_what_is_cancelled_has_failed_and_ends_no_worker(
    work: Working,
) -> None:
    put = work.client.put("mail", "x", retry="1h")
    work.client.put("mail", "y")
    told: list[str] = []

    def handle(job: Job) -> None:
        if job.text == "x":
            raise asyncio.CancelledError
        work.worker.stop()

    work.run(handle, on_error=lambda error, _job: told.append(str(error)))
    assert told == [CANCELLED]
    assert [(job.id, job.state) for job in work.client.jobs("mail")] == [(put.id, "delayed")]


# --- What is said --------------------------------------------------------------------------------


def test_a_failed_attempt_is_logged_with_its_traceback(
    work: Working, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_job: object) -> None:
        work.worker.stop()
        raise ValueError("no such user")

    put = work.client.put("mail", "x", retry="1h")
    work.run(fail)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("delayd", "ERROR")
    assert record.message == f"an attempt at job {put.id} of topic 'mail' failed: no such user"
    assert 'raise ValueError("no such user")' in caplog.text
    assert record.exc_info is not None
    assert extract_tb(record.exc_info[2])[0].name == "handle"


def test_an_acknowledgement_that_is_lost_is_no_failed_attempt_and_is_told_in_one_line(
    work: Working, caplog: pytest.LogCaptureFixture
) -> None:
    lost = ConnectionLost("http://h", "reset", may_have_happened=True)

    def acknowledge(_jobs: object) -> None:
        raise lost

    def run(on_error: Trouble | None) -> None:
        work.client.put("mail", "x")
        work.run(
            lambda _job: work.worker.stop(),
            prepare=lambda client, _worker: setattr(client, "ack_many", acknowledge),
            on_error=on_error,
        )

    run(None)
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.message == (
        "job 1 of topic 'mail' was done, but acknowledging it failed, so it may come again: the"
        " connection to http://h was lost (reset); this may or may not have been done"
    )
    told: list[BaseException] = []
    run(lambda error, _job: told.append(error))
    assert told == [lost]


def test_the_place_of_an_exception_is_kept_also_where_its_words_are_many() -> None:
    client = FakeDelayd().client()
    put = client.put("mail", "x", retry="1h")
    with pytest.raises(ValueError, match="üüüü"), client.reserve("mail"):
        raise ValueError("ü" * 5_000)
    failure = client.get(put.id).failure
    assert failure is not None
    assert failure.error.startswith("ValueError: üüüü")
    line = test_the_place_of_an_exception_is_kept_also_where_its_words_are_many.__code__
    assert failure.error.endswith(f"ü (test_worker.py:{line.co_firstlineno + 4})")
    assert len(failure.error.encode()) <= ERROR_BYTES_MAX


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


STOPPING: Final = "stopping when the jobs in hand are finished; a second signal gives them back"
GIVEN_BACK: Final = "job {} of topic 'mail' was given back, and no attempt is counted"


def test_ctrl_c_lets_the_job_in_hand_be_finished(
    work: Working, ctrl_c: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    work.client.put_many("mail", [{"body": n} for n in range(2)])

    def handle(_job: object) -> Any:  # noqa: ANN401 - with asyncio it is awaited
        ctrl_c()
        return work.worker._is_stopping.wait()

    work.run(handle)
    assert [(job.id, job.state) for job in work.client.jobs("mail")] == [(2, "ready")]
    assert caplog.messages == [STOPPING]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_cancels_handlers_with_asyncio_and_gives_their_jobs_back(
    ctrl_c: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeDelayd()
    fake.client().put_many("mail", [{"body": n, "retry": "1h"} for n in range(3)])

    async def go() -> None:
        async def handle(job: AsyncJob) -> None:
            if job.id == 1:
                await asyncio.Event().wait()  # until it is cancelled
            ctrl_c()
            ctrl_c()  # the third job is reserved, and not begun
            await asyncio.Event().wait()

        await AsyncWorker(fake.async_client(), "mail", handle, concurrency=3).run()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(go())
    left = [(each.state, each.attempts) for each in fake.client().jobs("mail")]
    assert left == [("ready", 0)] * 3
    given_back = [message for message in caplog.messages if "was given back" in message]
    assert given_back == [GIVEN_BACK.format(number) for number in (1, 2, 3)]


async def test_a_second_signal_is_the_second_before_the_loop_has_had_a_step() -> None:
    async def handle(job: AsyncJob) -> None:
        """Do nothing."""

    worker = AsyncWorker(FakeDelayd().async_client(), "mail", handle)
    worker.stop_soon(asyncio.get_running_loop())
    assert worker.is_stopping
    await worker.run()


def test_a_handler_of_sigint_that_the_program_has_is_left_alone(
    work: Working, ctrl_c: Callable[[], None]
) -> None:
    work.client.put("mail", "x")
    came = []
    signal.signal(signal.SIGINT, lambda *_: came.append(1))

    def handle(_job: object) -> None:
        ctrl_c()
        work.worker.stop()

    work.run(handle)
    assert came == [1]


# --- Jobs that fail again at once ----------------------------------------------------------------

DOUBLED: Final = [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
URLS: Final = (http_url, line_url)


class Passing:
    """An event on which a wait passes at once, and which is set after so many."""

    def __init__(self, waits_max: int) -> None:
        self.waits_s: list[float] = []
        self.now_s = 0.0
        self._waits_max = waits_max

    def is_set(self) -> bool:
        return len(self.waits_s) >= self._waits_max

    def wait(self, within_s: float) -> None:
        self.waits_s.append(within_s)
        self.now_s += within_s

    async def wait_later(self, pause_s: float) -> None:
        self.wait(pause_s)


@pytest.mark.parametrize("url", URLS)
def test_a_job_that_always_fails_without_a_rule_is_tried_after_growing_pauses(
    work: Working, daemon: Daemon, url: Callable[[Daemon], str]
) -> None:
    topic, attempts, stop = f"hot-{next(TOPICS)}", [], Passing(len(DOUBLED))

    def fail(job: Job) -> None:
        attempts.append(job.id)
        raise ValueError("always")

    def prepare(_client: object, worker: Any) -> None:  # noqa: ANN401 - of either kind
        worker._is_stopping = stop
        worker._loop.pause = FailurePause(lambda: stop.now_s)
        if not work.is_plain:
            worker._wait = stop.wait_later

    with Client(url(daemon)) as client:
        put = client.put(topic, "x")
        work.run(fail, topic, url=url(daemon), prepare=prepare)
        client.cancel(put.id)
    assert stop.waits_s == DOUBLED
    assert len(attempts) == len(DOUBLED)


@pytest.mark.parametrize("url", URLS)
def test_calls_of_other_threads_leave_the_connections_of_jobs_in_hand_alone(
    daemon: Daemon, url: Callable[[Daemon], str]
) -> None:
    topic, other = f"busy-{next(TOPICS)}", f"calm-{next(TOPICS)}"
    done: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while jobs := client.reserve_many(topic, limit=1, timeout=0):
                with jobs[0] as job:
                    for _ in range(3):
                        job.touch()
                        client.put(other, "x", delay=60)
                        client.get(job.id)
                    done.append(job.json())
        except DelaydError as error:
            errors.append(error)

    with Client(url(daemon)) as client:
        client.put_many(topic, [{"body": number} for number in range(32)])
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.clear(other)
    assert errors == []
    assert sorted(done) == list(range(32))


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("delayed_by", ["a rule", "the handler", "nothing, it is done"])
def test_a_worker_makes_no_pause_where_the_job_waits_or_is_done(
    daemon: Daemon, url: Callable[[Daemon], str], delayed_by: str
) -> None:
    topic = f"cold-{next(TOPICS)}"

    def handle(job: Job) -> None:
        worker.stop()
        if delayed_by == "the handler":
            job.nack(delay="1h")
        if delayed_by == "a rule":
            raise ValueError("always")

    with Client(url(daemon)) as client:
        options: PutOptions = {"retry": "1h"} if delayed_by == "a rule" else {}
        client.put(topic, "x", **options)
        worker = Worker(client, topic, handle)
        worker._loop.pause.failed()  # as after another job
        assert worker._loop.pause.left_s() > 0
        (job,) = client.reserve_many(topic, limit=1, timeout=0)
        worker._handle(job)
        assert worker._loop.pause.left_s() == 0


@pytest.mark.thorough
def test_without_a_daemon_no_pause_takes_time() -> None:
    client = FakeDelayd().client()
    client.put("mail", "x")
    attempts, stop = [], Passing(1)

    def handle(job: Job) -> None:
        attempts.append(job.id)
        if len(attempts) == 100:
            stop.wait(0)
        raise ValueError("always")

    worker = Worker(client, "mail", handle)
    worker._is_stopping = stop  # type: ignore[assignment]
    worker.run()
    assert stop.waits_s == [0]


# --- Outages -------------------------------------------------------------------------------------


def test_what_is_learnt_late_of_an_outage_is_not_told() -> None:
    outage, told = Outage(), []
    outage.tell = lambda error: told.append("back" if error is None else str(error))
    slow = outage.era
    outage.begin(Draining("first"), slow)
    outage.begin(Draining("at the same time"), slow)
    outage.end(slow)  # an answer from before
    assert told == ["first"]
    outage.end(outage.era)
    outage.begin(Draining("late"), slow)
    assert told == ["first", "back"]
    outage.begin(Draining("second"), outage.era)
    assert told == ["first", "back", "second"]
