"""Which live job of a topic has a key: at most one at a time.

The key is in the job's record, and in the index of its topic (`core.keys`), which is made with the
topic's first keyed job and goes with its last. Two jobs lose their keys while they are still there:
one in hand whose key another job takes, and one that was cleared and is not swept yet.
"""

from collections.abc import Sequence
from functools import partial
from typing import final

from delayd.core.cleared_jobs import Cleared
from delayd.core.job_ends import JobEnd, JobEnds
from delayd.core.job_parts import has_key, key_of
from delayd.core.job_record import PRIORITY_AND_TOPIC, PRIORITY_AT
from delayd.core.job_table import JobTable
from delayd.core.keys import KeyIndex
from delayd.core.leases import Leases
from delayd.core.topic import Topic
from delayd.core.topics import Topics
from delayd.core.transitions import without_key
from delayd.limits import KEY_ANCHOR_IDS


@final
class KeyOwners:
    """The keys of all topics, and the jobs that have them."""

    __slots__ = ("_cleared", "_ends", "_jobs", "_leases", "_topics")

    def __init__(
        self, jobs: JobTable, leases: Leases, topics: Topics, cleared: Cleared, ends: JobEnds
    ) -> None:
        self._jobs = jobs
        self._leases = leases
        self._topics = topics
        self._cleared = cleared
        self._ends = ends

    def owner_of(self, topic: Topic, key: bytes) -> int:
        """Return the live job of the topic that has the key; 0 when none has."""
        job_id = 0 if topic.keys is None else topic.keys.find(key)
        if job_id and self._cleared.left and job_id not in self._leases.sessions:
            record = self._jobs.get(job_id)
            assert record is not None
            if self._cleared.has(record):
                self._cleared.forget(job_id)
                return 0
        return job_id

    def claim(self, topic: Topic, job_id: int, record: bytes) -> None:
        """Give a new job the key in its record. A job in hand that has it goes on without."""
        key = key_of(record)
        old_id = self.owner_of(topic, key)
        if old_id:
            if old_id not in self._leases.sessions:
                raise AssertionError(f"job {old_id} has the key of job {job_id}")
            old = self._jobs.get(old_id)
            assert old is not None
            topic.let_go(key, old_id)
            topic.bytes += self._jobs.replace(old_id, without_key(old))
            self._ends.note(old_id, JobEnd.CANCELLED)
        self._index_of(topic).add(key, job_id)

    def claim_run(self, topic: Topic, keys: Sequence[bytes], first_id: int) -> bool:
        """Give new jobs these keys, if all are free; tell whether they were."""
        index = self._index_of(topic)
        is_done = index.claim_run(keys, first_id)
        if len(index) == 0:
            topic.keys = None
        return is_done

    def _index_of(self, topic: Topic) -> KeyIndex:
        if topic.keys is None:
            topic.keys = KeyIndex(partial(self._named_among, topic))
        return topic.keys

    def _named_among(self, topic: Topic, anchor: int, key: bytes) -> int:
        """Return which job of the topic has the key, of the eight from that id on; 0: none."""
        by_number = self._topics.by_number
        for job_id in range(anchor, anchor + KEY_ANCHOR_IDS):
            record = self._jobs.get(job_id)
            if record is not None and has_key(record, key):
                number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
                if by_number[number] is topic:
                    return job_id
        return 0
