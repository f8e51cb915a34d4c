"""One client as the engine sees it: what it puts to, watches, holds and waits for.

A session is made for each connection of the line protocol. Jobs held by nobody who is still there
(they were handed out before a restart) belong to the engine's orphan session until their ttr runs
out.
"""

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from delayd.core.timekeeper import Handed, WaitEnd
    from delayd.core.topic import Topic

NEVER_MS: Final = 2**64
"""Later than every deadline."""


class Owner(Protocol):
    """Whoever made a session and waits for what comes of it."""

    def deliver(self, outcome: "Handed | WaitEnd", now_ms: int) -> None:
        """Take the job, or the end of the wait."""
        ...


class Session:
    """What one client uses, watches, holds and waits for; the engine alone changes it."""

    __slots__ = (
        "deadlines",
        "owner",
        "produces",
        "soonest_ms",
        "used",
        "wait_alarm",
        "wait_ends_ms",
        "waiting",
        "watched",
        "works",
    )

    def __init__(self, owner: Owner | None = None) -> None:
        """Make a session that uses and watches nothing; `owner` is told when a wait ends."""
        self.owner = owner
        self.used: Topic | None = None
        self.watched: list[Topic] = []
        self.deadlines: dict[int, int] = {}
        """Job id → when the reservation ends, for every job held."""
        self.soonest_ms = NEVER_MS
        """No reservation held ends before this; exact only after `soonest_deadline`."""
        self.waiting = False
        self.wait_ends_ms: int | None = None
        self.wait_alarm: int | None = None
        self.produces = False
        self.works = False

    def soonest_deadline(self) -> int:
        """Return when the first reservation held ends; `NEVER_MS` when none is. O(jobs held)."""
        self.soonest_ms = min(self.deadlines.values(), default=NEVER_MS)
        return self.soonest_ms
