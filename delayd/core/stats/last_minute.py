"""How often something has happened in the last minute, without reading a clock for it.

Counters only go up. Now and then, when something is about to be counted and the last time is ten
seconds ago, their values are written down: that begins a *cell*. Nothing is counted in a cell after
its first ten seconds, for that would have begun another one. So cells know all, and cost nothing
while nothing happens:

    counted   ****** *                ** ***
    cells     |--10 s--|              |--10 s--|
                                           now ─┘   the last minute: of the first cell a part

How much of a cell falls into the last minute is reckoned as if it had been counted evenly. The
counters may be the buckets of a histogram: then it is the histogram of the last minute.

>>> puts = LastMinute(counters=1)
>>> puts.begin(0, (0,))
>>> puts.begin(10_000, (600,))
>>> puts.counted(20_000, (1_200,)), puts.counted(65_000, (1_200,))
([1200.0], [900.0])
"""

from array import array
from collections.abc import Sequence

from delayd.limits import RATE_CELL_MS, RATE_CELLS, RATE_WINDOW_MS


class LastMinute:
    """The last cells of some counters."""

    __slots__ = ("_begun", "_cells", "_row", "next_ms")

    def __init__(self, counters: int) -> None:
        self._row = 1 + counters
        """A cell: when it began, and the counters then."""
        self._cells = array("Q")
        """A ring, once it has `RATE_CELLS` of them: most topics never have so many."""
        self._begun = 0
        self.next_ms = 0
        """From then on, what is counted begins a new cell."""

    def begin(self, time_ms: int, counters: Sequence[int]) -> None:
        """Begin a cell with the counters as they are, in place of one that has counted nothing."""
        if self.is_empty(counters):
            self._begun -= 1
        at = self._begun % RATE_CELLS * self._row
        self._cells[at : at + self._row] = array("Q", (time_ms, *counters))
        self._begun += 1
        self.next_ms = time_ms + RATE_CELL_MS

    def is_empty(self, counters: Sequence[int]) -> bool:
        """Tell whether the last cell has counted nothing so far."""
        at = (self._begun - 1) % RATE_CELLS * self._row
        return self._begun > 0 and self._cells[at + 1 : at + self._row] == array("Q", counters)

    def counted(self, now_ms: int, counters: Sequence[int]) -> list[float]:
        """Return how much of each was counted in the last minute."""
        counted = [0.0] * (self._row - 1)
        begun_ms = now_ms - RATE_WINDOW_MS
        ends: Sequence[int] = counters
        end_ms = now_ms
        for number in range(self._begun - 1, max(-1, self._begun - 1 - RATE_CELLS), -1):
            at = number % RATE_CELLS * self._row
            start_ms = self._cells[at]
            cell_ms = max(1, min(RATE_CELL_MS, end_ms - start_ms))
            within_ms = min(cell_ms, start_ms + cell_ms - begun_ms)
            if within_ms <= 0:
                break
            starts = self._cells[at + 1 : at + self._row]
            share = within_ms / cell_ms
            for each, (start, end) in enumerate(zip(starts, ends, strict=True)):
                counted[each] += (end - start) * share
            ends, end_ms = starts, start_ms
        return counted
