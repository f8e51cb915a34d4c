"""The jobs of all topics by state, summed a slice of topics at a time.

Reading 10,000 topics takes 15 ms, too long for one step. So the sum is taken in steps
with turns in between: each topic is counted as it is when its step comes, once. Topics made
meanwhile are in the next scan.

It also decides which topics have metrics of their own (`Topic.has_own_metrics`), since it sees all
topics. A topic gets one when it is made, as long as there are any to be had
(`TOPICS_SHOWN_MAX`), and keeps it for as long as it lives, so that series do not come and go. Only
one that has become twice as busy as the least busy of those takes its place: `TOPIC_SWAPS_MAX` at
most each time. What was counted stays with the topic that counted it, so no counter ever decreases.

>>> from delayd.core.engine import Engine
>>> scan = TotalsScan(Engine(start_ms=0).store)
>>> scan.step(topics=100), scan.all.topics
(True, 1)
"""

from heapq import heappush, heappushpop, nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from delayd.limits import TOPIC_SWAPS_MAX, TOPICS_SHOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayd.core.store import Store
    from delayd.core.topic import Topic


class StateTotals:
    """How many jobs and groups some topics have, and how old the oldest ready job is."""

    __slots__ = (
        *("buried", "delayed", "groups", "oldest_ms", "ready", "reserved", "topics", "urgent"),
    )

    def __init__(self) -> None:
        self.topics = 0
        self.ready = 0
        self.urgent = 0
        """Of the ready."""
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.groups = 0
        self.oldest_ms: int | None = None
        """When the oldest ready job became ready, at the latest; None when none is."""

    def add(self, topic: "Topic") -> None:
        """Add a topic; those of the daemon's own jobs are in no total."""
        if topic.is_internal:
            return
        self.topics += 1
        ready = topic.queues.ready
        self.urgent += ready.urgent
        self.reserved += topic.reserved
        self.delayed += topic.delayed
        self.buried += len(topic.queues.buried)
        self.groups += ready.group_count
        if ready.count:
            self.ready += ready.count
            oldest_ms = ready.ages.oldest_ms()
            if oldest_ms is not None and (self.oldest_ms is None or oldest_ms < self.oldest_ms):
                self.oldest_ms = oldest_ms

    def add_all(self, topics: "Iterable[Topic]") -> None:
        """Add topics."""
        for topic in topics:
            self.add(topic)


def busyness(topic: "Topic") -> int:
    """Return how busy a topic is, for metrics of its own; it only falls when jobs go."""
    return topic.jobs + topic.jobs_put + topic.reserves


class TotalsScan:
    """One count of all jobs."""

    def __init__(self, store: "Store") -> None:
        """Begin: those move up that the last scan found to be busier. O(topics), 20 ns each."""
        self._store = store
        self.all = StateTotals()
        self.others = StateTotals()
        """Of topics without a name in the metrics."""
        self.shown: list[Topic] = []
        """Those with one, when it is over."""
        self.is_over = False
        self._busiest: list[tuple[int, int, Topic]] = []
        self._swap()
        self._left = iter(tuple(store.topics.listing))

    def step(self, topics: int) -> bool:
        """Count so many more topics, 1.5 µs each; tell whether that was all."""
        done = 0
        for topic in islice(self._left, topics):
            done += 1
            self.all.add(topic)
            if topic.has_own_metrics:
                self.shown.append(topic)
            else:
                self.others.add(topic)
                self._consider(topic)
        if done < topics and not self.is_over:
            self.is_over = True
            self._store.counters.busiest = [row[2] for row in sorted(self._busiest, reverse=True)]
        return self.is_over

    def _consider(self, topic: "Topic") -> None:
        row = (busyness(topic), self.all.topics, topic)
        if len(self._busiest) < TOPIC_SWAPS_MAX:
            heappush(self._busiest, row)
        elif row > self._busiest[0]:
            heappushpop(self._busiest, row)

    def _swap(self) -> None:
        """Give names to the topics that have become busier than named ones. O(topics shown)."""
        store = self._store
        candidates, store.counters.busiest = store.counters.busiest, []
        candidates = [
            topic
            for topic in candidates
            if store.topics.by_name.get(topic.name) is topic and not topic.has_own_metrics
        ]
        if not candidates:
            return
        shown = [topic for topic in store.topics.listing if topic.has_own_metrics]
        idlest = iter(nsmallest(len(candidates), shown, key=busyness))
        for topic in candidates:
            if store.topics.shown >= TOPICS_SHOWN_MAX:
                other = next(idlest)
                if busyness(topic) <= 2 * busyness(other):
                    break
                other.has_own_metrics = False
                store.topics.shown -= 1
            topic.has_own_metrics = True
            store.topics.shown += 1
