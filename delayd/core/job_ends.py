"""The ends of a few jobs that somebody waits for: done, dead or cancelled.

The store asks `wanted` wherever a job with a key leaves it, and wherever one is buried; a set that
is empty costs nothing there. A replay wants no ends.

>>> seen = []
>>> ends = JobEnds()
>>> ends.tell = lambda job_id, end: seen.append((job_id, end.value))
>>> ends.wanted.add(7)
>>> ends.note(7, JobEnd.DONE), ends.note(8, JobEnd.DONE), seen
(None, None, [(7, 'done')])
"""

import enum
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable


class JobEnd(enum.Enum):
    """How a job has ended."""

    DONE = "done"
    """Its holder deleted it."""
    DEAD = "dead"
    """It was buried, or moved to another topic when its attempts were exhausted."""
    CANCELLED = "cancelled"
    """It was deleted while nobody held it, or another job took its key."""


def _nobody(_job_id: int, _end: JobEnd) -> None:
    """Tell nobody."""


@final
class JobEnds:
    """Which jobs' ends are wanted, and who is told."""

    __slots__ = ("tell", "wanted")

    def __init__(self) -> None:
        self.wanted: set[int] = set()
        """Jobs with keys."""
        self.tell: Callable[[int, JobEnd], None] = _nobody
        """Is called within a change: it may look at nothing, and only note what it hears."""

    def note(self, job_id: int, end: JobEnd) -> None:
        """Tell of the end of a job, if it is wanted. A dead job may still be done later."""
        if job_id in self.wanted:
            if end is not JobEnd.DEAD:
                self.wanted.discard(job_id)
            self.tell(job_id, end)
