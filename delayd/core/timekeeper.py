"""What happens without being asked for: delays, holds, pauses and waits end; waiters get jobs.

`Timekeeper` is the lower half of the engine. It lets happen what is due, hands ready jobs to those
who wait for them, and keeps what the caller takes away after each turn: the log of records and the
deliveries.

Work is done in slices: one call of `advance` turns one wheel by a bounded number of entries. A job
whose time has come, but whose slice has not, is `settled` when somebody asks for it: nobody can see
the difference. Changes that the clock alone causes are not recorded; replay makes them happen
again, with this code.
"""

import enum
from typing import Final

from delayd.core.errors import JobNotFound
from delayd.core.job import DUE_AT, FLAGS_AT, STATE_AT, U64, State, body_of
from delayd.core.log_space import RESERVE_COST_BYTES, LogSpace
from delayd.core.records import Kind, pack_reserve, pack_turn
from delayd.core.retry_decision import BRINGS_RULE, expired_under, place_of
from delayd.core.session import NEVER_MS, Session
from delayd.core.stats.operations import Operation
from delayd.core.store import Store
from delayd.core.throttle import Throttle
from delayd.core.topic import DEFAULT_TOPIC, Topic
from delayd.core.transitions import came_due, expired
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import ADVANCE_SLICE_JOBS, DEADLINE_SOON_MS

# Used for every job that is handed out; an enum member's arithmetic costs 40 ns more than an int's.
_DELAYED: Final = int(State.DELAYED)
_RESERVE: Final = int(Kind.RESERVE)


class WaitEnd(enum.Enum):
    """Why a consumer's wait ended without a job."""

    TIMED_OUT = "the time it wanted to wait is over"
    DEADLINE_SOON = "a job it holds runs out of time within a second"


Handed = tuple[int, bytes]
"""A job handed out: its id and its body."""

Delivery = tuple[Session, Handed | WaitEnd]
"""What a waiting consumer gets."""


class Timekeeper:
    """The jobs, the clock's effects on them, and those who wait."""

    def __init__(self, start_ms: int, tick_ms: int, wheel_size: int) -> None:
        """Start without jobs at `start_ms` of delayd time."""
        self.store = Store(tick_ms, wheel_size, start_ms)
        self.tick_ms = tick_ms
        self.timeouts = 0
        """Reservations whose ttr ran out, since the start."""
        self.room = LogSpace()
        self._log: list[bytes] = []
        self._must_sync = False
        self._turn_ms = -1
        self._deliveries: list[Delivery] = []
        self._places_next = True
        self.is_crowded = False
        """The last slice was one of jobs that came due, not of a cascade, and left more of them."""
        self.store.topic(DEFAULT_TOPIC)

    # --- What the caller takes away after each turn ----------------------------------------------

    def take_log(self) -> tuple[list[bytes], bool]:
        """Return the records since the last call, and whether answers must wait for their sync.

        Only handing out a job need not wait: lost, it would merely be handed out once more.
        """
        log, must_sync = self._log, self._must_sync
        if log:
            self._log = []
            self._must_sync = False
        return log, must_sync

    @property
    def has_log(self) -> bool:
        """Tell whether there are records to be taken: what the state says is not all written."""
        return bool(self._log)

    def take_deliveries(self) -> list[Delivery]:
        """Return the consumers whose wait has ended since the last call, with what they get."""
        deliveries = self._deliveries
        if deliveries:
            self._deliveries = []
        return deliveries

    def _stamp(self) -> None:
        """Record how far time has been played, when a record is about to follow."""
        self._turn_ms = self.store.time_ms
        self._log.append(pack_turn(Kind.TURN, self._turn_ms))

    def _write(self, record: bytes, more_bytes: int = 0) -> None:
        """Record what is about to be done, or raise `OutOfSpace`.

        `more_bytes` of room are taken besides.
        """
        self.room.take(2 * len(record) + more_bytes)
        self._write_promised(record)

    def _write_promised(self, record: bytes) -> None:
        """Record what there was room set aside for."""
        if self._turn_ms != self.store.time_ms:
            self._stamp()
        self._log.append(record)
        self._must_sync = True

    # --- Time ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when `advance` has something to do next; None when nothing is scheduled."""
        store = self.store
        return store.time_ms if store.wall_times.layers else store.timer_queue.next_deadline()

    def reach(self, time_ms: int) -> None:
        """Take note of the time, when nothing is due by then."""
        store = self.store
        store.time_ms = max(store.time_ms, time_ms)

    def record_time(self) -> None:
        """Record how far time has been played; answers that tell of it must wait for the sync.

        For a clock that stands still: a restart finds the time in the log and nowhere else.
        """
        self._stamp()
        self._must_sync = True

    @property
    def has_deliveries(self) -> bool:
        """Tell whether a wait has ended whose consumer has not been told."""
        return bool(self._deliveries)

    def advance(self, due_by_ms: int, now_ms: int | None = None) -> bool:
        """Let one slice of what is due by then happen; call again until it returns False.

        `now_ms` is the same instant rounded up, from which the ttr of a job handed out now counts.
        """
        store = self.store
        store.time_ms = max(store.time_ms, due_by_ms)
        self.is_crowded = False
        if store.wall_times.layers and self._places_next:
            store.place_some()
            self._places_next = False
            return True
        self._places_next = True
        due = store.timer_queue.take_due(due_by_ms, ADVANCE_SLICE_JOBS)
        if due is None:
            return bool(store.wall_times.layers)
        lane, fired = due
        if len(fired) > ADVANCE_SLICE_JOBS // 2:
            self.is_crowded = lane.wake_ms is not None and lane.wake_ms <= due_by_ms
        now_ms = due_by_ms if now_ms is None else now_ms
        if lane.topic_name:
            topic = store.topics.by_name[lane.topic_name]
            store.come_due(topic, fired)
            self._serve(topic, now_ms)
        elif lane is store.leases.lane:
            for job_id in fired:
                self._expire(job_id, now_ms, lease_fired=True)
        else:
            for whose in store.silence(fired):
                self._ring(whose, now_ms)
        return True

    @property
    def leases_are_settled(self) -> bool:
        """Tell whether every reservation that is over has ended."""
        deadline_ms = self.store.leases.lane.wheel.next_deadline()
        return deadline_ms is None or deadline_ms > self.store.time_ms

    def settle_leases(self, limit: int, now_ms: int) -> bool:
        """End a slice of the reservations that are over; tell whether all have ended."""
        if not self.leases_are_settled:
            for job_id in self.store.leases.lane.wheel.advance(self.store.time_ms, limit):
                self._expire(job_id, now_ms, lease_fired=True)
        return self.leases_are_settled

    def _expire(self, job_id: int, now_ms: int, *, lease_fired: bool) -> None:
        """Take back a job whose ttr ran out."""
        store = self.store
        record = store.jobs.get(job_id)
        assert record is not None
        self.timeouts += 1
        topic = store.topic_of(record)
        store.count(topic, Operation.TIMEOUT)
        if topic.policy is None and record[FLAGS_AT] < BRINGS_RULE:
            changed = expired(record)
        else:
            # Counted from the deadline, not from now: when its slice comes makes no difference.
            deadline_ms = store.leases.sessions[job_id].deadlines[job_id]
            place = place_of(topic)
            changed = expired_under(record, topic.policy, place, deadline_ms, tick_ms=self.tick_ms)
        self._take_back(topic, job_id, changed, now_ms, lease_fired=lease_fired)

    def _take_back(
        self, topic: Topic, job_id: int, changed: bytes, now_ms: int, *, lease_fired: bool = False
    ) -> None:
        """End the hold on a job of that topic and put it where its changed record says."""
        store = self.store
        if store.topic_of(changed) is topic:
            store.put_back(job_id, changed, lease_fired=lease_fired)
        else:
            store.move_over(job_id, changed, lease_fired=lease_fired)
            self._serve(store.topic_of(changed), now_ms)
            store.drop_if_unwanted(topic)
        self._serve(topic, now_ms)

    def _ring(self, whose: Session | Topic | Throttle, now_ms: int) -> None:
        """End the wait or the pause whose alarm has rung, or hand out what is allowed by now."""
        if isinstance(whose, Topic):
            self.store.unpause(whose)
            self._serve(whose, now_ms)
        elif isinstance(whose, Throttle):
            self._serve(self.store.go_on(whose), now_ms)
        elif not whose.waiting:
            return  # it has just got a job, of a topic whose pause ended in the same instant
        elif self.deadline_soon(whose, now_ms):
            self._end_wait(whose, WaitEnd.DEADLINE_SOON)
        elif whose.wait_ends_ms is not None and whose.wait_ends_ms <= self.store.time_ms:
            self._end_wait(whose, WaitEnd.TIMED_OUT)
        else:
            self._set_wait_alarm(whose)

    def settled(self, job_id: int, now_ms: int) -> tuple[bytes, State]:
        """Return record and state of a job, now that what was due has happened; `JobNotFound`."""
        store = self.store
        record = store.jobs.get(job_id)
        if record is None:
            raise JobNotFound(job_id)
        holder = store.leases.sessions.get(job_id)
        if holder is not None:
            if holder.deadlines[job_id] > store.time_ms:
                return record, State.RESERVED
            self._expire(job_id, now_ms, lease_fired=False)
            return self.settled(job_id, now_ms)
        if store.cleared and store.is_cleared(record):
            raise JobNotFound(job_id)
        if record[STATE_AT] == _DELAYED:
            if store.wall_times.layers:
                record = store.place_anew(job_id)
            due_ms: int = U64.unpack_from(record, DUE_AT)[0]
            if due_ms <= store.time_ms:
                topic = store.move(job_id, came_due(record))
                store.count_overdue(topic, due_ms, due_ms)
                self._serve(topic, now_ms)
                return self.settled(job_id, now_ms)
        return record, State(record[STATE_AT])

    # --- Waiting and handing out -----------------------------------------------------------------

    def deadline_soon(self, session: Session, now_ms: int) -> bool:
        """Tell whether a job the session holds runs out of time within `DEADLINE_SOON_MS`."""
        soon_ms = now_ms + DEADLINE_SOON_MS
        return session.soonest_ms <= soon_ms and session.soonest_deadline() <= soon_ms

    def wait(self, session: Session, now_ms: int, wait_ms: int | None) -> None:
        """Queue the session for a job of the topics it watches, which all have none ready now.

        Its wait ends in a delivery: a job, TIMED_OUT after `wait_ms` (None: never), DEADLINE_SOON.
        """
        session.waiting = True
        session.wait_ends_ms = (
            None if wait_ms is None else ceil_to_tick(now_ms + wait_ms, self.tick_ms)
        )
        for topic in session.watched:
            topic.waiters[session] = None
        self._set_wait_alarm(session)

    def cancel_wait(self, session: Session) -> None:
        """Forget that the session waits."""
        if session.waiting:
            self._leave_queues(session)

    def _set_wait_alarm(self, session: Session) -> None:
        ends_ms = NEVER_MS if session.wait_ends_ms is None else session.wait_ends_ms
        ring_ms = min(ends_ms, session.soonest_deadline() - DEADLINE_SOON_MS)
        session.wait_alarm = (
            None
            if ring_ms >= NEVER_MS - DEADLINE_SOON_MS
            else self.store.set_alarm(ring_ms, session)
        )

    def _leave_queues(self, session: Session) -> None:
        session.waiting = False
        for topic in session.watched:
            del topic.waiters[session]
        if session.wait_alarm is not None:
            self.store.alarms.cancel(session.wait_alarm)
            session.wait_alarm = None

    def _end_wait(self, session: Session, outcome: Handed | WaitEnd) -> None:
        self._leave_queues(session)
        self._deliveries.append((session, outcome))

    def _serve(self, topic: Topic, now_ms: int) -> None:
        """Hand the topic's ready jobs to those who wait for them, the longest first."""
        room = self.room
        while topic.waiters and topic.ready and not topic.blocks:
            if not room.has_for_reserve():
                return
            session = next(iter(topic.waiters))
            self._leave_queues(session)
            self._deliveries.append((session, self._hand_out(topic, session, now_ms)))

    def serve_waiting(self, now_ms: int) -> None:
        """Hand out what could not be handed out for want of room. O(topics)."""
        self.room.is_short = False
        for topic in list(self.store.topics.listing):
            if topic.waiters:
                self._serve(topic, now_ms)

    def _hand_out(self, topic: Topic, session: Session, now_ms: int) -> Handed:
        job_id, deadline_ms, record = self.store.hand_out(topic, session, now_ms)
        if self._turn_ms != self.store.time_ms:
            self._stamp()
        self.room.free_bytes -= RESERVE_COST_BYTES
        self._log.append(pack_reserve(_RESERVE, job_id, deadline_ms))
        return job_id, body_of(record)
