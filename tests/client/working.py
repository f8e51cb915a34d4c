"""A worker of either kind on the daemon in memory, or on one at a url.

work.client.put("mail", "x")
work.run(lambda job: work.worker.stop())
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from delayd.client import AsyncClient, AsyncWorker, Client, Worker
from delayd.testing.fake import FakeDelayd


class Working:
    """The worker that runs, and the daemon in memory."""

    def __init__(self, kind: str) -> None:
        self.is_plain = kind == "plain"
        self.fake = FakeDelayd()
        self.client = self.fake.client()
        """One of the test's own."""
        self.worker: Any = None

    def its_client(self, url: str = "") -> Any:  # noqa: ANN401 - of its kind
        """A client for the worker; with asyncio its loop has to run."""
        if url:
            return Client(url) if self.is_plain else AsyncClient(url)
        return self.fake.client() if self.is_plain else self.fake.async_client()

    def run(
        self,
        does: Callable[[Any], object],
        topic: str = "mail",
        *,
        url: str = "",
        prepare: Callable[[Any, Any], object] = lambda _client, _worker: None,
        **options: Any,  # noqa: ANN401 - those of a worker
    ) -> None:
        """Let it do this with each job until it is stopped. What it is given may be awaitable."""
        if self.is_plain:

            def handle(job: Any) -> None:  # noqa: ANN401 - a job
                does(job)

            with self.its_client(url) as client:
                self.worker = Worker(client, topic, handle, **options)
                prepare(client, self.worker)
                self.worker.run()
            return
        asyncio.run(self._run_later(does, topic, url, prepare, options))

    async def _run_later(
        self,
        does: Callable[[Any], object],
        topic: str,
        url: str,
        prepare: Callable[[Any, Any], object],
        options: dict[str, Any],
    ) -> None:
        async def handle(job: Any) -> None:  # noqa: ANN401 - a job
            if inspect.isawaitable(pending := does(job)):
                await pending

        async with self.its_client(url) as client:
            self.worker = AsyncWorker(client, topic, handle, **options)
            prepare(client, self.worker)
            await self.worker.run()
