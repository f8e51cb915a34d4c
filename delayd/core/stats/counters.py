"""What the daemon counts over all topics, since its start; what was replayed is not counted.

Topics count for themselves as well, and vanish with what they have counted. One object for it all,
since the store has as many attributes as it can: above 30 Python finds each of them more slowly,
which cost 3 % of everything.
"""

import enum
from typing import TYPE_CHECKING

from delayd.core.stats.histogram import new_histogram, note_run
from delayd.core.stats.history import History
from delayd.core.stats.last_minute import LastMinute
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
RATES = 4
"""How many counters have rates: jobs put, reserved and deleted, and attempts that failed."""
LATENESSES = len(new_histogram())


def attempts_failed(operations: list[int]) -> int:
    """Return how many attempts have ended in a nack, or because their ttr ran out."""
    return operations[Operation.NACK] + operations[Operation.TIMEOUT] if operations else 0


def counts_of(counter: "Topic | Counters") -> tuple[int, int, int, int]:
    """Return what has rates: of a topic, or of all of them."""
    failed = attempts_failed(counter.operations)
    return counter.jobs_put, counter.reserves, counter.deletes, failed


class Counters:
    """What has happened in all topics, also those that have vanished."""

    __slots__ = (
        *("busiest", "deletes", "history", "jobs_put", "late", "next_ms", "operations"),
        *("others_overdue", "others_waited", "overdue", "rates", "reserves"),
    )

    def __init__(self, start_ms: int) -> None:
        """Count from zero, from then on."""
        self.jobs_put = 0
        self.reserves = 0
        self.deletes = 0
        self.operations = [0] * len(Operation)
        """What else has happened, by `Operation`; three of them are counted apart."""
        self.rates = LastMinute(RATES)
        self.late = LastMinute(LATENESSES)
        """How late delays ended, as `overdue`."""
        self.overdue = new_histogram()
        """How late delays ended, in all topics."""
        self.history = History(start_ms, self.overdue)
        self.others_overdue = new_histogram()
        """Of topics that were not shown when it was counted, as the next."""
        self.others_waited = new_histogram()
        self.busiest: list[Topic] = []
        """Topics that are not shown and might be, as the last scan found."""
        self.next_ms = start_ms
        """From then on, what is counted begins a new cell of all topics together."""
        self.begin_cells(start_ms)

    def begin_cells(self, time_ms: int) -> None:
        """Begin what is a new cell by now; it is `next_ms`, and nothing was counted since."""
        if time_ms >= self.rates.next_ms:
            self.rates.begin(time_ms, counts_of(self))
            self.late.begin(time_ms, self.overdue)
        if time_ms >= self.history.next_ms:
            self.history.begin(time_ms, counts_of(self), self.overdue)
        self.next_ms = min(self.rates.next_ms, self.history.next_ms)

    def roll(self, topic: "Topic", time_ms: int) -> None:
        """Begin a new cell of the topic's rates: what has rates is about to be counted.

        It is `topic.roll_ms` by now, which happens once in `RATE_CELL_MS`.
        """
        topic.roll_ms = time_ms + RATE_CELL_MS
        if topic.rates is None:
            topic.rates = LastMinute(RATES)
            topic.waited = new_histogram()
        topic.rates.begin(time_ms, counts_of(topic))
        # So what comes at once is of one moment here too, and not of a cell that was begun before.
        if self.rates.is_empty(counts := counts_of(self)):
            self.rates.begin(time_ms, counts)
        topic.queues.ready.ages.tidy()

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
        if topic.late is None:
            topic.overdue = new_histogram()
            topic.late = LastMinute(LATENESSES)
        if time_ms >= topic.late.next_ms:
            topic.late.begin(time_ms, topic.overdue)
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
