"""A daemon in memory, for tests of programs: no process, no socket, no waiting.

    with FakeDelayd() as fake:
        client = fake.client()
        client.put("orders", {"order": 17}, delay="30m", key="order-17")
        fake.advance("30m")
        with client.reserve("orders") as job:
            ...

It is the daemon itself: its engine and its HTTP API (`fake_daemon`), on a clock that stands still.
Its time moves in three ways: by `advance`, by `client.advance_clock`, and when a reserve or a
worker waits and no job is in hand: then at once to the moment at which a job is ready. While a job
is in hand a wait takes real time, so that the ttr does not run out while a worker has it. A worker
makes no pauses after failed attempts. Jobs with a url are delivered to `calls`:

    fake.answer_call = lambda call: 503
    client.put("hooks", "x", delay="1d", url="https://example.com/due", retry="15s 3m")
    fake.advance("2d")
    assert [call.headers["Delayd-Attempt"] for call in fake.calls] == ["1", "2", "3"]
"""

import asyncio
import datetime as dt
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Self, TypeVar

from delayd.client import AsyncClient, Client, ClientClosed, TimedOut
from delayd.client.addresses import DEFAULT_URL, read_address
from delayd.client.http1 import HttpWire
from delayd.client.http_calls import HttpCalls
from delayd.client.steps import Steps, answered_by, awaited, carried_out
from delayd.client.values import Duration, seconds
from delayd.testing.received import ReceivedCall

T = TypeVar("T")
START: Final = dt.datetime(2026, 11, 21, 19, tzinfo=dt.UTC)
YIELD_S: Final = 0.001
"""How long other threads may work before a wait that cannot pass at once is checked again."""
LOOKS_MAX: Final = 1_000
NEVER: Final = float("inf")


class FakeDelayd:
    """A daemon in memory; may be used by several threads and tasks at once."""

    def __init__(self, now: dt.datetime = START) -> None:
        from delayd.testing.fake_daemon import FakeDaemon  # noqa: PLC0415 - takes 0.4 s

        self._daemon = FakeDaemon(round(now.timestamp() * 1_000), self._receive)
        self._lock = threading.RLock()
        self.calls: list[ReceivedCall] = []
        """The calls that were made for jobs with a url, the oldest first."""
        self.answer_call: Callable[[ReceivedCall], int] = lambda _call: 200
        """Returns the status that the receiver of a call answers; set another."""
        self.requests = 0
        """How many its clients have sent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End it: calls of its clients raise Unreachable. It has no descriptors to close."""
        with self._lock:
            self._daemon.close()

    @property
    def now(self) -> dt.datetime:
        """Its time."""
        return dt.datetime.fromtimestamp(self._daemon.clock.now_ms() / 1_000, dt.UTC)

    def advance(self, by: Duration) -> dt.datetime:
        """Advance the clock, with everything due by then; return the time."""
        with self._lock:
            self._daemon.advance(_milliseconds(by))
        return self.now

    def token(self, *scopes: str, topics: tuple[str, ...] = ("*",)) -> str:
        """Return a new token with these scopes, or all; from the first on every client needs one.

        >>> FakeDelayd().token("put", "delete", topics=("mail.*",))[:5]
        'dlyd_'
        """
        with self._lock:
            return self._daemon.token(scopes, topics)

    def client(self, *, token: str = "") -> Client:
        """Return a client without asyncio."""
        runs = FakeRuns(self, token)
        return Client.over(runs, HttpCalls(partial(self._waits, runs.pause)), runs.idle)

    def async_client(self, *, token: str = "") -> AsyncClient:
        """Return a client with asyncio."""
        runs = AsyncFakeRuns(self, token)
        return AsyncClient.over(runs, HttpCalls(partial(self._waits, runs.pause)), runs.idle)

    def _receive(self, call: ReceivedCall) -> int:
        self.calls.append(call)
        return self.answer_call(call)

    # --- Called by its clients -------------------------------------------------------------------

    def answer(self, wire: HttpWire, ask: Any) -> Any:  # noqa: ANN401 - the wire tells
        """Answer a request."""
        with self._lock:
            self.requests += 1
            return self._daemon.exchange(wire.encode(ask), wire.reader(ask, None))

    def pass_time(self, most_ms: float = NEVER) -> float:
        """Advance the clock to the next event; return by how much."""
        with self._lock:
            return self._daemon.pass_time(most_ms)

    def _waits(self, pause: Callable[[], None], timeout: Duration | None) -> Iterator[float]:
        """Yield how long each request waits: 0, since the clock is advanced between them."""
        left_ms = NEVER if timeout is None else _milliseconds(timeout)
        looks = 0
        while True:
            yield 0.0
            if left_ms <= 0:
                return
            if passed_ms := self.pass_time(left_ms):
                left_ms -= passed_ms
                continue
            pause()
            left_ms -= YIELD_S * 1_000
            looks += not self._daemon.has_jobs_in_hand
            if looks == LOOKS_MAX:
                raise TimedOut(
                    "there is no job, and nobody has put one; a reserve without a timeout would"
                    " wait for ever"
                )


class FakeRuns:
    """Carries out operations in memory."""

    def __init__(self, fake: FakeDelayd, token: str) -> None:
        self._fake = fake
        self._wire = HttpWire(read_address(DEFAULT_URL), token)
        self._never = threading.Event()
        self._is_closed = False

    def run(self, steps: Steps[T]) -> T:
        """Carry out an operation. Raises ClientClosed."""
        if self._is_closed:
            raise ClientClosed
        return carried_out(answered_by(steps, partial(self._fake.answer, self._wire)))

    def pause(self) -> None:
        """Let other threads run."""
        self._never.wait(YIELD_S)

    def idle(self) -> None:
        """Advance the clock for a worker, or if that cannot be, let other threads run."""
        if not self._fake.pass_time():
            self.pause()

    def close(self) -> None:
        """Carry out nothing more."""
        self._is_closed = True


class AsyncFakeRuns:
    """The same with asyncio."""

    def __init__(self, fake: FakeDelayd, token: str) -> None:
        self._fake = fake
        self._wire = HttpWire(read_address(DEFAULT_URL), token)
        self._pause_s = 0.0
        self._is_closed = False

    async def run(self, steps: Steps[T]) -> T:
        """Carry out an operation. Raises ClientClosed."""
        if self._is_closed:
            raise ClientClosed
        return await awaited(answered_by(steps, self._exchange))

    async def _exchange(self, ask: Any) -> Any:  # noqa: ANN401 - the wire tells
        pause_s, self._pause_s = self._pause_s, 0.0
        await asyncio.sleep(pause_s)  # others have their turn, as with a daemon
        return self._fake.answer(self._wire, ask)

    def pause(self) -> None:
        """Have `run` pause before the next request."""
        self._pause_s = YIELD_S

    async def idle(self) -> None:
        """Advance the clock for a worker, or if that cannot be, let other tasks run."""
        await asyncio.sleep(0.0 if self._fake.pass_time() else YIELD_S)

    async def close(self) -> None:
        """Carry out nothing more."""
        self._is_closed = True


def _milliseconds(duration: Duration) -> int:
    return int(-(-seconds(duration) * 1_000 // 1))
