"""How long our own work takes, counted in buckets: syncs, commits, turns.

Like `core.stats.latency`, which is for jobs and counts in milliseconds of delayd time, but with
bounds of one's own and in whatever unit these have.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import final

from delayd.limits import HISTOGRAM_FRESH_MAX, LONGEST_CELL_NS, LONGEST_CELLS


@final
class Histogram:
    """Values counted by the first bound that is not below them.

    >>> seconds = Histogram((10, 20))
    >>> for value in (3, 10, 15, 99):
    ...     seconds.note(value)
    >>> seconds.counts, seconds.sum
    ([2, 1, 1], 127)
    """

    __slots__ = ("_counts", "_fresh", "_others", "_sum", "bounds")

    def __init__(self, bounds: Sequence[int], others: "Histogram | None" = None) -> None:
        """Start with nothing counted; what `others` has counted, with the same bounds, is added."""
        self.bounds = tuple(bounds)
        self._others = others
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0
        self._fresh: list[int] = []
        """Noted and not counted yet: to count many at once takes a tenth of counting each."""

    def note(self, value: int) -> None:
        """Count one value."""
        fresh = self._fresh
        fresh.append(value)
        if len(fresh) >= HISTOGRAM_FRESH_MAX:
            self._count()

    def _count(self) -> None:
        fresh = self._fresh
        fresh.sort()
        counted = 0
        for place, bound in enumerate(self.bounds):
            below = bisect_right(fresh, bound, counted)
            self._counts[place] += below - counted
            counted = below
        self._counts[-1] += len(fresh) - counted
        self._sum += sum(fresh)
        fresh.clear()

    @property
    def counts(self) -> list[int]:
        """How many values there were up to each bound and above the one before, then the rest."""
        self._count()
        if self._others is None:
            return self._counts
        return [sum(both) for both in zip(self._counts, self._others.counts, strict=True)]

    @property
    def sum(self) -> int:
        """The sum of all values."""
        self._count()
        return self._sum if self._others is None else self._sum + self._others.sum


class Longest:
    """The longest of what took how long, in the last minute or a little more.

    Remembers the longest of each tenth of a minute in which something was noted, in a ring; nothing
    is done when nothing happens.

    >>> longest = Longest()
    >>> longest.note(7_000, now_ns=0)
    >>> longest.note(3_000, now_ns=50 * 10**9)
    >>> longest.within(now_ns=55 * 10**9), longest.within(now_ns=100 * 10**9)
    (7000, 3000)
    """

    __slots__ = ("_cells", "_longest")

    def __init__(self) -> None:
        """Start with nothing."""
        self._cells = array("q", (-1,) * LONGEST_CELLS)
        """Which tenth of a minute each place of the ring is about."""
        self._longest = array("q", (0,) * LONGEST_CELLS)

    def note(self, took_ns: int, now_ns: int) -> None:
        """Note that something took so long, until now."""
        cell = now_ns // LONGEST_CELL_NS
        place = cell % LONGEST_CELLS
        if self._cells[place] != cell:
            self._cells[place] = cell
            self._longest[place] = took_ns
        elif took_ns > self._longest[place]:
            self._longest[place] = took_ns

    def within(self, now_ns: int) -> int:
        """Return the longest of the last minute; 0 when there was nothing."""
        oldest = now_ns // LONGEST_CELL_NS - LONGEST_CELLS
        known = zip(self._cells, self._longest, strict=True)
        return max((took_ns for cell, took_ns in known if cell > oldest), default=0)
