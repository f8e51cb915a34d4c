"""Jobs in hand, with asyncio; otherwise as in `jobs`.

async with await client.reserve("mail") as job:
await send(job.json())
"""

import asyncio
import contextlib
from typing import Protocol, Self

from delayd.client.errors import DelaydError, NotFound, NotReserved
from delayd.client.jobs import described
from delayd.client.reserved import Reserved
from delayd.client.results import Became, Reservation, Time
from delayd.client.values import Duration


class AsyncHolder(Protocol):
    """What a job needs of its client."""

    async def ack(self, job: "AsyncJob") -> None:
        """Acknowledge it."""

    async def nack(
        self, job: "AsyncJob", *, delay: Duration | None, error: str, priority: int | None
    ) -> Became:
        """Report that the attempt failed."""

    async def release(
        self, job: "AsyncJob", *, delay: Duration | None, priority: int | None
    ) -> Became:
        """Give it back."""

    async def bury(self, job: "AsyncJob", *, error: str, priority: int | None) -> None:
        """Bury it."""

    async def touch(self, job: "AsyncJob") -> Time | None:
        """Extend its reservation."""

    async def keep(self, job: "AsyncJob") -> None:
        """Extend its reservation again and again."""

    def keep_no_more(self, job: "AsyncJob") -> None:
        """Stop that."""


class AsyncJob(Reserved):
    """A job in hand; a context manager, as above."""

    def __init__(self, client: AsyncHolder, reservation: Reservation) -> None:
        self.reservation = reservation
        self.is_finished = False
        self.is_lost = False
        self.became: Became | None = None
        self._client = client

    async def __aenter__(self) -> Self:
        await self._client.keep(self)
        return self

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        self._client.keep_no_more(self)
        if self.is_finished:
            return
        if error is None:
            await self.ack()
            return
        with contextlib.suppress(DelaydError):  # the first exception is what went wrong
            await self.nack(error=described(error))

    async def ack(self) -> None:
        """Acknowledge it: it is done and deleted.

        Raises NotReserved or NotFound if its ttr has run out: somebody else may be working on it.
        """
        await self._client.ack(self)

    async def nack(
        self, *, delay: Duration | None = None, error: str = "", priority: int | None = None
    ) -> Became:
        """Report that the attempt failed; return what becomes of the job."""
        self.became = await self._client.nack(self, delay=delay, error=error, priority=priority)
        return self.became

    async def release(
        self, *, delay: Duration | None = None, priority: int | None = None
    ) -> Became:
        """Give it back; under a retry rule this is a failed attempt too."""
        return await self._client.release(self, delay=delay, priority=priority)

    async def bury(self, *, error: str = "", priority: int | None = None) -> None:
        """Set it aside until it is kicked."""
        await self._client.bury(self, error=error, priority=priority)

    async def touch(self) -> Time | None:
        """Extend the reservation by a full ttr from now; return when it ends, over HTTP."""
        return await self._client.touch(self)


class AsyncToucher:
    """A task for each job in hand, which touches it."""

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}

    def add(self, job: AsyncJob, ttr_s: float) -> None:
        """Touch the job from now on."""
        is_over = asyncio.Event()
        task = asyncio.create_task(_touching(job, ttr_s / 3, is_over), name="delayd-touch")
        self._tasks[id(job)] = (task, is_over)

    def discard(self, job: AsyncJob) -> None:
        """Touch it no more. A touch that is under way ends by itself: half of one would be bad."""
        if (entry := self._tasks.pop(id(job), None)) is not None:
            entry[1].set()


async def _touching(job: AsyncJob, every_s: float, is_over: asyncio.Event) -> None:
    """Touch a job again and again. A daemon that is away may be back the next time."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(every_s):
                await is_over.wait()
                return
        try:
            await job.touch()
        except (NotReserved, NotFound):
            job.is_lost = not job.is_finished
            return
        except DelaydError:
            pass
