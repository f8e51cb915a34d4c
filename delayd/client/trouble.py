"""What a worker does when attempts fail and when the daemon is away: it waits, and says so once.

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

import threading
import time
from collections.abc import Callable
from typing import Final

from delayd.client.errors import DelaydError, NotFound
from delayd.client.results import Became, JobInfo

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


def comes_at_once(became: Became | None, look: Callable[[], JobInfo]) -> bool:
    """Tell whether an attempt was nacked and nothing delays the next one; look at it if need be."""
    if became is None:
        return False
    try:
        return (became.state or look().state) not in HELD_BACK
    except NotFound:  # another worker was faster, or it was moved
        return False
    except DelaydError:  # the line does not say, and the token may not look
        return True


class Outage:
    """Whether the daemon is away; `tell` gets the error when it goes, None when it is back.

    A client's threads and connections share one, so that an outage is told once. Each notes the
    `era` before it asks the daemon: what it learns late, of a former era, tells nothing new.
    """

    def __init__(self) -> None:
        self.tell: Callable[[DelaydError | None], object] = str
        self.era = 0
        """Odd while the daemon is away."""
        self._lock = threading.Lock()

    def begin(self, error: DelaydError, era: int) -> None:
        """Note that the daemon, asked in that era, did not answer, or refused for the moment."""
        self._turn(error, era)

    def end(self, era: int) -> None:
        """Note that it has answered what was asked in that era."""
        self._turn(None, era)

    def _turn(self, error: DelaydError | None, era: int) -> None:
        is_news = bool(era % 2) != (error is not None)
        if not is_news:
            return
        with self._lock:
            if era == self.era:
                self.era += 1
                self.tell(error)
