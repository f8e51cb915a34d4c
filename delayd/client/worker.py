"""Workers: functions that are called with one job after the other.

    def send(job):
        mail(job.json())

    Worker(Client(), "mail", send, concurrency=8).run()

The end of the handler acknowledges its job, an exception reports the attempt as failed, and the
daemon's policy decides when it comes again. While the handler runs the reservation is extended.
`stop` (also from a signal handler) takes no new jobs and lets those in hand be finished. While the
daemon is away, or refuses for the moment, the worker tries again with pauses that grow.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from delayd.client.aio import AsyncClient
from delayd.client.aio_jobs import AsyncJob
from delayd.client.errors import ConnectionLost, NotNow, TimedOut, Unreachable
from delayd.client.jobs import Job
from delayd.client.sync import Client
from delayd.client.wires import drawn, pauses

WAIT_S: Final = 1.0
"""How long one reserve waits, and with it how long a stop may take that finds no job in hand."""
FOR_EVER_S: Final = float("inf")

PASSING: Final = (Unreachable, ConnectionLost, NotNow)
"""What is over when the daemon is back."""
Trouble = Callable[[BaseException, "Job | AsyncJob | None"], object]


class Worker:
    """A worker with threads: so many jobs are worked on at a time as `concurrency` says.

    `on_error` is called with each exception of the handler and its job, and with what went wrong
    between worker and daemon and None; by default nothing is said, since the daemon keeps the
    reason with the job.
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
        self._client = client
        self._topics = topics
        self._handler = handler
        self._concurrency = concurrency
        self._on_error = on_error
        self._chance = chance
        self._is_stopping = threading.Event()
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Work until `stop`; returns when the last job in hand is finished.

        Raises what is no passing trouble: a topic that the token may not reserve from, for example.
        """
        threads = [
            threading.Thread(target=self._work, name=f"delayd-worker-{number}")
            for number in range(self._concurrency)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Take no new jobs."""
        self._is_stopping.set()

    def _work(self) -> None:
        ahead = self._pauses()
        while not self._is_stopping.is_set():
            try:
                job = self._client.reserve(self._topics, timeout=WAIT_S)
                ahead = self._pauses()
                self._handle(job)
            except TimedOut:
                ahead = self._pauses()
            except PASSING as error:
                self._tell(error, None)
                self._is_stopping.wait(next(ahead))
            except BaseException as error:  # noqa: BLE001 - `run` raises it
                self._fault = error
                self.stop()

    def _handle(self, job: Job) -> None:
        try:
            with job:
                self._handler(job)
        except Exception as error:  # noqa: BLE001 - the attempt failed, the worker goes on
            self._tell(error, job)

    def _tell(self, error: BaseException, job: Job | None) -> None:
        if self._on_error is not None:
            self._on_error(error, job)

    def _pauses(self) -> Iterator[float]:
        return pauses(FOR_EVER_S, self._chance)


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
        self._client = client
        self._topics = topics
        self._handler = handler
        self._concurrency = concurrency
        self._on_error = on_error
        self._chance = chance
        self._is_stopping = asyncio.Event()
        self._fault: Exception | None = None

    async def run(self) -> None:
        """Work until `stop`; returns when the last job in hand is finished.

        Raises what is no passing trouble, as `Worker.run`.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(self._concurrency):
                group.create_task(self._work(), name=f"delayd-worker-{number}")
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """Take no new jobs."""
        self._is_stopping.set()

    async def _work(self) -> None:
        ahead = pauses(FOR_EVER_S, self._chance)
        while not self._is_stopping.is_set():
            try:
                job = await self._client.reserve(self._topics, timeout=WAIT_S)
                ahead = pauses(FOR_EVER_S, self._chance)
                await self._handle(job)
            except TimedOut:
                ahead = pauses(FOR_EVER_S, self._chance)
            except PASSING as error:
                self._tell(error, None)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(next(ahead)):
                        await self._is_stopping.wait()
            except Exception as error:  # noqa: BLE001 - `run` raises it
                self._fault = error
                self.stop()

    async def _handle(self, job: AsyncJob) -> None:
        try:
            async with job:
                await self._handler(job)
        except Exception as error:  # noqa: BLE001 - the attempt failed, the worker goes on
            self._tell(error, job)

    def _tell(self, error: BaseException, job: AsyncJob | None) -> None:
        if self._on_error is not None:
            self._on_error(error, job)
