"""Jobs at rest, each in the queue where its record says it belongs: delayed, ready or buried.

The lower half of the store. What is put, moves from queue to queue, comes due; what follows the
wall clock is placed anew when that is set. The upper half, `core.store`, knows who holds jobs, and
how they come and go. Both carry out what the engine has decided, live and in a replay alike.

Where jobs become ready is also where it is counted how late they are, and since when they have been
ready (`core.stats.latency`, `core.stats.ready_ages`): for a whole slice at once, which takes 20 ns
a job.
"""

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from delayd.core.job import (
    DUE_AT,
    FLAGS_AT,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    U64,
    Flag,
    State,
    has_key,
    rank_of,
    wall_of,
)
from delayd.core.job_table import JobTable
from delayd.core.stats.latency import new_histogram, note_run, span
from delayd.core.topic import Topic
from delayd.core.topics import Topics
from delayd.core.transitions import came_due, placed_anew
from delayd.core.wall_times import WallTimes
from delayd.limits import KEY_ANCHOR_IDS, PRIORITY_URGENT_BELOW

if TYPE_CHECKING:
    from delayd.core.cleared import ClearedJobs
    from delayd.core.session import Session

# Compared with a byte of the record on every operation; an enum member costs 40 ns more.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_BURIED: Final = int(State.BURIED)
_WALL: Final = int(Flag.WALL)
_unpack_u64: Final = U64.unpack_from
_DUE_AND_PRIORITY: Final = struct.Struct(f"<Q{PRIORITY_AT - DUE_AT - 8}xI")
"""From DUE_AT on."""
_unpack_due: Final = _DUE_AND_PRIORITY.unpack_from


class Resting(Topics):
    """The jobs, their topics and queues, and the wheels that wake them."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        """Start empty, at `start_ms` of delayd time, with wheels of this tick and size."""
        super().__init__(tick_ms, wheel_size, start_ms, self._delay_ends)
        self.last_rank = 0
        """The highest that a buried job got, of whatever topic."""
        self.jobs = JobTable()
        self.ghosts: list[ClearedJobs] = []
        """What clears have left behind, swept away by `ClearedJobs.step`, the oldest first."""
        self.holders: dict[int, Session] = {}
        self.absolute = WallTimes(tick_ms)

    # --- What the wheels ask ---------------------------------------------------------------------

    def _delay_ends(self, job_id: int) -> int | None:
        record = self.jobs.get(job_id)
        if record is None or record[STATE_AT] != _DELAYED or job_id in self.holders:
            return None
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        return due_ms

    def _delay_ends_in(self, topic: Topic, job_id: int) -> int | None:
        """Say the same of a wheel that may have dead entries of jobs that were moved elsewhere."""
        record = self.jobs.get(job_id)
        if record is None or self.topic_of(record) is not topic:
            return None
        return self._delay_ends(job_id)

    # --- What a record says ----------------------------------------------------------------------

    def topic_of(self, record: bytes) -> Topic:
        """Return the topic that the job belongs to."""
        return self.numbered[PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]]

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
        return self.numbered[number].number != number

    # --- From queue to queue ---------------------------------------------------------------------

    def move(self, job_id: int, changed: bytes) -> Topic:
        """Put a job at rest to the place that its changed record says."""
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.numbered[number]
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
        is_kicked = due_ms > self.time_ms + 1 or (
            record[STATE_AT] == _BURIED and due_ms < self.time_ms
        )
        return self.time_ms if is_kicked else 0

    def come_due(self, topic: Topic, job_ids: Iterable[int]) -> None:
        """Make jobs ready whose delay has ended and whose wheel has let go of them."""
        absolute, jobs, add = self.absolute, self.jobs, topic.ready.add
        # Those that share a bucket of lateness are counted together; mostly all of them do.
        low_ms = high_ms = first_ms = last_ms = count = 0
        for job_id in job_ids:
            record = jobs.get(job_id)
            assert record is not None
            if absolute.count:
                record = self.current(job_id, record)
                absolute.discard(job_id)
                if _unpack_u64(record, DUE_AT)[0] > self.time_ms:  # it was unplaced
                    self._replace(topic, job_id, record)
                    absolute.add(job_id)
                    continue
            due_ms, priority = _unpack_due(record, DUE_AT)
            jobs.replace(job_id, came_due(record))  # it is as long as before
            add(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                topic.urgent += 1
            if not low_ms <= due_ms < high_ms:
                if count:
                    topic.ages.add(first_ms, count)
                    self.count_overdue(topic, first_ms, last_ms, count)
                low_ms, high_ms = span(due_ms, self.time_ms, topic.ages.shift)
                first_ms = due_ms
                count = 0
            count += 1
            last_ms = due_ms
        if count:
            topic.ages.add(first_ms, count)
            self.count_overdue(topic, first_ms, last_ms, count)

    def count_overdue(self, topic: Topic, first_ms: int, last_ms: int, jobs: int = 1) -> None:
        """Count jobs of one `span` whose delay has ended now, and was to end then."""
        if not topic.overdue:
            topic.overdue = new_histogram()
        first_ms = self.time_ms - first_ms
        last_ms = self.time_ms - last_ms
        note_run(topic.overdue, first_ms, last_ms, jobs)
        if not topic.has_own_metrics:
            note_run(self.counters.others_overdue, first_ms, last_ms, jobs)

    def _replace(self, topic: Topic, job_id: int, changed: bytes, since_ms: int = 0) -> None:
        due_ms: int = _unpack_u64(changed, DUE_AT)[0]
        priority: int = PRIORITY_AND_TOPIC.unpack_from(changed, PRIORITY_AT)[0]
        topic.bytes += self.jobs.replace(job_id, changed)
        self._place(topic, job_id, priority, due_ms, changed, since_ms)

    def _place(
        self,
        topic: Topic,
        job_id: int,
        priority: int,
        due_ms: int,
        record: bytes,
        since_ms: int = 0,
    ) -> None:
        """Queue the job, whose record is kept already, where its state belongs.

        A ready one has been so since it was due, or since `since_ms` if that is given.
        """
        state = record[STATE_AT]
        if state == _DELAYED:
            if topic.delays.wheel.insert(job_id, due_ms, self.time_ms):
                self.agenda.queue(topic.delays)
        elif state == _READY:
            topic.ready.add(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                topic.urgent += 1
            if not since_ms or not topic.ages.keep(job_id, since_ms):
                since_ms = due_ms
            topic.ages.add(since_ms)
        else:
            rank = rank_of(record)
            self.last_rank = max(self.last_rank, rank)
            topic.buried.add(rank << 64 | job_id)

    def _unplace(self, topic: Topic, job_id: int, priority: int, record: bytes) -> int:
        """Take a job at rest out of the queue where its state put it.

        Returns since when it was ready; 0 when it was not.
        """
        state = record[STATE_AT]
        if state == _DELAYED:
            topic.delays.wheel.cancel(job_id, _unpack_u64(record, DUE_AT)[0])
            if self.absolute.count:
                self.absolute.discard(job_id)
        elif state == _READY:
            topic.ready.remove(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                topic.urgent -= 1
            return topic.ages.leave(job_id, _unpack_u64(record, DUE_AT)[0])
        else:
            topic.buried.remove(rank_of(record) << 64 | job_id)
        return 0

    # --- Absolute times --------------------------------------------------------------------------

    def note_wall(self, job_id: int, record: bytes) -> None:
        """Let a job just put or moved follow the wall clock, if it waits for a moment of it."""
        is_delayed = record[STATE_AT] == _DELAYED
        if (
            is_delayed
            and record[FLAGS_AT] & _WALL
            and _unpack_u64(record, DUE_AT)[0] > self.time_ms
        ):
            self.absolute.add(job_id)

    def step_wall(self, offset_ms: int) -> None:
        """Let wall clock minus delayd time be another from now on; `place_some` does the rest."""
        while self.absolute.is_full:
            self.place_some()
        self.absolute.step(offset_ms, self.time_ms)

    def place_some(self) -> None:
        """Place some of the unplaced jobs, 64 at most: 0.3 ms. There must be one."""
        for job_id in self.absolute.some_unplaced():
            self.place_anew(job_id)

    def place_anew(self, job_id: int) -> bytes:
        """Place a delayed job where it belongs, if it is unplaced; return its record."""
        record = self.jobs.get(job_id)
        assert record is not None
        if self.ghosts and self.is_cleared(record):
            self.absolute.discard(job_id)
            return record
        changed = self.current(job_id, record)
        if changed is not record:
            self.move(job_id, changed)
            self.note_wall(job_id, changed)
        return changed

    def current(self, job_id: int, record: bytes) -> bytes:
        """Return the record of a delayed job with the due time that it has, placed or not."""
        if self.absolute.layers:
            wall_ms = wall_of(record)
            due_ms = None if wall_ms is None else self.absolute.due_ms(job_id, wall_ms)
            if due_ms is not None:
                return placed_anew(record, due_ms)
        return record
