"""What the daemon counts over all topics, since its start; what was replayed is not counted.

Topics count for themselves as well, and vanish with what they have counted. One object for it all,
since the store has as many attributes as it can: above 30 Python finds each of them more slowly,
which cost 3 % of everything.
"""

import enum
from typing import TYPE_CHECKING

from delayd.core.stats.histogram import new_histogram, note_run
from delayd.core.stats.history import History
from delayd.core.stats.rates import Rates
from delayd.limits import RATE_CELL_MS

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
        *("busiest", "deletes", "history", "jobs_put", "operations", "others_overdue"),
        *("others_waited", "overdue", "rates", "reserves"),
    )

    def __init__(self) -> None:
        self.jobs_put = 0
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
        """Topics that are not shown and might be, as the last scan found."""

    def roll(self, topic: "Topic", time_ms: int) -> None:
        """Begin a new cell of the rates: a put, reserve or delete is about to be counted.

        It is `topic.roll_ms` by now, which happens once in `RATE_CELL_MS`.
        """
        topic.roll_ms = time_ms + RATE_CELL_MS
        if topic.rates is None:
            topic.rates = Rates()
            topic.waited = new_histogram()
        topic.rates.begin(time_ms, (topic.jobs_put, topic.reserves, topic.deletes))
        topic.queues.ready.ages.tidy()
        if time_ms >= self.rates.next_ms:
            counts = (self.jobs_put, self.reserves, self.deletes)
            self.rates.begin(time_ms, counts)
            if time_ms >= self.history.next_ms:
                self.history.begin(time_ms, (*counts, self.attempts_failed), self.overdue)

    def count(self, topic: "Topic", operation: Operation, jobs: int = 1) -> None:
        """Count what happened to jobs of the topic; not put, reserve and delete."""
        assert operation >= COUNTED_APART, f"{operation.word} is counted apart"
        if not topic.operations:
            topic.operations = [0] * len(Operation)
        topic.operations[operation] += jobs
        self.operations[operation] += jobs

    def count_overdue(
        self, topic: "Topic", first_ms: int, last_ms: int, jobs: int, time_ms: int
    ) -> None:
        """Count jobs of one `span` whose delay has ended now, and was to end then."""
        first_ms, last_ms = time_ms - first_ms, time_ms - last_ms
        if not topic.overdue:
            topic.overdue = new_histogram()
        note_run(topic.overdue, first_ms, last_ms, jobs)
        note_run(self.overdue, first_ms, last_ms, jobs)
        if not topic.has_own_metrics:
            note_run(self.others_overdue, first_ms, last_ms, jobs)

    def count_waits(
        self, topic: "Topic", first_ms: int, last_ms: int, jobs: int, time_ms: int
    ) -> None:
        """Count jobs of one `span` that were ready since then and have been reserved now."""
        first_ms, last_ms = time_ms - first_ms, time_ms - last_ms
        note_run(topic.waited, first_ms, last_ms, jobs)
        if not topic.has_own_metrics:
            note_run(self.others_waited, first_ms, last_ms, jobs)

    @property
    def attempts_failed(self) -> int:
        """How many attempts have ended in a nack, or because their ttr ran out."""
        return self.operations[Operation.NACK] + self.operations[Operation.TIMEOUT]
