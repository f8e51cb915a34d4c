"""What is counted of deliveries since the start: by topic and result, and how long they took.

The topics that were delivered from first are counted by name, all others as one, so that a scrape
stays bounded however many topics there are.
"""

from collections.abc import Mapping
from typing import Final

from delayd.core.stats.histogram import Histogram
from delayd.limits import PUSH_BOUNDS_MS, TOPICS_SHOWN_MAX
from delayd.push.sinks import Result


class PushCounters:
    """Counts attempts that have ended."""

    __slots__ = ("_shown", "others", "took_ms")

    def __init__(self) -> None:
        """Count from zero."""
        self._shown: dict[str, dict[Result, int]] = {}
        self.others: Final = dict.fromkeys(Result, 0)
        """What topics count that have no name here."""
        self.took_ms: Final[dict[str, Histogram]] = {}
        """Sink → how long its attempts took, whatever became of them."""

    @property
    def by_topic(self) -> Mapping[str, Mapping[Result, int]]:
        """The counts of the topics that are counted by name."""
        return self._shown

    def note(self, topic: str, sink: str, result: Result, took_ms: int) -> None:
        """Count an attempt that has ended; exhausted: it has made its job a dead letter."""
        counts = self._shown.get(topic)
        if counts is None:
            counts = self.others
            if len(self._shown) < TOPICS_SHOWN_MAX:
                counts = self._shown[topic] = dict.fromkeys(Result, 0)
        counts[result] += 1
        histogram = self.took_ms.get(sink)
        if histogram is None:
            histogram = self.took_ms[sink] = Histogram(PUSH_BOUNDS_MS)
        histogram.note(took_ms)
