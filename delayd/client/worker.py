"""Workers: functions that are called with one job after the other.

    def send(job):
        mail(job.json())

    Worker(Client(), "mail", send, concurrency=8).run()

The end of the handler acknowledges its job, an exception reports the attempt as failed, and the
daemon's policy decides when it comes again. While the handler runs the reservation is extended.
After `stop` (also from a signal handler) or a first Ctrl-C it takes no new jobs and finishes those
in hand; a second one gives them back, and no attempt is counted. While the daemon is away, or
refuses for the moment, the worker tries again with pauses that grow; so it does where a job that
failed is ready again at once.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Final

from delayd.client.aio import AsyncClient, AsyncJob
from delayd.client.attempts import drawn
from delayd.client.crew import Alarm, Crew
from delayd.client.errors import DelaydError, wrong
from delayd.client.jobs import leaving
from delayd.client.signals import handled
from delayd.client.steps import Steps, awaited, carried_out
from delayd.client.sync import Client, Job
from delayd.client.work_loop import PASSING, FailurePause, comes_at_once, work_loop

WAIT_S: Final = 1.0
"""How long one reserve waits, and with it how long a stop may take that finds no job in hand."""
FAILED: Final = "an attempt at job %d of topic %r failed: %s"
CANCELLED: Final = "what the handler awaited was cancelled, and not by its worker"
NOT_ACKNOWLEDGED: Final = (
    "job %d of topic %r was done, but acknowledging it failed, so it may come again: %s"
)
GIVEN_BACK: Final = "job %d of topic %r was given back, and no attempt is counted"
AWAY: Final = "the daemon is away, trying again: %s"
STOPPING: Final = "stopping when the jobs in hand are finished; a second signal gives them back"
CALLERS: Final = frozenset(("delayd", "asyncio", "concurrent", "contextlib"))
"""Packages whose functions stand between a worker and the function that it calls."""
Trouble = Callable[[BaseException, "Job | AsyncJob | None"], object]


class Worker:
    """A worker with threads: so many jobs are worked on at a time as `concurrency` says.

    `on_error` is called with each exception of the handler and its job, with the error of an
    acknowledgement and its job, and with the error and None when the daemon goes away. By default
    all are logged, as `delayd`, the first with its traceback.
    """

    def __init__(
        self,
        client: Client,
        topics: str | Sequence[str],
        handler: Callable[[Job], object],
        *,
        concurrency: int = 1,
        on_error: Trouble | None = None,
        chance: Callable[[], float] = drawn,
    ) -> None:
        if _is_unfinished_function(handler) or _is_unfinished_function(_call_of(handler)):
            raise TypeError(
                f"a Worker calls its handler and does not await it, so {_name(handler)} would never"
                " run: give a coroutine function to an AsyncWorker"
            )
        others_first = os.sched_yield if concurrency > 1 else None
        self._loop = _Loop(client, topics, on_error, chance, others_first)
        self._handler = handler
        self._concurrency = _at_least_one(concurrency)
        self._is_stopping = threading.Event()
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Work until `stop` or Ctrl-C; returns when the last job in hand is finished.

        A second Ctrl-C, or one after `stop`, gives the jobs in hand back, without counting an
        attempt, and raises KeyboardInterrupt: handlers that still run end with the process. A
        program with a handler of its own for SIGINT keeps it.

        Raises errors that do not pass: a topic that the token may not reserve from, for example.
        """
        threads = [
            threading.Thread(target=self._work, name=f"delayd-worker-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        try:
            with _first_interrupt(self._is_stopping.is_set, self.stop):
                for thread in threads:
                    thread.start()
                for thread in threads:
                    while thread.is_alive():
                        thread.join(WAIT_S)  # a signal just before a wait does not end it
        except KeyboardInterrupt:
            carried_out(self._loop.giving_back(threading.Event))
            raise
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Take no new jobs."""
        self._is_stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Whether it takes no new jobs."""
        return self._is_stopping.is_set()

    def _work(self) -> None:
        wait = self._is_stopping.wait
        try:
            carried_out(self._loop.steps(self._is_stopping, self._take, self._handle, wait))
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._fault = error
            self.stop()
        self._loop.crew.wake_all()

    def _take(self) -> list[Job] | None:
        return carried_out(self._loop.crew.taking(_Alarm))

    def _handle(self, job: Job) -> None:
        carried_out(self._loop.tried(job, self._call))

    def _call(self, job: Job) -> None:
        job.client.keep(job)
        try:
            _check_finished(self._handler(job))
        except asyncio.CancelledError as error:  # of what it has awaited, as tasks may
            carried_out(leaving(job, error))
            raise RuntimeError(CANCELLED) from error
        except BaseException as error:
            carried_out(leaving(job, error))
            raise
        carried_out(self._loop.left(job))


class _Alarm:
    """An event that one thread waits for, once: 13 us with the hand-over, and 18 of `Event`."""

    __slots__ = ("set", "wait")

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self.wait, self.set = lock.acquire, lock.release


class AsyncWorker:
    """A worker with asyncio: the handler is a coroutine function; otherwise as `Worker`.

    async with AsyncClient() as client:
        await AsyncWorker(client, "mail", send, concurrency=100).run()
    """

    def __init__(
        self,
        client: AsyncClient,
        topics: str | Sequence[str],
        handler: Callable[[AsyncJob], Awaitable[object]],
        *,
        concurrency: int = 1,
        on_error: Trouble | None = None,
        chance: Callable[[], float] = drawn,
    ) -> None:
        if _is_plain_function(handler):
            raise TypeError(
                f"an AsyncWorker awaits its handler, and {_name(handler)} is no coroutine function:"
                " define it with async def, or give it to a Worker"
            )
        others_first = functools.partial(asyncio.sleep, 0) if concurrency > 1 else None
        self._loop = _Loop(client, topics, on_error, chance, others_first)
        self._handler = handler
        self._concurrency = _at_least_one(concurrency)
        self._is_stopping = asyncio.Event()
        self._will_stop = False
        self._fault: Exception | None = None

    async def run(self) -> None:
        """Work until `stop` or Ctrl-C; returns when the last job in hand is finished.

        A second Ctrl-C cancels it, as `cancel` of its task does: the handlers are cancelled, and
        their jobs given back, without counting an attempt. A program with a handler of its own for
        SIGINT keeps it. Raises errors that do not pass, as `Worker.run`.
        """
        soon = functools.partial(self.stop_soon, asyncio.get_running_loop())
        try:
            with _first_interrupt(lambda: self.is_stopping, soon):
                async with asyncio.TaskGroup() as group:
                    for number in range(self._concurrency):
                        group.create_task(self._work(), name=f"delayd-worker-{number}")
        except asyncio.CancelledError:
            await awaited(self._loop.giving_back(asyncio.Event))
            raise
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Take no new jobs."""
        self._is_stopping.set()

    def stop_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take no new jobs, from the handler of a signal: it runs between two steps of the loop."""
        self._will_stop = True
        loop.call_soon_threadsafe(self.stop)

    @property
    def is_stopping(self) -> bool:
        """Whether it takes no new jobs, or will not when the loop has its next step."""
        return self._will_stop or self._is_stopping.is_set()

    async def _work(self) -> None:
        try:
            await awaited(self._loop.steps(self._is_stopping, self._take, self._handle, self._wait))
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._fault = error
            self.stop()
        self._loop.crew.wake_all()

    async def _take(self) -> list[AsyncJob] | None:
        return await awaited(self._loop.crew.taking(asyncio.Event))

    async def _wait(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_stopping.wait()

    async def _handle(self, job: AsyncJob) -> None:
        await awaited(self._loop.tried(job, self._call))

    async def _call(self, job: AsyncJob) -> None:
        await job.client.keep(job)
        try:
            result = self._handler(job)
            if not inspect.isawaitable(result):
                raise TypeError(
                    f"{_name(self._handler)} returned no awaitable: define it with async def,"
                    " or give it to a Worker"
                )
            await result
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise  # `run` gives it back
            await awaited(leaving(job, error))
            raise RuntimeError(CANCELLED) from error
        except BaseException as error:
            if not _is_cancelled():  # else `run` gives it back
                await awaited(leaving(job, error))
            raise
        await awaited(self._loop.left(job))


class _Loop:
    """The parts of a worker that threads and asyncio share: the loop, and reports of errors.

    Errors go to `on_error` if there is one, and else to the log.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        topics: str | Sequence[str],
        on_error: Trouble | None,
        chance: Callable[[], float],
        others_first: Callable[[], Any] | None,
    ) -> None:
        self._client = client
        self._on_error = on_error
        self._chance = chance
        self._log = logging.getLogger("delayd")
        self._in_hand: dict[int, Any] = {}
        """Jobs whose attempts have not ended, by id."""
        self.pause = FailurePause()
        wait_s = WAIT_S if client.idle is None else 0.0  # a double idles instead
        self.crew = Crew(client, topics, wait_s, self._report_ack, others_first)

    def steps(
        self,
        is_stopping: threading.Event | asyncio.Event,
        take: Callable[[], Any],
        handle: Callable[[Any], Any],
        wait: Callable[[float], Any],
    ) -> Steps[None]:
        """Work on one job after the other until `is_stopping` is set."""
        client, crew = self._client, self.crew
        client.outage.tell = self._tell_outage
        return work_loop(
            client.outage,
            self.pause,
            goes_on=lambda: not is_stopping.is_set() or crew.has_jobs,
            reserve=take,
            handle=handle,
            wait=wait,
            has_jobs=lambda: crew.has_jobs,
            idle=client.idle,
            chance=self._chance,
        )

    def left(self, job: Job | AsyncJob) -> Steps[None]:
        """End a job whose handler has returned."""
        if job.is_finished:  # by the handler
            job.client.keep_no_more(job)  # type: ignore[arg-type]  # which is of its own kind
        else:
            yield from self.crew.acknowledging(job)

    def tried(self, job: Job | AsyncJob, call: Callable[[Any], Any]) -> Steps[None]:
        """Make an attempt at a job; an exception is reported, and the worker goes on."""
        self._in_hand[job.id] = job
        try:
            yield call(job)
        except Exception as error:  # noqa: BLE001 - the attempt failed
            error.__traceback__ = from_own(error.__traceback__, CALLERS)
            self._report(error, job, logging.ERROR, FAILED, exc_info=error)
        self._in_hand.pop(job.id, None)
        if (yield from comes_at_once(job)):
            self.pause.failed()
        else:
            self.pause.ended()

    def giving_back(self, waiter: Callable[[], Alarm]) -> Steps[None]:
        """Give back the jobs in hand, and those not begun, as if nobody had tried."""
        not_begun = yield from self.crew.closing(waiter)  # else a reserve would get them again
        for job in (*list(self._in_hand.values()), *not_begun):
            self._client.keep_no_more(job)
            if job.is_finished:
                continue
            try:
                yield self._client.nack(job, counts=False)
            except PASSING:
                return  # each would wait for the daemon
            except DelaydError:
                continue  # it was acknowledged meanwhile, or its ttr has run out
            self._log.warning(GIVEN_BACK, job.id, job.topic)

    def _report_ack(self, error: Exception, job: Job | AsyncJob) -> None:
        """Report an acknowledgement that failed: the handler did not, so there is no traceback."""
        self._report(error, job, logging.WARNING, NOT_ACKNOWLEDGED)

    def _tell_outage(self, error: DelaydError | None) -> None:
        if error is None:
            self._log.warning("the daemon is back")
        else:
            self._report(error, None, logging.WARNING, AWAY)

    def _report(
        self,
        error: Exception,
        job: Job | AsyncJob | None,
        level: int,
        text: str,
        exc_info: Exception | None = None,
    ) -> None:
        if self._on_error is not None:
            self._on_error(error, job)
        else:
            about = () if job is None else (job.id, job.topic)
            self._log.log(level, text, *about, error, exc_info=exc_info)


def from_own(traceback: TracebackType | None, callers: Container[str]) -> TracebackType | None:
    """Return a traceback without the frames of `callers`, packages or modules, before all others.

    Whole if it has no others.
    """
    own = traceback
    while own is not None:
        module = str(own.tb_frame.f_globals.get("__name__"))
        if module not in callers and module.partition(".")[0] not in callers:
            return own
        own = own.tb_next
    return traceback


# --- Handlers of the wrong kind ------------------------------------------------------------------


def _is_unfinished_function(function: object) -> bool:
    """Tell whether a call only begins the work: a coroutine function, or one that yields."""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


def _call_of(handler: object) -> object:
    """Return the method that a call of an object calls."""
    return getattr(type(handler), "__call__", None)  # noqa: B004 - not whether there is one


def _is_plain_function(handler: object) -> bool:
    """Tell whether a call surely returns nothing to await; decorated coroutine functions may."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler):
        return False  # an object that is called may return anything
    kinds = (handler, inspect.unwrap(handler))
    return not any(inspect.iscoroutinefunction(each) for each in kinds)


def _check_finished(result: object) -> None:
    """Check what a handler returned. Raises TypeError if its work has only begun."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"the handler returned {type(result).__name__} {_name(result)}, which a Worker does not"
            " await: give a coroutine function to an AsyncWorker"
        )


def _is_cancelled() -> bool:
    """Tell whether the task that runs was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _at_least_one(concurrency: int) -> int:
    """Return it. Raises Invalid where a worker would end at once, and look as if it were done."""
    if concurrency < 1:
        raise wrong("concurrency", f"must be at least 1, and is {concurrency}")
    return concurrency


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or repr(thing))


# --- Ctrl-C --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _first_interrupt(is_stopping: Callable[[], bool], stop: Callable[[], object]) -> Iterator[None]:
    """Stop the worker at the first SIGINT; later ones have their former handler.

    If it is stopping already, that one has it too.

    Only in the main thread, and where a SIGINT would end the program by Python's or asyncio's own
    handler.
    """
    before = signal.getsignal(signal.SIGINT)
    is_asyncios = isinstance(
        getattr(getattr(before, "func", None), "__self__", None), asyncio.Runner
    )
    if threading.current_thread() is not threading.main_thread() or not (
        is_asyncios or before is signal.default_int_handler
    ):
        yield
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        if callable(before) and is_stopping():
            before(number, frame)
            return
        stop()
        logging.getLogger("delayd").warning(STOPPING)

    with handled(interrupted, signal.SIGINT):
        yield
