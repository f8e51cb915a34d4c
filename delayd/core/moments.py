"""Absolute times: jobs that are put for a moment of the wall clock instead of a delay.

    put_at(due_wall_ms=W)  ─►  due at W minus offset of delayd time, and W in the record; it is in
                               `core.keyed`, as one more way to put a job
    follow_wall(offset)    ─►  the wall clock was set: all such jobs are placed anew, in slices

`offset` is wall clock minus delayd time. Whoever calls sees to it that it is right: the service
reads both clocks in each turn in which such a job waits, and before one is put. A job never fires
before its time by the wall clock as it goes when it fires. Set forward past its time, it comes at
once; set back, it waits longer. What has come stays.

Only the offset is recorded. Which jobs it moves follows from that, live (`Store.place_some`) and
replayed alike, and a log in which no absolute time was ever put has no such record: a delayd that
does not know them can read it.

The half of the engine that knows the wall clock; the relative half is `core.engine`.
"""

from typing import Final

from delayd.core.errors import (
    BodyTooBig,
    CapReached,
    DelayTooLong,
    Draining,
    JobNotFound,
    ValueOutOfRange,
)
from delayd.core.internal_topic import InternalTopic
from delayd.core.job import TRANSITIONS, Event
from delayd.core.records import (
    LAYOUTS,
    Kind,
    pack_appoint,
    pack_offset,
    policy_record,
    topic_record,
)
from delayd.core.stats.operations import Operation
from delayd.core.topic import Topic
from delayd.core.transitions import rescheduled
from delayd.limits import DURATION_MS_MAX, PRIORITY_MAX, WALL_MS_MAX

_OFFSET_BYTES: Final = LAYOUTS[Kind.OFFSET].size


def check_delay(topic: Topic, delay_ms: int, *, is_moment: bool = False) -> None:
    """Raise `DelayTooLong` if nobody may ask for so long a delay in this topic.

    `is_moment`: a moment was asked for, and it is so long until then.
    """
    policy = topic.policy
    if policy is not None and policy.delay_ms_max is not None and delay_ms > policy.delay_ms_max:
        raise DelayTooLong(delay_ms, policy.delay_ms_max, topic.name, is_moment=is_moment)


class WallClockTimes(InternalTopic):
    """A timekeeper that can be told what the wall clock says."""

    def __init__(self, start_ms: int, tick_ms: int, wheel_size: int, body_bytes_max: int) -> None:
        """Start without jobs at `start_ms` of delayd time."""
        super().__init__(start_ms, tick_ms, wheel_size)
        self.body_bytes_max = body_bytes_max
        self.draining = False
        self.jobs_max: int | None = None
        """The cap on the jobs of all topics together; None: there is none."""
        self.bytes_max: int | None = None
        """The cap on their records."""

    # --- For both halves -------------------------------------------------------------------------

    def take_id(self) -> int:
        """Return the next job id; taken is taken, whether or not a job comes of it."""
        self.store.last_id += 1
        return self.store.last_id

    def _record_topic(self, topic: Topic) -> None:
        """Record number and policy of a topic, and of those that its jobs may be moved to."""
        chain: list[Topic] = []
        following: Topic | None = topic
        while following is not None and not following.recorded and following not in chain:
            chain.append(following)
            following = following.target
        items = [topic_record(each.number, each.name) for each in chain]
        # Behind the names: a policy may say the name of another topic.
        items += [
            policy_record(each.number, each.policy_source, each.policy.to_json())
            for each in chain
            if each.policy is not None
        ]
        self.room.take(2 * sum(map(len, items)))
        for item in items:
            self._write_promised(item)
        for each in chain:
            each.recorded = True

    def _vet_put(
        self,
        priority: int,
        delay_ms: int,
        ttr_ms: int,
        body_bytes: int,
        due_wall_ms: int | None = None,
    ) -> None:
        """Raise what is wrong with a put, whatever its topic."""
        if body_bytes > self.body_bytes_max:
            raise BodyTooBig(body_bytes, self.body_bytes_max)
        if self.draining:
            raise Draining
        check_range("priority", priority, PRIORITY_MAX)
        check_range("delay in ms", delay_ms, DURATION_MS_MAX)
        check_range("ttr in ms", ttr_ms, DURATION_MS_MAX)
        if due_wall_ms is not None:
            check_range("moment in ms", due_wall_ms, WALL_MS_MAX)

    def _admit(
        self,
        topic: Topic,
        *,
        jobs: int,
        record_bytes: int,
        body_bytes: int,
        delay_ms: int,
        ttr_ms: int,
        at_once: bool = False,
        is_moment: bool = False,
    ) -> tuple[int, int]:
        """Return what delay and ttr jobs get that are put to a topic which is not plain.

        `record_bytes` is how long the records of all of them are, `body_bytes` the longest body;
        of a job that is there already, how much longer its record gets, and `jobs` is 0.
        `at_once`: a delay of 0 was asked for, so the policy's does not take its place.
        `is_moment`: it is a moment that was asked for, and so long until then.
        Raises `TopicIsInternal`, `BodyTooBig`, `DelayTooLong`, `CapReached`.
        """
        self.require_writable(topic.name)
        policy = topic.policy
        if policy is not None:
            if policy.body_bytes_max is not None and body_bytes > policy.body_bytes_max:
                raise BodyTooBig(body_bytes, policy.body_bytes_max, topic.name)
            check_delay(topic, delay_ms, is_moment=is_moment)
            if policy.jobs_max is not None and jobs > max(0, policy.jobs_max - topic.jobs):
                raise CapReached("jobs_max", policy.jobs_max, topic.jobs, topic.name, needed=jobs)
            if policy.bytes_max is not None and record_bytes > max(
                0, policy.bytes_max - topic.bytes
            ):
                raise CapReached(
                    "bytes_max", policy.bytes_max, topic.bytes, topic.name, needed=record_bytes
                )
            delay_ms = delay_ms or (0 if at_once else policy.delay_ms or 0)
            ttr_ms = ttr_ms or policy.ttr_ms or 0
        if self.jobs_max is not None and jobs > max(0, self.jobs_max - self.room.jobs):
            raise CapReached("jobs_max", self.jobs_max, self.room.jobs, needed=jobs)
        if self.bytes_max is not None and record_bytes > max(0, self.bytes_max - self.record_bytes):
            raise CapReached("bytes_max", self.bytes_max, self.record_bytes, needed=record_bytes)
        return delay_ms, ttr_ms

    @property
    def record_bytes(self) -> int:
        """How long the records of all jobs are, together."""
        return self.store.jobs.put_bytes - LAYOUTS[Kind.PUT].size * self.room.jobs

    def _job(self, job_id: int, event: Event, now_ms: int) -> bytes:
        """Return the record of a job that the event may happen to; or raise a refusal."""
        record, state = self.settled(job_id, now_ms)
        if self.store.topics.internal is not None:
            self.require_writable_job(record)
        if (state, event) not in TRANSITIONS:
            raise JobNotFound(job_id)
        return record

    # --- The wall clock --------------------------------------------------------------------------

    def follow_wall(self, offset_ms: int) -> None:
        """Let the wall clock be so far ahead of delayd time; negative: behind.

        `advance` then places the jobs with absolute times anew, a slice at a time. The offset is
        rounded down: rounded up, a job could fire before its time.
        """
        absolute = self.store.wall_times
        if offset_ms == absolute.offset_ms:
            return
        if absolute.count:
            self._record_offset(offset_ms)
        self.store.step_wall(offset_ms)

    def _tell_offset(self) -> None:
        """See that the log says where absolute times are."""
        absolute = self.store.wall_times
        if absolute.recorded_ms != absolute.offset_ms:
            self._record_offset(absolute.offset_ms)

    def _record_offset(self, offset_ms: int) -> None:
        """Record the offset; never refused, since the clock was not set by a client.

        It need not be synced before an answer leaves: lost, it is found anew at the start.
        """
        if self._turn_ms != self.store.time_ms:
            self._stamp()
        self._log.append(pack_offset(Kind.OFFSET, offset_ms))
        self.room.free_bytes -= 2 * _OFFSET_BYTES
        self.store.wall_times.recorded_ms = offset_ms

    # --- Operations ------------------------------------------------------------------------------

    def reschedule_at(self, job_id: int, due_wall_ms: int, now_ms: int) -> None:
        """Let a delayed or ready job come at that moment of the wall clock instead.

        Raises `JobNotFound`, `ValueOutOfRange`, `DelayTooLong`, `OutOfSpace`.
        """
        store = self.store
        check_range("moment in ms", due_wall_ms, WALL_MS_MAX)
        record = self._job(job_id, Event.RESCHEDULE, now_ms)
        due_ms, delay_ms = self._placed(due_wall_ms, now_ms)
        check_delay(store.topic_of(record), delay_ms, is_moment=True)
        appointment = pack_appoint(Kind.APPOINT, job_id, due_ms, delay_ms, due_wall_ms)
        self.room.require(2 * (len(appointment) + _OFFSET_BYTES))
        self._tell_offset()
        self._write(appointment)
        changed = rescheduled(record, due_ms, delay_ms, due_wall_ms)
        topic = store.move(job_id, changed)
        store.note_wall(job_id, changed)
        store.count(topic, Operation.RESCHEDULE)
        self._serve(topic, now_ms)

    def _placed(self, due_wall_ms: int, now_ms: int) -> tuple[int, int]:
        """Return when the moment is in delayd time, and how long until then: 0 if it is past."""
        due_ms = self.store.wall_times.place(due_wall_ms)
        if due_ms <= self.store.time_ms:
            return now_ms, 0
        return due_ms, max(1, due_ms - now_ms)


def check_range(field: str, value: int, highest: int) -> None:
    """Raise `ValueOutOfRange` unless the value lies between 0 and the highest, both included."""
    if not 0 <= value <= highest:
        raise ValueOutOfRange(field, value, 0, highest)
