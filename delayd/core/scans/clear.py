"""Clears one topic: deletes all its waiting jobs at once, however many there are.

    clear("mail")   delayed, ready, buried: deleted, 2 million in 50 µs
                    reserved: they stay, with their keys; given back they wait as usual
                    put from now on: not affected

The clock decides the state of a job. One whose ttr has run out waits again, and is cleared, whether
or not its slice has come; so all reservations that are over are ended first. Where many are, that
takes a while: `Clear` is a background task that ends a slice of them at a time and then clears.

    Clear(state, topic_name)    .count, when it is over; `TopicNotFound`, `TopicNameInvalid`,
                                `TopicIsInternal`

>>> from delayd.core.engine import Engine
>>> from delayd.core.operations.put import put_alike
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> for delay_ms in (5_000, 0):
...     job_id = put_alike(engine, topic, 0, delay_ms, 9, [b""], now_ms=0)
>>> clear = Clear(engine, "default")
>>> clear.step(budget=100, now_ms=0), clear.count, topic.jobs
(True, 2, 0)
"""

from delayd.core.engine import Engine
from delayd.core.operations import topics
from delayd.core.operations.checks import require_writable, topic_named
from delayd.core.operations.expiry import catch_up_leases


class Clear:
    """Clears one topic."""

    __slots__ = ("_engine", "_name", "count", "is_over")

    def __init__(self, engine: Engine, name: str) -> None:
        """Begin; `TopicNotFound`, `TopicNameInvalid`, `TopicIsInternal`."""
        require_writable(engine, name)
        topic_named(engine, name)
        self._engine = engine
        self._name = name
        self.count = 0
        """How many jobs were cleared, when it is over."""
        self.is_over = False

    def step(self, budget: int, now_ms: int) -> bool:
        """Clear the topic, unless more reservations must end before."""
        state = self._engine
        if catch_up_leases(state, budget, now_ms):
            topic = state.store.topics.by_name.get(self._name)
            self.count = 0 if topic is None else topics.clear(state, topic)
            self.is_over = True
        return self.is_over
