"""What a clear leaves behind: jobs that are gone for everybody, and have not been swept away yet.

Forgetting two million jobs takes seconds; a clear takes microseconds. It gives the topic another
number and new, empty queues. A job at rest whose record still has an old number is a *ghost*:

    before    topic "mail" is 7      records of its jobs say 7
    cleared   topic "mail" is 9      at rest, record says 7: a ghost. Nobody finds it any more
                                     in hand, record says 7: lives on, and says 9 once it is back
                                     put from now on: says 9

`numbered[7]` leads to the topic until the last of them has gone, the ghosts swept by
`ClearedJobs.step` a slice at a time, those in hand deleted or put back (`topic.old_held` counts
them). A ghost costs nothing but its memory. Until then no snapshot is begun: a copy of a store with
ghosts would have to look at every job twice.

Everything here is carried out live and in a replay alike, and refuses to know why.
"""

from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

from delayd.core.job import (
    FLAGS_AT,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    TOPIC_AT,
    U32,
    Flag,
    key_of,
)
from delayd.core.stats.ready_ages import ReadyAges
from delayd.core.timers import TimerLane
from delayd.core.topic import ID_MASK
from delayd.limits import PASS_ACTION_COST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayd.core.store import Store
    from delayd.core.topic import Topic
    from delayd.core.wheel.wheel import TimingWheel

_KEY: Final = int(Flag.KEY)


def renumbered(record: bytes, number: int) -> bytes:
    """Return the record of a job whose topic has this number."""
    return record[:TOPIC_AT] + U32.pack(number) + record[STATE_AT:]


def clear(store: "Store", topic: "Topic", lane: TimerLane, number: int) -> int:
    """Turn the topic's jobs at rest into ghosts; return how many. O(jobs in hand).

    `lane` is where its delayed jobs will be, `number` the one that it has from now on.
    """
    cleared = topic.jobs - topic.reserved
    store.ghosts.append(ClearedJobs(topic))
    held = topic.reserved - sum(topic.old_held.values())
    if held:
        topic.old_held[topic.number] = held
    store.agenda.forget(topic.delays)
    topic.delays = lane
    lane.topic = topic
    topic.ready = SortedList()
    topic.buried = SortedList()
    topic.ages = ReadyAges()
    topic.urgent = 0
    topic.jobs = topic.reserved
    topic.bytes = _held_bytes(store, topic)
    if topic.number in store.paused:
        store.paused[number] = store.paused.pop(topic.number)
    topic.number = number
    store.numbered[number] = topic
    store.last_topic_number = max(store.last_topic_number, number)
    return cleared


def _held_bytes(store: "Store", topic: "Topic") -> int:
    """Return how long the records of the topic's jobs in hand are, together."""
    if not topic.reserved:
        return 0
    records = filter(None, map(store.jobs.get, store.holders))
    return sum(len(record) for record in records if store.topic_of(record) is topic)


def leave_old(store: "Store", topic: "Topic", number: int) -> None:
    """Note that a job in hand with an old number of its topic is deleted or put back."""
    topic.old_held[number] -= 1
    if not topic.old_held[number]:
        del topic.old_held[number]
        if all(ghost.number != number for ghost in store.ghosts):
            del store.numbered[number]


def forget(store: "Store", job_id: int) -> None:
    """Let a ghost vanish; to be called at once for one whose key somebody wants."""
    record = store.jobs.pop(job_id)
    if record[FLAGS_AT] & _KEY:
        store.topic_of(record).let_go(key_of(record), job_id)
    if store.absolute.count:
        store.absolute.discard(job_id)


class ClearedJobs:
    """The queues that a topic had when it was cleared."""

    __slots__ = ("_buried", "_ready", "_wheel", "number", "topic")

    def __init__(self, topic: "Topic") -> None:
        """Take over what the topic is about to lose."""
        self.topic = topic
        self.number = topic.number
        self._wheel: TimingWheel = topic.delays.wheel
        self._ready = topic.ready
        self._buried = topic.buried

    def step(self, store: "Store", budget: int) -> bool:
        """Forget some more of the jobs; tell whether all are gone, and this one with them."""
        count = 1 + budget // PASS_ACTION_COST
        job_ids = self._some(count)
        if job_ids:
            self._forget(store, job_ids)
            return False
        store.ghosts.remove(self)
        if self.number not in self.topic.old_held:
            del store.numbered[self.number]
        return True

    def _some(self, count: int) -> "list[int]":
        """Take some ids out of what is left; none at the end."""
        entries = self._wheel.take_some(count)
        if entries:
            return list(entries)
        keys = self._ready or self._buried
        return [keys.pop() & ID_MASK for _ in range(min(count, len(keys)))]

    def _forget(self, store: "Store", job_ids: "Iterable[int]") -> None:
        """Forget those that are ghosts of this clear; a wheel holds on to others as well."""
        get, holders = store.jobs.get, store.holders
        for job_id in job_ids:
            record = get(job_id)
            if record is None or job_id in holders:
                continue
            if PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1] == self.number:
                forget(store, job_id)
