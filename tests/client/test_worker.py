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
    AsyncClient,
    AsyncJob,
    AsyncWorker,
    Client,
    ConnectionLost,
    DelaydError,
    Draining,
    Job,
    NotReserved,
    PutOptions,
    Unreachable,
    Worker,
)
from delayd.client.connection_pool import Outage
from delayd.client.crew import Crew
from delayd.client.http_calls import HttpCalls
from delayd.client.jobs import Toucher, touched
from delayd.client.results import Reservation
from delayd.client.steps import Steps, carried_out
from delayd.client.work_loop import FailurePause
from delayd.client.worker import Trouble
from delayd.limits import ERROR_BYTES_MAX
from delayd.testing.daemon import Daemon
from delayd.testing.fake import FakeDelayd
from tests.client.worlds import TOPICS, http_url, line_url


def finished(worker: Worker) -> None:
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_calls_its_handler_with_each_job_and_acknowledges_it() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put_many("mail", [{"body": n} for n in range(20)])
    seen: list[int] = []

    def handle(job: Job) -> None:
        seen.append(job.json())
        if len(seen) == 20:
            worker.stop()

    worker = Worker(client, "mail", handle, concurrency=4)
    worker.run()
    assert sorted(seen) == list(range(20))
    assert [topic.jobs for topic in client.topics()] == [0]


def test_a_handler_that_raises_has_failed_its_attempt_and_the_worker_goes_on() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.set_policy("mail", {"retry": "15s 3m", "exhausted": "bury"})
    put = client.put("mail", "x")
    told: list[tuple[str, int]] = []

    def note(error: BaseException, job: Job | AsyncJob | None) -> None:
        assert job is not None
        told.append((str(error), job.id))

    def handle(job: Job) -> None:
        if job.attempt == 3:
            worker.stop()
        raise ValueError(f"attempt {job.attempt}")

    worker = Worker(client, "mail", handle, on_error=note)
    worker.run()
    assert told == [(f"attempt {n}", put.id) for n in (1, 2, 3)]
    info = client.get(put.id)
    assert (info.state, info.attempts) == ("buried", 3)
    assert info.failure is not None
    line = handle.__code__.co_firstlineno + 3
    assert info.failure.error == f"ValueError: attempt 3 (test_worker.py:{line})"


def test_a_stopped_worker_finishes_the_job_in_hand() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put_many("mail", [{"body": n} for n in range(2)])
    entered, may_go_on = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        entered.set()
        may_go_on.wait(60)
        assert job.json() == 0

    worker = Worker(client, "mail", handle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert entered.wait(60)
    worker.stop()
    may_go_on.set()
    thread.join(60)
    (left,) = client.jobs("mail", bodies=True)
    assert (left.json(), left.state) == (1, "ready")


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


def test_a_worker_with_asyncio_does_the_same() -> None:
    fake = FakeDelayd()
    seen: list[int] = []
    told: list[str] = []

    async def go() -> None:
        async with fake.async_client() as client:
            await client.put_many("mail", [{"body": n} for n in range(20)])

            async def handle(job: AsyncJob) -> None:
                await asyncio.sleep(0)
                seen.append(job.json())
                if len(set(seen)) == 20:
                    worker.stop()
                if job.json() == 7:
                    raise ValueError("seven")

            worker = AsyncWorker(
                client,
                "mail",
                handle,
                concurrency=5,
                on_error=lambda error, job: told.append(str(error)),
            )
            await worker.run()

    asyncio.run(go())
    assert set(seen) == set(range(20))
    assert told[0] == "seven"


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


# --- What threads or tasks of a worker do together -----------------------------------------------


class Alarm:
    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def wait(self) -> "Alarm":
        return self


class Desk:
    """A client, which notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def reserve_many(self, _topics: object, *, limit: int, timeout: float) -> None:
        self.asked.append(("reserve", limit))

    def ack_many(self, jobs: list[Any]) -> None:
        self.asked.append(("ack", [job.id for job in jobs]))

    def keep(self, job: Any) -> None:  # noqa: ANN401 - a job
        self.asked.append(("keep", job.id))

    def keep_no_more(self, job: Any) -> None:  # noqa: ANN401 - a job
        self.asked.append(("keep no more", job.id))


def job_of(number: int, link: object = None) -> Job:
    return Job(Client(), Reservation(number, "mail", "", b"", link=link))


def ended(steps: Steps[Any], answer: object) -> Any:  # noqa: ANN401 - its result
    """Return the result of steps that end with this answer."""
    with pytest.raises(StopIteration) as done:
        steps.send(answer)
    return done.value.value


def test_one_of_a_crew_reserves_for_all_that_wait() -> None:
    desk = Desk()
    crew = Crew(desk, "mail", 1.0, lambda *_: None)
    first, second, third = (crew.taking(Alarm) for _ in range(3))
    next(first)
    alarms = next(second), next(third)
    jobs = [job_of(number) for number in range(4)]
    assert ended(first, jobs[:1]) == jobs[:1]
    assert [alarm.is_set for alarm in alarms] == [True, False]
    assert ended(second, None) is None  # it may reserve now
    fourth = crew.taking(Alarm)
    next(fourth)
    assert desk.asked == [("reserve", 1), ("reserve", 2)]
    fourth.send(jobs[1:3])
    assert desk.asked[-1] == ("keep", 2)
    assert ended(fourth, None) == [jobs[1]]
    assert alarms[1].is_set
    assert crew.has_jobs
    assert ended(third, None) == [jobs[2]]
    assert not crew.has_jobs


def test_those_of_a_crew_that_are_ready_run_before_one_reserves_or_acknowledges() -> None:
    desk = Desk()
    crew = Crew(desk, "mail", 1.0, lambda *_: None, lambda: "others first")
    first, second = crew.taking(Alarm), crew.taking(Alarm)
    assert next(first) == "others first"
    next(second)
    first.send(None)
    assert desk.asked == [("reserve", 2)]
    jobs = [job_of(number) for number in range(3)]
    acknowledging = crew.acknowledging(jobs[0])
    assert next(acknowledging) == "others first"
    for job in jobs[1:]:
        with pytest.raises(StopIteration):
            next(crew.acknowledging(job))
    acknowledging.send(None)
    assert desk.asked[1:] == [("ack", [0, 1, 2])]


def test_a_crew_reserves_again_after_one_that_failed() -> None:
    desk = Desk()
    crew = Crew(desk, "mail", 1.0, lambda *_: None)
    first, second = crew.taking(Alarm), crew.taking(Alarm)
    next(first)
    alarm = next(second)
    with pytest.raises(Draining):
        first.throw(Draining("", "DRAINING"))
    assert alarm.is_set
    assert ended(second, None) is None
    next(crew.taking(Alarm))
    assert desk.asked == [("reserve", 1)] * 2


def test_one_of_a_crew_acknowledges_what_its_connection_holds_and_waits_for_no_other() -> None:
    desk, reports = Desk(), []
    crew = Crew(desk, "mail", 1.0, lambda *report: reports.append(report))
    jobs = [*(job_of(number, "a") for number in range(3)), *(job_of(n, "b") for n in (3, 4))]
    first = crew.acknowledging(jobs[0])
    next(first)
    for job in jobs[1:3]:
        with pytest.raises(StopIteration):
            next(crew.acknowledging(job))
    second = crew.acknowledging(jobs[3])
    next(second)
    assert desk.asked == [("ack", [0]), ("ack", [3])]  # both are under way
    refusal, lost = NotReserved("", "NOT_RESERVED"), ConnectionLost("", "", may_have_happened=True)
    with pytest.raises(StopIteration):
        second.throw(lost)
    first.send([None])
    assert ended(first, [refusal, None]) is None
    third = crew.acknowledging(jobs[4])
    next(third)
    third.close()  # cancelled
    next(crew.acknowledging(jobs[4]))
    acks = [each for each in desk.asked if each[0] == "ack"]
    assert acks == [("ack", numbers) for numbers in ([0], [3], [1, 2], [4], [4])]
    kept_no_more = [each[1] for each in desk.asked if each[0] == "keep no more"]
    assert kept_no_more == [3, 0, 1, 2]
    assert reports == [(lost, jobs[3]), (refusal, jobs[1])]


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


# --- What is said --------------------------------------------------------------------------------


def fail(job: Job | AsyncJob) -> None:
    raise ValueError("no such user")


@pytest.fixture(params=["plain", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a worker of either kind up to the end of one job, with which its handler does this."""

    def run(
        fake: FakeDelayd,
        does: Callable[[Job | AsyncJob], None] = plain,
        on_error: Trouble | None = None,
        lost: DelaydError | None = None,
    ) -> None:
        def acknowledge(_jobs: object) -> None:
            assert lost is not None
            raise lost

        is_plain = request.param == "plain"
        client: Any = fake.client() if is_plain else fake.async_client()
        if lost is not None:
            client.ack_many = acknowledge
        if is_plain:

            def handle(job: Job) -> None:
                worker.stop()
                does(job)

            worker = Worker(client, "mail", handle, on_error=on_error)
            worker.run()
            return

        async def go() -> None:
            async def handle(job: AsyncJob) -> None:
                worker.stop()
                does(job)

            worker = AsyncWorker(client, "mail", handle, on_error=on_error)
            await worker.run()

        asyncio.run(go())

    return run


def test_a_failed_attempt_is_logged_with_its_traceback(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeDelayd()
    put = fake.client().put("mail", "x", retry="1h")
    run(fake, fail)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("delayd", "ERROR")
    assert record.message == f"an attempt at job {put.id} of topic 'mail' failed: no such user"
    assert 'raise ValueError("no such user")' in caplog.text
    assert record.exc_info is not None
    assert extract_tb(record.exc_info[2])[0].name == "handle"
    failure = fake.client().get(put.id).failure
    line = fail.__code__.co_firstlineno + 1
    assert failure is not None
    assert failure.error == f"ValueError: no such user (test_worker.py:{line})"


def test_what_is_called_on_an_error_takes_the_place_of_the_log(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeDelayd()
    fake.client().put("mail", "x", retry="1h")
    told: list[tuple[str, str]] = []
    run(
        fake,
        fail,
        lambda error, job: told.append(
            (f"{job.id}: {error}", extract_tb(error.__traceback__)[0].name)
        ),
    )
    assert told == [("1: no such user", "handle")]
    assert not caplog.records


def test_an_acknowledgement_that_is_lost_is_no_failed_attempt_and_is_told_in_one_line(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeDelayd()
    fake.client().put("mail", "x")
    lost = ConnectionLost("http://h", "reset", may_have_happened=True)
    run(fake, lost=lost)
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.message == (
        "job 1 of topic 'mail' was done, but acknowledging it failed, so it may come again: the"
        " connection to http://h was lost (reset); this may or may not have been done"
    )
    told: list[BaseException] = []
    fake.client().put("mail", "x")
    run(fake, on_error=lambda error, _job: told.append(error), lost=lost)
    assert told == [lost]


def test_the_place_of_an_exception_is_kept_also_where_its_words_are_many() -> None:
    client = FakeDelayd().client()
    put = client.put("mail", "x", retry="1h")
    with pytest.raises(ValueError, match="üüüü"), client.reserve("mail"):
        raise ValueError("ü" * 5_000)
    failure = client.get(put.id).failure
    assert failure is not None
    assert failure.error.startswith("ValueError: üüüü")
    assert "ü (test_worker.py:" in failure.error
    assert len(failure.error.encode()) <= ERROR_BYTES_MAX


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_lets_the_job_in_hand_be_finished_and_a_second_one_does_not(
    ctrl_c: Callable[[], None], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = FakeDelayd().client()
    client.put_many("mail", [{"body": n} for n in range(2)])
    may_go_on = threading.Event()
    seen: list[int] = []

    def handle(job: Job) -> None:
        ctrl_c()
        worker._is_stopping.wait(60)
        if times == 2:
            ctrl_c()
            may_go_on.wait(60)
        seen.append(job.json())

    worker = Worker(client, "mail", handle, concurrency=1)
    if times == 2:
        with pytest.raises(KeyboardInterrupt):
            worker.run()
        may_go_on.set()
        assert [(each.state, each.attempts) for each in client.jobs("mail")] == [("ready", 0)] * 2
        last = "job 1 of topic 'mail' was given back, and no attempt is counted"
        assert caplog.messages[-1] == last
        return
    worker.run()
    assert seen == [0]
    assert [job.state for job in client.jobs("mail")] == ["ready"]
    assert caplog.messages == [
        "stopping when the jobs in hand are finished; a second signal gives them back"
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_does_the_same_with_asyncio(
    ctrl_c: Callable[[], None], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeDelayd()
    fake.client().put_many("mail", [{"body": n, "retry": "1h"} for n in range(times + 1)])
    seen: list[int] = []

    async def go() -> None:
        async def handle(job: AsyncJob) -> None:
            if times == 2 and job.id == 1:
                await asyncio.Event().wait()  # until it is cancelled
            ctrl_c()
            if times == 2:  # the third job is reserved, and not begun
                ctrl_c()
                await asyncio.sleep(60)
            await worker._is_stopping.wait()
            seen.append(job.json())

        worker = AsyncWorker(fake.async_client(), "mail", handle, concurrency=2 * times - 1)
        await worker.run()

    if times == 2:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(go())
        assert seen == []
        left = [(each.state, each.attempts) for each in fake.client().jobs("mail")]
        assert left == [("ready", 0)] * 3
        assert [message for message in caplog.messages if "was given back" in message] == [
            f"job {number} of topic 'mail' was given back, and no attempt is counted"
            for number in (1, 2, 3)
        ]
        return
    asyncio.run(go())
    assert seen == [0]
    assert [job.state for job in fake.client().jobs("mail")] == ["ready"]
    assert len(caplog.messages) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_a_second_signal_is_the_second_before_the_loop_has_had_a_step() -> None:
    async def handle(job: AsyncJob) -> None:
        """Do nothing."""

    worker = AsyncWorker(FakeDelayd().async_client(), "mail", handle)
    worker.stop_soon(asyncio.get_running_loop())
    assert worker.is_stopping
    await worker.run()


def test_a_handler_of_sigint_that_the_program_has_is_left_alone(ctrl_c: Callable[[], None]) -> None:
    fake = FakeDelayd()
    fake.client().put("mail", "x")
    came = []

    async def go() -> None:
        async def handle(job: AsyncJob) -> None:
            ctrl_c()
            worker.stop()

        worker = AsyncWorker(fake.async_client(), "mail", handle)
        await worker.run()

    signal.signal(signal.SIGINT, lambda *_: came.append(1))
    asyncio.run(go())
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
    daemon: Daemon, url: Callable[[Daemon], str]
) -> None:
    topic, attempts, stop = f"hot-{next(TOPICS)}", [], Passing(len(DOUBLED))

    def handle(job: Job) -> None:
        attempts.append(job.id)
        raise ValueError("always")

    with Client(url(daemon)) as client:
        put = client.put(topic, "x")
        worker = Worker(client, topic, handle)
        worker._is_stopping = stop  # type: ignore[assignment]
        worker._loop.pause = FailurePause(lambda: stop.now_s)
        worker.run()
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
def test_a_worker_with_asyncio_makes_the_same_pauses(
    daemon: Daemon, url: Callable[[Daemon], str]
) -> None:
    topic, attempts, stop = f"hot-{next(TOPICS)}", [], Passing(len(DOUBLED))

    async def handle(job: AsyncJob) -> None:
        attempts.append(job.id)
        raise ValueError("always")

    async def go() -> None:
        async with AsyncClient(url(daemon)) as client:
            put = await client.put(topic, "x")
            worker = AsyncWorker(client, topic, handle)
            worker._is_stopping = stop  # type: ignore[assignment]
            worker._wait = stop.wait_later  # type: ignore[method-assign]
            worker._loop.pause = FailurePause(lambda: stop.now_s)
            await worker.run()
            await client.cancel(put.id)

    asyncio.run(go())
    assert stop.waits_s == DOUBLED
    assert len(attempts) == len(DOUBLED)


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
