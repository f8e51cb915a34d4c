"""How fast, and how many at once, the jobs of one topic are handed out.

`reserved_max` limits the reserved jobs, `rate_per_s` the jobs handed out in a second. Further jobs
stay ready; waiting consumers keep waiting and are served when a job comes back or the next one is
allowed. Neither refuses anything, and a restart keeps only the limits themselves.

The rate is the generic cell rate algorithm (ITU-T I.371): one number, the *theoretical arrival
time* of the next job if all had come evenly spread. A job may be handed out when that is not more
than a tolerance ahead. With a rate of 20 a second there is one job each 50 ms and a tolerance of
one more, because `RATE_BURST_MS` is worth two jobs:

>>> throttle = Throttle(reserved_max=None, rate_per_s=20)
>>> throttle.allowed(reserved=0, time_ms=1_000)
2
>>> throttle.take(2, time_ms=1_000)
>>> throttle.allowed(reserved=2, time_ms=1_049), throttle.next_ms(tick_ms=1)
(0, 1050)
>>> throttle.allowed(reserved=2, time_ms=1_050)
1

So of a rate of `r` a second, in any `s` seconds no more than `r * s` and the burst are handed out.
Times count in nanoseconds inside: in microseconds a rate of 700,000 would be 500,000.

`core.operations.tick` sets the alarm for `next_ms`, and serves waiting consumers when it fires.
"""

import enum
from typing import Final, final

from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import RATE_BURST_MS

_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
BOUNDLESS: Final = 1 << 62


class Block(enum.IntFlag):
    """Why a topic hands out nothing, as bits of `Topic.blocks`."""

    PAUSED = 1
    FULL = 2
    """As many jobs are reserved as allowed."""
    SLOW = 4
    """The next job is allowed later; an alarm is set for then."""
    HELD = 8
    """All ready jobs are of groups that may hand out none (`core.group_turns`)."""


class PushBlock(enum.Enum):
    """Why jobs that are ready are not pushed. Workers get them all the same."""

    OFF = "push_off"
    """The configuration says so."""
    OPEN = "breaker_open"
    """Attempts of the topic have failed there, and its circuit breaker is open."""
    FULL = "push_full"
    """As many calls are under way as allowed."""
    SLOW = "push_slow"
    """The target's rate is used up."""


@final
class Throttle:
    """The limits of one topic, and how much of its rate is used up."""

    __slots__ = (
        *("_interval_ns", "_tolerance_ns", "alarm", "arrival_ns", "reserved_max", "topic_name"),
    )

    def __init__(self, reserved_max: int | None, rate_per_s: float | None) -> None:
        """Begin with nothing handed out; None: no such limit."""
        self.reserved_max = reserved_max
        self.topic_name = ""
        """Whose it is."""
        self.alarm: int | None = None
        """Set for when the next job is allowed."""
        self._interval_ns = 0 if rate_per_s is None else -int(-_NS_PER_S // rate_per_s)
        burst = max(1, RATE_BURST_MS * _NS_PER_MS // self._interval_ns) if self._interval_ns else 1
        self._tolerance_ns = (burst - 1) * self._interval_ns
        self.arrival_ns = 0
        """When the next job would come if those so far had come evenly spread."""

    def is_full(self, reserved: int) -> bool:
        """Tell whether no more jobs may be reserved, when `reserved` are."""
        return self.reserved_max is not None and reserved >= self.reserved_max

    def allowed(self, reserved: int, time_ms: int) -> int:
        """Return how many jobs may be handed out now, when `reserved` are."""
        allowed = BOUNDLESS if self.reserved_max is None else max(0, self.reserved_max - reserved)
        if self._interval_ns:
            time_ns = time_ms * _NS_PER_MS
            ahead_ns = max(0, self.arrival_ns - time_ns)
            if ahead_ns > self._tolerance_ns:
                return 0
            allowed = min(allowed, (self._tolerance_ns - ahead_ns) // self._interval_ns + 1)
        return allowed

    def is_allowed(self, time_ms: int) -> bool:
        """Tell whether the rate allows a job now."""
        return self.arrival_ns - self._tolerance_ns <= time_ms * _NS_PER_MS

    def take(self, jobs: int, time_ms: int) -> None:
        """Note that `jobs` have been handed out, whether or not they were allowed."""
        if self._interval_ns:
            begins_ns = max(self.arrival_ns, time_ms * _NS_PER_MS)
            self.arrival_ns = begins_ns + jobs * self._interval_ns

    def next_ms(self, tick_ms: int) -> int:
        """Return when the rate allows the next job, rounded up to the tick."""
        next_ns = max(0, self.arrival_ns - self._tolerance_ns)
        return ceil_to_tick(-(-next_ns // _NS_PER_MS), tick_ms)

    def is_fresh(self, time_ms: int) -> bool:
        """Tell whether nothing of the rate is used up."""
        return self.arrival_ns <= time_ms * _NS_PER_MS

    def fresh_ms(self, tick_ms: int) -> int:
        """Return when nothing of the rate is used up any more, rounded up to the tick."""
        return ceil_to_tick(-(-self.arrival_ns // _NS_PER_MS), tick_ms)

    def go_on_from(self, other: "Throttle", time_ms: int) -> None:
        """Copy what another has used up, so that a change of policy does not evade a limit."""
        if self._interval_ns:
            # No further ahead than one of its own bursts: the previous rate may have been slow.
            furthest_ns = time_ms * _NS_PER_MS + self._tolerance_ns + self._interval_ns
            self.arrival_ns = min(other.arrival_ns, furthest_ns)
