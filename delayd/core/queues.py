"""Where the jobs of one topic are that no client holds: delayed, ready and buried.

Delayed jobs are on a wheel, ready ones in a queue (`core.ready_queue`). Buried jobs are sorted as
the ready ones are, by the rank that their records say in place of the priority: the longest buried
first. All of them hold ids only.
"""

from collections.abc import Callable
from typing import Final, final

from delayd.core.job_parts import rank_of
from delayd.core.job_record import FLAGS_AT, STATE_AT, State
from delayd.core.ready_queue import ID_MASK, ReadyQueue
from delayd.core.sorted_keys import SortedKeys
from delayd.core.timers import TimerLane
from delayd.core.times import PlayedMs

# Compared with a byte of the record on every operation; an enum member costs 40 ns more.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)


@final
class Queues:
    """Where the jobs of a topic are that no client holds; a clear gives it new ones."""

    __slots__ = ("buried", "delays", "ready")

    def __init__(self, delays: TimerLane) -> None:
        self.delays = delays
        self.ready = ReadyQueue()
        self.buried = SortedKeys()

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
            self.ready.add(job_id, priority, due_ms, record, record[FLAGS_AT], since_ms)
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
            return self.ready.discard(job_id, priority, record)
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
        keys = self.buried.take_last(count) or self.ready.take_some(count)
        return [key & ID_MASK for key in keys]

    def __len__(self) -> int:
        return len(self.delays.wheel) + self.ready.count + len(self.buried)

    def check(self, record_of: Callable[[int], bytes | None]) -> None:
        """Assert that each part agrees with itself. O(jobs)."""
        self.delays.wheel.check()
        self.ready.check(record_of)
