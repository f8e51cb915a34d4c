"""What is counted as having happened to jobs: since the start of the daemon, and never kept."""

import enum


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
