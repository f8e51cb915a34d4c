"""Clearing a topic: all its waiting jobs are gone at once, however many there are.

    clear("mail")   delayed, ready, buried: forgotten, 2 million in 50 µs
                    reserved: live on, with their keys; given back they wait as ever
                    put from now on: as if nothing had been

One record says it. What is left of the forgotten jobs is swept away later (`core.cleared`).

A job is judged by the clock. One whose ttr has run out waits again, and is cleared, whether or not
its slice has come; so everything of that kind is settled first. Where much has run out at once that
takes a while: `Clear` is a pass (`core.background`) that settles a slice at a time and then clears.

    Clear(engine, topic_name)    .count, when it is over; `TopicNotFound`, `TopicNameInvalid`,
                                 `TopicIsInternal`

>>> from delayd.core.engine import Engine
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> for delay_ms in (5_000, 0):
...     job_id = engine.put(
...         topic, priority=0, delay_ms=delay_ms, ttr_ms=9, body=b"", now_ms=0)
>>> clear = Clear(engine, "default")
>>> clear.step(budget=100, now_ms=0), clear.count, topic.jobs
(True, 2, 0)
"""

from typing import TYPE_CHECKING

from delayd.core.failing import Failing
from delayd.core.job import Event
from delayd.core.records import Kind, pack_clear, pack_kick, pack_reschedule
from delayd.core.scans.scan import topic_named
from delayd.core.stats.operations import Operation
from delayd.core.transitions import kicked, rescheduled
from delayd.core.wheel.wheel import ceil_to_tick

if TYPE_CHECKING:
    from delayd.core.engine import Engine
    from delayd.core.topic import Topic


class Clearing(Failing):
    """An engine that can do something to many jobs at once, or to one after the other."""

    def clear(self, topic: "Topic") -> int:
        """Forget the jobs of the topic that nobody holds; return how many. O(jobs in hand).

        No reservation may be due that has not ended (`settle_leases`). Never refused: there is room
        set aside for the removal of each job, and one is enough.
        """
        store = self.store
        assert self.leases_are_settled, "a job whose ttr has run out would live on"
        if topic.jobs == topic.reserved:
            return 0
        number = store.topics.last_number + 1
        self._write_promised(pack_clear(Kind.CLEAR, topic.number, number))
        cleared = store.clear(topic, number)
        self.room.jobs -= cleared
        store.count(topic, Operation.CLEAR, cleared)
        store.drop_if_unwanted(topic)
        return cleared

    def kick_later(self, job_id: int, delay_ms: int, now_ms: int) -> None:
        """Let a buried or delayed job be kicked, and come due after this delay; `JobNotFound`.

        Counts as a kick. One item of the log: half of it would make the job ready too soon.
        """
        record = self._job(job_id, Event.KICK, now_ms)
        due_ms = ceil_to_tick(now_ms + delay_ms, self.tick_ms)
        kick = pack_kick(Kind.KICK, job_id)
        self._write(kick + pack_reschedule(Kind.RESCHEDULE, job_id, due_ms, delay_ms))
        topic = self.store.move(job_id, rescheduled(kicked(record), due_ms, delay_ms))
        self.store.count(topic, Operation.KICK)


class Clear:
    """Clears one topic."""

    __slots__ = ("_engine", "_name", "count", "is_over")

    def __init__(self, engine: "Engine", name: str) -> None:
        """Begin; `TopicNotFound`, `TopicNameInvalid`, `TopicIsInternal`."""
        engine.require_writable(name)
        topic_named(engine, name)
        self._engine = engine
        self._name = name
        self.count = 0
        """How many jobs were forgotten, when it is over."""
        self.is_over = False

    def step(self, budget: int, now_ms: int) -> bool:
        """Clear the topic, unless there is more to be settled before."""
        engine = self._engine
        if engine.settle_leases(budget, now_ms):
            topic = engine.store.topics.by_name.get(self._name)
            self.count = 0 if topic is None else engine.clear(topic)
            self.is_over = True
        return self.is_over
