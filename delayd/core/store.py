"""The jobs and topics as they are now: owns the parts and moves jobs between them.

Operations decide and record; `core.apply` carries out by the methods here, for live operations and
for replay alike, so that a restart cannot arrive at anything else. The methods trust their
arguments: an argument that does not fit the state is a mistake of ours, an `AssertionError` or a
`KeyError`, never a refusal.

A live job is in exactly one place, told by its record's state and by the leases:

    in `leases`           reserved; its session's `deadlines` has it, and the lane of leases
    record DELAYED        its topic's wheel of delays
    record READY          its topic's sorted list of ready keys
    record BURIED         its topic's `buried`

Where jobs become ready is also where it is counted how late they are, and since when they have been
ready (`core.stats.histogram`, `core.stats.ready_ages`): for a whole slice at once, which takes
20 ns a job.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, final

from delayd.core.cleared import ClearedJobs
from delayd.core.job import (
    DUE_AT,
    FLAGS_AT,
    HEADER_BYTES,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    TTR_AT,
    U64,
    State,
)
from delayd.core.job_table import JobTable
from delayd.core.keys import KeyIndex
from delayd.core.leases import Leases
from delayd.core.parts import Flag, body_of, has_key, key_of, rank_of, wall_of
from delayd.core.policy import Policy
from delayd.core.push_lanes import WHOLE_TOPIC, PushLanes
from delayd.core.queues import ID_MASK, Queues, ready_key
from delayd.core.records import LAYOUTS, Kind
from delayd.core.session import Session
from delayd.core.stats.counters import COUNTED_APART, Counters, Operation
from delayd.core.stats.histogram import new_histogram, note_run, span
from delayd.core.stats.rates import Rates
from delayd.core.throttle import Block, Throttle
from delayd.core.timers import Alarms, TimerLane, TimerQueue
from delayd.core.times import ROUNDING_MS, PlayedMs, RequestMs
from delayd.core.topic import Source, Topic
from delayd.core.topics import Topics
from delayd.core.transitions import came_due, placed_anew, rank_at, renumbered, without_key
from delayd.core.wall_times import WallTimes
from delayd.core.wheel.buckets import WheelCounts
from delayd.core.wheel.wheel import TimingWheel, ceil_to_tick
from delayd.limits import KEY_ANCHOR_IDS, PASS_ACTION_COST, PRIORITY_URGENT_BELOW, RATE_CELL_MS

# Compared with a byte of the record on every operation; an enum member costs 40 ns more.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_BURIED: Final = int(State.BURIED)
_KEY: Final = int(Flag.KEY)
_WALL: Final = int(Flag.WALL)
_MORE: Final = int(Flag.MORE)
"""Its bit is the highest: flags of a job with a target of its own are no less."""
_PAUSED: Final = int(Block.PAUSED)
_FULL: Final = int(Block.FULL)
_SLOW: Final = int(Block.SLOW)
_unpack_u64: Final = U64.unpack_from
_unpack_due: Final = struct.Struct(f"<Q{PRIORITY_AT - DUE_AT - 8}xI").unpack_from
"""Due time and priority, from DUE_AT on."""
_unpack_due_and_ttr: Final = struct.Struct(f"<Q{TTR_AT - DUE_AT - 8}xQ").unpack_from
"""From DUE_AT on."""
_URGENT_KEYS_END: Final = ready_key(PRIORITY_URGENT_BELOW, 0)


@final
class Store:
    """All jobs and topics, with the wheels that wake them."""

    __slots__ = (
        "alarms",
        "cleared",
        "counters",
        "jobs",
        "jobs_put",
        "last_id",
        "last_put_id",
        "last_rank",
        "leases",
        "orphans",
        "parts_recorded",
        "paused",
        "push_lanes",
        "stocked",
        "tick_ms",
        "time_ms",
        "timer_queue",
        "topics",
        "wall_times",
        "wheel_counts",
        "wheel_size",
        "without_jobs",
    )

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: PlayedMs) -> None:
        """Start empty, at `start_ms` of delayd time, with wheels of this tick and size."""
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
        """Which further parts jobs may have, as the log says: bits of the word in `core.parts`."""
        self.wheel_counts = WheelCounts()
        self.timer_queue = TimerQueue()
        self.without_jobs: Final = self._new_queues("")
        """The queues of all topics that have had no job yet: 1.4 kB less for each. Always empty."""
        self.alarms: Alarms[Session | Topic | Throttle] = Alarms(self._wheel)
        """For the end of a wait or a pause, or when a throttle allows the next job."""
        self.topics = Topics()
        self.stocked: dict[Topic, None] = {}
        """All topics that have ready jobs, and some that had: those with `is_stocked`. Who finds
        one empty takes it out, so that a job that becomes ready costs one test of a flag."""
        self.paused: dict[int, tuple[int, int]] = {}
        """Number of a topic → until when it is paused, and how long that is; of all there are."""
        self.push_lanes = PushLanes()
        self.jobs = JobTable()
        self.leases = Leases(self._wheel)
        self.orphans = Session()
        """Holds what was reserved before a restart."""
        self.wall_times = WallTimes(tick_ms)
        self.cleared: list[ClearedJobs] = []
        """What clears have left behind, swept away by `sweep`, the oldest first."""
        self.jobs_put = 0
        """Jobs taken in since the start, also by topics that have vanished since."""
        self.counters = Counters()

    @property
    def live_bytes(self) -> int:
        """How long the records of a copy of all jobs would be, but for a few bytes a topic."""
        return self.jobs.put_bytes + LAYOUTS[Kind.RESERVE].size * len(self.leases.sessions)

    # --- Wheels and alarms -----------------------------------------------------------------------

    def _wheel(self, due_of: Callable[[int], int | None]) -> TimingWheel:
        counts = self.wheel_counts
        return TimingWheel(self.tick_ms, self.wheel_size, self.time_ms, due_of, counts)

    def _new_queues(self, name: str) -> Queues:
        return Queues(TimerLane(self._wheel(self._delay_ends), name))

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

    def set_alarm(self, ring_ms: int, owner: Session | Topic | Throttle) -> int:
        """Set an alarm for the end of a wait or a pause, or a throttle; return its number."""
        alarm, is_earlier = self.alarms.add(ring_ms, owner, self.time_ms)
        if is_earlier:
            self.timer_queue.queue(self.alarms.lane)
        return alarm

    def silence(self, alarms: list[int]) -> list[Session | Topic | Throttle]:
        """Forget alarms that have rung; return for whom, before any of it is acted upon."""
        rung = self.alarms.take(alarms)
        for owner in rung:
            if isinstance(owner, Topic):
                owner.pause_alarm = None
            elif isinstance(owner, Throttle):
                owner.alarm = None
            else:
                owner.wait_alarm = None
        return rung

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
            self.pause(topic, 0, 0)
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
        self.unpause(topic)
        topic.queues.delays.unqueue()
        if topic.is_stocked:
            self.unstock(topic)
        self.push_lanes.forget(topic)
        self.topics.remove(topic)
        if topic.policy is not None:
            self.set_policy(topic, None, Source.CONFIGURATION)

    def _stock(self, topic: Topic) -> None:
        """Note that the topic has a ready job."""
        topic.is_stocked = True
        self.stocked[topic] = None
        if topic.is_pushed:
            self.push_lanes.note(topic, WHOLE_TOPIC)

    def unstock(self, topic: Topic) -> None:
        """Note that the topic has no ready job."""
        topic.is_stocked = False
        del self.stocked[topic]
        if topic.is_pushed:
            self.push_lanes.unnote(topic, WHOLE_TOPIC)

    def pause(self, topic: Topic, until_ms: int, pause_ms: int) -> None:
        """Hand out nothing of the topic until then; with a `pause_ms` of 0, no longer pause it."""
        self.unpause(topic)
        if pause_ms:
            topic.blocks |= _PAUSED
            topic.pause_ms = pause_ms
            topic.paused_until_ms = until_ms
            topic.pause_alarm = self.set_alarm(until_ms, topic)
            self.paused[topic.number] = (until_ms, pause_ms)

    def unpause(self, topic: Topic) -> None:
        """Let the topic hand out its jobs again."""
        if topic.pause_alarm is not None:
            self.alarms.cancel(topic.pause_alarm)
            topic.pause_alarm = None
        topic.blocks &= ~_PAUSED
        topic.pause_ms = 0
        topic.paused_until_ms = None
        self.paused.pop(topic.number, None)

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
            self._renew_lanes(topic)
        if former is not None:
            self.drop_if_unwanted(former)
        self._set_throttle(topic, policy)

    def _renew_lanes(self, topic: Topic) -> None:
        """Tell of the topic's lanes anew: its jobs have another target now, or none."""
        lanes = self.push_lanes
        lanes.forget(topic)
        if topic.is_pushed:  # to the scheduler it is another lane
            lanes.heard.discard((topic, WHOLE_TOPIC))
        lanes.note_all(topic)

    def _set_throttle(self, topic: Topic, policy: Policy | None) -> None:
        former, throttle = topic.throttle, None
        if policy is not None and (policy.reserved_max or policy.rate_per_s):
            throttle = Throttle(policy.reserved_max, policy.rate_per_s)
        topic.throttle = throttle
        if former is not None:
            if throttle is not None:
                throttle.go_on_from(former, self.time_ms)
            if former.alarm is not None:
                self.alarms.cancel(former.alarm)
            topic.blocks &= _PAUSED
        if throttle is not None:
            throttle.topic_name = topic.name
            self.restrain(topic, throttle)

    def restrain(self, topic: Topic, throttle: Throttle, handed_out: int = 0) -> None:
        """Stop the topic from handing out jobs while it is at its limits, or resume it.

        Call whenever more or fewer of its jobs are held, with how many were handed out.
        """
        if handed_out:
            throttle.take(handed_out, self.time_ms)
        if throttle.is_full(topic.reserved):
            topic.blocks |= _FULL
        else:
            topic.blocks &= ~_FULL
        if throttle.alarm is None and not throttle.is_allowed(self.time_ms):
            topic.blocks |= _SLOW
            throttle.alarm = self.set_alarm(throttle.next_ms(self.tick_ms), throttle)

    def go_on(self, throttle: Throttle) -> Topic:
        """Resume handing out, at the time that its rate allows the next job."""
        topic = self.topics.by_name[throttle.topic_name]
        topic.blocks &= ~_SLOW
        self.restrain(topic, throttle)
        return topic

    # --- Figures ---------------------------------------------------------------------------------

    def roll(self, topic: Topic) -> None:
        """Begin a new cell of the topic's rates: something is about to be counted.

        Once in `RATE_CELL_MS`, so what is made anew or tidied up now and then has its place here.
        """
        topic.roll_ms = self.time_ms + RATE_CELL_MS
        if topic.rates is None:
            topic.rates = Rates()
            topic.waited = new_histogram()
            if topic.queues is self.without_jobs:
                topic.queues = self._new_queues(topic.name)
        topic.rates.begin(self.time_ms, (topic.jobs_put, topic.reserves, topic.deletes))
        topic.queues.ages.tidy()
        counters = self.counters
        if self.time_ms >= counters.rates.next_ms:
            counts = (self.jobs_put, counters.reserves, counters.deletes)
            counters.rates.begin(self.time_ms, counts)
            if self.time_ms >= counters.history.next_ms:
                failed = counters.attempts_failed
                counters.history.begin(self.time_ms, (*counts, failed), counters.overdue)

    def count(self, topic: Topic, operation: Operation, jobs: int = 1) -> None:
        """Count what happened to jobs of the topic; not put, reserve and delete."""
        assert operation >= COUNTED_APART, f"{operation.word} is counted apart"
        if not topic.operations:
            topic.operations = [0] * len(Operation)
        topic.operations[operation] += jobs
        self.counters.operations[operation] += jobs

    def begin_figures(self) -> None:
        """Count from zero: what was counted so far was the past. O(topics)."""
        self.jobs_put = 0
        self.counters = Counters()
        self.wheel_counts.cascaded = 0
        for topic in self.topics.listing:
            topic.begin_figures()
            topic.queues.ages.tidy()

    # --- What a record says ----------------------------------------------------------------------

    def topic_of(self, record: bytes) -> Topic:
        """Return the topic that the job belongs to."""
        return self.topics.by_number[PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]]

    def named_among(self, topic: Topic, anchor: int, key: bytes) -> int:
        """Return which job of the topic has the key, of the eight from that id on; 0: none."""
        for job_id in range(anchor, anchor + KEY_ANCHOR_IDS):
            record = self.jobs.get(job_id)
            if record is not None and has_key(record, key) and self.topic_of(record) is topic:
                return job_id
        return 0

    def is_cleared(self, record: bytes) -> bool:
        """Tell of a job at rest whether a clear has forgotten it: to be asked while there are any.

        Its record has a number that its topic no longer has.
        """
        number: int = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
        return self.topics.by_number[number].number != number

    # --- From queue to queue ---------------------------------------------------------------------

    def move(self, job_id: int, changed: bytes) -> Topic:
        """Put a job at rest to the place that its changed record says."""
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.topics.by_number[number]
        former_ms = self._unplace(topic, job_id, priority, record)
        since_ms = 0
        if changed[STATE_AT] == _READY:
            since_ms = self._ready_since(record, changed, former_ms)
        self._replace(topic, job_id, changed, since_ms)
        return topic

    def _ready_since(self, record: bytes, changed: bytes, former_ms: int) -> int:
        """Return since when the job that becomes ready counts as that; 0: since it was due.

        One that is ready already is so since `former_ms`.
        """
        due_ms: int = _unpack_u64(changed, DUE_AT)[0]
        if record[STATE_AT] == _READY and due_ms == _unpack_u64(record, DUE_AT)[0]:
            return former_ms if former_ms != due_ms else 0
        is_kicked = due_ms > self.time_ms + ROUNDING_MS or (
            record[STATE_AT] == _BURIED and due_ms < self.time_ms
        )
        return self.time_ms if is_kicked else 0

    def come_due(self, topic: Topic, job_ids: Iterable[int]) -> None:
        """Make jobs ready whose delay has ended, and which their wheel has dropped."""
        wall_times, jobs, queues = self.wall_times, self.jobs, topic.queues
        add = queues.ready.add
        # Those that share a bucket of lateness are counted together; mostly all of them do.
        low_ms = high_ms = first_ms = last_ms = count = 0
        for job_id in job_ids:
            record = jobs.get(job_id)
            assert record is not None
            if wall_times.count:
                record = self.current(job_id, record)
                wall_times.discard(job_id)
                if _unpack_u64(record, DUE_AT)[0] > self.time_ms:  # it was unplaced
                    self._replace(topic, job_id, record)
                    wall_times.add(job_id)
                    continue
            due_ms, priority = _unpack_due(record, DUE_AT)
            jobs.replace(job_id, came_due(record))  # it is as long as before
            add(priority << 64 | job_id)
            if record[FLAGS_AT] >= _MORE:
                self.push_lanes.enter(topic, priority << 64 | job_id, record)
            if priority < PRIORITY_URGENT_BELOW:
                queues.urgent += 1
            if not low_ms <= due_ms < high_ms:
                if count:
                    queues.ages.add(first_ms, count)
                    self.count_overdue(topic, first_ms, last_ms, count)
                low_ms, high_ms = span(due_ms, self.time_ms, queues.ages.shift)
                first_ms = due_ms
                count = 0
            count += 1
            last_ms = due_ms
        if count:
            queues.ages.add(first_ms, count)
            self.count_overdue(topic, first_ms, last_ms, count)
            if not topic.is_stocked:
                self._stock(topic)

    def count_overdue(self, topic: Topic, first_ms: int, last_ms: int, jobs: int = 1) -> None:
        """Count jobs of one `span` whose delay has ended now, and was to end then."""
        if not topic.overdue:
            topic.overdue = new_histogram()
        first_ms = self.time_ms - first_ms
        last_ms = self.time_ms - last_ms
        note_run(topic.overdue, first_ms, last_ms, jobs)
        note_run(self.counters.overdue, first_ms, last_ms, jobs)
        if not topic.has_own_metrics:
            note_run(self.counters.others_overdue, first_ms, last_ms, jobs)

    def _replace(self, topic: Topic, job_id: int, changed: bytes, since_ms: int = 0) -> None:
        """Keep the changed record and queue the job; ready since `since_ms` if that is given."""
        topic.bytes += self.jobs.replace(job_id, changed)
        self._place(topic, job_id, changed, since_ms)

    def _place(self, topic: Topic, job_id: int, record: bytes, since_ms: int = 0) -> None:
        if record[STATE_AT] == _BURIED:
            self.last_rank = max(self.last_rank, rank_of(record))
        if topic.queues is self.without_jobs:  # it comes from another topic
            topic.queues = self._new_queues(topic.name)
        due_ms, priority = _unpack_due(record, DUE_AT)
        if topic.queues.place(job_id, priority, due_ms, record, self.time_ms, since_ms):
            self.timer_queue.queue(topic.queues.delays)
        if record[STATE_AT] == _READY:
            if not topic.is_stocked:
                self._stock(topic)
            if record[FLAGS_AT] >= _MORE:
                self.push_lanes.enter(topic, priority << 64 | job_id, record)

    def _unplace(self, topic: Topic, job_id: int, priority: int, record: bytes) -> int:
        """Take a job at rest out of its queue; return since when it was ready; 0: it was not."""
        if record[STATE_AT] == _DELAYED and self.wall_times.count:
            self.wall_times.discard(job_id)
        if record[FLAGS_AT] >= _MORE and record[STATE_AT] == _READY:
            self.push_lanes.leave(topic, priority << 64 | job_id, record)
        return topic.queues.unplace(job_id, priority, record)

    # --- Wall-clock times ------------------------------------------------------------------------

    def note_wall(self, job_id: int, record: bytes) -> None:
        """Note a job just put or moved that waits for a wall-clock time."""
        is_delayed = record[STATE_AT] == _DELAYED
        if (
            is_delayed
            and record[FLAGS_AT] & _WALL
            and _unpack_u64(record, DUE_AT)[0] > self.time_ms
        ):
            self.wall_times.add(job_id)

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
        if self.cleared and self.is_cleared(record):
            self.wall_times.discard(job_id)
            return record
        changed = self.current(job_id, record)
        if changed is not record:
            self.move(job_id, changed)
            self.note_wall(job_id, changed)
        return changed

    def current(self, job_id: int, record: bytes) -> bytes:
        """Return the record of a delayed job with the due time that it has, placed or not."""
        if self.wall_times.layers:
            wall_ms = wall_of(record)
            due_ms = None if wall_ms is None else self.wall_times.due_ms(job_id, wall_ms)
            if due_ms is not None:
                return placed_anew(record, due_ms)
        return record

    # --- Coming and going ------------------------------------------------------------------------

    def put(self, topic: Topic, job_id: int, priority: int, due_ms: int, record: bytes) -> None:
        """Take in a new job, in the state that its record says.

        A job in hand that has its key goes on without.
        """
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        flags = record[FLAGS_AT]
        if flags & _KEY:
            self._claim(topic, job_id, record)
        topic.jobs += 1
        topic.jobs_put += 1
        topic.bytes += len(record)
        self.jobs_put += 1
        if job_id > self.last_put_id:  # noqa: PLR1730 - a call of `max` costs 60 ns
            self.last_put_id = job_id
        self.jobs.put(job_id, record)
        queues = topic.queues
        state = record[STATE_AT]
        # What `Queues.place` does, without calls: 3 % of a put.
        if state == _DELAYED:
            if queues.delays.wheel.insert(job_id, due_ms, self.time_ms):
                self.timer_queue.queue(queues.delays)
            return
        if state != _READY:
            self._place(topic, job_id, record)
            return
        queues.ready.add(priority << 64 | job_id)
        if flags >= _MORE:
            self.push_lanes.enter(topic, priority << 64 | job_id, record)
        if not topic.is_stocked:
            self._stock(topic)
        if priority < PRIORITY_URGENT_BELOW:
            queues.urgent += 1
        ages = queues.ages
        if ages.newest_ms <= due_ms < ages.newest_end_ms:
            ages.newest += 1
        else:
            ages.add(due_ms)

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
        self.jobs_put += len(records)
        job_ids = range(first_id, first_id + len(records))
        self.last_put_id = max(self.last_put_id, job_ids[-1])
        topic.bytes += self.jobs.put_run(first_id, records)
        queues = topic.queues
        if records[0][STATE_AT] == _DELAYED:
            if queues.delays.wheel.insert_run(job_ids, due_ms, self.time_ms):
                self.timer_queue.queue(queues.delays)
        else:
            add = queues.ready.add
            for job_id in job_ids:
                add(priority << 64 | job_id)
            if not topic.is_stocked:
                self._stock(topic)
            if priority < PRIORITY_URGENT_BELOW:
                queues.urgent += len(records)
            queues.ages.add(due_ms, len(records))

    def delete(self, job_id: int) -> Topic:
        """Forget the job, whatever its state; return its topic."""
        record = self.jobs.pop(job_id)
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.topics.by_number[number]
        topic.jobs -= 1
        if record[FLAGS_AT] & _KEY:
            topic.let_go(key_of(record), job_id)
        if job_id in self.leases.sessions:
            self._unhold(topic, job_id)
            if number != topic.number:
                self._leave_old(topic, number)
        else:
            self._unplace(topic, job_id, priority, record)
        topic.bytes -= len(record)
        return topic

    # --- Keys ------------------------------------------------------------------------------------

    # At most one live job of a topic has a key at a time. It is said twice, in the record of the
    # job and in the topic's index, which is made with its first keyed job.

    def owner_of(self, topic: Topic, key: bytes) -> int:
        """Return the live job of the topic that has the key; 0 when none has."""
        job_id = 0 if topic.keys is None else topic.keys.find(key)
        if job_id and self.cleared and job_id not in self.leases.sessions:
            record = self.jobs.get(job_id)
            assert record is not None
            if self.is_cleared(record):
                self._forget(job_id)
                return 0
        return job_id

    def _claim(self, topic: Topic, job_id: int, record: bytes) -> None:
        """Give a new job the key in its record."""
        key = key_of(record)
        old_id = self.owner_of(topic, key)
        if old_id:
            if old_id not in self.leases.sessions:
                raise AssertionError(f"job {old_id} has the key of job {job_id}")
            old = self.jobs.get(old_id)
            assert old is not None
            topic.let_go(key, old_id)
            topic.bytes += self.jobs.replace(old_id, without_key(old))
        self._keys_of(topic).add(key, job_id)

    def claim_run(self, topic: Topic, keys: Sequence[bytes], first_id: int) -> bool:
        """Give new jobs these keys, if all are free; tell whether they were."""
        index = self._keys_of(topic)
        is_done = index.claim_run(keys, first_id)
        if len(index) == 0:
            topic.keys = None
        return is_done

    def _keys_of(self, topic: Topic) -> KeyIndex:
        if topic.keys is None:
            topic.keys = KeyIndex(partial(self.named_among, topic))
        return topic.keys

    # --- Jobs in hand ----------------------------------------------------------------------------

    def hand_out(self, topic: Topic, session: Session, now_ms: RequestMs) -> tuple[int, int, bytes]:
        """Lease the topic's next ready job to the session; return (id, deadline, record)."""
        queues = topic.queues
        key: int = queues.ready.pop(0)
        if key < _URGENT_KEYS_END:
            queues.urgent -= 1
        job_id = key & ID_MASK
        record = self.jobs.get(job_id)
        assert record is not None
        if queues.lanes is not None and record[FLAGS_AT] >= _MORE:
            self.push_lanes.leave(topic, key, record)
        since_ms, ttr_ms = _unpack_due_and_ttr(record, DUE_AT)
        deadline_ms: int = ceil_to_tick(now_ms + ttr_ms, self.tick_ms)
        # What `hold`, `ReadyAges.leave` and `_count_waits` do, without calls for a job that has
        # just become ready: 1.6 µs instead of 2.
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        self.leases.sessions[job_id] = session
        session.deadlines[job_id] = deadline_ms
        if deadline_ms < session.soonest_ms:  # noqa: PLR1730 - a call of `min` costs 60 ns
            session.soonest_ms = deadline_ms
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        topic.reserved += 1
        topic.reserves += 1
        self.counters.reserves += 1
        if topic.throttle is not None:
            self.restrain(topic, topic.throttle, 1)
        if self.leases.lane.wheel.insert(job_id, deadline_ms, self.time_ms):
            self.timer_queue.queue(self.leases.lane)
        ages = queues.ages
        if ages.since:
            since_ms = ages.since.pop(job_id, since_ms)
        if ages.newest_ms <= since_ms < ages.newest_end_ms:
            ages.newest -= 1
        else:
            ages.add(since_ms, -1)
        if since_ms >= self.time_ms and topic.has_own_metrics:
            topic.waited[0] += 1
        else:
            self._count_waits(topic, since_ms, since_ms)
        return job_id, deadline_ms, record

    def hand_out_run(
        self, topic: Topic, session: Session, jobs_max: int, bytes_max: int, now_ms: RequestMs
    ) -> list[tuple[int, int, bytes]]:
        """Hand out so many of the next ready jobs, until their bodies exceed `bytes_max`.

        Returns (id, deadline, body) of each. The effects of `hand_out`, at half its cost.
        """
        run: list[tuple[int, int, bytes]] = []
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        if topic.throttle is not None:
            jobs_max = min(jobs_max, topic.throttle.allowed(topic.reserved, self.time_ms))
        queues = topic.queues
        ready, sessions, deadlines = queues.ready, self.leases.sessions, session.deadlines
        jobs, guarded, since = self.jobs, self.jobs.guarded, queues.ages.since
        deadline_ms, ttr_ms = 0, -1
        same: list[int] = []
        # Those that share a bucket of lateness are counted together; mostly all of them do.
        low_ms = high_ms = first_ms = last_ms = counted = urgent = 0
        # To ask the list each time whether there is one more would cost 60 ns a job.
        for _ in range(min(jobs_max, len(ready)) if bytes_max >= 0 else 0):
            key: int = ready.pop(0)
            if key < _URGENT_KEYS_END:
                urgent += 1
            job_id = key & ID_MASK
            if guarded:
                jobs.preserve(job_id)
            record = jobs.get(job_id)
            assert record is not None
            since_ms, ttr_now_ms = _unpack_due_and_ttr(record, DUE_AT)
            if since:
                since_ms = since.pop(job_id, since_ms)
            if not low_ms <= since_ms < high_ms:
                if len(run) > counted:
                    self._leave_ready(topic, first_ms, last_ms, len(run) - counted)
                low_ms, high_ms = span(since_ms, self.time_ms, queues.ages.shift)
                first_ms = since_ms
                counted = len(run)
            last_ms = since_ms
            # Neighbours mostly have the same ttr, and then one deadline does for all.
            if ttr_now_ms != ttr_ms:
                self._insert_leases(same, deadline_ms)
                same = []
                ttr_ms = ttr_now_ms
                deadline_ms = ceil_to_tick(now_ms + ttr_ms, self.tick_ms)
                session.soonest_ms = min(session.soonest_ms, deadline_ms)
            same.append(job_id)
            sessions[job_id] = session
            deadlines[job_id] = deadline_ms
            body = record[HEADER_BYTES:] if not record[FLAGS_AT] else body_of(record)
            run.append((job_id, deadline_ms, body))
            bytes_max -= len(body)
            if bytes_max < 0:
                break
        queues.urgent -= urgent
        if run:
            self._leave_ready(topic, first_ms, last_ms, len(run) - counted)
            self._insert_leases(same, deadline_ms)
            self._count_run(topic, run)
        return run

    def _count_run(self, topic: Topic, run: list[tuple[int, int, bytes]]) -> None:
        """Note that these jobs are held now, which were ready, and count for the rate."""
        if topic.queues.lanes is not None:
            for job_id, _, _ in run:
                record = self.jobs.get(job_id)
                assert record is not None
                if record[FLAGS_AT] >= _MORE:
                    priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
                    self.push_lanes.leave(topic, ready_key(priority, job_id), record)
        self._count_reserved(topic, len(run), len(run))

    def _count_reserved(self, topic: Topic, jobs: int, handed_out: int) -> None:
        """Note that so many more jobs are held, so many of them counting for the rate."""
        topic.reserved += jobs
        topic.reserves += jobs
        self.counters.reserves += jobs
        if topic.throttle is not None:
            self.restrain(topic, topic.throttle, handed_out)

    def _leave_ready(self, topic: Topic, first_ms: int, last_ms: int, jobs: int) -> None:
        topic.queues.ages.add(first_ms, -jobs)
        self._count_waits(topic, first_ms, last_ms, jobs)

    def _count_waits(self, topic: Topic, first_ms: int, last_ms: int, jobs: int = 1) -> None:
        """Count jobs of one `span` that were ready since then and have been reserved now."""
        time_ms = self.time_ms
        note_run(topic.waited, time_ms - first_ms, time_ms - last_ms, jobs)
        if not topic.has_own_metrics:
            note_run(self.counters.others_waited, time_ms - first_ms, time_ms - last_ms, jobs)

    def _insert_leases(self, job_ids: list[int], deadline_ms: int) -> None:
        if job_ids and self.leases.lane.wheel.insert_run(job_ids, deadline_ms, self.time_ms):
            self.timer_queue.queue(self.leases.lane)

    def take(self, job_id: int) -> Topic:
        """Take a job at rest off whatever queue it is in; `hold` must follow."""
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.topics.by_number[number]
        since_ms = self._unplace(topic, job_id, priority, record)
        if since_ms:
            if self.time_ms >= topic.roll_ms:
                self.roll(topic)
            self._count_waits(topic, since_ms, since_ms)
        return topic

    def hold(self, topic: Topic, job_id: int, session: Session, deadline_ms: int) -> None:
        """Note that the session holds the job, just taken off its queue, until the deadline.

        It does not count for the topic's hand-out rate.
        """
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        is_earlier = self.leases.add(job_id, session, deadline_ms, self.time_ms)
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        self._count_reserved(topic, 1, 0)
        if is_earlier:
            self.timer_queue.queue(self.leases.lane)

    def extend(self, job_id: int, deadline_ms: int) -> None:
        """Extend the lease to this deadline."""
        if deadline_ms != self.leases.sessions[job_id].deadlines[job_id]:
            if self.jobs.guarded:
                self.jobs.preserve(job_id)
            if self.leases.extend(job_id, deadline_ms, self.time_ms):
                self.timer_queue.queue(self.leases.lane)

    def put_back(self, job_id: int, changed: bytes, *, lease_fired: bool = False) -> Topic:
        """End the hold and queue the job where its changed record says."""
        number = PRIORITY_AND_TOPIC.unpack_from(changed, PRIORITY_AT)[1]
        topic = self.topics.by_number[number]
        self._unhold(topic, job_id, lease_fired=lease_fired)
        if number != topic.number:  # it was cleared meanwhile
            self._leave_old(topic, number)
            changed = renumbered(changed, topic.number)
        self._replace(topic, job_id, changed, self._back_since(changed))
        return topic

    def _back_since(self, changed: bytes) -> int:
        """Return since when a job that comes back is ready, if it is; 0: since it is due.

        Released it is due now. If its time ran out or its holder left, its due time is long past.
        """
        return self.time_ms if _unpack_u64(changed, DUE_AT)[0] < self.time_ms else 0

    def move_over(self, job_id: int, changed: bytes, *, lease_fired: bool = False) -> Topic:
        """End the hold and queue the job in the other topic that its changed record says.

        Returns the topic that it leaves. Under no key: that was its name in there.
        """
        record = self.jobs.get(job_id)
        assert record is not None
        number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
        former = self.topics.by_number[number]
        if record[FLAGS_AT] & _KEY:
            former.let_go(key_of(record), job_id)
        topic = self.topic_of(changed)
        self._unhold(former, job_id, lease_fired=lease_fired)
        former.jobs -= 1
        former.bytes -= len(record)
        if number != former.number:
            self._leave_old(former, number)
        topic.jobs += 1
        topic.bytes += len(record)
        self._replace(topic, job_id, changed, self._back_since(changed))
        # The wheel that it leaves may hold a dead entry of it (it was kicked, or reserved by id),
        # which would come alive again with the next delay in the other topic.
        former.queues.delays.wheel.ask(partial(self._delay_ends_in, former))
        return former

    def next_rank(self) -> int:
        """Return the rank of a job that is buried now because a client asks for it."""
        return max(self.last_rank + 1, rank_at(self.time_ms, 1))

    def _unhold(self, topic: Topic, job_id: int, *, lease_fired: bool = False) -> None:
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        self.leases.remove(job_id, has_fired=lease_fired)
        topic.reserved -= 1
        if topic.throttle is not None:
            self.restrain(topic, topic.throttle)

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
                    self._leave_old(topic, number)
            if topic.keys is not None and record[FLAGS_AT] & _KEY:
                topic.let_go(key_of(record), job_id)
            # Counted here, taken off the topic once for all neighbours: a tenth of the whole.
            jobs += 1
            gone_bytes += len(record)
            del sessions[job_id]
            del deadlines[job_id]
        assert topic is not None
        self._lose_run(topic, jobs, gone_bytes, touched)
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
            self.restrain(topic, topic.throttle)
            touched.append(topic)
        elif not topic.jobs:
            touched.append(topic)

    # --- Clearing --------------------------------------------------------------------------------

    def clear(self, topic: Topic, number: int) -> int:
        """Forget the topic's jobs at rest, and give it this number; return how many.

        O(jobs in hand): `sweep` does the rest, and no one can see how far it is.
        """
        cleared = topic.jobs - topic.reserved
        self.cleared.append(ClearedJobs(topic))
        held = topic.reserved - sum(topic.old_held.values())
        if held:
            topic.old_held[topic.number] = held
        topic.queues.delays.unqueue()
        topic.queues = self._new_queues(topic.name)
        self.push_lanes.forget(topic)
        if topic.is_stocked:
            self.unstock(topic)
        topic.jobs = topic.reserved
        topic.bytes = self._held_bytes(topic)
        if topic.number in self.paused:
            self.paused[number] = self.paused.pop(topic.number)
        self.topics.number(topic, number)
        return cleared

    def _held_bytes(self, topic: Topic) -> int:
        """Return how long the records of the topic's jobs in hand are, together."""
        if not topic.reserved:
            return 0
        records = filter(None, map(self.jobs.get, self.leases.sessions))
        return sum(len(record) for record in records if self.topic_of(record) is topic)

    def sweep(self, budget: int) -> bool:
        """Sweep away some of the jobs of the oldest clear; tell whether there is more to sweep.

        There must be a clear that has left some.
        """
        cleared = self.cleared[0]
        job_ids = cleared.queues.take_some(1 + budget // PASS_ACTION_COST)
        for job_id in job_ids:
            record = self.jobs.get(job_id)
            if record is None or job_id in self.leases.sessions:
                continue
            if PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1] == cleared.number:
                self._forget(job_id)
        if not job_ids:
            self.cleared.remove(cleared)
            if cleared.number not in cleared.topic.old_held:
                del self.topics.by_number[cleared.number]
        return bool(self.cleared)

    def _forget(self, job_id: int) -> None:
        """Free a cleared job."""
        record = self.jobs.pop(job_id)
        if record[FLAGS_AT] & _KEY:
            self.topic_of(record).let_go(key_of(record), job_id)
        if self.wall_times.count:
            self.wall_times.discard(job_id)

    def _leave_old(self, topic: Topic, number: int) -> None:
        """Note that a job in hand with an old number of its topic is deleted or put back."""
        topic.old_held[number] -= 1
        if not topic.old_held[number]:
            del topic.old_held[number]
            if all(cleared.number != number for cleared in self.cleared):
                del self.topics.by_number[number]
