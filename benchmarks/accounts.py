"""What became of each job of a soak, and whether a series of samples is flat.

Every job has a number, which is its body. A put is noted before it is sent and when it is
acknowledged, an end (delete, ack, cancel) before it is asked for and when it is confirmed. So what
a crash leaves in doubt counts neither as lost nor as doubled:

>>> ledger = Ledger()
>>> first, second = ledger.number(), ledger.number()
>>> ledger.acknowledged(first), ledger.acknowledged(second)
(None, None)
>>> ledger.received(first), ledger.finished(first)
(None, None)
>>> ledger.totals()
Totals(acknowledged=2, finished=1, doubled=0, lost=1)

Flat: the median of the slopes of all pairs (Theil and Sen) of the later 80 % of the samples, times
their number, is how much a figure rose. It is flat if that is at most a share of its median, or at
most an allowance. One burst does not make a rise; a leak does, however slow its samples are.

>>> rise([9, 9, 0, 1, 2, 3, 99, 5, 6, 7])
7.0
"""

import statistics
import threading
from collections.abc import Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Final, NamedTuple

WARM_UP_SHARE: Final = 0.2
"""Of the samples: caches fill, and the load comes to stand."""

_ACKNOWLEDGED: Final = 1
_ASKED: Final = 2
_FINISHED: Final = 4


class Totals(NamedTuple):
    """What a ledger comes to."""

    acknowledged: int = 0
    finished: int = 0
    doubled: int = 0
    """Handed out after their end was confirmed."""
    lost: int = 0
    """Acknowledged, and neither finished nor in doubt."""


class Ledger:
    """One byte for each job; threads share it."""

    def __init__(self) -> None:
        self._jobs = bytearray()
        self._lock = threading.Lock()
        self._doubled = 0

    def number(self) -> int:
        """Return the number of a job that is about to be put."""
        with self._lock:
            self._jobs.append(0)
            return len(self._jobs) - 1

    def acknowledged(self, number: int) -> None:
        """Note that its put was acknowledged."""
        self._note(number, _ACKNOWLEDGED)

    def received(self, number: int) -> None:
        """Note that it was handed out."""
        with self._lock:
            self._doubled += bool(self._jobs[number] & _FINISHED)

    def asked(self, number: int) -> None:
        """Note that its end is about to be asked for."""
        self._note(number, _ASKED)

    def finished(self, number: int) -> None:
        """Note that its end was confirmed."""
        self._note(number, _FINISHED)

    def refused(self, number: int) -> None:
        """Note that its end was refused: it will be handed out again."""
        with self._lock:
            self._jobs[number] &= ~_ASKED

    def totals(self) -> Totals:
        """Count; lost is what has not come to its end yet."""
        counts = [self._jobs.count(state) for state in range(8)]
        return Totals(
            sum(counts[_ACKNOWLEDGED::2]), sum(counts[_FINISHED:]), self._doubled, counts[1]
        )

    def _note(self, number: int, bit: int) -> None:
        with self._lock:
            self._jobs[number] |= bit


def added(totals: Sequence[Totals]) -> Totals:
    """Add them up."""
    return Totals(*(sum(figures) for figures in zip(*totals, strict=True)))


def later(values: Sequence[float]) -> Sequence[float]:
    """Return the values without those of the warm-up."""
    return values[int(len(values) * WARM_UP_SHARE) :]


def rise(values: Sequence[float]) -> float:
    """Return how much the later values rose from their first to their last."""
    numbered = list(enumerate(later(values)))
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in combinations(numbered, 2)]
    return statistics.median(slopes) * (len(numbered) - 1) if slopes else 0.0


class Trend(NamedTuple):
    """What became of a figure in the samples of a soak."""

    rose: float
    at_most: float
    """The highest rise that still counts as flat."""
    missing: int
    """Samples in which it was not read."""
    is_flat: bool
    """Not so if a sample is without it."""


class Flatness(NamedTuple):
    """How much a figure may rise."""

    share: float
    """Of its median."""
    allowance: float
    """That much is always allowed."""

    def allows(self, values: Sequence[float]) -> bool:
        """Whether the values are flat."""
        return rise(values) <= self.limit(values)

    def trend(self, known: Sequence[float], samples: int) -> Trend:
        """Judge the values that are known of so many samples."""
        missing = samples - len(known)
        is_flat = bool(known) and not missing and self.allows(known)
        return Trend(rise(known), self.limit(known), missing, is_flat)

    def limit(self, values: Sequence[float]) -> float:
        """Return the highest rise that still counts as flat."""
        kept = later(values)
        return max(self.share * statistics.median(kept), self.allowance) if kept else 0.0


MEMORY: Final = Flatness(0.05, 8 << 20)
DESCRIPTORS: Final = Flatness(0.05, 8.0)
TIMES: Final = Flatness(0.25, 10.0)
FLAT: Final[Mapping[str, Flatness]] = MappingProxyType(
    {
        "memory_bytes": MEMORY,
        "descriptors": DESCRIPTORS,
        "p99_ms": TIMES,
        "put_p99_ms": TIMES,
    }
)
"""Of what a soak keeps, by the names of the registry."""
