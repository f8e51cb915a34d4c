"""The only module that reads a clock; all others get the time as an argument.

**Delayd time** is one continuous line of milliseconds since 1970. It starts on the wall clock when
a data directory is used for the first time, and from then on only the boot-time clock moves it:
that clock counts while the machine is suspended, and cannot be set. A wall clock that is set an
hour forward or back makes no delay, ttr or wait shorter or longer.

A stop is bridged by the difference of the wall clock, the only clock that runs while we do not:

    stopped at   delayd time 1,000,000, wall clock 5,000,000
    started at                          wall clock 5,030,000   half a minute later
    resumes at   delayd time 1,030,000

If the wall clock went back meanwhile, delayd time continues where it stopped: late is better than
early, and time in the journal never decreases. A wall clock that is set while we run is not taken
for a longer stop, because a frame is written after it was set (`Turns.note_wall_clock`).

Two clocks are never read at the same instant, and the process may be paused between the readings.
Each doubt makes delayd time late, and never early: what is written down for a stop is the latest
that the wall clock can have been (`wall_at`), and a start counts from the earliest (`resume`).

    boot-time clock read    wall clock read, after a pause of 1.5 ms    at delayd time 1,000,000
    7,000.2                 5,000,001.7                                 wall clock at most 5,000,002

Times of the wall clock itself ("at nine tomorrow") need to know how far the two are apart:
`wall_offset_ns` says it, as the bounds between which it is for certain. On Linux only setting the
clock moves it. Slewing (NTP, adjtime) moves the boot-time clock along with the wall clock, and a
change to summer time moves neither.

`now_ms()` is the millisecond that has begun. A time within it may be up to one millisecond later
than the number says: `request_ms()` is the same instant rounded up, from which deadlines count, so
that none is early. `read()` returns both.

The **virtual clock** is for tests of programs that use delayd: both times are one and stand still
until a client advances them.
"""

import ctypes
import errno
import functools
import os
import struct
import time
from collections.abc import Callable
from typing import Final, Protocol, final

from delayd.core.times import ROUNDING_MS, PlayedMs, RequestMs
from delayd.limits import WALL_BRACKET_NS, WALL_READINGS_MAX

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
NEVER_NS: Final = 1 << 62  # after every reading of `monotonic_ns`

STANDING_S: Final = 86_400.0
"""How long a daemon with a stopped clock may sleep; earlier wake-ups have other reasons."""

_SCHEDSTAT_BYTES: Final = 128

monotonic_ns = time.monotonic_ns
"""For measuring how long our own work takes. It never decides when a job is due."""


def processor_wait_ns() -> int:
    """Return how many ns this thread could have run so far, but waited for a processor.

    Linux counts it: the second number of `schedstat` (Documentation/scheduler/sched-stats.rst). 0
    where it does not. To look takes about 8 µs.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as schedstat:
            return int(schedstat.read(_SCHEDSTAT_BYTES).split()[1])
    except (OSError, ValueError, IndexError):
        return 0


class Clock(Protocol):
    """Where the service gets its time from, once each turn."""

    def now_ms(self) -> PlayedMs:
        """Delayd time, rounded down: it never goes back."""

    def request_ms(self) -> RequestMs:
        """Delayd time, rounded up."""

    def read(self) -> tuple[PlayedMs, RequestMs]:
        """Delayd time, rounded down and up."""

    def seconds_until(self, time_ms: int) -> float:
        """How long until that delayd time; negative when it is past."""

    def wall_ms(self) -> int:
        """The wall clock, as the machine has it: it may jump either way."""

    def wall_at(self, time_ms: int) -> int:
        """The wall clock at that delayd time, at most, unless it has been set since."""

    def wall_offset_ns(self) -> tuple[int, int]:
        """How far the wall clock is ahead of delayd time: at least, and at most."""

    def resume(self, last_time_ms: int, last_wall_ms: int) -> None:
        """Continue delayd time from the last time in the journal."""


# No function of Python between: the clock is read several times in each turn.
boot_ns: Final = functools.partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
"""Counts what is suspended, and cannot be set: for what other machines count meanwhile."""


@final
class SystemClock:
    """The machine's time. `boot_ns` and `wall_ns` read the two clocks underneath.

    Read several times in each turn: a call of a `NewType` would take longer than the reading.
    """

    __slots__ = ("_boot_ns", "_offset_ns", "_wall_ns")

    def __init__(
        self, boot_ns: Callable[[], int] = boot_ns, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._boot_ns = boot_ns
        self._wall_ns = wall_ns
        self._offset_ns = wall_ns() - boot_ns()  # in this order: a pause makes it smaller

    def now_ms(self) -> PlayedMs:
        return (self._boot_ns() + self._offset_ns) // NS_PER_MS  # type: ignore[return-value]

    def request_ms(self) -> RequestMs:
        now_ms = (self._boot_ns() + self._offset_ns) // NS_PER_MS
        return now_ms + ROUNDING_MS  # type: ignore[return-value]

    def read(self) -> tuple[PlayedMs, RequestMs]:
        now_ms = (self._boot_ns() + self._offset_ns) // NS_PER_MS
        return now_ms, now_ms + ROUNDING_MS  # type: ignore[return-value]

    def seconds_until(self, time_ms: int) -> float:
        # Not in whole nanoseconds: compiled, a product of times takes 600 instructions.
        return (time_ms - (self._boot_ns() + self._offset_ns) / NS_PER_MS) / 1_000

    def wall_ms(self) -> int:
        return self._wall_ns() // NS_PER_MS

    def wall_at(self, time_ms: int) -> int:
        # The boot clock is read first: a pause before the wall clock is read makes it later.
        behind_ns = self._boot_ns() + self._offset_ns - self._wall_ns()
        return time_ms - behind_ns // NS_PER_MS

    def wall_offset_ns(self) -> tuple[int, int]:
        # The wall clock is read between two readings of the boot clock, again if they are far
        # apart: the process was not running in between.
        before_ns, wall_ns, after_ns = self._boot_ns(), self._wall_ns(), self._boot_ns()
        readings = 1
        while after_ns - before_ns > WALL_BRACKET_NS and readings < WALL_READINGS_MAX:
            before_ns, wall_ns, after_ns = self._boot_ns(), self._wall_ns(), self._boot_ns()
            readings += 1
        ahead_ns = wall_ns - self._offset_ns
        return ahead_ns - after_ns, ahead_ns - before_ns

    def follow_wall(self, wall_ns: Callable[[], int]) -> None:
        """Take this for the wall clock, and start delayd time on it; for the start, as `resume`."""
        self._wall_ns = wall_ns
        self._offset_ns = wall_ns() - self._boot_ns()

    def resume(self, last_time_ms: int, last_wall_ms: int) -> None:
        """Carry delayd time over a stop: it began at these readings of the two clocks.

        For the start, before any client has seen the time: delayd time may differ from the wall
        clock afterwards, in either direction. The boot clock is read last, so that time which
        passes between the readings is no part of the stop.
        """
        stopped_ns = max(0, self._wall_ns() - last_wall_ms * NS_PER_MS)
        self._offset_ns = last_time_ms * NS_PER_MS + stopped_ns - self._boot_ns()


@final
class VirtualClock:
    """A clock that stands still until it is advanced, for a daemon under test.

    Delayd time and wall clock are one. It starts at the system's time, so that times computed by
    the tests are where they expect them, and after a restart where it stopped: no time passes
    while the daemon is away. A millisecond is exact, so that a job with a delay of seven days is
    due when the clock has gone on by seven days.

    >>> clock = VirtualClock(start_ms=5_000)
    >>> clock.go_on_to(6_500)
    >>> clock.read(), clock.wall_ms()
    ((6500, 6500), 6500)
    """

    __slots__ = ("_now_ms",)

    def __init__(self, start_ms: int | None = None) -> None:
        self._now_ms = system_wall_ms() if start_ms is None else start_ms

    def now_ms(self) -> PlayedMs:
        return PlayedMs(self._now_ms)

    def request_ms(self) -> RequestMs:
        return RequestMs(self._now_ms)

    def read(self) -> tuple[PlayedMs, RequestMs]:
        return PlayedMs(self._now_ms), RequestMs(self._now_ms)

    def seconds_until(self, time_ms: int) -> float:
        """How long to sleep until then: no sleep brings it nearer, so very long."""
        return STANDING_S if time_ms > self._now_ms else 0.0

    def wall_ms(self) -> int:
        return self._now_ms

    def wall_at(self, time_ms: int) -> int:
        return time_ms

    def wall_offset_ns(self) -> tuple[int, int]:
        return 0, 0

    def resume(self, last_time_ms: int, last_wall_ms: int) -> None:
        """Continue where delayd time stopped; the wall clock stopped there too."""
        del last_wall_ms
        self._now_ms = last_time_ms

    def go_on_to(self, time_ms: int) -> None:
        """Be at this time, which is not past."""
        assert time_ms >= self._now_ms, f"time does not go back: {time_ms}"
        self._now_ms = time_ms


def system_wall_ns() -> int:
    """As `system_wall_ms`, to compare it with the clock of another machine."""
    return time.time_ns()


def system_wall_ms() -> int:
    """The machine's wall clock whatever clock jobs live by, for what people read: the log."""
    return time.time_ns() // NS_PER_MS


_TIMER_SPEC: Final = struct.Struct("qqqq")
"""interval, then first expiry: seconds and nanoseconds of each."""
_TIMER_ABSOLUTE: Final = 1
_TIMER_CANCEL_ON_SET: Final = 2
_NEVER_S: Final = 1 << 40


class SetWatch:
    """Tells when the wall clock has been set: its descriptor becomes readable once.

    A timer of the kernel for a time that never comes; setting the clock cancels it. Python wraps
    these two calls of the C library from 3.13 on only.
    """

    def __init__(self) -> None:
        """Begin to watch. Raises OSError, or AttributeError where the C library lacks the calls."""
        library = ctypes.CDLL(None, use_errno=True)
        self._settime = library.timerfd_settime
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor: int = library.timerfd_create(time.CLOCK_REALTIME, flags)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.arm()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def arm(self) -> None:
        """Watch for the next time; the descriptor is not readable until then. Raises OSError."""
        flags = _TIMER_ABSOLUTE | _TIMER_CANCEL_ON_SET
        spec = _TIMER_SPEC.pack(0, 0, _NEVER_S, 0)
        # Armed all the same when it says that the clock has just been set.
        if self._settime(self._descriptor, flags, spec, None) < 0:
            error = ctypes.get_errno()
            if error != errno.ECANCELED:
                raise OSError(error, "timerfd_settime")

    def close(self) -> None:
        """Watch no more."""
        os.close(self._descriptor)


def open_set_watch() -> SetWatch | None:
    """Return a watch, or None where there is none to be had: a look once a minute must do."""
    try:
        return SetWatch()
    except (OSError, AttributeError):
        return None
