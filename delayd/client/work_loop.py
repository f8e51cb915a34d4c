"""The loop of a worker: reserve, work on the jobs, and wait before a retry that would fail too.

It is the same for threads, tasks of asyncio and child processes, because it does not wait itself. A
step is the result of a call: its answer, or with asyncio an awaitable for it (`steps.carried_out`,
`steps.awaited`).

>>> times_s = iter([100.0, 100.5, 100.75, 101.0, 101.0, 101.0])
>>> pause = FailurePause(times_s.__next__)
>>> pause.failed()
>>> pause.failed()  # a second job, in hand at the same time: this makes it no longer
>>> pause.left_s(), pause.left_s()
(0.25, 0.0)
>>> pause.failed()
>>> pause.left_s()
2.0
"""

import time
from collections.abc import Callable
from typing import Any, Final

from delayd.client.attempts import Outage, drawn, pauses
from delayd.client.errors import ConnectionLost, DelaydError, NotFound, NotNow, Unreachable
from delayd.client.jobs import Reserved
from delayd.client.steps import Steps

PASSING: Final = (Unreachable, ConnectionLost, NotNow)
"""Errors that end when the daemon is back."""
FOR_EVER_S: Final = float("inf")
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 30.0
HELD_BACK: Final = frozenset(("delayed", "buried"))
"""States in which a failed job does not come at once."""


class FailurePause:
    """How long a worker takes no job after failed attempts whose jobs were ready again at once.

    Without a retry rule nothing else keeps a job that always fails from being tried hundreds of
    times a second. The pause doubles up to PAUSE_S_MAX, and one attempt that does not fail ends it.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._pause_s = 0.0
        self._ends_s = 0.0

    def failed(self) -> None:
        """Note a failed attempt whose job is ready again."""
        now_s = self._clock_s()
        if now_s >= self._ends_s:
            self._pause_s = min(PAUSE_S_MAX, max(PAUSE_S_MIN, 2 * self._pause_s))
            self._ends_s = now_s + self._pause_s

    def ended(self) -> None:
        """Note an attempt that did not fail, or whose job waits by a rule."""
        self._pause_s = self._ends_s = 0.0

    def left_s(self) -> float:
        """Return how long no job should be taken yet."""
        return max(0.0, self._ends_s - self._clock_s())


def work_loop(
    outage: Outage,
    pause: FailurePause,
    *,
    goes_on: Callable[[], bool],
    reserve: Callable[[], Any],
    handle: Callable[[Any], Any],
    wait: Callable[[float], Any],
    has_jobs: Callable[[], bool] = bool,
    idle: Callable[[], Any] | None = None,
    chance: Callable[[], float] = drawn,
) -> Steps[None]:
    """Work on one job after the other as long as `goes_on` says so.

    Jobs that were reserved before, which `has_jobs` tells, do not wait for the pause to end.
    `idle` is called if there is none and `reserve` has not waited. Raises errors that do not pass.
    """
    pauses_s = pauses(FOR_EVER_S, chance)
    while goes_on():
        era = outage.era
        try:
            if not has_jobs() and (left_s := pause.left_s()):
                yield wait(left_s)
                continue
            jobs = yield reserve()
            if jobs is None:  # another thread or task has asked
                continue
            if idle is not None and not jobs:
                yield idle()
            outage.end(era)
            pauses_s = pauses(FOR_EVER_S, chance)
            for job in jobs:
                yield handle(job)
        except PASSING as error:
            outage.begin(error, era)
            yield wait(next(pauses_s))


def comes_at_once(job: Reserved[Any]) -> Steps[bool]:
    """Tell whether a job was nacked and nothing delays its next attempt."""
    if job.became is None or job.client.idle is not None:
        return False
    try:
        return (job.became.state or (yield job.client.get(job.id)).state) not in HELD_BACK
    except NotFound:  # another worker was faster, or it was moved
        return False
    except DelaydError:  # the line's reply has no state, and the token lacks peek
        return True
