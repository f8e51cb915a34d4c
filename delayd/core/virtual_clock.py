"""A clock that stands still until a client advances it, from deadline to deadline.

`ClockAdvance` is a background task (`core.background_tasks`), for tests of programs that use
delayd: seven days take as long as what is due in them.
"""

from typing import Protocol

from delayd.core.engine import Engine
from delayd.core.operations.checks import check_range
from delayd.core.operations.tick import advance, next_deadline, reach, record_time
from delayd.core.times import PlayedMs, RequestMs
from delayd.limits import WALL_MS_MAX


class StandingClock(Protocol):
    """A clock that a client moves."""

    def now_ms(self) -> PlayedMs:
        """Delayd time."""
        ...

    def go_on_to(self, time_ms: int) -> None:
        """Set the time, which must not be past."""
        ...


class ClockAdvance:
    """An advance of the virtual clock: from one deadline to the next, with a stop at each.

    So whatever is due happens at its very time, and what follows from that (a reservation that runs
    out, the retry after it) at its own, all within one advance. Jobs that are pushed take real
    time, for which the clock stands still: no lease ends meanwhile, and retries come at their time.
    """

    def __init__(self, engine: Engine, clock: StandingClock, by_ms: int) -> None:
        self._engine = engine
        self._clock = clock
        self._by_ms = by_ms
        self._until_ms: int | None = None

    def step(self, _budget: int, _now_ms: RequestMs) -> bool:
        """Advance to the next deadline, or fire a slice of what is due at this one."""
        state, clock = self._engine, self._clock
        if state.deliveries or state.ended_sessions or state.awaits_calls:
            return False  # what has happened by now comes first
        now_ms = clock.now_ms()
        until_ms = self._until_ms
        if until_ms is None:
            # Not before its turn comes: another advance may have been under way.
            until_ms = now_ms + self._by_ms
            check_range("time in ms", until_ms, WALL_MS_MAX)
            self._until_ms = until_ms
        next_ms = next_deadline(state)
        if next_ms is not None and next_ms <= until_ms:
            time_ms = PlayedMs(max(now_ms, next_ms))
            clock.go_on_to(time_ms)
            advance(state, time_ms, RequestMs(time_ms))
            return False
        clock.go_on_to(max(now_ms, until_ms))
        reach(state, clock.now_ms())
        record_time(state)
        return True

    @property
    def time_ms(self) -> PlayedMs:
        """What time it is by the clock."""
        return self._clock.now_ms()
