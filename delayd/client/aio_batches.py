"""Many puts in flight at once, with asyncio; otherwise as in `batches`.

async with client.batch() as batch:
for order in orders:
await batch.put("orders", order, delay="30m")
print(batch.results[0].id)
"""

from typing import Self, Unpack, cast

from delayd.client.aio_connection import AsyncConnection, AsyncConnections
from delayd.client.batches import AsyncPutting, PutReplies, PutWriter, Result
from delayd.client.beanstalk import Commands
from delayd.client.http_calls import BATCH_JOBS_MAX
from delayd.client.line_calls import LineCalls
from delayd.client.values import Body, NewJob, PutOptions


class AsyncHttpBatch:
    """A batch as requests of many jobs."""

    def __init__(self, client: AsyncPutting) -> None:
        self.results: list[Result] = []
        self._client = client
        self._topic = ""
        self._jobs: list[NewJob] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        if kind is None:
            await self._send()

    async def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> None:
        """Put a job; its result is in `results` at the end."""
        if self._jobs and (topic != self._topic or len(self._jobs) == BATCH_JOBS_MAX):
            await self._send()
        self._topic = topic
        self._jobs.append(cast("NewJob", {"body": body, **options}))

    async def _send(self) -> None:
        jobs, self._jobs = self._jobs, []
        if jobs:
            self.results += await self._client.put_many(self._topic, jobs)


class AsyncLineBatch:
    """A batch as commands of which many are in flight."""

    def __init__(self, connections: AsyncConnections, calls: LineCalls) -> None:
        self._connections = connections
        self._writer = PutWriter(calls)
        self._replies = PutReplies()
        self._connection: AsyncConnection | None = None

    @property
    def results(self) -> list[Result]:
        """What became of each put that was answered."""
        return self._replies.results

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        if kind is None:
            await self._send()
        if self._connection is not None and not self._connection.is_closed:
            await self._receive(0)
            self._connections.give_back(self._connection)

    async def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> None:
        """Put a job; its result is in `results` at the end."""
        if self._writer.add(topic, body, options):
            await self._send()

    async def _send(self) -> None:
        data, count = self._writer.take()
        if self._connection is None:
            self._connection = await self._connections.borrow(Commands((), used=self._writer.used))
        await self._receive(self._writer.room(count))
        self._connection.send(data)
        self._replies.sent(count)

    async def _receive(self, left: int) -> None:
        while self._connection is not None and self._replies.in_flight > left:
            self._replies.feed(await self._connection.receive())
