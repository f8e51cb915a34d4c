"""One client as the engine sees it: what it puts to, watches, holds and waits for.

A session is made for each connection of the line protocol. Jobs that were reserved before a
restart belong to the store's orphan session until their ttr runs out.
"""

import enum
from typing import TYPE_CHECKING, Final, Protocol

from delayd.core.times import RequestMs
from delayd.limits import DEADLINE_SOON_MS

if TYPE_CHECKING:
    from delayd.core.job_parts import Reason
    from delayd.core.topic import Topic

NEVER_MS: Final = 2**64
"""Later than every deadline."""


class WaitEnd(enum.Enum):
    """Why a consumer's wait ended without a job."""

    TIMED_OUT = "the time it wanted to wait is over"
    DEADLINE_SOON = "a job it holds runs out of time within a second"


Handed = tuple[int, bytes]
"""A job handed out: its id and its body."""


class Owner(Protocol):
    """The owner of a session, which gets its deliveries."""

    def deliver(self, outcome: Handed | WaitEnd, now_ms: RequestMs) -> None:
        """Take the job, or the end of the wait."""
        ...


class Session:
    """What one client uses, watches, holds and waits for; the engine alone changes it."""

    __slots__ = (
        *("deadlines", "left_for", "left_ms", "owner", "places", "produces", "soonest_ms", "used"),
        *("wait_alarm", "wait_ends_ms", "wait_number", "waiting", "watched", "who", "works"),
    )

    def __init__(self, owner: Owner | None = None) -> None:
        """Make a session that uses and watches nothing; `owner` is told when a wait ends."""
        self.owner = owner
        self.who = ""
        """The client's name and address, for the history of attempts; empty: not known."""
        self.used: Topic | None = None
        self.watched: list[Topic] = []
        """In the order in which they are listed, a removed one's place taken by the last
        (beanstalkd)."""
        self.places: dict[Topic, int] = {}
        """Where each topic is in `watched`."""
        self.deadlines: dict[int, int] = {}
        """Job id → when the reservation ends, for every job held."""
        self.soonest_ms = NEVER_MS
        """No reservation held ends before this; exact only after `soonest_deadline`."""
        self.left_for: Reason | None = None
        """Why it has ended, if it has: what it still holds counts as returned since `left_ms`."""
        self.left_ms = RequestMs(0)
        self.waiting = False
        self.wait_ends_ms: int | None = None
        self.wait_number = 0
        """Of its last wait, by which the topics know it; longer waits have lower ones."""
        self.wait_alarm: int | None = None
        self.produces = False
        self.works = False

    def soonest_deadline(self) -> int:
        """Return when the first reservation held ends; `NEVER_MS` when none is. O(jobs held)."""
        self.soonest_ms = min(self.deadlines.values(), default=NEVER_MS)
        return self.soonest_ms

    def deadline_soon(self, now_ms: RequestMs) -> bool:
        """Tell whether a job held runs out of time within `DEADLINE_SOON_MS`."""
        soon_ms = now_ms + DEADLINE_SOON_MS
        return self.soonest_ms <= soon_ms and self.soonest_deadline() <= soon_ms


Delivery = tuple[Session, Handed | WaitEnd]
"""What a waiting consumer gets."""
