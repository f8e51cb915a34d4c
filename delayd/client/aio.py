"""The client with asyncio: the names and arguments of `Client`, with `await`.

    async with AsyncClient("http://127.0.0.1:11301") as client:
        await client.put("mail", {"to": "ada"}, delay="15s")
        async with await client.reserve("mail") as job:
            print(job.json())

        async for job in client.jobs("mail", state="delayed"):
            print(job)

Its methods may be called by many tasks at once, of one event loop.
"""

import ssl
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from delayd.client.addresses import DEFAULT_URL, read_address
from delayd.client.aio_batches import AsyncHttpBatch, AsyncLineBatch
from delayd.client.aio_connection import AsyncConnections
from delayd.client.aio_jobs import AsyncJob, AsyncToucher
from delayd.client.errors import Refused, TimedOut
from delayd.client.http_calls import HttpCalls
from delayd.client.line_calls import LineCalls
from delayd.client.reserved import held
from delayd.client.results import (
    Became,
    Calendar,
    Health,
    JobInfo,
    PolicyInfo,
    PutResult,
    Time,
    TopicInfo,
)
from delayd.client.speaking import spoken_at
from delayd.client.trouble import Outage
from delayd.client.values import (
    Body,
    Bound,
    Changes,
    Duration,
    Filter,
    NewJob,
    PutOptions,
    State,
    Timing,
    seconds,
)
from delayd.client.wires import AsyncRuns

T = TypeVar("T")


class AsyncClient:
    """A client of one daemon; its arguments are those of `Client`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        timeout: Duration = 30.0,
        patience: Duration = 30.0,
    ) -> None:
        address = read_address(url)
        self._calls, wire = spoken_at(address, token)
        self.outage = Outage()
        self.is_double = False
        self._connections: AsyncRuns = AsyncConnections(
            address,
            wire,
            tls=tls,
            timeout_s=seconds(timeout),
            patience_s=seconds(patience),
            outage=self.outage,
        )
        self._toucher = AsyncToucher()

    @classmethod
    def over(cls, connections: AsyncRuns, calls: HttpCalls | LineCalls | None = None) -> Self:
        """Return a client whose operations are carried out by something else, a double."""
        client = cls()
        client._calls, client._connections = calls or HttpCalls(), connections
        client.is_double = True
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Client.close`."""
        await self._connections.close()

    async def _run(self, steps: Generator[Any, Any, T]) -> T:
        return await self._connections.run(steps)

    # --- Producers -------------------------------------------------------------------------------

    async def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> PutResult:
        """As `Client.put`."""
        return await self._run(self._calls.put(topic, body, **options))

    async def put_many(self, topic: str, jobs: Iterable[NewJob]) -> list[PutResult | Refused]:
        """As `Client.put_many`."""
        return await self._run(self._calls.put_many(topic, jobs))

    def batch(self) -> AsyncHttpBatch | AsyncLineBatch:
        """As `Client.batch`: `async with client.batch() as batch: await batch.put(...)`."""
        if isinstance(self._calls, LineCalls) and isinstance(self._connections, AsyncConnections):
            return AsyncLineBatch(self._connections, self._calls)
        return AsyncHttpBatch(self)

    # --- Workers ---------------------------------------------------------------------------------

    async def reserve(
        self, topics: str | Sequence[str], *, timeout: Duration | None = None
    ) -> AsyncJob:
        """As `Client.reserve`."""
        jobs = await self.reserve_many(topics, limit=1, timeout=timeout)
        if not jobs:
            raise TimedOut(f"no job was ready within {timeout}")
        return jobs[0]

    async def reserve_many(
        self, topics: str | Sequence[str], *, limit: int, timeout: Duration | None = None
    ) -> list[AsyncJob]:
        """As `Client.reserve_many`."""
        timeout_s = None if timeout is None else seconds(timeout)
        steps = self._calls.reserve(topics, limit=limit, timeout_s=timeout_s)
        return [AsyncJob(self, reservation) for reservation in await self._run(steps)]

    async def ack(self, job: AsyncJob | str) -> None:
        """As `Client.ack`."""
        await self._run(self._calls.ack(held(job)))
        _finish(job)

    async def ack_many(self, jobs: Iterable[AsyncJob | str]) -> list[Refused | None]:
        """As `Client.ack_many`."""
        jobs = list(jobs)
        outcomes = await self._run(self._calls.ack_many([held(job) for job in jobs]))
        for job, refusal in zip(jobs, outcomes, strict=True):
            if refusal is None:
                _finish(job)
        return outcomes

    async def nack(
        self,
        job: AsyncJob | str,
        *,
        delay: Duration | None = None,
        error: str = "",
        priority: int | None = None,
    ) -> Became:
        """As `Client.nack`."""
        became = await self._run(
            self._calls.nack(held(job), delay=delay, error=error, priority=priority)
        )
        _finish(job)
        return became

    async def release(
        self, job: AsyncJob | str, *, delay: Duration | None = None, priority: int | None = None
    ) -> Became:
        """As `Client.release`."""
        became = await self._run(self._calls.release(held(job), delay=delay, priority=priority))
        _finish(job)
        return became

    async def touch(self, job: AsyncJob | str) -> Time | None:
        """As `Client.touch`."""
        return await self._run(self._calls.touch(held(job)))

    async def bury(
        self,
        job: AsyncJob | int | str,
        key: str | None = None,
        *,
        error: str = "",
        priority: int | None = None,
    ) -> None:
        """As `Client.bury`."""
        named = job if isinstance(job, int) else held(job)
        await self._run(self._calls.bury(named, key, error=error, priority=priority))
        _finish(job)

    async def keep(self, job: AsyncJob) -> None:
        """As `Client.keep`."""
        self._toucher.add(job, await self._run(self._calls.ttr_of(job.reservation)))

    def keep_no_more(self, job: AsyncJob) -> None:
        """As `Client.keep_no_more`."""
        self._toucher.discard(job)

    # --- Jobs ------------------------------------------------------------------------------------

    async def get(self, job_id: int) -> JobInfo:
        """As `Client.get`."""
        return await self._run(self._calls.get(job_id))

    async def find(self, topic: str, key: str) -> JobInfo:
        """As `Client.find`."""
        return await self._run(self._calls.find(topic, key))

    async def peek(self, topic: str, state: State = "ready") -> JobInfo | None:
        """As `Client.peek`."""
        return await self._run(self._calls.peek(topic, state))

    async def jobs(
        self,
        topic: str,
        *,
        limit: int | None = None,
        bodies: bool = False,
        **which: Unpack[Filter],
    ) -> AsyncIterator[JobInfo]:
        """As `Client.jobs`."""
        after: str | None = None
        while True:
            steps = self._calls.page(topic, which, limit=limit, after=after, bodies=bodies)
            page, after = await self._run(steps)
            for job in page:
                yield job
            limit = None if limit is None else limit - len(page)
            if after is None or limit == 0:
                return

    def dead_letters(self, topic: str, *, limit: int | None = None) -> AsyncIterator[JobInfo]:
        """As `Client.dead_letters`."""
        return self.jobs(topic, limit=limit, bodies=True, state="buried")

    async def kick(self, which: int | str, key: str | None = None) -> int:
        """As `Client.kick`."""
        return await self._run(self._calls.kick(which, key))

    async def cancel(self, which: int | str, key: str | None = None) -> int:
        """As `Client.cancel`."""
        return await self._run(self._calls.cancel(which, key))

    async def reschedule(
        self, which: int | str, key: str | None = None, **timing: Unpack[Timing]
    ) -> Time | None:
        """As `Client.reschedule`."""
        return await self._run(self._calls.change(which, key, **timing))

    async def change(
        self, which: int | str, key: str | None = None, **changes: Unpack[Changes]
    ) -> Time | None:
        """As `Client.change`."""
        return await self._run(self._calls.change(which, key, **changes))

    async def kick_many(self, topic: str, *, dry_run: bool = False, **which: Unpack[Filter]) -> int:
        """As `Client.kick_many`."""
        return await self._run(self._calls.kick_many(topic, which, dry_run=dry_run))

    async def cancel_many(
        self, topic: str, *, dry_run: bool = False, **which: Unpack[Filter]
    ) -> int:
        """As `Client.cancel_many`."""
        return await self._run(self._calls.cancel_many(topic, which, dry_run=dry_run))

    async def reschedule_many(
        self, topic: str, timing: Timing, *, dry_run: bool = False, **which: Unpack[Filter]
    ) -> int:
        """As `Client.reschedule_many`."""
        return await self._run(self._calls.reschedule_many(topic, which, timing, dry_run=dry_run))

    # --- Topics ----------------------------------------------------------------------------------

    async def calendar(
        self, *topics: str, due_from: Bound = 0, horizon: Duration = "1d", bins: int = 24
    ) -> Calendar:
        """As `Client.calendar`."""
        return await self._run(
            self._calls.calendar(topics, due_from=due_from, horizon=horizon, bins=bins)
        )

    async def topics(self) -> list[TopicInfo]:
        """As `Client.topics`."""
        return await self._run(self._calls.topics())

    async def topic(self, name: str) -> TopicInfo:
        """As `Client.topic`."""
        return await self._run(self._calls.topic(name))

    async def policy(self, topic: str) -> PolicyInfo:
        """As `Client.policy`."""
        return await self._run(self._calls.policy(topic))

    async def set_policy(self, topic: str, policy: Mapping[str, Any]) -> PolicyInfo:
        """As `Client.set_policy`."""
        return await self._run(self._calls.set_policy(topic, policy))

    async def clear_policy(self, topic: str) -> PolicyInfo:
        """As `Client.clear_policy`."""
        return await self._run(self._calls.clear_policy(topic))

    async def pause(self, topic: str, duration: Duration) -> None:
        """As `Client.pause`."""
        await self._run(self._calls.pause(topic, duration))

    async def resume(self, topic: str) -> None:
        """As `Client.resume`."""
        await self._run(self._calls.resume(topic))

    async def clear(self, topic: str) -> int:
        """As `Client.clear`."""
        return await self._run(self._calls.clear(topic))

    async def redrive(
        self, topic: str, limit: int | None = None, *, per_second: float | None = None
    ) -> int:
        """As `Client.redrive`."""
        return await self._run(self._calls.redrive(topic, limit, per_second))

    # --- The daemon ------------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """As `Client.stats`."""
        return await self._run(self._calls.stats())

    async def health(self) -> Health:
        """As `Client.health`."""
        return await self._run(self._calls.health())

    async def metrics(self) -> str:
        """As `Client.metrics`."""
        return await self._run(self._calls.metrics())

    async def advance_clock(self, by: Duration) -> Time:
        """As `Client.advance_clock`."""
        return await self._run(self._calls.advance_clock(by))


def _finish(job: AsyncJob | int | str) -> None:
    if isinstance(job, AsyncJob):
        job.is_finished = True
