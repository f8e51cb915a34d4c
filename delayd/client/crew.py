"""What the threads or tasks of one worker do together: reserve jobs, and acknowledge them.

One of those that have no job reserves, for itself and for all that wait, so many jobs as they are;
the others wait for it. One of those whose job is done acknowledges it, and goes on until none is
left of those that its connection holds and that were done meanwhile. Before either, those that are
ready to run do so: else the first of eight short jobs is acknowledged alone. So nothing waits for
others to come, and the more there is to do, the more is done by one request:

    reserve  1 ─► work          reserve  5 ─► work          ...
                    └─► ack  1 ────────────► ack  4 ──────► ...

It does not wait itself (`steps`), so that it is the same for threads and for tasks of asyncio.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from delayd.client.errors import DelaydError
from delayd.client.jobs import Reserved
from delayd.client.limits import BATCH_JOBS_MAX
from delayd.client.steps import Steps


class Alarm(Protocol):
    """An event, to be waited for."""

    def set(self) -> None:
        """End the wait."""

    def wait(self) -> Any:  # noqa: ANN401 - a truth, or an awaitable
        """Wait."""


class Crew:
    """The jobs of a worker that none of its threads or tasks has yet, or has no more.

    `report` is called with each error of an acknowledgement and its job. `others_first` lets the
    other threads or tasks run; None: there are none.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - of either kind, whose jobs are of its own kind
        topics: str | Sequence[str],
        wait_s: float,
        report: Callable[[Exception, Any], None],
        others_first: Callable[[], Any] | None = None,
    ) -> None:
        self._client = client
        self._topics = topics
        self._wait_s = wait_s
        self._report = report
        self._others_first = others_first
        self._lock = threading.Lock()
        self._jobs: deque[Reserved[Any]] = deque()
        """Reserved, and not begun."""
        self._waiting: deque[Alarm] = deque()
        self._is_reserving = False
        self._closed = threading.Event()
        """What comes of a reserve that is under way is for `closing`."""
        self._done: dict[Any, list[Reserved[Any]]] = {}
        """By the connections that hold them; over HTTP that is None."""
        self._acknowledging: set[Any] = set()

    @property
    def has_jobs(self) -> bool:
        """Whether a job is reserved that is to be begun."""
        return bool(self._jobs) and not self._closed.is_set()

    # --- Reserving -------------------------------------------------------------------------------

    def taking(self, waiter: Callable[[], Alarm]) -> Steps[list[Any] | None]:
        """Return a job, or an empty list if none is ready.

        None: another one was to reserve, and is over without a job for this one. `waiter` makes an
        event of `threading` or of `asyncio`.
        """
        with self._lock:
            if self._closed.is_set():
                return []
            if self._jobs:
                return [self._pop()]
            alarm = waiter() if self._is_reserving else None
            if alarm is not None:
                self._waiting.append(alarm)
            self._is_reserving = True
        if alarm is not None:
            yield alarm.wait()
            with self._lock:
                return [self._pop()] if self.has_jobs else None
        jobs: list[Any] = []
        try:
            yield from self._letting_others()
            limit = min(1 + len(self._waiting), BATCH_JOBS_MAX)
            jobs = yield self._client.reserve_many(self._topics, limit=limit, timeout=self._wait_s)
            for job in jobs[1:]:  # they may have to wait: for a pause after a failure
                yield self._client.keep(job)
        finally:
            with self._lock:
                self._is_reserving = False
                own = 0 if self._closed.is_set() else 1
                self._jobs += jobs[own:]
                self._wake()
        return jobs[:own]

    def closing(self, waiter: Callable[[], Alarm]) -> Steps[list[Any]]:
        """Take and begin no more jobs; return those not begun, once no reserve is under way."""
        self._closed.set()
        while True:
            with self._lock:
                if not self._is_reserving:
                    return list(self._jobs)
                alarm = waiter()
                self._waiting.appendleft(alarm)
            yield alarm.wait()  # a thread that ends wakes all

    def wake_all(self) -> None:
        """End all waits: the worker stops, or one of its threads or tasks has ended."""
        with self._lock:
            while self._waiting:
                self._wake()

    def _pop(self) -> Reserved[Any]:
        """Return a job, and have another one take the next."""
        job = self._jobs.popleft()
        if self._jobs:
            self._wake()
        return job

    def _wake(self) -> None:
        """Wake one: for a job, or to reserve. It wakes the next if there are more jobs."""
        if self._waiting:
            self._waiting.popleft().set()

    def _letting_others(self) -> Steps[None]:
        if self._others_first is not None:
            yield self._others_first()

    # --- Acknowledging ---------------------------------------------------------------------------

    def acknowledging(self, job: Reserved[Any]) -> Steps[None]:
        """Acknowledge a job now, or leave it to the one that does so on its connection.

        Those of several connections are under way at once, and the daemon syncs them together.
        """
        link = job.reservation.link
        with self._lock:
            self._done.setdefault(link, []).append(job)
            if link in self._acknowledging:
                return
            self._acknowledging.add(link)
        try:
            yield from self._letting_others()
            while jobs := self._take_done(link):
                yield from self._acknowledge(jobs)
        except BaseException:  # cancelled: another one may go on
            self._acknowledging.discard(link)
            raise

    def _take_done(self, link: Any) -> list[Reserved[Any]]:  # noqa: ANN401 - a connection of either kind
        """Return the jobs that are done; none: then the acknowledging has ended."""
        with self._lock:
            jobs = self._done.pop(link, [])
            if not jobs:
                self._acknowledging.discard(link)
            return jobs

    def _acknowledge(self, jobs: list[Reserved[Any]]) -> Steps[None]:
        """Acknowledge jobs of one connection."""
        outcomes: Sequence[DelaydError | None]
        try:
            outcomes = yield self._client.ack_many(jobs)
        except DelaydError as error:
            outcomes = [error] * len(jobs)
        for job, refusal in zip(jobs, outcomes, strict=True):
            self._client.keep_no_more(job)
            if refusal is not None:
                self._report(refusal, job)
