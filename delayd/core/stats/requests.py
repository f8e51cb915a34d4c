"""Requests over HTTP that were answered, by call and status, and how long the answers took."""

from delayd.core.stats.histogram import Histogram
from delayd.limits import REQUEST_BOUNDS_NS


class RequestCounters:
    """The requests of one call since the start."""

    __slots__ = ("by_status", "took_ns")

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}
        self.took_ns = Histogram(REQUEST_BOUNDS_NS)
        """From a request that was read to its answer, waits for jobs included."""

    def note(self, status: int, took_ns: int) -> None:
        """Count a request that is answered."""
        self.by_status[status] = self.by_status.get(status, 0) + 1
        self.took_ns.note(took_ns)
