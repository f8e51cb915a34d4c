"""What has happened in each minute of the last day.

Like `core.stats.last_minute`, but for a picture: counters only go up, and when time has reached
another minute of the clock, before anything is counted in it, the minute before is over: it has
counted the difference to its beginning. The first begins with the daemon, within its minute.

>>> from delayd.core.stats.histogram import new_histogram, note_run
>>> late = new_histogram()
>>> history = History(start_ms=30_000, late=late)
>>> note_run(late, first_ms=3, last_ms=3, jobs=2)
>>> history.begin(61_000, (5, 2, 1, 0), late)
>>> minutes = history.last(60, (9, 2, 2, 1), late)
>>> [(minute.from_ms, minute.counted, minute.late_p50_ms) for minute in minutes]
[(30000, (5, 2, 1, 0), 3.5), (60000, (4, 0, 1, 1), None)]
"""

from collections import deque
from collections.abc import Sequence
from operator import sub
from typing import NamedTuple, final

from delayd.core.stats.histogram import Counts, quantile_ms
from delayd.limits import HISTORY_MINUTES_MAX, MINUTE_MS


class Minute(NamedTuple):
    """A minute, or what has passed of it."""

    from_ms: int
    """In delayd time."""
    counted: tuple[int, ...]
    """Jobs put, reserved and deleted, and attempts that failed."""
    late_p50_ms: float | None
    """How late delays ended at the median; None: none has ended."""
    late_p99_ms: float | None


@final
class History:
    """The minutes of the last day."""

    __slots__ = ("_counters", "_from_ms", "_late", "_over", "next_ms", "start_ms")

    def __init__(self, start_ms: int, late: Counts) -> None:
        """Begin the first minute, with counters of 0."""
        self._over: deque[Minute] = deque(maxlen=HISTORY_MINUTES_MAX)
        """Those that are over, the oldest first; minutes that were passed over are left out."""
        self.start_ms = self._from_ms = start_ms
        """When the first minute began; before that nothing is known."""
        self.next_ms = _minute_of(start_ms) + MINUTE_MS
        """From then on, what is counted belongs to a new minute."""
        self._counters: Sequence[int] = (0, 0, 0, 0)
        self._late = late.copy()

    def begin(self, time_ms: int, counters: Sequence[int], late: Counts) -> None:
        """Begin a minute with the counters as they are; it is `next_ms` by now."""
        self._over.append(self._so_far(counters, late))
        self._from_ms = _minute_of(time_ms)
        self.next_ms = self._from_ms + MINUTE_MS
        self._counters, self._late = counters, late.copy()

    def _so_far(self, counters: Sequence[int], late: Counts) -> Minute:
        within = [*map(sub, late, self._late)]
        p50_ms, p99_ms = quantile_ms(within, 0.5), quantile_ms(within, 0.99)
        return Minute(self._from_ms, tuple(map(sub, counters, self._counters)), p50_ms, p99_ms)

    def last(self, minutes: int, counters: Sequence[int], late: Counts) -> list[Minute]:
        """Return so many minutes that are over, the oldest first, and the one that is not."""
        now_ms = _minute_of(self._from_ms)
        first_ms = now_ms - min(minutes, HISTORY_MINUTES_MAX) * MINUTE_MS
        over = {_minute_of(minute.from_ms): minute for minute in self._over}
        finished = [
            over.get(from_ms) or Minute(from_ms, (0, 0, 0, 0), None, None)
            for from_ms in range(max(first_ms, _minute_of(self.start_ms)), now_ms, MINUTE_MS)
        ]
        return [*finished, self._so_far(counters, late)]


def _minute_of(time_ms: int) -> int:
    return time_ms - time_ms % MINUTE_MS
