"""Which wheel must turn next: a small heap over the wheels of all topics.

Each topic has a wheel of its own, so a topic with a million jobs due at one instant cannot stand in
the way of another. A `Lane` is one wheel and whose it is; the agenda knows which lane must be woken
first. A lane that has more to fire than its slice allows queues up again *behind* those that are
due, so that lanes take turns.

A row is pushed each time a lane's wake-up moves earlier. Older rows of the same lane are then
stale: recognised by their time, dropped when they surface, and swept when they outnumber the
others.

This module does not know what a job is.
"""

import heapq
from itertools import count
from typing import TYPE_CHECKING

from delayd.core.limits import AGENDA_STALE_ROWS

if TYPE_CHECKING:
    from delayd.core.topic import Topic
    from delayd.core.wheel import TimingWheel


class Lane:
    """One wheel, whose it is, and when it wants to be woken."""

    __slots__ = ("topic", "wake_ms", "wheel")

    def __init__(self, wheel: "TimingWheel") -> None:
        """Take a wheel; `topic` is set when it carries a topic's delays."""
        self.wheel = wheel
        self.topic: Topic | None = None
        self.wake_ms: int | None = None


class Agenda:
    """The lanes in the order of their wake-ups."""

    __slots__ = ("_live_rows", "_rows", "_serial")

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._rows: list[tuple[int, int, Lane]] = []
        self._serial = count()
        self._live_rows = 0

    def next_deadline(self) -> int | None:
        """Return when `take_due` will have something; None when nothing is on any wheel."""
        rows = self._rows
        while rows and rows[0][0] != rows[0][2].wake_ms:
            heapq.heappop(rows)
        return rows[0][0] if rows else None

    def take_due(self, now_ms: int, slice_entries: int) -> tuple[Lane, list[int]] | None:
        """Turn the wheel of the lane whose turn it is, by one slice; return what it fired.

        The list may be empty when the slice went into a cascade. None: nothing is due by `now_ms`.
        """
        deadline_ms = self.next_deadline()
        if deadline_ms is None or deadline_ms > now_ms:
            return None
        lane = heapq.heappop(self._rows)[2]
        lane.wake_ms = None
        fired = lane.wheel.advance(now_ms, slice_entries)
        self.queue(lane, now_ms)
        return lane, fired

    def queue(self, lane: Lane, not_before_ms: int = 0) -> None:
        """Queue the lane for its wheel's next deadline, but behind those due by `not_before_ms`.

        To be called whenever `insert` says that this deadline has moved earlier.
        """
        deadline_ms = lane.wheel.next_deadline()
        if deadline_ms is None:
            return
        deadline_ms = max(deadline_ms, not_before_ms)
        if lane.wake_ms is None or deadline_ms < lane.wake_ms:
            lane.wake_ms = deadline_ms
            heapq.heappush(self._rows, (deadline_ms, next(self._serial), lane))
            if len(self._rows) > AGENDA_STALE_ROWS + 2 * self._live_rows:
                self._sweep()

    def _sweep(self) -> None:
        """Drop the stale rows."""
        live = {row[2]: row for row in self._rows if row[0] == row[2].wake_ms}
        self._rows = list(live.values())
        heapq.heapify(self._rows)
        self._live_rows = len(self._rows)

    def check(self, lanes: list[Lane]) -> None:
        """Assert that each of these lanes will be woken by the time its wheel asks for."""
        queued = {(row[0], row[2]) for row in self._rows}
        for lane in lanes:
            deadline_ms = lane.wheel.next_deadline()
            if deadline_ms is not None:
                assert lane.wake_ms is not None, "a wheel with entries has no wake-up"
                assert (lane.wake_ms, lane) in queued, "a wake-up is not in the heap"
