"""Timers: which wheel must turn next, and the alarms that end waits and pauses.

Each topic has a wheel of its own, so a topic with a million jobs due at one instant cannot delay
another. A `TimerLane` is one wheel and its owner; the `TimerQueue`, a small heap, knows which lane
must be woken first. A lane that has more to fire than its slice allows is queued again *after*
those that are due, so that lanes take turns.

A row is pushed each time a lane's wake-up moves earlier. Only the row whose ticket the lane carries
counts. Its older rows are stale: dropped when they surface. When they outnumber the others a new
heap is begun, to which the old one's live rows move, a few each time that a row is pushed: no call
looks at all of them.

An alarm rings once, at its time, for the session whose wait or the topic whose pause then ends, or
for the throttle of a topic whose next job is allowed then. Its number is an entry of a wheel.
"""

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Generic, TypeAlias, TypeVar, final

from delayd.core.times import PlayedMs
from delayd.core.wheel.wheel import TimingWheel
from delayd.limits import TIMER_ROWS_MOVED, TIMER_STALE_ROWS

OwnerT = TypeVar("OwnerT")


@final
class TimerLane:
    """One wheel, its owner, and when it must be woken."""

    __slots__ = ("ticket", "topic_name", "wake_ms", "wheel")

    def __init__(self, wheel: TimingWheel, topic_name: str = "") -> None:
        """Take a wheel, and the name of the topic whose delays it carries, if it does."""
        self.wheel = wheel
        self.topic_name = topic_name
        self.wake_ms: int | None = None
        self.ticket = 0
        """Of its row in the queue; a row's time would not do, since old rows may have the same."""

    def unqueue(self) -> None:
        """Make its row stale, when it is taken or its wheel is not used again."""
        self.wake_ms = None
        self.ticket = 0


_Row: TypeAlias = tuple[int, int, TimerLane]
"""When to wake, the ticket, the lane."""


@final
class TimerQueue:
    """The lanes in the order of their wake-ups."""

    __slots__ = ("_live_rows", "_old_rows", "_rows", "_tickets", "changes", "last_due")

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._old_rows: list[_Row] = []
        """Another heap, from which the live rows are moved."""
        self._tickets = count(1)
        self._live_rows = 0
        self.changes = 0
        """How often something was queued: as long as this stays, no deadline has become earlier."""
        self.last_due: tuple[TimerLane, list[int]] | None = None
        """What `take_due` returned last, for comparing each slice with a model."""

    def next_deadline(self) -> int | None:
        """Return when `take_due` will have something; None when nothing is on any wheel."""
        rows = self._rows
        while rows and rows[0][1] != rows[0][2].ticket:
            heapq.heappop(rows)
        if len(self._old_rows) > 0:
            rows = self._rows_with_the_first()
        return rows[0][0] if rows else None

    def _rows_with_the_first(self) -> "list[_Row]":
        """Return the heap whose first row is the first of all; neither begins with a stale one."""
        rows, old_rows = self._rows, self._old_rows
        while old_rows and old_rows[0][1] != old_rows[0][2].ticket:
            heapq.heappop(old_rows)
        return old_rows if old_rows and (not rows or old_rows[0] < rows[0]) else rows

    def take_due(self, now_ms: PlayedMs, slice_entries: int) -> tuple[TimerLane, list[int]] | None:
        """Turn the wheel of the lane whose turn it is, by one slice; return what it fired.

        The list may be empty when the slice went into a cascade. None: nothing is due by `now_ms`.
        """
        deadline_ms = self.next_deadline()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        rows = self._rows_with_the_first() if len(self._old_rows) > 0 else self._rows
        lane = heapq.heappop(rows)[2]
        lane.unqueue()
        fired = lane.wheel.advance(now_ms, slice_entries)
        self.queue(lane, now_ms)
        due = self.last_due = (lane, fired)
        return due

    def queue(self, lane: TimerLane, not_before_ms: int = 0) -> None:
        """Queue the lane for its wheel's next deadline, but after those due by `not_before_ms`.

        To be called whenever `insert` says that this deadline has moved earlier.
        """
        deadline_ms = lane.wheel.next_deadline()
        if deadline_ms is None:
            return
        deadline_ms = max(deadline_ms, not_before_ms)
        if lane.wake_ms is None or deadline_ms < lane.wake_ms:
            lane.wake_ms = deadline_ms
            lane.ticket = next(self._tickets)
            self.changes += 1
            heapq.heappush(self._rows, (deadline_ms, lane.ticket, lane))
            if len(self._old_rows) > 0:
                self._move_some()
            elif len(self._rows) > TIMER_STALE_ROWS + 2 * self._live_rows:
                self._old_rows, self._rows = self._rows, []

    def _move_some(self) -> None:
        """Move some rows out of the old heap, and drop the stale ones of them."""
        old_rows = self._old_rows
        for _ in range(min(TIMER_ROWS_MOVED, len(old_rows))):
            row = old_rows.pop()  # without its last row a heap is still one
            if row[1] == row[2].ticket:
                heapq.heappush(self._rows, row)
        if len(old_rows) == 0:
            self._live_rows = len(self._rows)

    def check(self, lanes: list[TimerLane], now_ms: PlayedMs) -> None:
        """Assert that each of these lanes, and no other, is woken when its wheel asks for it."""
        rows = [*self._rows, *self._old_rows]
        queued = {row[2]: row for row in rows if row[1] == row[2].ticket}
        assert set(queued) <= set(lanes), "an unknown lane is queued"
        for lane in lanes:
            deadline_ms = lane.wheel.next_deadline()
            if deadline_ms is not None:
                assert lane.wake_ms is not None, "a wheel with entries has no wake-up"
                assert queued[lane][0] == lane.wake_ms, "a wake-up is not in the heap"
                assert lane.wake_ms <= max(deadline_ms, now_ms), "a wake-up is late"


@final
class Alarms(Generic[OwnerT]):
    """The alarms that have not rung, and the lane that rings them."""

    __slots__ = ("_last", "_queue", "lane", "rows")

    def __init__(
        self, new_wheel: Callable[[Callable[[int], int | None]], TimingWheel], queue: TimerQueue
    ) -> None:
        """Start without any; `new_wheel(due_of)` makes the wheel of the lane, which is queued."""
        self.rows: dict[int, tuple[int, OwnerT]] = {}
        """Alarm → when it rings, and what it is set for."""
        self._last = 0
        self._queue = queue
        self.lane = TimerLane(new_wheel(self._rings))

    def _rings(self, alarm: int) -> int | None:
        row = self.rows.get(alarm)
        return None if row is None else row[0]

    def add(self, ring_ms: int, owner: OwnerT, time_ms: PlayedMs) -> int:
        """Set an alarm; return its number."""
        self._last += 1
        self.rows[self._last] = (ring_ms, owner)
        if self.lane.wheel.insert(self._last, ring_ms, time_ms):
            self._queue.queue(self.lane)
        return self._last

    def take(self, alarms: Iterable[int]) -> list[OwnerT]:
        """Drop alarms that have rung; return their owners, before acting on any."""
        return [self.rows.pop(alarm)[1] for alarm in alarms]

    def cancel(self, alarm: int) -> None:
        """Drop an alarm that has not rung."""
        del self.rows[alarm]
        self.lane.wheel.cancel()

    def check(self) -> None:
        """Assert that the lane has these alarms and no other."""
        assert len(self.lane.wheel) == len(self.rows)
        self.lane.wheel.check()
