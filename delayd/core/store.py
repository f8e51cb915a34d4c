"""The jobs and topics as they are now, and the only code that changes them.

The engine decides and records; this class carries out, for live operations and for replay alike, so
that a restart cannot arrive at anything else. Its methods take what the records say. They trust
their arguments: an argument that does not fit the state is a mistake of ours, an `AssertionError`
or a `KeyError`, never a refusal.

A live job is in exactly one place, told by its record's state and by `holders`:

    in `holders`          reserved; its session's `deadlines` has it, and the wheel of leases
    record DELAYED        its topic's wheel of delays
    record READY          its topic's sorted list of ready keys
    record BURIED         its topic's `buried`
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from delayd.core.absolute import AbsoluteJobs
from delayd.core.agenda import Agenda, Lane
from delayd.core.job import (
    DUE_AT,
    FLAGS_AT,
    HEADER_BYTES,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    TTR_AT,
    U64,
    Flag,
    State,
    body_of,
    came_due,
    placed_anew,
    wall_of,
)
from delayd.core.limits import PRIORITY_URGENT_BELOW
from delayd.core.records import LAYOUTS, Kind
from delayd.core.session import Session
from delayd.core.table import JobTable
from delayd.core.topic import ID_MASK, Topic, ready_key
from delayd.core.wheel import TimingWheel, ceil_to_tick

# Compared with a byte of the record on every operation; an enum member costs 40 ns more.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_WALL: Final = int(Flag.WALL)
_unpack_u64: Final = U64.unpack_from
_URGENT_KEYS_END: Final = ready_key(PRIORITY_URGENT_BELOW, 0)


class Store:
    """All jobs and topics, with the wheels that wake them."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        """Start empty, at `start_ms` of delayd time, with wheels of this tick and size."""
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.time_ms = start_ms
        """Everything due by then has happened, or is settled when somebody asks."""
        self.last_id = 0
        self.last_put_id = 0
        """The highest that a job was put with; later ones were taken, and nothing came of them."""
        self.jobs_put = 0
        """Jobs taken in since the start, also by topics that have vanished since."""
        self.last_topic_number = 0
        self.last_rank = 0
        """What the job that was buried last got, of whatever topic."""
        self.jobs = JobTable()
        self.topics: dict[str, Topic] = {}
        self.numbered: dict[int, Topic] = {}
        self.listing: list[Topic] = []
        """The topics in order of creation, a removed one's place taken by the last (beanstalkd)."""
        self.paused: dict[int, tuple[int, int]] = {}
        """Number of a topic → until when it is paused, and how long that is; of all there are."""
        self.holders: dict[int, Session] = {}
        self.orphans = Session()
        self.absolute = AbsoluteJobs(tick_ms)
        self.agenda = Agenda()
        self.leases = Lane(self._wheel(self._lease_ends))
        self.alarms: dict[int, tuple[int, Session | Topic]] = {}
        """Alarm → when it rings, and whose wait or pause then ends."""
        self.alarm_lane = Lane(self._wheel(self._alarm_rings))
        self._last_alarm = 0

    @property
    def live_bytes(self) -> int:
        """How long the records of a copy of all jobs would be, but for a few bytes a topic."""
        return self.jobs.put_bytes + LAYOUTS[Kind.RESERVE].size * len(self.holders)

    # --- What the wheels ask ---------------------------------------------------------------------

    def _wheel(self, due_of: Callable[[int], int | None]) -> TimingWheel:
        return TimingWheel(self.tick_ms, self.wheel_size, self.time_ms, due_of)

    def _delay_ends(self, job_id: int) -> int | None:
        record = self.jobs.get(job_id)
        if record is None or record[STATE_AT] != _DELAYED or job_id in self.holders:
            return None
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        return due_ms

    def _lease_ends(self, job_id: int) -> int | None:
        holder = self.holders.get(job_id)
        return None if holder is None else holder.deadlines[job_id]

    def _alarm_rings(self, alarm: int) -> int | None:
        row = self.alarms.get(alarm)
        return None if row is None else row[0]

    # --- Topics ----------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return the topic of that name, made when there is none yet."""
        topic = self.topics.get(name)
        return self.number_topic(name, self.last_topic_number + 1) if topic is None else topic

    def number_topic(self, name: str, number: int) -> Topic:
        """Give a topic its number, making it when there is none; a record is about to use it."""
        topic = self.topics.get(name)
        if topic is None:
            lane = Lane(self._wheel(self._delay_ends))
            topic = lane.topic = Topic(name, number, lane)
            topic.place = len(self.listing)
            self.listing.append(topic)
            self.topics[name] = topic
        else:
            # It vanished and has come back: the pause of its earlier life is no longer its own.
            self.pause(topic, 0, 0)
            del self.numbered[topic.number]
            topic.number = number
        self.numbered[number] = topic
        self.last_topic_number = max(self.last_topic_number, number)
        return topic

    def drop_if_unwanted(self, topic: Topic) -> None:
        """Let the topic vanish when nobody uses or watches it and it holds no job."""
        if topic.is_wanted:
            return
        self.unpause(topic)
        self.agenda.forget(topic.delays)
        del self.topics[topic.name]
        del self.numbered[topic.number]
        last = self.listing.pop()
        if last is not topic:
            self.listing[topic.place] = last
            last.place = topic.place

    def topic_of(self, record: bytes) -> Topic:
        """Return the topic that the job belongs to."""
        return self.numbered[PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]]

    # --- Jobs at rest ----------------------------------------------------------------------------

    def put(self, topic: Topic, job_id: int, priority: int, due_ms: int, record: bytes) -> None:
        """Take in a new job, in the state that its record says."""
        topic.jobs += 1
        topic.jobs_put += 1
        self.jobs_put += 1
        self.last_put_id = max(self.last_put_id, job_id)
        self.jobs.put(job_id, record)
        self._place(topic, job_id, priority, due_ms, record)

    def put_alike(
        self, topic: Topic, first_id: int, priority: int, due_ms: int, records: list[bytes]
    ) -> None:
        """Take in new jobs with ids in sequence that differ only in their bodies."""
        topic.jobs += len(records)
        topic.jobs_put += len(records)
        self.jobs_put += len(records)
        job_ids = range(first_id, first_id + len(records))
        self.last_put_id = max(self.last_put_id, job_ids[-1])
        self.jobs.put_run(first_id, records)
        if records[0][STATE_AT] == _DELAYED:
            insert = topic.delays.wheel.insert
            is_earlier = False
            for job_id in job_ids:
                if insert(job_id, due_ms, self.time_ms):
                    is_earlier = True
            if is_earlier:
                self.agenda.queue(topic.delays)
        else:
            add = topic.ready.add
            for job_id in job_ids:
                add(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                topic.urgent += len(records)

    def delete(self, job_id: int) -> Topic:
        """Forget the job, whatever its state; return its topic."""
        record = self.jobs.pop(job_id)
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.numbered[number]
        topic.jobs -= 1
        if job_id in self.holders:
            self._unhold(topic, job_id)
        else:
            self._unplace(topic, job_id, priority, record)
        return topic

    def move(self, job_id: int, changed: bytes) -> Topic:
        """Put a job at rest to the place that its changed record says."""
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.numbered[number]
        self._unplace(topic, job_id, priority, record)
        self._replace(topic, job_id, changed)
        return topic

    def come_due(self, topic: Topic, job_ids: Iterable[int]) -> None:
        """Make jobs ready whose delay has ended and whose wheel has let go of them."""
        absolute = self.absolute
        for job_id in job_ids:
            record = self.jobs.get(job_id)
            assert record is not None
            if absolute.count:
                record = self.current(job_id, record)
                absolute.discard(job_id)
                if U64.unpack_from(record, DUE_AT)[0] > self.time_ms:  # it was unplaced
                    self._replace(topic, job_id, record)
                    absolute.add(job_id)
                    continue
            self._replace(topic, job_id, came_due(record))

    def _replace(self, topic: Topic, job_id: int, changed: bytes) -> None:
        due_ms: int = U64.unpack_from(changed, DUE_AT)[0]
        priority: int = PRIORITY_AND_TOPIC.unpack_from(changed, PRIORITY_AT)[0]
        self.jobs.replace(job_id, changed)
        self._place(topic, job_id, priority, due_ms, changed)

    def _place(self, topic: Topic, job_id: int, priority: int, due_ms: int, record: bytes) -> None:
        """Queue the job, whose record is kept already, where its state belongs."""
        state = record[STATE_AT]
        if state == _DELAYED:
            if topic.delays.wheel.insert(job_id, due_ms, self.time_ms):
                self.agenda.queue(topic.delays)
        elif state == _READY:
            topic.ready.add(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                topic.urgent += 1
        else:
            self.last_rank += 1
            topic.buried[job_id] = self.last_rank

    def _unplace(self, topic: Topic, job_id: int, priority: int, record: bytes) -> None:
        """Take a job at rest out of the queue where its state put it."""
        state = record[STATE_AT]
        if state == _DELAYED:
            topic.delays.wheel.cancel(job_id, U64.unpack_from(record, DUE_AT)[0])
            if self.absolute.count:
                self.absolute.discard(job_id)
        elif state == _READY:
            topic.ready.remove(priority << 64 | job_id)
            if priority < PRIORITY_URGENT_BELOW:
                topic.urgent -= 1
        else:
            if self.jobs.guarded:
                self.jobs.preserve(job_id)
            del topic.buried[job_id]

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

    # --- Jobs in hand ----------------------------------------------------------------------------

    def hand_out(self, topic: Topic, session: Session, now_ms: int) -> tuple[int, int, bytes]:
        """Let the session hold the topic's next ready job; return (id, deadline, record)."""
        key: int = topic.ready.pop(0)
        if key < _URGENT_KEYS_END:
            topic.urgent -= 1
        job_id = key & ID_MASK
        record = self.jobs.get(job_id)
        assert record is not None
        ttr_ms: int = U64.unpack_from(record, TTR_AT)[0]
        deadline_ms = ceil_to_tick(now_ms + ttr_ms, self.tick_ms)
        self.hold(topic, job_id, session, deadline_ms)
        return job_id, deadline_ms, record

    def hand_out_run(
        self, topic: Topic, session: Session, jobs_max: int, bytes_max: int, now_ms: int
    ) -> list[tuple[int, int, bytes]]:
        """Hand out so many of the next ready jobs, until their bodies exceed `bytes_max`.

        Returns (id, deadline, body) of each. The effects of `hand_out`, at half its cost.
        """
        run = []
        ready, holders, deadlines = topic.ready, self.holders, session.deadlines
        jobs = self.jobs
        deadline_ms, ttr_ms = 0, -1
        same: list[int] = []
        while ready and jobs_max > 0 and bytes_max >= 0:
            key: int = ready.pop(0)
            if key < _URGENT_KEYS_END:
                topic.urgent -= 1
            job_id = key & ID_MASK
            if jobs.guarded:
                jobs.preserve(job_id)
            record = jobs.get(job_id)
            assert record is not None
            # Neighbours mostly have the same ttr, and then one deadline does for all.
            (ttr_now_ms,) = _unpack_u64(record, TTR_AT)
            if ttr_now_ms != ttr_ms:
                self._insert_leases(same, deadline_ms)
                same = []
                ttr_ms = ttr_now_ms
                deadline_ms = ceil_to_tick(now_ms + ttr_ms, self.tick_ms)
                session.soonest_ms = min(session.soonest_ms, deadline_ms)
            same.append(job_id)
            holders[job_id] = session
            deadlines[job_id] = deadline_ms
            body = record[HEADER_BYTES:] if not record[FLAGS_AT] else body_of(record)
            run.append((job_id, deadline_ms, body))
            jobs_max -= 1
            bytes_max -= len(body)
        topic.reserved += len(run)
        self._insert_leases(same, deadline_ms)
        return run

    def _insert_leases(self, job_ids: list[int], deadline_ms: int) -> None:
        if job_ids and self.leases.wheel.insert_run(job_ids, deadline_ms, self.time_ms):
            self.agenda.queue(self.leases)

    def take(self, job_id: int) -> Topic:
        """Take a job at rest off whatever queue it is in; `hold` must follow."""
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.numbered[number]
        self._unplace(topic, job_id, priority, record)
        return topic

    def hold(self, topic: Topic, job_id: int, session: Session, deadline_ms: int) -> None:
        """Note that the session holds the job, just taken off its queue, until the deadline."""
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        self.holders[job_id] = session
        session.deadlines[job_id] = deadline_ms
        session.soonest_ms = min(session.soonest_ms, deadline_ms)
        topic.reserved += 1
        if self.leases.wheel.insert(job_id, deadline_ms, self.time_ms):
            self.agenda.queue(self.leases)

    def extend(self, job_id: int, deadline_ms: int) -> None:
        """Let the hold last until this deadline instead."""
        deadlines = self.holders[job_id].deadlines
        old_deadline_ms = deadlines[job_id]
        if deadline_ms != old_deadline_ms:
            if self.jobs.guarded:
                self.jobs.preserve(job_id)
            deadlines[job_id] = deadline_ms
            self.leases.wheel.cancel(job_id, old_deadline_ms)
            if self.leases.wheel.insert(job_id, deadline_ms, self.time_ms):
                self.agenda.queue(self.leases)

    def put_back(self, job_id: int, changed: bytes, *, lease_fired: bool = False) -> Topic:
        """End the hold and queue the job where its changed record says."""
        topic = self.numbered[PRIORITY_AND_TOPIC.unpack_from(changed, PRIORITY_AT)[1]]
        self._unhold(topic, job_id, lease_fired=lease_fired)
        self._replace(topic, job_id, changed)
        return topic

    def _unhold(self, topic: Topic, job_id: int, *, lease_fired: bool = False) -> None:
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        deadline_ms = self.holders.pop(job_id).deadlines.pop(job_id)
        topic.reserved -= 1
        if not lease_fired:
            self.leases.wheel.cancel(job_id, deadline_ms)

    def delete_held(self, session: Session, job_ids: Sequence[int]) -> list[Topic]:
        """Forget jobs that the session holds; return the topics left without any, in that order.

        With the effects of `delete` for each, at two thirds of its cost.
        """
        holders, deadlines, pop = self.holders, session.deadlines, self.jobs.pop
        emptied = []
        topic: Topic | None = None
        for job_id in job_ids:
            number = PRIORITY_AND_TOPIC.unpack_from(pop(job_id), PRIORITY_AT)[1]
            if topic is None or topic.number != number:
                topic = self.numbered[number]
            topic.jobs -= 1
            topic.deletes += 1
            topic.reserved -= 1
            if not topic.jobs:
                emptied.append(topic)
            del holders[job_id]
            del deadlines[job_id]
        self.leases.wheel.cancel_run(len(job_ids))
        return emptied

    # --- Pauses and alarms: the ends of waits and pauses -----------------------------------------

    def pause(self, topic: Topic, until_ms: int, pause_ms: int) -> None:
        """Hand out nothing of the topic until then; with a `pause_ms` of 0, no longer pause it."""
        self.unpause(topic)
        if pause_ms:
            topic.pause_ms = pause_ms
            topic.paused_until_ms = until_ms
            topic.pause_alarm = self.set_alarm(until_ms, topic)
            self.paused[topic.number] = (until_ms, pause_ms)

    def unpause(self, topic: Topic) -> None:
        """Let the topic hand out its jobs again."""
        if topic.pause_alarm is not None:
            self.cancel_alarm(topic.pause_alarm)
            topic.pause_alarm = None
        topic.pause_ms = 0
        topic.paused_until_ms = None
        self.paused.pop(topic.number, None)

    def set_alarm(self, ring_ms: int, whose: Session | Topic) -> int:
        """Have `whose` wait or pause ended at that time; return the alarm's number."""
        self._last_alarm += 1
        self.alarms[self._last_alarm] = (ring_ms, whose)
        if self.alarm_lane.wheel.insert(self._last_alarm, ring_ms, self.time_ms):
            self.agenda.queue(self.alarm_lane)
        return self._last_alarm

    def silence(self, alarms: list[int]) -> list[Session | Topic]:
        """Forget alarms that have rung; return whose they were, before any is acted upon."""
        rung = [self.alarms.pop(alarm)[1] for alarm in alarms]
        for whose in rung:
            if isinstance(whose, Topic):
                whose.pause_alarm = None
            else:
                whose.wait_alarm = None
        return rung

    def cancel_alarm(self, alarm: int) -> None:
        """Forget an alarm that has not rung."""
        ring_ms = self.alarms.pop(alarm)[0]
        self.alarm_lane.wheel.cancel(alarm, ring_ms)
