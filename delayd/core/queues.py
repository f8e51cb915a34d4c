"""The queues of one topic: its jobs at rest, delayed, ready and buried.

Ready order is priority, then id. Both are folded into one integer, `priority << 64 | id`, so that
the ready jobs are a plain sorted list of numbers: the head is the next job, any member is removed
exactly, and nothing is ever left behind to be skipped later.

>>> ready_key(1, 9) < ready_key(2, 3) < ready_key(2, 4)
True
>>> job_id_of(ready_key(2, 4))
4

Buried jobs are sorted in the same way, by the rank that their records say: when they were buried.
Delayed jobs are on a wheel. The queues hold ids only, and do not know their topic.
"""

from collections.abc import Callable
from typing import Final, final

from sortedcontainers import SortedList

from delayd.core.job import DUE_AT, STATE_AT, U64, State
from delayd.core.parts import rank_of
from delayd.core.stats.ready_ages import ReadyAges
from delayd.core.timers import TimerLane
from delayd.core.times import PlayedMs
from delayd.limits import PRIORITY_URGENT_BELOW

ID_MASK: Final = 2**64 - 1
# Compared with a byte of the record on every operation; an enum member costs 40 ns more.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_unpack_u64: Final = U64.unpack_from


def ready_key(priority: int, job_id: int) -> int:
    """Return the number by which ready jobs are sorted."""
    return priority << 64 | job_id


def job_id_of(key: int) -> int:
    """Return the job of a ready key."""
    return key & ID_MASK


@final
class Queues:
    """Where the jobs of a topic are that no client holds; a clear gives it new ones."""

    __slots__ = ("ages", "buried", "delays", "lanes", "ready", "urgent")

    def __init__(self, delays: TimerLane) -> None:
        """Start empty, with this lane for the delays."""
        self.delays = delays
        self.ready: SortedList[int] = SortedList()
        self.buried: SortedList[int] = SortedList()
        """As in `ready`, with the rank in place of the priority: the longest buried first."""
        self.lanes: dict[bytes, SortedList[int]] | None = None
        """Origin → ready keys of the jobs that have a target there; None while none has one."""
        self.urgent = 0
        """Ready jobs that count as urgent."""
        self.ages = ReadyAges()
        """Since when the ready ones are ready."""

    def place(
        self,
        job_id: int,
        priority: int,
        due_ms: int,
        record: bytes,
        time_ms: PlayedMs,
        since_ms: int = 0,
    ) -> bool:
        """Queue the job according to its state; tell whether the lane must be queued again.

        A ready one has been so since it was due, or since `since_ms` if that is given.
        """
        state = record[STATE_AT]
        if state == _DELAYED:
            return self.delays.wheel.insert(job_id, due_ms, time_ms)
        if state == _READY:
            self.ready.add(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                self.urgent += 1
            if not since_ms or not self.ages.keep(job_id, since_ms):
                since_ms = due_ms
            self.ages.add(since_ms)
        else:
            self.buried.add(rank_of(record) << 64 | job_id)
        return False

    def unplace(self, job_id: int, priority: int, record: bytes) -> int:
        """Take the job out of the queue where its state put it.

        Returns since when it was ready; 0 when it was not.
        """
        state = record[STATE_AT]
        if state == _DELAYED:
            self.delays.wheel.cancel()
        elif state == _READY:
            self.ready.remove(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                self.urgent -= 1
            return self.ages.leave(job_id, _unpack_u64(record, DUE_AT)[0])
        else:
            self.buried.remove(rank_of(record) << 64 | job_id)
        return 0

    def take_some(self, count: int) -> list[int]:
        """Take some ids out, at least one of those that are left, for queues not used any more.

        The wheel may hold entries of other jobs as well, which are dead in it.
        """
        entries = self.delays.wheel.take_some(count)
        if entries:
            return list(entries)
        keys = self.ready or self.buried
        if not keys and self.lanes:  # of jobs that are gone: only to free them in small steps
            origin, keys = self.lanes.popitem()
            if len(keys) > count:
                self.lanes[origin] = keys
        return [keys.pop() & ID_MASK for _ in range(min(count, len(keys)))]

    def __len__(self) -> int:
        """Count the jobs."""
        return len(self.delays.wheel) + len(self.ready) + len(self.buried)

    def check(self, record_of: Callable[[int], bytes | None]) -> None:
        """Assert that the ready ones are counted right. O(jobs)."""
        self.delays.wheel.check()
        assert self.urgent == sum(key >> 64 < PRIORITY_URGENT_BELOW for key in self.ready)
        ready = [(job_id, record_of(job_id)) for job_id in map(job_id_of, self.ready)]
        self.ages.check((job_id, _unpack_u64(rec or b"", DUE_AT)[0]) for job_id, rec in ready)
