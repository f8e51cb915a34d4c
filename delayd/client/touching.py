"""Jobs in hand are touched, so that they stay reserved however long their handlers take.

>>> touches = Touches()
>>> touches.add("a", ttr_s=60.0, now_s=100.0)
120.0
>>> touches.take_due(119.0), touches.take_due(120.0), touches.next_s()
([], ['a'], inf)
>>> touches.was_touched("a", 121.0)
>>> touches.next_s()
141.0

With asyncio: `aio`.
"""

import os
import threading
import time
from typing import Any, Final, Generic, TypeVar

from delayd.client.errors import ClientClosed, DelaydError, NotFound, NotReserved
from delayd.client.jobs import Reserved
from delayd.client.limits import TOUCH_S_MAX, TOUCH_S_MIN
from delayd.client.steps import Steps, carried_out

J = TypeVar("J")

NEVER_S: Final = float("inf")
LINGER_S: Final = 10.0
"""How long the thread that touches stays without a job."""


def touch_every_s(ttr_s: float) -> float:
    """Return how often a job with this ttr is touched."""
    return min(max(ttr_s / 3, TOUCH_S_MIN), TOUCH_S_MAX)


class Touches(Generic[J]):
    """The jobs in hand, and when each is touched next. O(jobs) for each question."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[J, float, float]] = {}

    def add(self, job: J, ttr_s: float, now_s: float) -> float:
        """Begin to touch a job; return when it is touched first."""
        every_s = touch_every_s(ttr_s)
        at_s = now_s + every_s
        self._jobs[id(job)] = (job, every_s, at_s)
        return at_s

    def discard(self, job: J) -> None:
        """Touch it no more."""
        self._jobs.pop(id(job), None)

    def next_s(self) -> float:
        """Return when the next one is to be touched; infinity: none is, as things are."""
        return min((at_s for _job, _every_s, at_s in self._jobs.values()), default=NEVER_S)

    def take_due(self, now_s: float) -> list[J]:
        """Return the jobs to be touched now; each waits for `was_touched` then."""
        due = [entry for entry in self._jobs.values() if entry[2] <= now_s]
        for job, every_s, _at_s in due:
            self._jobs[id(job)] = (job, every_s, NEVER_S)
        return [job for job, _every_s, _at_s in due]

    def was_touched(self, job: J, now_s: float) -> None:
        """Touch it again a third of its ttr from now, if it is still in hand."""
        if (entry := self._jobs.get(id(job))) is not None:
            self._jobs[id(job)] = (job, entry[1], now_s + entry[1])


class Toucher:
    """A thread that touches the jobs in hand.

    It begins with the first job, and ends when there was none for LINGER_S: a worker that takes one
    job after the other neither starts a thread for each, nor wakes it.
    """

    def __init__(self, linger_s: float = LINGER_S) -> None:
        self._linger_s = linger_s
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._jobs: Touches[Reserved[Any]] = Touches()
        self._wakes_s: float | None = None
        """When the thread wakes by itself; None: there is no thread."""
        self._pid = os.getpid()

    def add(self, job: Reserved[Any], ttr_s: float) -> None:
        """Touch the job from now on."""
        if self._pid != os.getpid():  # forked: the thread and its jobs stayed with the parent
            self._begin()
        now_s = time.monotonic()
        with self._lock:
            at_s = self._jobs.add(job, ttr_s, now_s)
            if self._wakes_s is None:
                self._wakes_s = at_s
                threading.Thread(target=self._run, name="delayd-touch", daemon=True).start()
            elif at_s < self._wakes_s:
                self._changed.notify()

    def discard(self, job: Reserved[Any]) -> None:
        """Touch it no more."""
        with self._lock:
            self._jobs.discard(job)

    def close(self) -> None:
        """End the thread once no job is in hand, without lingering."""
        with self._lock:
            self._linger_s = 0.0
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                next_s, now_s = self._jobs.next_s(), time.monotonic()
                is_idle = next_s == NEVER_S
                if is_idle and not self._linger_s:
                    self._wakes_s = None
                    return
                self._wakes_s = now_s + self._linger_s if is_idle else next_s
                was_notified = self._changed.wait(max(0.0, self._wakes_s - now_s))
                due = self._jobs.take_due(time.monotonic())
                if is_idle and not was_notified and self._jobs.next_s() == NEVER_S:
                    self._wakes_s = None
                    return
            for job in due:
                goes_on = carried_out(touched(job))
                with self._lock:
                    if goes_on:
                        self._jobs.was_touched(job, time.monotonic())
                    else:
                        self._jobs.discard(job)


def touched(job: Reserved[Any]) -> Steps[bool]:
    """Touch a job; tell whether to go on. A daemon that is away may come back."""
    try:
        yield job.client.touch(job)
    except ClientClosed:
        return False
    except (NotReserved, NotFound):
        job.is_lost = not job.is_finished
        return False
    except DelaydError:
        return True
    return True
