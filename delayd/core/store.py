"""The jobs and topics as they are now: owns the parts and moves jobs between them.

Operations decide and record; `core.apply` carries out by the methods here, for live operations and
for replay alike, so that a restart cannot arrive at anything else. The methods trust their
arguments: an argument that does not fit the state is a mistake of ours, an `AssertionError` or a
`KeyError`, never a refusal.

A live job is in exactly one place, which its record's state and the leases show:

    in `leases`           reserved; its session's `deadlines` has it, and the lane of leases
    record DELAYED        its topic's wheel of delays
    record READY          its topic's ready queue
    record BURIED         its topic's `buried`

Where jobs become ready and are handed out is also where it is counted how late that is
(`core.stats.counters`): for a whole slice at once, which takes 20 ns a job.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, final

from delayd.core.cleared_jobs import Cleared
from delayd.core.group_members import GroupMembers
from delayd.core.group_turns import waits_again
from delayd.core.job_ends import JobEnd, JobEnds
from delayd.core.job_parts import Flag, key_of, rank_of, word_of
from delayd.core.job_record import (
    DUE_AT,
    FLAGS_AT,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    TTR_AT,
    U64,
    State,
)
from delayd.core.job_table import JobTable
from delayd.core.key_owners import KeyOwners
from delayd.core.leases import Leases
from delayd.core.log_records import LAYOUTS, Kind
from delayd.core.policy import NO_POLICY, Policy
from delayd.core.push_lanes import PushLanes
from delayd.core.queues import Queues
from delayd.core.ready_queue import ready_key, ready_since
from delayd.core.ready_topics import ReadyTopics
from delayd.core.session import Session
from delayd.core.stats.counters import Counters
from delayd.core.stats.histogram import span
from delayd.core.timers import Alarms, TimerLane, TimerQueue
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import Source, Topic
from delayd.core.topic_blocks import AlarmOwner, TopicBlocks
from delayd.core.topics import Topics
from delayd.core.transitions import came_due, rank_at, renumbered
from delayd.core.wall_times import WallTimes
from delayd.core.wheel.buckets import WheelCounts
from delayd.core.wheel.wheel import TimingWheel, ceil_to_tick

# Compared with a byte of the record on every operation; an enum member costs 40 ns more.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_BURIED: Final = int(State.BURIED)
_KEY: Final = int(Flag.KEY)
_MORE: Final = int(Flag.MORE)
"""Its bit is the highest: flags of a job with a target of its own are no less."""
_unpack_u64: Final = U64.unpack_from
_unpack_due: Final = struct.Struct(f"<Q{PRIORITY_AT - DUE_AT - 8}xI").unpack_from
"""Due time and priority, from DUE_AT on."""


@final
class Store:
    """All jobs and topics, with the wheels that wake them."""

    __slots__ = (
        *("alarms", "blocks", "cleared", "counters", "ends", "groups", "jobs", "keys", "last_id"),
        *("last_put_id", "last_rank", "leases", "orphans", "parts_recorded", "push_lanes"),
        *("ready_topics", "tick_ms", "time_ms", "timer_queue", "topics", "wall_times"),
        *("wheel_counts", "wheel_size", "without_jobs"),
    )

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: PlayedMs) -> None:
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.time_ms = start_ms
        """Everything due by then has happened, or happens when an operation asks for the job."""
        self.last_id = 0
        self.last_put_id = 0
        """The highest that a job was put with; later ones were taken, and nothing came of them."""
        self.last_rank = 0
        """The highest that a buried job got, of whatever topic."""
        self.parts_recorded = 0
        """Further parts that jobs may have, by the log: bits of the word in `core.job_parts`."""
        self.wheel_counts = WheelCounts()
        self.timer_queue = TimerQueue()
        self.without_jobs: Final = self._new_queues("")
        """The queues of all topics that have had no job yet: 1.4 kB less for each. Always empty."""
        self.alarms: Alarms[AlarmOwner] = Alarms(self._wheel, self.timer_queue)
        self.blocks: Final = TopicBlocks(self.alarms, tick_ms)
        self.topics = Topics()
        self.push_lanes = PushLanes()
        self.ready_topics: Final = ReadyTopics(self.push_lanes)
        self.jobs = JobTable()
        self.leases = Leases(self._wheel, self.timer_queue)
        self.orphans = Session()
        """Holds what was reserved before a restart."""
        self.wall_times = WallTimes(tick_ms)
        self.cleared = Cleared(self.jobs, self.leases, self.topics, self.wall_times)
        self.counters = Counters(start_ms)
        self.ends: Final = JobEnds()
        self.keys: Final = KeyOwners(self.jobs, self.leases, self.topics, self.cleared, self.ends)
        self.groups: Final = GroupMembers(
            self.jobs, self.leases, self.topics, self.blocks, self.ready_topics, self._begin_queues
        )

    @property
    def live_bytes(self) -> int:
        """How long the records of a copy of all jobs would be, but for a few bytes a topic."""
        leases = self.leases
        lease_bytes = LAYOUTS[Kind.RESERVE].size * len(leases.sessions)
        return self.jobs.put_bytes + lease_bytes + LAYOUTS[Kind.TOUCH].size * len(leases.begun)

    # --- Wheels and alarms -----------------------------------------------------------------------

    def _wheel(self, due_of: Callable[[int], int | None]) -> TimingWheel:
        counts = self.wheel_counts
        return TimingWheel(self.tick_ms, self.wheel_size, self.time_ms, due_of, counts)

    def _new_queues(self, name: str) -> Queues:
        return Queues(TimerLane(self._wheel(self._delay_ends), name))

    def _begin_queues(self, topic: Topic) -> None:
        """Give the topic queues of its own, if it has had no job yet."""
        if topic.queues is self.without_jobs:
            topic.queues = self._new_queues(topic.name)

    def _delay_ends(self, job_id: int) -> int | None:
        record = self.jobs.get(job_id)
        if record is None or record[STATE_AT] != _DELAYED or job_id in self.leases.sessions:
            return None
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        return due_ms

    def _delay_ends_in(self, topic: Topic, job_id: int) -> int | None:
        """Say the same of a wheel that may have dead entries of jobs that were moved elsewhere."""
        record = self.jobs.get(job_id)
        if record is None or self.topic_of(record) is not topic:
            return None
        return self._delay_ends(job_id)

    # --- Topics ----------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return the topic of that name, made when there is none yet."""
        topic = self.topics.by_name.get(name)
        return self.number_topic(name, self.topics.last_number + 1) if topic is None else topic

    def number_topic(self, name: str, number: int) -> Topic:
        """Give a topic its number, making it when there is none; a record is about to use it."""
        topics = self.topics
        topic = topics.by_name.get(name)
        if topic is None:
            topic = topics.add(name, self.without_jobs)
        else:
            # It vanished and has come back: pause and policy of its earlier life are not its own.
            self.blocks.unpause(topic)
            self.set_policy(topic, None, Source.CONFIGURATION)
            del topics.by_number[topic.number]
        topics.number(topic, number)
        policy = None if topics.policy_for is None else topics.policy_for(name)
        if policy is not None:
            self.set_policy(topic, policy, Source.CONFIGURATION)
        return topic

    def drop_if_unwanted(self, topic: Topic) -> None:
        """Remove the topic if no session uses or watches it and it holds no job."""
        topics = self.topics
        if topic.is_wanted or topics.keeps_all or topics.by_name.get(topic.name) is not topic:
            return
        self.blocks.unpause(topic)
        topic.queues.delays.unqueue()
        if topic.queues.ready.groups is not None:
            self.blocks.forget_groups(topic.queues.ready.groups)
        self.ready_topics.drop(topic)
        self.topics.remove(topic)
        if topic.policy is not None:
            self.set_policy(topic, None, Source.CONFIGURATION)

    def set_policy(self, topic: Topic, policy: Policy | None, source: Source) -> None:
        """Set the topic's policy from now on; None: remove it.

        The topic that its exhausted jobs are moved to is made when there is none yet.
        """
        target = None
        # Moved to where it is, a job would be buried the next time; so it is at once.
        if policy is not None and policy.exhausted not in {None, topic.name}:
            target = self.topic(policy.exhausted or "")
        push = None if topic.policy is None else topic.policy.push
        former = self.topics.set_policy(topic, policy, source, target)
        if push != (None if policy is None else policy.push):
            self.ready_topics.renew(topic)
        if former is not None:
            self.drop_if_unwanted(former)
        self.blocks.limit(topic, policy, self.time_ms)
        topic.queues.ready.follow((policy or NO_POLICY).group_rule)
        self.groups.announce(topic, self.time_ms)

    def reach(self, time_ms: PlayedMs) -> None:
        """Set the time, which never goes back; what is counted from now on is counted as of now."""
        if time_ms > self.time_ms:
            self.time_ms = time_ms
            if time_ms >= self.counters.next_ms:
                self.counters.begin_cells(time_ms)

    def roll(self, topic: Topic) -> None:
        """Begin a new cell of the topic's rates: something is about to be counted."""
        self._begin_queues(topic)
        self.counters.roll(topic, self.time_ms)

    def topic_of(self, record: bytes) -> Topic:
        """Return the topic that the job belongs to."""
        return self.topics.by_number[PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]]

    # --- From queue to queue ---------------------------------------------------------------------

    def move(self, job_id: int, changed: bytes) -> Topic:
        """Put a job at rest to the place that its changed record says."""
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.topics.by_number[number]
        former_ms = self._unplace(topic, job_id, priority, record)
        if record[FLAGS_AT] >= _MORE or changed[FLAGS_AT] >= _MORE:
            self.groups.join(topic, changed)
            self.groups.quit(topic, record, self.time_ms)
        is_ready = changed[STATE_AT] == _READY
        since_ms = ready_since(record, changed, former_ms, self.time_ms) if is_ready else 0
        self._replace(topic, job_id, changed, since_ms)
        return topic

    def come_due(self, topic: Topic, job_ids: Iterable[int]) -> None:
        """Make jobs ready whose delay has ended, and which their wheel has dropped."""
        wall_times, jobs, ready = self.wall_times, self.jobs, topic.queues.ready
        # Those that share a bucket of lateness are counted together; mostly all of them do.
        low_ms = high_ms = first_ms = last_ms = 0
        keys: list[int] = []
        for job_id in job_ids:
            record = jobs.get(job_id)
            assert record is not None
            if wall_times.count:
                record = wall_times.current(job_id, record)
                wall_times.discard(job_id)
                if _unpack_u64(record, DUE_AT)[0] > self.time_ms:  # it was unplaced
                    self._replace(topic, job_id, record)
                    wall_times.add(job_id)
                    continue
            due_ms, priority = _unpack_due(record, DUE_AT)
            jobs.replace(job_id, came_due(record))  # it is as long as before
            flags = record[FLAGS_AT]
            if flags >= _MORE:
                if ready.groups is not None and waits_again(record):
                    ready.retry(record, -1)
                ready.add(job_id, priority, due_ms, record, flags)
                self.counters.count_overdue(topic, due_ms, due_ms, 1, self.time_ms)
                continue
            if not low_ms <= due_ms < high_ms:
                self._come_ready(topic, keys, first_ms, last_ms)
                low_ms, high_ms = span(due_ms, self.time_ms, ready.ages.shift)
                first_ms = due_ms
                keys = []
            keys.append(priority << 64 | job_id)
            last_ms = due_ms
        self._come_ready(topic, keys, first_ms, last_ms)
        if ready.changed:
            self.ready_topics.note(topic)

    def _come_ready(self, topic: Topic, keys: list[int], first_ms: int, last_ms: int) -> None:
        """Queue jobs of one `span` whose delay has ended, and which were due then."""
        if keys:
            keys.sort()
            topic.queues.ready.add_run(keys, first_ms)
            self.counters.count_overdue(topic, first_ms, last_ms, len(keys), self.time_ms)

    def _replace(self, topic: Topic, job_id: int, changed: bytes, since_ms: int = 0) -> None:
        """Keep the changed record and queue the job; ready since `since_ms` if that is given."""
        topic.bytes += self.jobs.replace(job_id, changed)
        self._place(topic, job_id, changed, since_ms)

    def _place(self, topic: Topic, job_id: int, record: bytes, since_ms: int = 0) -> None:
        if record[STATE_AT] == _BURIED:
            self.last_rank = max(self.last_rank, rank_of(record))
            if self.ends.wanted:
                self.ends.note(job_id, JobEnd.DEAD)
        self._begin_queues(topic)  # it may come from another topic
        due_ms, priority = _unpack_due(record, DUE_AT)
        if topic.queues.place(job_id, priority, due_ms, record, self.time_ms, since_ms):
            self.timer_queue.queue(topic.queues.delays)
        if record[FLAGS_AT] >= _MORE and waits_again(record):
            topic.queues.ready.retry(record, 1)
        if topic.queues.ready.changed:
            self.ready_topics.note(topic)

    def _unplace(self, topic: Topic, job_id: int, priority: int, record: bytes) -> int:
        """Take a job at rest out of its queue; return since when it was ready; 0: it was not."""
        if record[STATE_AT] == _DELAYED and self.wall_times.count:
            self.wall_times.discard(job_id)
        since_ms = topic.queues.unplace(job_id, priority, record)
        if record[FLAGS_AT] >= _MORE and waits_again(record):
            topic.queues.ready.retry(record, -1)
        if topic.queues.ready.changed:
            self.ready_topics.note(topic)
        return since_ms

    # --- Wall-clock times ------------------------------------------------------------------------

    def step_wall(self, offset_ms: int) -> None:
        """Set wall clock minus delayd time from now on; `place_some` does the rest."""
        while self.wall_times.is_full:
            self.place_some()
        self.wall_times.step(offset_ms, self.time_ms)

    def place_some(self) -> None:
        """Place some of the unplaced jobs, 64 at most: 0.3 ms. There must be one."""
        for job_id in self.wall_times.some_unplaced():
            self.place_anew(job_id)

    def place_anew(self, job_id: int) -> bytes:
        """Place a delayed job where it belongs, if it is unplaced; return its record."""
        record = self.jobs.get(job_id)
        assert record is not None
        if self.cleared.left and self.cleared.has(record):
            self.wall_times.discard(job_id)
            return record
        changed = self.wall_times.current(job_id, record)
        if changed is not record:
            self.move(job_id, changed)
            self.wall_times.note(job_id, changed, self.time_ms)
        return changed

    # --- Coming and going ------------------------------------------------------------------------

    def put(self, topic: Topic, job_id: int, priority: int, due_ms: int, record: bytes) -> None:
        """Take in a new job, in the state that its record says.

        A job in hand that has its key goes on without.
        """
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        flags = record[FLAGS_AT]
        if flags & _KEY:
            self.keys.claim(topic, job_id, record)
        if flags >= _MORE:
            self.groups.join(topic, record)
            if waits_again(record):  # of a copy
                topic.queues.ready.retry(record, 1)
            self.groups.announce(topic, self.time_ms)
        topic.jobs += 1
        topic.jobs_put += 1
        topic.bytes += len(record)
        self.counters.jobs_put += 1
        if job_id > self.last_put_id:  # noqa: PLR1730 - a call of `max` costs 60 ns
            self.last_put_id = job_id
        self.jobs.put(job_id, record)
        queues = topic.queues
        state = record[STATE_AT]
        # What `Queues.place` does, without calls: 3 % of a put.
        if state == _DELAYED:
            if queues.delays.wheel.insert(job_id, due_ms, self.time_ms):
                self.timer_queue.queue(queues.delays)
        elif state == _READY:
            ready = queues.ready
            ready.add(job_id, priority, due_ms, record, flags)
            if ready.changed:
                self.ready_topics.note(topic)
        else:
            self._place(topic, job_id, record)

    def put_alike(
        self, topic: Topic, first_id: int, priority: int, due_ms: int, records: list[bytes]
    ) -> None:
        """Take in new jobs with ids in sequence that differ only in their bodies, and in keys.

        What keys they have is claimed already.
        """
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        topic.jobs += len(records)
        topic.jobs_put += len(records)
        self.counters.jobs_put += len(records)
        job_ids = range(first_id, first_id + len(records))
        self.last_put_id = max(self.last_put_id, job_ids[-1])
        topic.bytes += self.jobs.put_run(first_id, records)
        queues = topic.queues
        if records[0][STATE_AT] == _DELAYED:
            if queues.delays.wheel.insert_run(job_ids, due_ms, self.time_ms):
                self.timer_queue.queue(queues.delays)
        else:
            first = ready_key(priority, first_id)
            queues.ready.add_run(range(first, first + len(records)), due_ms)
            if queues.ready.changed:
                self.ready_topics.note(topic)

    def delete(self, job_id: int) -> Topic:
        """Forget the job, whatever its state; return its topic."""
        record = self.jobs.pop(job_id)
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.topics.by_number[number]
        topic.jobs -= 1
        if record[FLAGS_AT] & _KEY:
            topic.let_go(key_of(record), job_id)
            if self.ends.wanted:
                is_held = job_id in self.leases.sessions
                self.ends.note(job_id, JobEnd.DONE if is_held else JobEnd.CANCELLED)
        if job_id in self.leases.sessions:
            self._unhold(topic, job_id, record)
            if number != topic.number:
                self.cleared.leave_old(topic, number)
        else:
            self._unplace(topic, job_id, priority, record)
        if record[FLAGS_AT] >= _MORE:
            self.groups.quit(topic, record, self.time_ms)
        topic.bytes -= len(record)
        return topic

    # --- Jobs in hand ----------------------------------------------------------------------------

    def hand_out(self, topic: Topic, session: Session, now_ms: RequestMs) -> tuple[int, int, bytes]:
        """Lease the topic's next ready job to the session; return (id, deadline, record)."""
        ready = topic.queues.ready
        job_id, since_ms, ttr_ms, record = ready.pop(self.jobs, self.time_ms)
        if ready.changed or ready.groups is not None:
            self.groups.announce(topic, self.time_ms)
        deadline_ms: int = ceil_to_tick(now_ms + ttr_ms, self.tick_ms)
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        # What `Leases.add` and `_count_reserved` do, without calls: 2 % of a reserve and delete.
        self.leases.sessions[job_id] = session
        session.deadlines[job_id] = deadline_ms
        if deadline_ms < session.soonest_ms:  # noqa: PLR1730 - a call of `min` costs 60 ns
            session.soonest_ms = deadline_ms
        if self.leases.lane.wheel.insert(job_id, deadline_ms, self.time_ms):
            self.timer_queue.queue(self.leases.lane)
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        topic.reserved += 1
        topic.reserves += 1
        self.counters.reserves += 1
        if topic.throttle is not None:
            self.blocks.restrain(topic, topic.throttle, self.time_ms, 1)
        if since_ms >= self.time_ms and topic.has_own_metrics:
            topic.waited[0] += 1  # what `count_waits` does for a job that has just become ready
        else:
            self.counters.count_waits(topic, since_ms, since_ms, 1, self.time_ms)
        return job_id, deadline_ms, record

    def hand_out_run(
        self, topic: Topic, session: Session, jobs_max: int, bytes_max: int, now_ms: RequestMs
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, list[int]]]]:
        """Hand out so many of the next ready jobs, until their bodies exceed `bytes_max`.

        Returns (id, body) of each, and (deadline, ids) of neighbours. The effects of `hand_out`, at
        half its cost.
        """
        if topic.throttle is not None:
            jobs_max = min(jobs_max, topic.throttle.allowed(topic.reserved, self.time_ms))
        ready, jobs = topic.queues.ready, self.jobs
        run, ttrs, spans = ready.pop_run(jobs, jobs_max, bytes_max, self.time_ms)
        if not run:
            return [], []
        if ready.changed or ready.groups is not None:
            self.groups.announce(topic, self.time_ms)
        if jobs.guarded:
            for job_id, _ in run:
                jobs.preserve(job_id)
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        self._count_reserved(topic, len(run), len(run))
        for first_ms, last_ms, count in spans:
            self.counters.count_waits(topic, first_ms, last_ms, count, self.time_ms)
        return run, self.leases.add_run(ttrs, session, now_ms, self.time_ms)

    def _count_reserved(self, topic: Topic, jobs: int, handed_out: int) -> None:
        """Note that so many more jobs are held, so many of them counting for the rate."""
        topic.reserved += jobs
        topic.reserves += jobs
        self.counters.reserves += jobs
        if topic.throttle is not None:
            self.blocks.restrain(topic, topic.throttle, self.time_ms, handed_out)

    def lease(self, job_id: int, session: Session, deadline_ms: int) -> Topic:
        """Lease a job at rest, wherever it is, to the session; return its topic.

        It does not count for the topic's hand-out rate.
        """
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.topics.by_number[number]
        since_ms = self._unplace(topic, job_id, priority, record)
        if record[FLAGS_AT] >= _MORE:
            self.groups.hold(topic, record, 1, self.time_ms)
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        if since_ms:
            self.counters.count_waits(topic, since_ms, since_ms, 1, self.time_ms)
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        self.leases.add(job_id, session, deadline_ms, self.time_ms)
        self._count_reserved(topic, 1, 0)
        return topic

    def extend(self, job_id: int, deadline_ms: int) -> None:
        """Extend the lease to this deadline."""
        if deadline_ms != self.leases.sessions[job_id].deadlines[job_id]:
            if self.jobs.guarded:
                self.jobs.preserve(job_id)
            record = self.jobs.get(job_id)
            assert record is not None
            ttr_ms: int = _unpack_u64(record, TTR_AT)[0]
            self.leases.extend(job_id, deadline_ms, ttr_ms, self.time_ms)

    def put_back(
        self,
        job_id: int,
        record: bytes,
        changed: bytes,
        *,
        ended_ms: int = 0,
        lease_fired: bool = False,
    ) -> Topic:
        """End the hold and queue the job where its changed record says; return its topic.

        The hold ended at `ended_ms`; 0: now. In another topic than it was the job has no key: that
        was its name there.
        """
        number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
        former, topic = self.topics.by_number[number], self.topic_of(changed)
        self._unhold(former, job_id, record, lease_fired=lease_fired)
        if number != former.number:  # it was cleared meanwhile
            self.cleared.leave_old(former, number)
        if topic is not former:
            if record[FLAGS_AT] & _KEY:
                former.let_go(key_of(record), job_id)
                self.ends.note(job_id, JobEnd.DEAD)
            former.jobs -= 1
            former.bytes -= len(record)
            topic.jobs += 1
            topic.bytes += len(record)
            # The wheel that it leaves may hold a dead entry of it (it was kicked, or reserved by
            # id), which would come alive again with the next delay in the other topic.
            former.queues.delays.wheel.replace_due_of(partial(self._delay_ends_in, former))
            if record[FLAGS_AT] >= _MORE:
                self.groups.quit(former, record, self.time_ms)
                self.groups.join(topic, changed)
        elif number != topic.number:
            changed = renumbered(changed, topic.number)
        if changed[FLAGS_AT] & _MORE:  # it has a history now: it follows from what the log says
            self.parts_recorded |= word_of(changed)
        # Released it is due now. If its time ran out or its holder left, that is long past.
        is_late = _unpack_u64(changed, DUE_AT)[0] < self.time_ms
        self._replace(topic, job_id, changed, (ended_ms or self.time_ms) if is_late else 0)
        return topic

    def next_rank(self) -> int:
        """Return the rank of a job that is buried now because a client asks for it."""
        return max(self.last_rank + 1, rank_at(self.time_ms, 1))

    def _unhold(
        self, topic: Topic, job_id: int, record: bytes, *, lease_fired: bool = False
    ) -> None:
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        self.leases.remove(job_id, has_fired=lease_fired)
        topic.reserved -= 1
        if record[FLAGS_AT] >= _MORE:
            self.groups.hold(topic, record, -1, self.time_ms)
        if topic.throttle is not None:
            self.blocks.restrain(topic, topic.throttle, self.time_ms)

    def delete_held(self, session: Session, job_ids: Sequence[int]) -> list[Topic]:
        """Forget jobs that the session holds, one at least; return the topics to look after.

        Those left without jobs, in that order, and those that may hand out more now. With the
        effects of `delete` for each, at half its cost.
        """
        sessions, deadlines, pop = self.leases.sessions, session.deadlines, self.jobs.pop
        touched: list[Topic] = []
        topic: Topic | None = None
        jobs = gone_bytes = 0
        for job_id in job_ids:
            record = pop(job_id)
            number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
            if topic is None or topic.number != number:
                if topic is not None:
                    self._lose_run(topic, jobs, gone_bytes, touched)
                    jobs = gone_bytes = 0
                topic = self.topics.by_number[number]
                if topic.number != number:
                    self.cleared.leave_old(topic, number)
            if topic.keys is not None and record[FLAGS_AT] & _KEY:
                topic.let_go(key_of(record), job_id)
                self.ends.note(job_id, JobEnd.DONE)
            if record[FLAGS_AT] >= _MORE and topic.queues.ready.groups is not None:
                self.groups.hold(topic, record, -1, self.time_ms)
                self.groups.quit(topic, record, self.time_ms)
            # Counted here, taken off the topic once for all neighbours: a tenth of the whole.
            jobs += 1
            gone_bytes += len(record)
            del sessions[job_id]
            del deadlines[job_id]
        assert topic is not None
        self._lose_run(topic, jobs, gone_bytes, touched)
        self.leases.forget(job_ids)
        self.leases.lane.wheel.cancel(len(job_ids))
        return touched

    def _lose_run(self, topic: Topic, jobs: int, gone_bytes: int, touched: list[Topic]) -> None:
        """Take held jobs, deleted one after the other, off the topic's counts."""
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        topic.jobs -= jobs
        topic.bytes -= gone_bytes
        topic.deletes += jobs
        self.counters.deletes += jobs
        topic.reserved -= jobs
        if topic.throttle is not None:
            self.blocks.restrain(topic, topic.throttle, self.time_ms)
        if topic.is_limited or not topic.jobs:
            touched.append(topic)

    # --- Clearing --------------------------------------------------------------------------------

    def clear(self, topic: Topic, number: int) -> int:
        """Forget the topic's jobs at rest, and give it this number; return how many.

        O(jobs in hand): `cleared_jobs.sweep` does the rest, and no one can see how far it is.
        """
        jobs, groups = topic.jobs - topic.reserved, topic.queues.ready.groups
        self.cleared.add(topic)
        topic.queues.delays.unqueue()
        self.ready_topics.drop(topic)
        topic.queues = self._new_queues(topic.name)
        topic.jobs = topic.reserved
        topic.bytes = self.cleared.held_bytes(topic)
        self.blocks.renumber(topic, number)
        self.topics.number(topic, number)
        if groups is not None:
            self.groups.keep(topic, groups, self.time_ms)
        for job_id in [*self.ends.wanted]:
            record = self.jobs.get(job_id)
            if job_id not in self.leases.sessions and record and self.cleared.has(record):
                self.ends.note(job_id, JobEnd.CANCELLED)
        return jobs
