"""A reminder: the daemon's own work is called at a time, as a part of `tick.advance`.

    remind(engine, reminder, at_ms)     it rings once, at that time or sooner if set for sooner

Live only: a replay sets none. What a ring causes is recorded like what a client asks for.
"""

from collections.abc import Callable
from typing import final

from delayd.core.times import RequestMs


@final
class Reminder:
    """Something that is to be done at a time; the store sets its alarm."""

    __slots__ = ("alarm", "at_ms", "ring")

    def __init__(self, ring: Callable[[RequestMs], None]) -> None:
        """`ring` gets the time, by which requests count."""
        self.ring = ring
        self.alarm: int | None = None
        self.at_ms = 0
        """When it rings, while an alarm is set."""
