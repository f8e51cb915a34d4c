"""What has happened in each minute of the last hour.

Like `core.stats.last_minute`, but for a picture of an hour: counters only go up, and when time has
reached another minute of the clock, before anything is counted in it, their values begin another
*cell*. What a cell has counted is the difference to the next one's beginning. The first begins with
the daemon, somewhere within its minute.

>>> from delayd.core.stats.histogram import new_histogram, note_run
>>> late = new_histogram()
>>> history = History(start_ms=30_000)
>>> history.begin(30_000, (0, 0, 0, 0), late)
>>> note_run(late, first_ms=3, last_ms=3, jobs=2)
>>> history.begin(61_000, (5, 2, 1, 0), late)
>>> [(cell.from_ms, cell.counted, cell.late_p50_ms) for cell in history.cells((9, 2, 2, 1), late)]
[(30000, (5, 2, 1, 0), 3.5), (60000, (4, 0, 1, 1), None)]
"""

from collections import deque
from collections.abc import Sequence
from operator import sub
from typing import NamedTuple, final

from delayd.core.stats.histogram import Counts, quantile_ms
from delayd.limits import HISTORY_CELL_MS, HISTORY_CELLS


class Cell(NamedTuple):
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
    """The cells of the last hour."""

    __slots__ = ("_begun", "next_ms", "start_ms")

    def __init__(self, start_ms: int) -> None:
        self._begun: deque[tuple[int, Sequence[int], Counts]] = deque(maxlen=HISTORY_CELLS)
        """When each began, and what the counters and the histogram were then."""
        self.start_ms = start_ms
        """When the first cell began; before that nothing is known."""
        self.next_ms = start_ms
        """From then on, what is counted belongs to a new cell."""

    def begin(self, time_ms: int, counters: Sequence[int], late: Counts) -> None:
        """Begin a cell with the counters as they are; it is `next_ms` by now."""
        minute_ms = time_ms - time_ms % HISTORY_CELL_MS
        late = late.copy()
        idle_ms = max(self.next_ms, minute_ms - HISTORY_CELLS * HISTORY_CELL_MS)
        for from_ms in range(idle_ms, minute_ms, HISTORY_CELL_MS):
            self._begun.append((from_ms, counters, late))
        self._begun.append((max(minute_ms, self.start_ms), counters, late))
        self.next_ms = minute_ms + HISTORY_CELL_MS

    def cells(self, counters: Sequence[int], late: Counts) -> list[Cell]:
        """Return the cells, the oldest first; the counters are those of now."""
        cells = []
        for from_ms, were, were_late in reversed(self._begun):
            counted = tuple(map(sub, counters, were))
            within = [*map(sub, late, were_late)]
            p50_ms, p99_ms = quantile_ms(within, 0.5), quantile_ms(within, 0.99)
            cells.append(Cell(from_ms, counted, p50_ms, p99_ms))
            counters, late = were, were_late
        return cells[::-1]
