"""How late things happen: durations counted in buckets, with bounds that grow like a logarithm.

Each topic has two such histograms. From *due to ready* is how late the wheel fired a job's delay,
and is the daemon's latency; from *ready to reserved* is how long a ready job waited for a consumer,
and is the consumers' latency. They count from the start of the daemon; the journal has no part in
it.

    bounds in ms     1   2   5   10  …  3,600,000
    bucket number  0   1   2   3          17       18

Bucket 2 counts what took 2, 3 or 4 ms. The clock says the millisecond that has begun, so something
that took 2 of them took less than 3: bound 5 is never exceeded by what is counted below it.

>>> histogram = new_histogram()
>>> note_run(histogram, first_ms=4, last_ms=4, jobs=2)
>>> histogram[2], histogram[SUM_AT]
(2, 8)
>>> quantile_ms(histogram, 0.5)
3.5

Many jobs at once mostly fall into one bucket. `span` says which times those are, so that a caller
that goes through a run of jobs compares instead of counting each.
"""

from bisect import bisect_right
from typing import Final, TypeAlias

from delayd.limits import LATENESS_BOUNDS_MS

Histogram: TypeAlias = list[int]
"""A count for each bucket, then the sum in milliseconds."""

_BOUNDS: Final = len(LATENESS_BOUNDS_MS)
SUM_AT: Final = _BOUNDS + 1


def new_histogram() -> Histogram:
    """Return one that has counted nothing."""
    return [0] * (SUM_AT + 1)


def note_run(histogram: Histogram, first_ms: int, last_ms: int, jobs: int) -> None:
    """Count jobs that fall into one bucket, of which the first and the last took so long.

    Those between are taken to be spread evenly. They are 128 ms apart at most (`span`), and mostly
    all the same.
    """
    histogram[bisect_right(LATENESS_BOUNDS_MS, first_ms)] += jobs
    if first_ms > 0:
        histogram[SUM_AT] += (first_ms + last_ms) * jobs >> 1


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


def count_of(histogram: Histogram) -> int:
    """Return how many it has counted; an empty list has counted nothing."""
    return sum(histogram[:SUM_AT])


def quantile_ms(histogram: Histogram, share: float) -> float | None:
    """Return what this share of all took at most, in milliseconds; None when nothing was counted.

    Interpolated within its bucket, like Prometheus' `histogram_quantile`; what took longer than the
    last bound counts as that.
    """
    rank = share * count_of(histogram)
    if not rank:
        return None
    below = 0
    low_ms = 0
    for high_ms, jobs in zip(LATENESS_BOUNDS_MS, histogram, strict=False):
        if jobs and below + jobs >= rank:
            return low_ms + (high_ms - low_ms) * (rank - below) / jobs
        below += jobs
        low_ms = high_ms
    return float(low_ms)
