"""A clock that stands still until it is advanced."""

from typing import Final

from delayd.core.times import ROUNDING_MS, PlayedMs, RequestMs

NS_PER_MS: Final = 1_000_000
START_MS: Final = 1_700_000_000_000
"""A time in November 2023: recent enough for code that assumes a plausible date."""


class FakeClock:
    """A `Clock` whose two times move only by `advance` and `step_wall`.

    >>> clock = FakeClock()
    >>> before_ms = clock.now_ms()
    >>> clock.advance(250)
    >>> clock.now_ms() - before_ms
    250
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms
        self._wall_ms = start_ms

    def now_ms(self) -> PlayedMs:
        return PlayedMs(self._now_ms)

    def request_ms(self) -> RequestMs:
        return RequestMs(self._now_ms + ROUNDING_MS)

    def read(self) -> tuple[PlayedMs, RequestMs]:
        return self.now_ms(), self.request_ms()

    def seconds_until(self, time_ms: int) -> float:
        return (time_ms - self._now_ms) / 1_000

    def wall_ms(self) -> int:
        return self._wall_ms

    def wall_at(self, time_ms: int) -> int:
        """The wall clock as it stood at that delayd time, unless it has been set since."""
        return self._wall_ms - self._now_ms + time_ms

    def wall_offset_ns(self) -> tuple[int, int]:
        """How far the wall clock is ahead of delayd time, twice the same: nothing is in between."""
        offset_ns = (self._wall_ms - self._now_ms) * NS_PER_MS
        return offset_ns, offset_ns

    def resume(self, last_time_ms: int, last_wall_ms: int) -> None:
        """Carry delayd time over a stop by the wall clock's difference, never backwards."""
        self._now_ms = last_time_ms + max(0, self._wall_ms - last_wall_ms)

    def advance(self, by_ms: int) -> None:
        """Let time pass, on both clocks."""
        assert by_ms >= 0, f"time does not go back: {by_ms} ms"
        self._now_ms += by_ms
        self._wall_ms += by_ms

    def step_wall(self, by_ms: int) -> None:
        """Set the wall clock, forward or back, as an administrator or NTP does; no time passes."""
        self._wall_ms += by_ms
