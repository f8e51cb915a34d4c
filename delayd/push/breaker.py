"""The circuit breaker of one place: it stops attempts there while none would succeed.

    closed      attempts are made; failures for which the place is to blame are counted
    open        after five in a row: none is made for a second, then two, four, … a minute at most
    half-open   that time is over: one attempt is made, the probe. It closes or opens the breaker

An attempt that the place answered, even with a refusal of this one job, is no failure of the place.
Attempts that began before the breaker opened end later: one that succeeds closes it, one that fails
changes nothing.

While jobs wait for it a probe *spares* the one that it is made with: what fails then is the place,
and costs no attempt. That ends after a day, or what is sent to a place that is gone would wait for
ever.

>>> breaker = Breaker()
>>> for attempt in range(5):
...     probe = breaker.begin(now_ms=0)
...     breaker.fail(probe, now_ms=100)
>>> breaker.state, breaker.may_begin(now_ms=1_099), breaker.may_begin(now_ms=1_100)
(<BreakerState.OPEN: 1>, False, True)
>>> probe = breaker.begin(now_ms=1_100)
>>> probe, breaker.may_begin(now_ms=5_000)
(True, False)
>>> breaker.succeed()
>>> breaker.state.name
'CLOSED'

Time is an argument, in milliseconds of a clock that never stops: what is open has to close again
also where delayd time stands still. The class refuses to know what a place is.
"""

import enum

from delayd.limits import (
    BREAKER_FAILURES,
    BREAKER_OPEN_MS,
    BREAKER_OPEN_MS_MAX,
    BREAKER_SPARES_MS,
)


class BreakerState(enum.IntEnum):
    """Whether attempts are made."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2
    """A probe is under way."""


class Breaker:
    """Counts the failures of one place, and says when the next attempt may begin."""

    __slots__ = ("_open_ms", "_opened_ms", "failures", "opens_again_ms", "state")

    def __init__(self) -> None:
        """Begin closed."""
        self.state = BreakerState.CLOSED
        self.failures = 0
        """How many in a row."""
        self.opens_again_ms = 0
        """When a probe may begin, while it is open."""
        self._open_ms = 0
        self._opened_ms = 0
        """When it opened, after it was closed."""

    @property
    def is_untroubled(self) -> bool:
        """Tell whether there is nothing to remember."""
        return not self.failures

    def may_begin(self, now_ms: int) -> bool:
        """Tell whether an attempt may begin."""
        if self.state is BreakerState.OPEN:
            return now_ms >= self.opens_again_ms
        return self.state is BreakerState.CLOSED

    def begin(self, now_ms: int) -> bool:
        """Begin an attempt, which may; return whether it is the probe."""
        assert self.may_begin(now_ms), "no attempt may begin"
        if self.state is BreakerState.CLOSED:
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def spares(self, now_ms: int) -> bool:
        """Tell whether a probe that begins now may spare its job."""
        return now_ms - self._opened_ms < BREAKER_SPARES_MS

    def succeed(self) -> None:
        """Note that the place has answered an attempt."""
        self.state = BreakerState.CLOSED
        self.failures = self._open_ms = 0

    def fail(self, is_probe: bool, now_ms: int) -> None:  # noqa: FBT001 (what `begin` returned)
        """Note that an attempt has failed, and that the place is to blame."""
        if self.state is BreakerState.CLOSED:
            self.failures += 1
            if self.failures < BREAKER_FAILURES:
                return
            self._opened_ms = now_ms
        elif not is_probe:
            return
        self.state = BreakerState.OPEN
        self._open_ms = min(2 * self._open_ms or BREAKER_OPEN_MS, BREAKER_OPEN_MS_MAX)
        self.opens_again_ms = now_ms + self._open_ms

    def give_up(self, is_probe: bool, now_ms: int) -> None:  # noqa: FBT001 (the same)
        """Note that an attempt ended without a result; after a probe the next one may begin."""
        if is_probe and self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN
            self.opens_again_ms = now_ms
