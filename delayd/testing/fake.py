"""A daemon in memory, for tests of what is built on delayd: no process, no socket, no waiting.

    fake = FakeDelayd()
    with fake.client() as client:
        client.put("orders", {"order": 17}, delay="30m", key="order-17")
        fake.advance("30m")
        with client.reserve("orders") as job:
            ...

`client()` and `async_client()` are the clients of `delayd.client`, and each operation does what it
does over HTTP: the same contract is tested of it and of the daemon. Time moves in three ways: by
`advance`, by `client.advance_clock`, and when a reserve would wait and no job is in hand: then it
passes at once, up to the moment at which a job is ready. While a job is in hand a wait takes real
time, so that the ttr does not run out while a worker has it. A worker makes no
pauses after failed attempts.

What it leaves out: `jitter_percent`, `bytes_max` and `rate_per_s` of policies have no effect, there
are no tokens, and jobs with a `url` are kept, and not delivered.
"""

import asyncio
import datetime as dt
import json
import threading
from collections.abc import Generator
from typing import Any, Final, TypeVar

from delayd.client import AsyncClient, Client, TimedOut
from delayd.client.http1 import Request, Response
from delayd.client.values import Duration
from delayd.testing.fake_api import FakeApi
from delayd.testing.fake_jobs import FakeJobs

T = TypeVar("T")
START: Final = dt.datetime(2026, 11, 21, 19, tzinfo=dt.UTC)
YIELD_S: Final = 0.001
"""How long a reserve that waits lets others work before it looks again."""
WAITS_MAX: Final = 1_000


class FakeDelayd:
    """A daemon in memory; may be used by several threads and tasks at once."""

    def __init__(self, now: dt.datetime = START) -> None:
        self._jobs = FakeJobs(round(now.timestamp() * 1_000))
        self._api = FakeApi(self._jobs)
        self._lock = threading.Lock()

    @property
    def now(self) -> dt.datetime:
        """Its time."""
        return dt.datetime.fromtimestamp(self._jobs.now_ms / 1_000, dt.UTC)

    @property
    def has_jobs(self) -> bool:
        """Whether any job is there that is not buried."""
        with self._lock:
            return any(job.state != "buried" for job in self._jobs.jobs.values())

    def advance(self, by: Duration) -> dt.datetime:
        """Let time pass, and everything happen that is due by then; return the time."""
        return self.client().advance_clock(by)

    def client(self) -> Client:
        """Return a client without asyncio."""
        return Client.over(FakeRuns(self))

    def async_client(self) -> AsyncClient:
        """Return a client with asyncio."""
        return AsyncClient.over(AsyncFakeRuns(self))

    def answer(self, request: Request, waited_s: float) -> Response | None:
        """Answer a request of HTTP; None: it waits, while others have jobs in hand.

        `waited_s` is how long it has waited so.
        """
        value = json.loads(request.body) if request.body else None
        with self._lock:
            status, answer = self._api.answer(
                *(request.method, request.target, value, request.headers),
                may_wait=waited_s < request.wait_s,
            )
        if status == 0:
            return None
        return Response(status, {}, b"" if answer is None else json.dumps(answer).encode())


class FakeRuns:
    """Carries out operations in memory."""

    def __init__(self, fake: FakeDelayd) -> None:
        self._fake = fake
        self._never = threading.Event()

    def run(self, steps: Generator[Any, Any, T]) -> T:
        """Carry out an operation."""
        waits = Waits()
        try:
            request = next(steps)
            while True:
                waited_s = 0.0
                while (response := self._fake.answer(request, waited_s)) is None:
                    self._never.wait(YIELD_S)
                    waited_s += YIELD_S
                if waits.note(request, response, self._fake):
                    self._never.wait(YIELD_S)
                request = steps.send(response)
        except StopIteration as done:
            result: T = done.value
            return result

    def close(self) -> None:
        """Let go of nothing."""


class AsyncFakeRuns:
    """The same with asyncio."""

    def __init__(self, fake: FakeDelayd) -> None:
        self._fake = fake

    async def run(self, steps: Generator[Any, Any, T]) -> T:
        """Carry out an operation."""
        waits = Waits()
        try:
            request = next(steps)
            while True:
                await asyncio.sleep(0)  # others have their turn, as with a daemon
                waited_s = 0.0
                while (response := self._fake.answer(request, waited_s)) is None:
                    await asyncio.sleep(YIELD_S)
                    waited_s += YIELD_S
                if waits.note(request, response, self._fake):
                    await asyncio.sleep(YIELD_S)
                request = steps.send(response)
        except StopIteration as done:
            result: T = done.value
            return result

    async def close(self) -> None:
        """Let go of nothing."""


class Waits:
    """Counts the waits of one operation that ended without a job."""

    def __init__(self) -> None:
        self._count = 0

    def note(self, request: Request, response: Response, fake: FakeDelayd) -> bool:
        """Tell whether others should have a turn. Raises TimedOut where nothing is to come."""
        if not request.wait_s or response.status != 204 or fake.has_jobs:
            return False
        self._count += 1
        if self._count == WAITS_MAX:
            raise TimedOut(
                "there is no job, and nobody has put one; a reserve without a timeout would wait"
                " for ever"
            )
        return True
