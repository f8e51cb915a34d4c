"""The database's wall clock, which all daemons of a log go by, as far as its answers have told."""

from typing import Final, final

from delayd.clock import NS_PER_MS, boot_ns

_LEAP_NS: Final = 100 * NS_PER_MS
"""No clock that is slewed gets ahead by so much between two looks of a standby."""


@final
class DatabaseTime:
    """The clock; never ahead of the database's, but for drift.

    >>> time = DatabaseTime()
    >>> time.note(5_000_000, before_ns=1_000, after_ns=9_000)  # it said 5 s between these two
    >>> time.ahead_ns, time.most_ns, time.doubt_ms
    (4999991000, 4999999999, 1)

    What is written down for the next owner is the latest that it can have been (`doubt_ms`), so
    that an answer which was slow makes jobs late, and not early.

    A standby does not follow it when it is set forward (`leap_ns`), before the owner has: else it
    would take an hour by which it was set for one that has passed since the owner's last frame.
    """

    __slots__ = ("ahead_ns", "leap_ns", "most_ns")

    def __init__(self) -> None:
        self.ahead_ns = self.most_ns = self.leap_ns = 0

    def note(self, said_us: int, *, before_ns: int, after_ns: int, may_leap: bool = True) -> None:
        """Take note of what it said between two readings of the boot clock."""
        least_ns, most_ns = said_us * 1_000 - after_ns, said_us * 1_000 + 999 - before_ns
        both_ns = max(least_ns, self.ahead_ns), min(most_ns, self.most_ns)
        self.leap_ns = 0
        if both_ns[0] <= both_ns[1]:
            self.ahead_ns, self.most_ns = both_ns
        elif self.ahead_ns and not may_leap and least_ns - self.most_ns > _LEAP_NS:
            self.leap_ns = least_ns - self.most_ns
        else:
            self.ahead_ns, self.most_ns = least_ns, most_ns

    def note_frame(self, wall_ms: int, age_ns: int) -> None:
        """Follow the owner, which has seen the clock at this time, so long ago at most."""
        then_ns = wall_ms * NS_PER_MS - boot_ns()
        if self.leap_ns:
            self.ahead_ns = max(self.ahead_ns, then_ns)
            self.most_ns = max(self.most_ns, self.ahead_ns)
        if self.ahead_ns > then_ns + age_ns:  # it was set back, and forward since
            self.ahead_ns = self.most_ns = then_ns + age_ns

    @property
    def doubt_ms(self) -> int:
        """How much later than this it may be."""
        return -(-(self.most_ns - self.ahead_ns) // NS_PER_MS)

    def wall_ns(self) -> int:
        """Return what it says now."""
        return boot_ns() + self.ahead_ns
