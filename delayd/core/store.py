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

Jobs at rest are the business of `core.resting`; here they come, are handed out, and go.
"""

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final

from delayd.core.claims import claim
from delayd.core.cleared import clear, leave_old, renumbered
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
    key_of,
)
from delayd.core.records import LAYOUTS, Kind
from delayd.core.resting import Resting
from delayd.core.session import Session
from delayd.core.stats.latency import note_run, span
from delayd.core.timers import TimerLane
from delayd.core.topic import ID_MASK, Topic, ready_key
from delayd.core.transitions import buried, rank_at
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import PRIORITY_URGENT_BELOW

# Compared with a byte of the record on every operation; an enum member costs 40 ns more.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_KEY: Final = int(Flag.KEY)
_DUE_AND_TTR: Final = struct.Struct(f"<Q{TTR_AT - DUE_AT - 8}xQ")
"""From DUE_AT on."""
_unpack_due_and_ttr: Final = _DUE_AND_TTR.unpack_from
_unpack_u64: Final = U64.unpack_from
_URGENT_KEYS_END: Final = ready_key(PRIORITY_URGENT_BELOW, 0)


class Store(Resting):
    """All jobs and topics, with the wheels that wake them."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        """Start empty, at `start_ms` of delayd time, with wheels of this tick and size."""
        super().__init__(tick_ms, wheel_size, start_ms)
        self.last_id = 0
        self.last_put_id = 0
        """The highest that a job was put with; later ones were taken, and nothing came of them."""
        self.orphans = Session()
        self.leases = TimerLane(self._wheel(self._lease_ends))

    @property
    def live_bytes(self) -> int:
        """How long the records of a copy of all jobs would be, but for a few bytes a topic."""
        return self.jobs.put_bytes + LAYOUTS[Kind.RESERVE].size * len(self.holders)

    def _lease_ends(self, job_id: int) -> int | None:
        holder = self.holders.get(job_id)
        return None if holder is None else holder.deadlines[job_id]

    # --- Coming and going ------------------------------------------------------------------------

    def clear(self, topic: Topic, number: int) -> int:
        """Forget the topic's jobs at rest, and give it this number; return how many. O(1)."""
        return clear(self, topic, self.delays_lane(), number)

    def put(self, topic: Topic, job_id: int, priority: int, due_ms: int, record: bytes) -> None:
        """Take in a new job, in the state that its record says.

        A job in hand that has its key goes on without.
        """
        if record[FLAGS_AT] & _KEY:
            claim(self, topic, job_id, record)
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        topic.jobs += 1
        topic.jobs_put += 1
        topic.bytes += len(record)
        self.jobs_put += 1
        if job_id > self.last_put_id:  # noqa: PLR1730 - a call of `max` costs 60 ns
            self.last_put_id = job_id
        self.jobs.put(job_id, record)
        if record[STATE_AT] != _READY:
            self._place(topic, job_id, priority, due_ms, record)
            return
        topic.ready.add(priority << 64 | job_id)
        if priority < PRIORITY_URGENT_BELOW:
            topic.urgent += 1
        ages = topic.ages
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
            topic.ages.add(due_ms, len(records))

    def delete(self, job_id: int) -> Topic:
        """Forget the job, whatever its state; return its topic."""
        record = self.jobs.pop(job_id)
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.numbered[number]
        topic.jobs -= 1
        if record[FLAGS_AT] & _KEY:
            topic.let_go(key_of(record), job_id)
        if job_id in self.holders:
            self._unhold(topic, job_id)
            if number != topic.number:
                leave_old(self, topic, number)
        else:
            self._unplace(topic, job_id, priority, record)
        topic.bytes -= len(record)
        return topic

    # --- Jobs in hand ----------------------------------------------------------------------------

    def hand_out(self, topic: Topic, session: Session, now_ms: int) -> tuple[int, int, bytes]:
        """Let the session hold the topic's next ready job; return (id, deadline, record)."""
        key: int = topic.ready.pop(0)
        if key < _URGENT_KEYS_END:
            topic.urgent -= 1
        job_id = key & ID_MASK
        record = self.jobs.get(job_id)
        assert record is not None
        since_ms, ttr_ms = _unpack_due_and_ttr(record, DUE_AT)
        deadline_ms: int = ceil_to_tick(now_ms + ttr_ms, self.tick_ms)
        # What `hold`, `ReadyAges.leave` and `_count_wait` do, without calls for a job that has just
        # become ready: 1.6 µs instead of 2.
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        self.holders[job_id] = session
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
        if self.leases.wheel.insert(job_id, deadline_ms, self.time_ms):
            self.agenda.queue(self.leases)
        ages = topic.ages
        if ages.since:
            since_ms = ages.since.pop(job_id, since_ms)
        if ages.newest_ms <= since_ms < ages.newest_end_ms:
            ages.newest -= 1
        else:
            ages.add(since_ms, -1)
        if since_ms >= self.time_ms and topic.has_own_metrics:
            topic.waited[0] += 1
        else:
            self._count_wait(topic, since_ms)
        return job_id, deadline_ms, record

    def hand_out_run(
        self, topic: Topic, session: Session, jobs_max: int, bytes_max: int, now_ms: int
    ) -> list[tuple[int, int, bytes]]:
        """Hand out so many of the next ready jobs, until their bodies exceed `bytes_max`.

        Returns (id, deadline, body) of each. The effects of `hand_out`, at half its cost.
        """
        run: list[tuple[int, int, bytes]] = []
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        if topic.throttle is not None:
            jobs_max = min(jobs_max, topic.throttle.allowed(topic.reserved, self.time_ms))
        ready, holders, deadlines = topic.ready, self.holders, session.deadlines
        jobs, guarded, since = self.jobs, self.jobs.guarded, topic.ages.since
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
                    self._count_waits(topic, first_ms, last_ms, len(run) - counted)
                low_ms, high_ms = span(since_ms, self.time_ms, topic.ages.shift)
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
            holders[job_id] = session
            deadlines[job_id] = deadline_ms
            body = record[HEADER_BYTES:] if not record[FLAGS_AT] else body_of(record)
            run.append((job_id, deadline_ms, body))
            bytes_max -= len(body)
            if bytes_max < 0:
                break
        topic.urgent -= urgent
        if run:
            self._count_waits(topic, first_ms, last_ms, len(run) - counted)
            self._insert_leases(same, deadline_ms)
            self._hold_run(topic, len(run))
        return run

    def _hold_run(self, topic: Topic, jobs: int) -> None:
        """Note that so many more jobs are held."""
        topic.reserved += jobs
        topic.reserves += jobs
        self.counters.reserves += jobs
        if topic.throttle is not None:
            self.restrain(topic, topic.throttle, jobs)

    def _count_waits(self, topic: Topic, first_ms: int, last_ms: int, jobs: int) -> None:
        """Count jobs of one `span` that were ready since then and have been reserved now."""
        topic.ages.add(first_ms, -jobs)
        time_ms = self.time_ms
        note_run(topic.waited, time_ms - first_ms, time_ms - last_ms, jobs)
        if not topic.has_own_metrics:
            note_run(self.counters.others_waited, time_ms - first_ms, time_ms - last_ms, jobs)

    def _count_wait(self, topic: Topic, since_ms: int) -> None:
        waited_ms = self.time_ms - since_ms
        note_run(topic.waited, waited_ms, waited_ms, 1)
        if not topic.has_own_metrics:
            note_run(self.counters.others_waited, waited_ms, waited_ms, 1)

    def _insert_leases(self, job_ids: list[int], deadline_ms: int) -> None:
        if job_ids and self.leases.wheel.insert_run(job_ids, deadline_ms, self.time_ms):
            self.agenda.queue(self.leases)

    def take(self, job_id: int) -> Topic:
        """Take a job at rest off whatever queue it is in; `hold` must follow."""
        record = self.jobs.get(job_id)
        assert record is not None
        priority, number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)
        topic = self.numbered[number]
        since_ms = self._unplace(topic, job_id, priority, record)
        if since_ms:
            if self.time_ms >= topic.roll_ms:
                self.roll(topic)
            self._count_wait(topic, since_ms)
        return topic

    def hold(self, topic: Topic, job_id: int, session: Session, deadline_ms: int) -> None:
        """Note that the session holds the job, just taken off its queue, until the deadline.

        It does not count for the topic's hand-out rate.
        """
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        self.holders[job_id] = session
        session.deadlines[job_id] = deadline_ms
        if deadline_ms < session.soonest_ms:  # noqa: PLR1730 - a call of `min` costs 60 ns
            session.soonest_ms = deadline_ms
        if self.time_ms >= topic.roll_ms:
            self.roll(topic)
        topic.reserved += 1
        topic.reserves += 1
        self.counters.reserves += 1
        if topic.throttle is not None:
            self.restrain(topic, topic.throttle)
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
        number = PRIORITY_AND_TOPIC.unpack_from(changed, PRIORITY_AT)[1]
        topic = self.numbered[number]
        self._unhold(topic, job_id, lease_fired=lease_fired)
        if number != topic.number:  # it was cleared meanwhile
            leave_old(self, topic, number)
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
        former = self.numbered[number]
        if record[FLAGS_AT] & _KEY:
            former.let_go(key_of(record), job_id)
        topic = self.topic_of(changed)
        self._unhold(former, job_id, lease_fired=lease_fired)
        former.jobs -= 1
        former.bytes -= len(record)
        if number != former.number:
            leave_old(self, former, number)
        topic.jobs += 1
        topic.bytes += len(record)
        self._replace(topic, job_id, changed, self._back_since(changed))
        # The wheel that it leaves may hold a dead entry of it (it was kicked, or reserved by id),
        # which would come alive again with the next delay in the other topic.
        former.delays.wheel.ask(partial(self._delay_ends_in, former))
        return former

    def bury(self, job_id: int, priority: int) -> Topic:
        """End the hold and park the job behind all that were buried before."""
        record = self.jobs.get(job_id)
        assert record is not None
        return self.put_back(job_id, buried(record, priority, self.next_rank()))

    def next_rank(self) -> int:
        """Return the rank of a job that is buried now because somebody asks for it."""
        return max(self.last_rank + 1, rank_at(self.time_ms, 1))

    def _unhold(self, topic: Topic, job_id: int, *, lease_fired: bool = False) -> None:
        if self.jobs.guarded:
            self.jobs.preserve(job_id)
        deadline_ms = self.holders.pop(job_id).deadlines.pop(job_id)
        topic.reserved -= 1
        if topic.throttle is not None:
            self.restrain(topic, topic.throttle)
        if not lease_fired:
            self.leases.wheel.cancel(job_id, deadline_ms)

    def delete_held(self, session: Session, job_ids: Sequence[int]) -> list[Topic]:
        """Forget jobs that the session holds, one at least; return the topics to look after.

        Those left without jobs, in that order, and those that may hand out more now. With the
        effects of `delete` for each, at half its cost.
        """
        holders, deadlines, pop = self.holders, session.deadlines, self.jobs.pop
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
                topic = self.numbered[number]
                if topic.number != number:
                    leave_old(self, topic, number)
            if topic.keys is not None and record[FLAGS_AT] & _KEY:
                topic.let_go(key_of(record), job_id)
            # Counted here, taken off the topic once for all neighbours: a tenth of the whole.
            jobs += 1
            gone_bytes += len(record)
            del holders[job_id]
            del deadlines[job_id]
        assert topic is not None
        self._lose_run(topic, jobs, gone_bytes, touched)
        self.leases.wheel.cancel_run(len(job_ids))
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
