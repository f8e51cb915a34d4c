"""What a clear leaves: jobs that are deleted for every client, and not swept yet.

Deleting two million jobs takes seconds; a clear takes microseconds. It gives the topic another
number and new, empty queues. A job at rest whose record still has an old number is *cleared*:

    before    topic "mail" is 7      records of its jobs say 7
    cleared   topic "mail" is 9      at rest, record says 7: cleared. No operation finds it
                                     reserved, record says 7: stays, and says 9 once it is back
                                     put from now on: says 9

Number 7 leads to the topic until the last of them has gone, the cleared ones swept by `sweep` a
slice at a time, reserved ones deleted or given back (`topic.old_held` counts them). A cleared job
costs nothing but its memory. Until then no snapshot is begun: a copy would have to look at every
job twice.
"""

from typing import NamedTuple, final

from delayd.core.job_parts import Flag, key_of
from delayd.core.job_record import FLAGS_AT, PRIORITY_AND_TOPIC, PRIORITY_AT
from delayd.core.job_table import JobTable
from delayd.core.leases import Leases
from delayd.core.queues import Queues
from delayd.core.topic import Topic
from delayd.core.topics import Topics
from delayd.core.wall_times import WallTimes
from delayd.limits import PASS_ACTION_COST


class ClearedJobs(NamedTuple):
    """The queues that a topic had when it was cleared, and its number then."""

    topic: Topic
    number: int
    queues: Queues


@final
class Cleared:
    """What all clears have left."""

    __slots__ = ("_jobs", "_leases", "_topics", "_wall_times", "left")

    def __init__(
        self, jobs: JobTable, leases: Leases, topics: Topics, wall_times: WallTimes
    ) -> None:
        self._jobs = jobs
        self._leases = leases
        self._topics = topics
        self._wall_times = wall_times
        self.left: list[ClearedJobs] = []
        """Not swept yet, the oldest first."""

    def add(self, topic: Topic) -> None:
        """Keep what a topic is about to lose, which then gets another number."""
        self.left.append(ClearedJobs(topic, topic.number, topic.queues))
        held = topic.reserved - sum(topic.old_held.values())
        if held:
            topic.old_held[topic.number] = held

    def held_bytes(self, topic: Topic) -> int:
        """Return how long the records of the topic's jobs in hand are; O(jobs in hand)."""
        if not topic.reserved:
            return 0
        topics, records = self._topics.by_number, map(self._jobs.get, self._leases.sessions)
        numbered = ((PRIORITY_AND_TOPIC.unpack_from(r, PRIORITY_AT)[1], r) for r in records if r)
        return sum(len(record) for number, record in numbered if topics[number] is topic)

    def has(self, record: bytes) -> bool:
        """Tell whether a job at rest is cleared; call only while any are left."""
        number: int = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
        return self._topics.by_number[number].number != number

    def sweep(self, budget: int) -> bool:
        """Sweep away some of the oldest that are left; tell whether there are more.

        There must be some.
        """
        cleared = self.left[0]
        job_ids = cleared.queues.take_some(1 + budget // PASS_ACTION_COST)
        for job_id in job_ids:
            record = self._jobs.get(job_id)
            if record is None or job_id in self._leases.sessions:
                continue
            if PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1] == cleared.number:
                self.forget(job_id)
        if not job_ids:
            self.left.remove(cleared)
            if cleared.number not in cleared.topic.old_held:
                del self._topics.by_number[cleared.number]
        return bool(self.left)

    def forget(self, job_id: int) -> None:
        """Free a cleared job."""
        record = self._jobs.pop(job_id)
        if record[FLAGS_AT] & Flag.KEY:
            number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
            self._topics.by_number[number].let_go(key_of(record), job_id)
        if self._wall_times.count:
            self._wall_times.discard(job_id)

    def leave_old(self, topic: Topic, number: int) -> None:
        """Note that a job in hand with an old number of its topic is deleted or put back."""
        topic.old_held[number] -= 1
        if not topic.old_held[number]:
            del topic.old_held[number]
            if all(cleared.number != number for cleared in self.left):
                del self._topics.by_number[number]
