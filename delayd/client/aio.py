"""The client with asyncio: the names and arguments of `Client`, with `await`.

    async with AsyncClient("http://127.0.0.1:11301") as client:
        await client.put("mail", {"to": "ada"}, delay="15s")
        async with await client.reserve("mail") as job:
            print(job.json())

        async for job in client.jobs("mail", state="delayed"):
            print(job)

Its methods may be called by many tasks at once, of one event loop. Another loop, as of a second
`asyncio.run`, gets connections of its own.
"""

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from delayd.client.addresses import DEFAULT_URL
from delayd.client.aio_connection import AsyncConnections
from delayd.client.batches import AsyncBatch, HttpParts, LineParts
from delayd.client.connection_pool import AsyncRuns
from delayd.client.errors import TimedOut
from delayd.client.http_calls import HttpCalls
from delayd.client.jobs import Reserved, leaving
from delayd.client.limits import ANSWER_BYTES_MAX
from delayd.client.line_calls import LineCalls
from delayd.client.protocols import way_to
from delayd.client.steps import PageAfter, Steps, awaited
from delayd.client.sync import Client, Job
from delayd.client.touching import NEVER_S, Touches, touched
from delayd.client.values import Duration, seconds

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method of `Client` or `Job` as one of `AsyncClient` or `AsyncJob`.

    Each of them returns the result of the client's `_run`. Here that is a coroutine, to be awaited.
    """

    @functools.wraps(method)
    async def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:  # noqa: ANN401 - either
        waits: Any = method(self, *arguments, **options)
        answer: T = await waits
        return answer

    return call


def _iterated(
    method: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return a method of `Client` as one of `AsyncClient`; either iterates over its `_paged`."""
    return cast("Callable[Concatenate[Any, P], AsyncIterator[T]]", method)


class AsyncClient:
    """A client of one daemon; its arguments, and those of its methods, are those of `Client`."""

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        timeout: Duration = 30.0,
        patience: Duration = 30.0,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self._calls, way = way_to(url, token, tls, timeout, patience, answer_bytes_max)
        self.outage = way.outage
        self.idle: Callable[[], Awaitable[None]] | None = None
        self._connections: AsyncRuns = AsyncConnections(way)
        self._toucher = AsyncToucher()

    @classmethod
    def over(
        cls,
        connections: AsyncRuns,
        calls: HttpCalls | LineCalls,
        idle: Callable[[], Awaitable[None]] | None = None,
    ) -> Self:
        """Return a client of a double, which carries out the operations."""
        client = cls()
        client._connections, client._calls, client.idle = connections, calls, idle
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connections.close()

    def _run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        return self._connections.run(steps)

    async def _paged(self, page_after: PageAfter[T], limit: int | None = None) -> AsyncIterator[T]:
        """As `Client._paged`."""
        after: str | None = None
        while True:
            page, after = await self._run(page_after(after, limit))
            for each in page:
                yield each
            limit = None if limit is None else limit - len(page)
            if after is None or limit == 0:
                return

    # --- Producers -------------------------------------------------------------------------------

    put = _awaited(Client.put)
    put_many = _awaited(Client.put_many)

    def batch(self) -> AsyncBatch:
        """As `Client.batch`: `async with client.batch() as batch: await batch.put(...)`."""
        if isinstance(self._calls, LineCalls) and isinstance(self._connections, AsyncConnections):
            return AsyncBatch(LineParts(self._connections, self._calls))
        return AsyncBatch(HttpParts(self.put_many))

    # --- Workers ---------------------------------------------------------------------------------

    async def reserve(
        self, topics: str | Sequence[str], *, timeout: Duration | None = None
    ) -> "AsyncJob":
        jobs = await self.reserve_many(topics, limit=1, timeout=timeout)
        if not jobs:
            raise TimedOut(f"no job was ready within {seconds(timeout or 0):g} s")
        return jobs[0]

    async def reserve_many(
        self, topics: str | Sequence[str], *, limit: int, timeout: Duration | None = None
    ) -> "list[AsyncJob]":
        steps = self._calls.reserve(topics, limit=limit, timeout=timeout)
        return [AsyncJob(self, reservation) for reservation in await self._run(steps)]

    ack = _awaited(Client.ack)
    ack_many = _awaited(Client.ack_many)
    nack = _awaited(Client.nack)
    release = _awaited(Client.release)
    touch = _awaited(Client.touch)
    bury = _awaited(Client.bury)

    async def keep(self, job: "AsyncJob") -> None:
        self._toucher.add(job, job.reservation.ttr or 0.0)

    def keep_no_more(self, job: "AsyncJob") -> None:
        self._toucher.discard(job)

    # --- Jobs ------------------------------------------------------------------------------------

    get = _awaited(Client.get)
    find = _awaited(Client.find)
    peek = _awaited(Client.peek)
    find_key = _iterated(Client.find_key)
    jobs = _iterated(Client.jobs)
    dead_letters = _iterated(Client.dead_letters)
    kick = _awaited(Client.kick)
    cancel = _awaited(Client.cancel)
    reschedule = _awaited(Client.reschedule)
    change = _awaited(Client.change)
    kick_many = _awaited(Client.kick_many)
    cancel_many = _awaited(Client.cancel_many)
    reschedule_many = _awaited(Client.reschedule_many)

    # --- Topics ----------------------------------------------------------------------------------

    calendar = _awaited(Client.calendar)
    topics = _awaited(Client.topics)
    topic = _awaited(Client.topic)
    policy = _awaited(Client.policy)
    set_policy = _awaited(Client.set_policy)
    clear_policy = _awaited(Client.clear_policy)
    pause = _awaited(Client.pause)
    resume = _awaited(Client.resume)
    groups = _awaited(Client.groups)
    group = _awaited(Client.group)
    pause_group = _awaited(Client.pause_group)
    resume_group = _awaited(Client.resume_group)
    clear = _awaited(Client.clear)
    dead_reasons = _awaited(Client.dead_reasons)
    redrive = _awaited(Client.redrive)

    # --- Schedules -------------------------------------------------------------------------------

    put_schedule = _awaited(Client.put_schedule)
    schedule = _awaited(Client.schedule)
    schedules = _iterated(Client.schedules)
    remove_schedule = _awaited(Client.remove_schedule)
    pause_schedule = _awaited(Client.pause_schedule)
    resume_schedule = _awaited(Client.resume_schedule)
    run_schedule = _awaited(Client.run_schedule)
    backfill_schedule = _awaited(Client.backfill_schedule)
    preview_schedule = _awaited(Client.preview_schedule)

    # --- The daemon ------------------------------------------------------------------------------

    stats = _awaited(Client.stats)
    health = _awaited(Client.health)
    metrics = _awaited(Client.metrics)
    hand_over = _awaited(Client.hand_over)
    advance_clock = _awaited(Client.advance_clock)


class AsyncJob(Reserved[AsyncClient]):
    """A job in hand, as `Job`: `async with await client.reserve("mail") as job: ...`."""

    async def __aenter__(self) -> Self:
        await self.client.keep(self)
        return self

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        await awaited(leaving(self, error))

    ack = _awaited(Job.ack)
    nack = _awaited(Job.nack)
    release = _awaited(Job.release)
    bury = _awaited(Job.bury)
    touch = _awaited(Job.touch)


class AsyncToucher:
    """One timer that touches the jobs in hand, each in a task of its own."""

    def __init__(self) -> None:
        self._jobs: Touches[AsyncJob] = Touches()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, job: AsyncJob, ttr_s: float) -> None:
        """Touch the job from now on."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the timer of the one before does not ring any more
            self._loop, self._timer, self._jobs = loop, None, Touches()
        self._wake_by(self._jobs.add(job, ttr_s, loop.time()))

    def discard(self, job: AsyncJob) -> None:
        """Touch it no more. A touch under way is not cancelled: it might be half sent."""
        self._jobs.discard(job)

    def _wake_by(self, at_s: float) -> None:
        if at_s < (NEVER_S if self._timer is None else self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(at_s, self._wake)

    def _wake(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        for job in self._jobs.take_due(loop.time()):
            task = loop.create_task(self._touch(job), name="delayd-touch")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._wake_by(self._jobs.next_s())

    async def _touch(self, job: AsyncJob) -> None:
        if not await awaited(touched(job)):
            self._jobs.discard(job)
            return
        self._jobs.was_touched(job, asyncio.get_running_loop().time())
        self._wake_by(self._jobs.next_s())
