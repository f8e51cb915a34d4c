"""Deadlines of many connections: which of them to look at, and when.

A watched item is in the bucket of one second, and is checked when that second has come: its time
is over, or it returns when to check next. Its deadline may move further away any number of times at
no cost, because the next check finds that out: a request over HTTP moves its connection's deadlines
four times, and none of that touches a timer.

    second   30: a b c    31: -    35: d         alarm: 30
    at 30    a is over, b says 95, c says 31  ─►  31: c    35: d    95: b         alarm: 31

Deadlines are up to a second late and never early. With nothing watched there is no alarm. A second
with many items is checked in slices.

`ReadTimeouts` is for a server that takes turns: how long a client may take to finish what it has
begun to send. A client that sends a byte every ten seconds keeps a connection, and whatever
it has sent so far, for as long as it likes. So a line that was begun has ten seconds to end, a
handshake too, and a body must keep a pace. A client that sends nothing at all may stay:
beanstalkd's clients wait for hours.

>>> ReadTimeouts(lambda: 0).alarm_ms is None
True
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar, final

from delayd.limits import (
    BYTES_PER_S_MIN,
    LINE_BODY_BYTES_PER_S_IN_ALL,
    LINE_BODY_IN_ALL_S,
    LINE_INCOMPLETE_S_MAX,
    LOOKS_MAX,
)

MS_PER_S: Final = 1_000


def body_ms_max(came_bytes: int, *, grace_ms: int, in_all_ms: int) -> int:
    """Return how long a body may take of which this many bytes have arrived.

    It has a grace period, then a minimum rate, and a total limit.

    >>> body_ms_max(500, grace_ms=10_000, in_all_ms=60_000)
    10000
    >>> body_ms_max(20_480, grace_ms=10_000, in_all_ms=60_000)
    20001
    >>> body_ms_max(1 << 20, grace_ms=10_000, in_all_ms=60_000)
    60000
    """
    return min(max(came_bytes * MS_PER_S // BYTES_PER_S_MIN + 1, grace_ms), in_all_ms)


class Watched(Protocol):
    """Something that has deadlines."""

    look_s: int
    """The second in which it will be checked; 0: in none. Only `Deadlines` changes it."""


WatchedT = TypeVar("WatchedT", bound=Watched)


@final
class Deadlines(Generic[WatchedT]):
    """Checks items, each in its second.

    `now_ms` is a clock that never goes back. `examine` gets an item and the time, does what is due
    and returns when to check next, 0 for never. `set_alarm` gets the time for the next call of
    `go`, when that changes; None: never.
    """

    __slots__ = ("_buckets", "alarm_ms", "examine", "now_ms", "set_alarm")

    def __init__(
        self,
        now_ms: Callable[[], int],
        examine: Callable[[WatchedT, int], int],
        set_alarm: Callable[[int | None], object],
    ) -> None:
        self.now_ms = now_ms
        self.examine = examine
        self.set_alarm = set_alarm
        self.alarm_ms: int | None = None
        """When `go` has something to do; None: nothing is watched."""
        self._buckets: dict[int, dict[WatchedT, None]] = {}

    def watch(self, item: WatchedT, due_ms: int) -> None:
        """Check it then at the latest; an earlier check stays."""
        second = -(-due_ms // MS_PER_S)
        before = item.look_s
        if before:
            if before <= second:
                return
            self.forget(item)
        item.look_s = second
        bucket = self._buckets.get(second)
        if bucket is not None:
            bucket[item] = None
            return
        self._buckets[second] = {item: None}
        if self.alarm_ms is None or second * MS_PER_S < self.alarm_ms:
            self._alarm_at(second * MS_PER_S)

    def forget(self, item: WatchedT) -> None:
        """Stop checking it."""
        second = item.look_s
        if not second:
            return
        item.look_s = 0
        bucket = self._buckets[second]
        del bucket[item]
        if not bucket:
            del self._buckets[second]
            if not self._buckets:
                self._alarm_at(None)

    def go(self) -> None:
        """Check items whose second has come: a bounded number, the rest at the next call.

        Calling it more often than the alarm says does no harm.
        """
        now_ms = self.now_ms()
        left = LOOKS_MAX
        while left and self._buckets:
            second = min(self._buckets)
            if second * MS_PER_S > now_ms:
                break
            item = next(iter(self._buckets[second]))
            self.forget(item)
            due_ms = self.examine(item, now_ms)
            if due_ms:
                # One that returns "now" is checked again in the next round, not for ever in this.
                self.watch(item, max(due_ms, now_ms + 1))
            left -= 1
        self._alarm_at(min(self._buckets) * MS_PER_S if self._buckets else None)

    def close(self) -> None:
        """Clear the alarm until something is watched."""
        self._alarm_at(None)

    def _alarm_at(self, alarm_ms: int | None) -> None:
        self.alarm_ms = alarm_ms
        self.set_alarm(alarm_ms)

    def check(self) -> None:
        """Raise `AssertionError` unless each item is in its bucket and the alarm is right."""
        for second, bucket in self._buckets.items():
            assert bucket, second
            assert all(item.look_s == second for item in bucket)
        assert (self.alarm_ms is not None) == bool(self._buckets)
        assert self.alarm_ms is None or self.alarm_ms <= min(self._buckets) * MS_PER_S


# --- For a server that takes turns ---------------------------------------------------------------


class Sender(Protocol):
    """A client that may be in the middle of something."""

    @property
    def incomplete_bytes(self) -> int | None:
        """How many bytes of a body are missing, 0 if it is a line; None: nothing was begun."""

    @property
    def is_read(self) -> bool:
        """Whether what it sends is read."""

    def time_out(self) -> None:
        """Read what has arrived, and close it if it is still too late."""


@final
class Incomplete:
    """What a client has begun to send, and when."""

    __slots__ = ("missing_bytes", "since_ms")

    def __init__(self, since_ms: int, missing_bytes: int) -> None:
        self.since_ms = since_ms
        self.missing_bytes = missing_bytes
        """How many bytes were missing then; 0 of a line or a handshake."""

    def is_over(self, now_ms: int, missing_bytes: int) -> bool:
        """Tell whether it has taken too long, with this many bytes still missing.

        >>> Incomplete(0, 0).is_over(11_000, 0)
        True
        >>> body = Incomplete(0, 40_960)      # 40 seconds at 1 KiB/s
        >>> body.is_over(21_000, 20_480), body.is_over(21_000, 20_481)
        (False, True)
        """
        whole_ms = now_ms - self.since_ms - MS_PER_S  # its first second was not a whole one
        grace_ms = LINE_INCOMPLETE_S_MAX * MS_PER_S
        if not self.missing_bytes:
            return whole_ms >= grace_ms
        in_all_s = max(LINE_BODY_IN_ALL_S, self.missing_bytes // LINE_BODY_BYTES_PER_S_IN_ALL)
        came_bytes = self.missing_bytes - missing_bytes
        return whole_ms >= body_ms_max(came_bytes, grace_ms=grace_ms, in_all_ms=in_all_s * MS_PER_S)


@final
class ReadTimeouts:
    """Which clients are in the middle of something, and what is to be called later.

    Seconds are counted, not measured: once a second, and only while a client is in the middle of
    something. A second in which the server did not read (the disk was slow, or a turn took long)
    does not count against its clients, and the count begins again for a client that is not read
    from because it takes no replies. `elapsed_ms` is a clock that never goes back or stands still.
    """

    __slots__ = (
        *("_incomplete", "_later", "_read_ms", "_tick_ms", "_unchecked"),
        *("alarm_ms", "elapsed_ms"),
    )

    def __init__(self, elapsed_ms: Callable[[], int]) -> None:
        self.elapsed_ms = elapsed_ms
        self.alarm_ms: int | None = None
        """When `is_due` at the earliest; None: there is nothing to wake for."""
        self._read_ms = 0
        """The time that counts."""
        self._tick_ms = 0
        """When a second is over."""
        self._incomplete: dict[Sender, Incomplete] = {}
        self._unchecked: list[Sender] = []
        """Those that are still to be checked in this second."""
        self._later: deque[tuple[int, Callable[[], object]]] = deque()

    def note(self, sender: Sender, *, has_moved: bool = False) -> bool:
        """Check whether the sender is in the middle of something now, and return that.

        `has_moved`: what it sent before has ended since.
        """
        missing_bytes = sender.incomplete_bytes
        if missing_bytes is None:
            self.forget(sender)
            return False
        begun = self._incomplete.get(sender)
        if begun is None:
            if not self._incomplete:
                self._tick_ms = self.elapsed_ms() + MS_PER_S
            self._incomplete[sender] = Incomplete(self._read_ms, missing_bytes)
            self._set_alarm()
        elif (
            has_moved
            or (missing_bytes > 0) != (begun.missing_bytes > 0)
            or missing_bytes > begun.missing_bytes
        ):
            begun.since_ms = self._read_ms
            begun.missing_bytes = missing_bytes
        return True

    def forget(self, sender: Sender) -> None:
        """Stop timing this one."""
        if self._incomplete.pop(sender, None) is not None and not self._incomplete:
            self._unchecked.clear()
            self._set_alarm()

    def postpone(self, by_ms: int, call: Callable[[], object]) -> None:
        """Call this after that time. All callers use the same delay."""
        self._later.append((self.elapsed_ms() + by_ms, call))
        self._set_alarm()

    def wait_s(self, wait_s: float | None) -> float:
        """Shorten a wait so that it ends at `alarm_ms`, if that is set."""
        assert self.alarm_ms is not None
        alarm_s = max(0, self.alarm_ms - self.elapsed_ms()) / MS_PER_S
        return alarm_s if wait_s is None else min(wait_s, alarm_s)

    @property
    def is_due(self) -> bool:
        """Tell whether there is something to call, or a second is over."""
        return self.alarm_ms is not None and self.alarm_ms <= self.elapsed_ms()

    def due_calls(self) -> list[Callable[[], object]]:
        """Return what is to be called now."""
        now_ms = self.elapsed_ms()
        due = []
        while self._later and self._later[0][0] <= now_ms:
            due.append(self._later.popleft()[1])
        self._set_alarm()
        return due

    def too_slow(self, *, counts: bool = True) -> list[Sender]:
        """Return senders that took too long; a second counts only if `counts`.

        Checks a bounded number, the rest at the next call.
        """
        now_ms = self.elapsed_ms()
        if not self._incomplete:
            return []
        if now_ms >= self._tick_ms:
            self._tick_ms = now_ms + MS_PER_S
            if counts:
                self._read_ms += MS_PER_S
                self._unchecked = self._unchecked or list(self._incomplete)
        slow = []
        for _ in range(min(LOOKS_MAX, len(self._unchecked))):
            sender = self._unchecked.pop()
            begun = self._incomplete.get(sender)
            if begun is not None and not sender.is_read:
                begun.since_ms = self._read_ms
            elif self.is_too_slow(sender):
                slow.append(sender)
        self._set_alarm()
        return slow

    def is_too_slow(self, sender: Sender) -> bool:
        """Tell whether the sender is too late, by what has been read of it by now."""
        begun, missing_bytes = self._incomplete.get(sender), sender.incomplete_bytes
        return (
            begun is not None
            and missing_bytes is not None
            and begun.is_over(self._read_ms, missing_bytes)
        )

    def _set_alarm(self) -> None:
        alarms = [self._later[0][0]] if self._later else []
        if self._incomplete:
            alarms.append(self.elapsed_ms() if self._unchecked else self._tick_ms)
        self.alarm_ms = min(alarms, default=None)
