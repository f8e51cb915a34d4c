"""How often something has happened in the last minute, without reading a clock for it.

Counters only go up. Now and then, when something is about to be counted and the last time is ten
seconds ago, their values are written down: that begins a *cell*. Nothing is counted in a cell after
its first ten seconds, for that would have begun another one. So cells know all, and cost nothing
while nothing happens:

    counted   ****** *                ** ***
    cells     |--10 s--|              |--10 s--|
                                           now ─┘   the last minute: of the first cell a part

How much of a cell falls into the last minute is reckoned as if it had been counted evenly.

>>> rates = Rates()
>>> rates.begin(0, (0, 0, 0))
>>> rates.begin(10_000, (600, 0, 0))
>>> rates.per_s(20_000, (1_200, 60, 0))
(20.0, 1.0, 0.0)
>>> rates.per_s(65_000, (1_200, 60, 0))
(15.0, 1.0, 0.0)
"""

from array import array
from collections.abc import Sequence

from delayd.limits import RATE_CELL_MS, RATE_CELLS, RATE_WINDOW_MS

_ROW = 4
"""A cell: when it began, and the three counters then."""


class Rates:
    """The last cells of three counters: jobs put, reserved, deleted."""

    __slots__ = ("_cells", "_next", "next_ms")

    def __init__(self) -> None:
        self._cells = array("Q", bytes(8 * _ROW * RATE_CELLS))
        self._next = 0
        self.next_ms = 0
        """From then on, what is counted begins a new cell."""

    def begin(self, time_ms: int, counters: Sequence[int]) -> None:
        """Begin a cell with the counters as they are; it is `next_ms` by now."""
        at = self._next % RATE_CELLS * _ROW
        self._cells[at : at + _ROW] = array("Q", (time_ms, *counters))
        self._next += 1
        self.next_ms = time_ms + RATE_CELL_MS

    def per_s(self, now_ms: int, counters: Sequence[int]) -> tuple[float, float, float]:
        """Return how many a second were counted in the last minute, of each."""
        counted = [0.0, 0.0, 0.0]
        cells = self._cells
        begun_ms = now_ms - RATE_WINDOW_MS
        ends: Sequence[int] = counters
        end_ms = now_ms
        for number in range(self._next - 1, max(-1, self._next - 1 - RATE_CELLS), -1):
            at = number % RATE_CELLS * _ROW
            start_ms = cells[at]
            cell_ms = max(1, min(RATE_CELL_MS, end_ms - start_ms))
            within_ms = min(cell_ms, start_ms + cell_ms - begun_ms)
            if within_ms <= 0:
                break
            starts = cells[at + 1 : at + _ROW]
            for each in range(3):
                counted[each] += (ends[each] - starts[each]) * within_ms / cell_ms
            ends, end_ms = starts, start_ms
        put, reserved, deleted = (jobs * 1_000 / RATE_WINDOW_MS for jobs in counted)
        return put, reserved, deleted
