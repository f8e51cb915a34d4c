"""What the daemon counts over all topics, since its start; what was replayed is not counted.

Topics count for themselves as well, and vanish with what they have counted. One object for it all,
since the store has as many attributes as it can: above 30 Python finds each of them more slowly,
which cost 3 % of everything.
"""

import enum
from typing import TYPE_CHECKING

from delayd.core.stats.histogram import new_histogram
from delayd.core.stats.history import History
from delayd.core.stats.rates import Rates

if TYPE_CHECKING:
    from delayd.core.topic import Topic


class Operation(enum.IntEnum):
    """Something that happened; its name in lower case is what people see.

    Counted by jobs: five jobs put at once are five, and so are five that a clear forgets. `PAUSE`
    is how often a topic was paused or resumed.
    """

    PUT = 0
    RESERVE = 1
    DELETE = 2
    """Acknowledged by its holder, or deleted by any client."""
    RELEASE = 3
    NACK = 4
    BURY = 5
    KICK = 6
    TOUCH = 7
    TIMEOUT = 8
    """Its ttr ran out."""
    RETURN = 9
    """Its holder went away."""
    RESCHEDULE = 10
    CHANGE = 11
    """Replaced, preserved or extended under its key, or changed by its id."""
    PAUSE = 12
    CLEAR = 13

    @property
    def word(self) -> str:
        """How people call it."""
        return self.name.lower()


COUNTED_APART = 3
"""The first three, which happen too often to be found in a list: `Topic` has a number for each."""


class Counters:
    """What has happened in all topics, also those that have vanished."""

    __slots__ = (
        "busiest",
        "deletes",
        "history",
        "operations",
        "others_overdue",
        "others_waited",
        "overdue",
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
        self.history = History()
        self.overdue = new_histogram()
        """How late delays ended, in all topics."""
        self.others_overdue = new_histogram()
        """Of topics that were not shown when it was counted, as the next."""
        self.others_waited = new_histogram()
        self.busiest: list[Topic] = []
        """Topics that are not shown and might be, as the last census found."""

    @property
    def attempts_failed(self) -> int:
        """How many attempts have ended in a nack, or because their ttr ran out."""
        return self.operations[Operation.NACK] + self.operations[Operation.TIMEOUT]
