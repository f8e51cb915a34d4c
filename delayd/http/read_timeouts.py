"""Who is to be looked at when: one timer for the deadlines of all connections.

A connection that is watched stands in the bucket of one second, and is looked at when that second
has come; it then closes, or says when to look next. Its deadline may move away meanwhile as often
as it likes at no cost, since that is found out when it is looked at: a request moves its
connection's deadlines four times, and none of that touches a timer.

    second   30: a b c    31: -    35: d         timer: 30
    at 30    a closes, b says 95, c says 31  ─►  31: c    35: d    95: b         timer: 31

Deadlines are up to a second late and never early. With nobody watched there is no timer. A second
in which many stand is gone through in slices.

The module refuses to know what is looked at.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from delayd.limits import HTTP_LOOKS_MAX

MS_PER_S: Final = 1_000


class Watched(Protocol):
    """Something that has deadlines."""

    look_s: int
    """The second in which it will be looked at; 0: in none. Only `DeadlineTimer` changes it."""

    def look(self, now_ms: int) -> int:
        """Do what is due; return when to look next, 0 for never."""


class DeadlineTimer:
    """Looks at those who are watched, each in its second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int]) -> None:
        """Begin with nobody; `now_ms` is a clock that never stands."""
        self._loop = loop
        self._now_ms = now_ms
        self._buckets: dict[int, dict[Watched, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0

    def watch(self, watched: Watched, due_ms: int) -> None:
        """Look at it then at the latest; if that was to be sooner anyway, nothing changes."""
        second = -(-due_ms // MS_PER_S)
        before = watched.look_s
        if before:
            if before <= second:
                return
            self.forget(watched)
        watched.look_s = second
        bucket = self._buckets.get(second)
        if bucket is not None:
            bucket[watched] = None
            return
        self._buckets[second] = {watched: None}
        if self._timer is None or second < self._timer_s:
            self._set_timer(second)

    def forget(self, watched: Watched) -> None:
        """Look at it no more."""
        second = watched.look_s
        if not second:
            return
        watched.look_s = 0
        bucket = self._buckets[second]
        del bucket[watched]
        if not bucket:
            del self._buckets[second]
            if not self._buckets:
                self.close()

    def go(self) -> None:
        """Look at those whose second has come; at a bounded number of them, the rest right after.

        The timer calls it; calling it more often does no harm.
        """
        self.close()
        now_ms = self._now_ms()
        left = HTTP_LOOKS_MAX
        while left and self._buckets:
            second = min(self._buckets)
            if second * MS_PER_S > now_ms:
                break
            watched = next(iter(self._buckets[second]))
            self.forget(watched)
            due_ms = watched.look(now_ms)
            if due_ms:
                # One that says "now" is looked at again in the next round, not for ever in this.
                self.watch(watched, max(due_ms, now_ms + 1))
            left -= 1
        if self._buckets:
            self._set_timer(min(self._buckets))

    def close(self) -> None:
        """Set no timer any more, until somebody is watched."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, second: int) -> None:
        self.close()
        wait_ms = max(0, second * MS_PER_S - self._now_ms())
        self._timer_s = second
        self._timer = self._loop.call_later(wait_ms / MS_PER_S, self.go)

    def check(self) -> None:
        """Raise `AssertionError` unless everybody stands where they say, and somebody will come."""
        for second, bucket in self._buckets.items():
            assert bucket, second
            assert all(watched.look_s == second for watched in bucket)
        assert (self._timer is not None) == bool(self._buckets)
        assert not self._buckets or self._timer_s <= min(self._buckets)
