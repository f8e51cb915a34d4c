"""A walk over all topics: a background task (`core.background_tasks`), where there are very many.

    TopicWalk(topics, visit)    `visit` gets some of them in each step, each topic once

>>> from delayd.core.engine import Engine
>>> seen = []
>>> walk = TopicWalk(Engine(start_ms=0).store.topics.listing, seen.extend)
>>> while not walk.step(100, 0): pass
>>> [topic.name for topic in seen]
['default']
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import final

from delayd.core.times import RequestMs
from delayd.core.topic import Topic


@final
class TopicWalk:
    """All topics that there were when it began, those that have gone since included."""

    def __init__(
        self, topics: Sequence[Topic], visit: Callable[[Sequence[Topic]], object], cost: int = 1
    ) -> None:
        """Begin; a topic takes as long as `cost` jobs. O(topics), 5 ns each."""
        self._left = iter(tuple(topics))
        self._visit = visit
        self._cost = cost

    def step(self, budget: int, _now_ms: RequestMs) -> bool:
        """Visit `budget` more topics, or fewer; tell whether those were the last."""
        count = max(1, budget // self._cost)
        some = tuple(islice(self._left, count))
        self._visit(some)
        return len(some) < count
