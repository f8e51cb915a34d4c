"""What the daemon counts over all topics, since its start; what was replayed is not counted.

Topics count for themselves as well, and vanish with what they have counted. One object for it all,
since the store has as many attributes as it can: above 30 Python finds each of them more slowly,
which cost 3 % of everything.
"""

from typing import TYPE_CHECKING

from delayd.core.stats.latency import new_histogram
from delayd.core.stats.operations import Operation
from delayd.core.stats.rates import Rates

if TYPE_CHECKING:
    from delayd.core.topic import Topic


class Counters:
    """What has happened in all topics, also those that have vanished."""

    __slots__ = (
        "busiest",
        "deletes",
        "operations",
        "others_overdue",
        "others_waited",
        "rates",
        "reserves",
    )

    def __init__(self) -> None:
        """Count from zero."""
        self.reserves = 0
        self.deletes = 0
        self.operations = [0] * len(Operation)
        """What else has happened, by `Operation`; three of them are counted apart."""
        self.rates = Rates()
        self.others_overdue = new_histogram()
        """Of topics that were not shown when it was counted, as the next."""
        self.others_waited = new_histogram()
        self.busiest: list[Topic] = []
        """Topics that are not shown and might be, as the last census found."""
