"""How much the log can still take in this turn, so that nothing is accepted that cannot be kept.

Before a turn the service sets the free space. What it has set aside is no part of it: for each job
the space to reserve and delete it, for each job held the space to give it back. Operations take
from the rest before they write. When it runs short the service is asked for more, once, and if that
gets none the operation is refused: `OutOfSpace`, and nothing has changed. Puts leave
`EMERGENCY_BYTES` to all others; deletes and returns take nothing, because their space was set aside
before.

    >>> space = LogSpace()
    >>> space.limit(1_000, ask=lambda missing_bytes, record_bytes, places: 0)
    >>> space.take(900); space.free_bytes
    100
    >>> space.take(200)
    Traceback (most recent call last):
    delayd.core.errors.OutOfSpace: the journal has no room for this; no accepted job is lost

Without a journal it is boundless.
"""

from collections.abc import Callable
from typing import Final

from delayd.core.errors import OutOfSpace
from delayd.limits import (
    EMERGENCY_BYTES,
    HELD_RETURN_BYTES,
    JOB_REMOVAL_BYTES,
    LONG_BODY_BYTES,
    TURN_OVERHEAD_BYTES,
)

Ask = Callable[[int, int, int], int]
"""`(missing_bytes, body_bytes, places)`: get so much more space, and so many places for records
with such a body; return how much was got, -1 when it was not enough."""

BOUNDLESS_BYTES: Final = 1 << 62

RESERVE_COST_BYTES: Final = 2 * 17 + HELD_RETURN_BYTES
"""What handing out a job takes: its record, twice as all records, and space to return the job."""

PUT_COST_BYTES: Final = 2 * (42 + 5) + JOB_REMOVAL_BYTES
"""What a put takes beside its body: the heads of job and record, and space to remove the job."""

TOPIC_COST_BYTES: Final = 2 * 206
"""The longest TOPIC record, which the first put to a topic writes."""


class LogSpace:
    """Bytes that records may still take.

    A record counts twice: a frame that does not fit the end of a segment wastes that end, which is
    shorter than the frame.
    """

    __slots__ = ("_ask", "free_bytes", "is_short", "jobs")

    def __init__(self) -> None:
        self.free_bytes = BOUNDLESS_BYTES
        self.jobs = 0
        """The jobs that live, each of which must stay removable."""
        self.is_short = False
        """A consumer waits for a job that could not be handed out for lack of space."""
        self._ask: Ask = _nothing_more

    def set_aside_bytes(self, held: int) -> int:
        """Return what must stay free for removals, when so many of the jobs are held."""
        return TURN_OVERHEAD_BYTES + JOB_REMOVAL_BYTES * self.jobs + HELD_RETURN_BYTES * held

    def limit(self, free_bytes: int, ask: Ask) -> None:
        """Set the space for the coming turn, and how to get more."""
        self.free_bytes = free_bytes
        self._ask = ask

    def require(self, cost_bytes: int) -> None:
        """See that there is so much space, without taking it; `OutOfSpace`."""
        if cost_bytes > self.free_bytes:
            self._find(cost_bytes, 0, 0)

    def take(self, cost_bytes: int) -> None:
        """Take space for what is about to be written; `OutOfSpace`."""
        self.require(cost_bytes)
        self.free_bytes -= cost_bytes

    def take_for_puts(self, jobs: int, body_bytes: int) -> None:
        """Take space for jobs with bodies of at most this length; `OutOfSpace`."""
        cost_bytes = jobs * (PUT_COST_BYTES + 2 * body_bytes) + TOPIC_COST_BYTES
        if body_bytes > LONG_BODY_BYTES:
            self._find(cost_bytes + EMERGENCY_BYTES, body_bytes, jobs)
        elif cost_bytes + EMERGENCY_BYTES > self.free_bytes:
            self._find(cost_bytes + EMERGENCY_BYTES, 0, 0)
        self.free_bytes -= cost_bytes
        self.jobs += jobs

    def require_for_put(self, body_bytes: int) -> None:
        """See that a job with a body of this length would be taken; `OutOfSpace`."""
        cost_bytes = PUT_COST_BYTES + 2 * body_bytes + TOPIC_COST_BYTES
        self.require(cost_bytes + EMERGENCY_BYTES)

    def body_bytes_max(self) -> int:
        """Return the longest body of a job that would be taken without asking; below 0: none."""
        return (self.free_bytes - EMERGENCY_BYTES - PUT_COST_BYTES - TOPIC_COST_BYTES) // 2

    def take_for_rewrite(self, head_bytes: int, body_bytes: int) -> None:
        """Take space for the new record of a job that is there already; `OutOfSpace`.

        Leaves what puts leave: it is one, to a client.
        """
        cost_bytes = 2 * (head_bytes + body_bytes)
        if body_bytes > LONG_BODY_BYTES:
            self._find(cost_bytes + EMERGENCY_BYTES, head_bytes + body_bytes, 1)
        elif cost_bytes + EMERGENCY_BYTES > self.free_bytes:
            self._find(cost_bytes + EMERGENCY_BYTES, 0, 0)
        self.free_bytes -= cost_bytes

    def has_for_reserve(self) -> bool:
        """Tell whether a job may be handed out to a waiting consumer; note it when not."""
        if self.free_bytes >= RESERVE_COST_BYTES:
            return True
        self.is_short = True
        return False

    def _find(self, wanted_bytes: int, body_bytes: int, places: int) -> None:
        """Ask for what is missing; `OutOfSpace` when there is not that much."""
        got_bytes = self._ask(max(0, wanted_bytes - self.free_bytes), body_bytes, places)
        self.free_bytes += max(0, got_bytes)
        if got_bytes < 0 or wanted_bytes > self.free_bytes:
            raise OutOfSpace


def _nothing_more(_missing_bytes: int, _body_bytes: int, _places: int) -> int:
    return 0
