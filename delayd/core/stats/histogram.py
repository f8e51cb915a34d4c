"""Histograms: how long things take, counted in buckets whose bounds grow like a logarithm.

Each topic has two, in milliseconds. From *due to ready* is how late the wheel fired a job's delay,
and is the daemon's latency; from *ready to reserved* is how long a ready job waited for a consumer,
and is the consumers' latency. They count from the start of the daemon; the journal has no part in
it. They are plain lists: a count for each bucket, then the sum of all.

    bounds in ms     1   2   5   10  …  3,600,000
    bucket number  0   1   2   3          17       18

Bucket 2 counts what took 2, 3 or 4 ms. The clock says the millisecond that has begun, so something
that took 2 of them took less than 3: bound 5 is never exceeded by what is counted below it.

>>> histogram = new_histogram()
>>> note_run(histogram, first_ms=4, last_ms=4, jobs=2)
>>> histogram[2], histogram[-1]
(2, 8)
>>> quantile_ms(histogram, 0.5)
3.5

Many jobs at once mostly fall into one bucket. `span` says which times those are, so that a caller
that goes through a run of jobs compares instead of counting each.

How long our own work takes, syncs, commits and turns, is measured one by one and in any unit:
`Histogram` gathers the values and counts many of them together.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, TypeAlias, final

from delayd.limits import HISTOGRAM_FRESH_MAX, LATENESS_BOUNDS_MS, LONGEST_CELL_NS, LONGEST_CELLS

Counts: TypeAlias = list[int]
"""A count for each bucket, then the sum."""

_BOUNDS: Final = len(LATENESS_BOUNDS_MS)


def new_histogram() -> Counts:
    """Return the counts of a topic that has counted nothing."""
    return [0] * (_BOUNDS + 2)


def note_run(histogram: Counts, first_ms: int, last_ms: int, jobs: int) -> None:
    """Count jobs that fall into one bucket, of which the first and the last took so long.

    Those between are taken to be spread evenly. They are 128 ms apart at most (`span`), and mostly
    all the same.
    """
    histogram[bisect_right(LATENESS_BOUNDS_MS, first_ms)] += jobs
    if first_ms > 0:
        histogram[-1] += (first_ms + last_ms) * jobs >> 1


def span(since_ms: int, time_ms: int, shift: int) -> tuple[int, int]:
    """Return [from, to): times that share a bucket with this one, and its `ReadyAges` slot.

    >>> span(since_ms=9_997, time_ms=10_000, shift=10)
    (9996, 9999)
    """
    low_ms = since_ms >> shift << shift
    high_ms = low_ms + (1 << shift)
    place = bisect_right(LATENESS_BOUNDS_MS, time_ms - since_ms)
    # Once for each run of jobs: `max` and `min` would take as long as all the rest.
    if place < _BOUNDS:
        from_ms = time_ms - LATENESS_BOUNDS_MS[place] + 1
        if from_ms > low_ms:  # noqa: PLR1730
            low_ms = from_ms
    if place:
        to_ms = time_ms - LATENESS_BOUNDS_MS[place - 1] + 1
        if to_ms < high_ms:  # noqa: PLR1730
            high_ms = to_ms
    return low_ms, high_ms


def count_of(histogram: Sequence[float]) -> float:
    """Return how many it has counted; an empty list has counted nothing."""
    return sum(histogram[:-1])


def sum_ms(histogram: Sequence[float]) -> float:
    """Return how long all took together, in milliseconds.

    The clock says the millisecond that has begun, so each took half a one more on average. Without
    it the mean of what takes less than a millisecond would be 0, and the median 0.5.
    """
    return histogram[-1] + count_of(histogram) / 2


def quantile_ms(histogram: Sequence[float], share: float) -> float | None:
    """Return what this share of all took at most, in milliseconds; None when nothing was counted.

    Interpolated within its bucket, like Prometheus' `histogram_quantile`; what took longer than the
    last bound counts as that.
    """
    rank = share * count_of(histogram)
    if not rank:
        return None
    below = 0.0
    low_ms = 0
    for high_ms, jobs in zip(LATENESS_BOUNDS_MS, histogram, strict=False):
        if jobs and below + jobs >= rank:
            return low_ms + (high_ms - low_ms) * (rank - below) / jobs
        below += jobs
        low_ms = high_ms
    return float(low_ms)


@final
class Histogram:
    """Values counted by the first bound that is not below them.

    >>> seconds = Histogram((10, 20))
    >>> for value in (3, 10, 15, 99):
    ...     seconds.note(value)
    >>> seconds.counts
    [2, 1, 1, 127]
    """

    __slots__ = ("_counts", "_fresh", "_others", "bounds")

    def __init__(self, bounds: Sequence[int], others: "Histogram | None" = None) -> None:
        """Start with nothing counted; what `others` has counted, with the same bounds, is added."""
        self.bounds = tuple(bounds)
        self._others = others
        self._counts = [0] * (len(self.bounds) + 2)
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
        self._counts[-2] += len(fresh) - counted
        self._counts[-1] += sum(fresh)
        fresh.clear()

    @property
    def counts(self) -> Counts:
        """How many values there were up to each bound and above the one before; their sum."""
        self._count()
        if self._others is None:
            return self._counts
        return [sum(both) for both in zip(self._counts, self._others.counts, strict=True)]


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

    def __init__(self) -> None:
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
