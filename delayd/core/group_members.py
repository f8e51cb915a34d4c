"""Which jobs belong to the groups of their topics: as they come and go, and are held.

What a group may hand out is decided by `core.group_turns`; the store says here what has happened to
its jobs. A topic has groups from its first job with one on, or from the first pause of one. After
each change those who look for jobs hear of it, and the alarm is set for the next group that may go
on by itself.
"""

from collections.abc import Callable
from typing import final

from delayd.core.group_turns import Groups
from delayd.core.job_parts import group_of
from delayd.core.job_record import PRIORITY_AND_TOPIC, PRIORITY_AT
from delayd.core.job_table import JobTable
from delayd.core.leases import Leases
from delayd.core.policy import NO_POLICY
from delayd.core.ready_queue import TURNS
from delayd.core.ready_topics import ReadyTopics
from delayd.core.times import PlayedMs
from delayd.core.topic import Topic
from delayd.core.topic_blocks import TopicBlocks
from delayd.core.topics import Topics
from delayd.limits import ADVANCE_SLICE_JOBS


@final
class GroupMembers:
    """The jobs with groups, of all topics."""

    __slots__ = ("_begin_queues", "_blocks", "_jobs", "_leases", "_ready_topics", "_topics")

    def __init__(
        self,
        jobs: JobTable,
        leases: Leases,
        topics: Topics,
        blocks: TopicBlocks,
        ready_topics: ReadyTopics,
        begin_queues: Callable[[Topic], None],
    ) -> None:
        """`begin_queues` gives a topic that has had no job queues of its own."""
        self._jobs = jobs
        self._leases = leases
        self._topics = topics
        self._blocks = blocks
        self._ready_topics = ready_topics
        self._begin_queues = begin_queues

    def join(self, topic: Topic, record: bytes) -> None:
        """Count a new job of the topic with its group, if it has one."""
        name = group_of(record)
        if name:
            self._begin_queues(topic)
            topic.queues.ready.join(self._groups(topic), name)

    def quit(self, topic: Topic, record: bytes, time_ms: PlayedMs) -> None:
        """Count a job that leaves the topic, and is not ready there, no more with its group."""
        name = group_of(record)
        if name:
            topic.queues.ready.leave(name, time_ms)
            self.announce(topic, time_ms)

    def hold(self, topic: Topic, record: bytes, more: int, time_ms: PlayedMs) -> None:
        """Count a job more in the hands of its group, or with -1 one less."""
        topic.queues.ready.hold(record, more)
        self.announce(topic, time_ms)

    def announce(self, topic: Topic, time_ms: PlayedMs) -> None:
        """Tell who looks for jobs whether groups may hand out some, and see that they wake up."""
        ready = topic.queues.ready
        if ready.changed:
            self._ready_topics.note(topic)
        if ready.groups is not None:
            self._blocks.wake_groups_later(ready.groups, time_ms)

    def wake(self, topic: Topic, groups: Groups, time_ms: PlayedMs) -> None:
        """Open groups of the topic whose time has come, a slice of them."""
        if topic.queues.ready.groups is groups:
            topic.queues.ready.wake_groups(groups, ADVANCE_SLICE_JOBS, time_ms)
            self.announce(topic, time_ms)

    def pause(
        self, topic: Topic, name: bytes, until_ms: int, pause_ms: int, time_ms: PlayedMs
    ) -> None:
        """Hand out nothing of a group until then; with a `pause_ms` of 0, no longer pause it."""
        self._begin_queues(topic)
        until_ms = until_ms if pause_ms else 0
        ready, groups = topic.queues.ready, self._groups(topic)
        ready.pause_group(groups, name, until_ms, pause_ms, time_ms)
        self.announce(topic, time_ms)

    def keep(self, topic: Topic, former: Groups, time_ms: PlayedMs) -> None:
        """Take over what is left of the groups of a cleared topic: jobs in hand, and pauses."""
        self._blocks.forget_groups(former)
        by_number = self._topics.by_number
        for job_id in self._leases.sessions if topic.reserved else ():
            record = self._jobs.get(job_id)
            if record is None or not group_of(record):
                continue
            if by_number[PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]] is topic:
                self.join(topic, record)
                self.hold(topic, record, 1, time_ms)
        for name, (until_ms, pause_ms) in former.paused.items():
            self.pause(topic, name, until_ms, pause_ms, time_ms)
        topic.queues.ready.changed.append(TURNS)
        self.announce(topic, time_ms)

    def _groups(self, topic: Topic) -> Groups:
        """Return the groups of the topic, or new ones."""
        groups = topic.queues.ready.groups
        if groups is None:
            policy = NO_POLICY if topic.policy is None else topic.policy
            groups = Groups(self._jobs, topic.name, policy.group_rule, self._blocks.tick_ms)
        return groups
