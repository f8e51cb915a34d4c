"""The operations: what clients ask for, checked, recorded, carried out.

Every operation goes the same way. *Decide*: check, and raise a `Refusal` before anything has
changed. *Record*: append to the log what a restart must know. *Apply*: let the store carry it out,
with the methods that replay uses. The caller then takes the log (`take_log`), makes it durable and
only then lets the answers go; and it takes the deliveries (`take_deliveries`), for consumers whose
wait has ended.

Time is an argument, in two roundings so that nothing is early in either. Requests carry `now_ms`
rounded *up*: a delay or ttr counted from it ends no sooner than asked for. `advance` takes the time
rounded *down*: what it fires is due. `store.time_ms` is how far time has been played; what was due
by then has happened, or, where a slice has not come to it yet, is made to happen when somebody asks
for the job.

>>> engine = Engine(start_ms=0)
>>> session = engine.open_session()
>>> engine.put(session.used, priority=0, delay_ms=1_000, ttr_ms=60_000, body=b"hi", now_ms=0)
1
>>> while engine.advance(999): pass
>>> engine.reserve(session, 999), engine.next_deadline()
(None, 1000)
>>> engine.advance(1_000)
True
>>> engine.reserve(session, 1_000)
(1, b'hi')

It refuses to know bytes on a wire, files, sockets and clocks. Operations run hundreds of thousands
of times a second: plain arguments and plain values, no objects in between.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from delayd.core.errors import (
    JobNotFound,
    LastWatched,
    OutOfSpace,
    TopicNotFound,
)
from delayd.core.job import HEADER, HEADER_BYTES, TTR_AT, U64, Event, Retry, State, body_of
from delayd.core.keyed import Keyed
from delayd.core.log_space import RESERVE_COST_BYTES
from delayd.core.moments import check_delay, check_range
from delayd.core.records import (
    Kind,
    pack_delete,
    pack_kick,
    pack_pause,
    pack_put,
    pack_reschedule,
    pack_reserve,
    pack_touch,
)
from delayd.core.session import Owner, Session
from delayd.core.stats.operations import Operation
from delayd.core.timekeeper import Handed
from delayd.core.topic import (
    DEFAULT_TOPIC,
    Topic,
    checked_name,
    head_key,
    job_id_of,
    remove_swapping,
)
from delayd.core.transitions import kicked, rescheduled
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import (
    BODY_BYTES_DEFAULT,
    DURATION_MS_MAX,
    HELD_RETURN_BYTES,
    PRIORITY_MAX,
    TTR_MS_FOR_ZERO,
    WHEEL_SIZE_DEFAULT,
    WHEEL_TICK_MS_DEFAULT,
)

# For the operations that run most; an enum member's arithmetic costs 40 ns more than an int's.
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_PUT: Final = int(Kind.PUT)
_DELETE: Final = int(Kind.DELETE)
_RESERVE: Final = int(Kind.RESERVE)
_pack_header: Final = HEADER.pack


class Engine(Keyed):
    """The jobs of one daemon and everything that can be done with them."""

    def __init__(
        self,
        *,
        start_ms: int,
        tick_ms: int = WHEEL_TICK_MS_DEFAULT,
        wheel_size: int = WHEEL_SIZE_DEFAULT,
        body_bytes_max: int = BODY_BYTES_DEFAULT,
    ) -> None:
        """Start without jobs at `start_ms` of delayd time."""
        super().__init__(start_ms, tick_ms, wheel_size, body_bytes_max)

    # --- Sessions --------------------------------------------------------------------------------

    def open_session(self, owner: Owner | None = None) -> Session:
        """Make a session that uses and watches the default topic."""
        session = Session(owner)
        self.use(session, DEFAULT_TOPIC)
        self.watch(session, DEFAULT_TOPIC)
        return session

    def close_session(self, session: Session, now_ms: int) -> None:
        """Forget the session; every job it holds is ready again at once. O(jobs held)."""
        if session.waiting:
            self._leave_queues(session)
        for job_id in list(session.deadlines):
            self._return(session, job_id, now_ms)
        while session.watched:
            self._unwatch(session, session.watched[0])
        self._unuse(session)

    def _return(self, session: Session, job_id: int, now_ms: int) -> None:
        if session.deadlines[job_id] <= self.store.time_ms:
            self._expire(job_id, now_ms, lease_fired=False)
            return
        self._give_back(job_id, now_ms)

    def use(self, session: Session, name: str) -> None:
        """Let the session put to this topic, made when there is none."""
        topic = self.store.topics.by_name.get(name) or self.store.topic(checked_name(name))
        topic.users += 1
        self._unuse(session)
        session.used = topic

    def _unuse(self, session: Session) -> None:
        topic, session.used = session.used, None
        if topic is not None:
            topic.users -= 1
            self.store.drop_if_unwanted(topic)

    def watch(self, session: Session, name: str) -> None:
        """Let the session reserve from this topic too, made if needed; `TopicIsInternal`."""
        self.require_writable(name)
        topic = self.store.topics.by_name.get(name) or self.store.topic(checked_name(name))
        if topic not in session.watched:
            session.watched.append(topic)
            topic.watchers += 1

    def ignore(self, session: Session, name: str) -> None:
        """No longer let the session reserve from this topic; `LastWatched` if it has no other."""
        topic = self.store.topics.by_name.get(checked_name(name))
        if topic is None or topic not in session.watched:
            return
        if len(session.watched) == 1:
            raise LastWatched(name)
        self._unwatch(session, topic)

    def stop_consuming(self, session: Session) -> None:
        """Let the session wait and watch no more; what it holds it goes on holding."""
        if session.waiting:
            self._leave_queues(session)
        while session.watched:
            self._unwatch(session, session.watched[-1])

    def _unwatch(self, session: Session, topic: Topic) -> None:
        remove_swapping(session.watched, topic)
        topic.watchers -= 1
        self.store.drop_if_unwanted(topic)

    # --- Putting ---------------------------------------------------------------------------------

    def put(
        self,
        topic: Topic,
        *,
        priority: int,
        delay_ms: int,
        ttr_ms: int,
        body: bytes,
        now_ms: int,
        job_id: int = 0,
        retry: Retry | None = None,
    ) -> int:
        """Accept a job and return its id (`job_id` when that was taken before).

        `retry` is its own retry rule. Raises `Draining`, `BodyTooBig`, `ValueOutOfRange`,
        `TopicIsInternal`, `DelayTooLong`, `CapReached`, `OutOfSpace`.
        """
        job_id = job_id or self.take_id()
        if retry is not None:
            self.put_keyed(
                topic,
                b"",
                priority=priority,
                delay_ms=delay_ms,
                ttr_ms=ttr_ms,
                body=body,
                now_ms=now_ms,
                retry=retry,
                job_id=job_id,
            )
            return job_id
        self.put_alike(topic, priority, delay_ms, ttr_ms, (body,), now_ms, job_id)
        return job_id

    def put_alike(
        self,
        topic: Topic,
        priority: int,
        delay_ms: int,
        ttr_ms: int,
        bodies: Sequence[bytes],
        now_ms: int,
        first_id: int = 0,
        *,
        at_once: bool = False,
    ) -> int:
        """Accept jobs that differ only in their bodies; return the first of their ids, in sequence.

        Refuses all or none, like `put`. A job costs a third of what a `put` of its own costs.
        `at_once`: a delay of 0 is meant, and not left to the topic's policy.
        """
        store = self.store
        if not first_id:
            first_id = store.last_id + 1
            store.last_id += len(bodies)
        elif first_id < store.last_id:
            self.out_of_order_ids.append(first_id)
        body_bytes = len(bodies[0]) if len(bodies) == 1 else max(map(len, bodies))
        if not (
            body_bytes <= self.body_bytes_max
            and not self.draining
            and 0 <= priority <= PRIORITY_MAX
            and 0 <= delay_ms <= DURATION_MS_MAX
            and 0 <= ttr_ms <= DURATION_MS_MAX
        ):
            self._vet_put(priority, delay_ms, ttr_ms, body_bytes)
        if not topic.has_no_rules:
            delay_ms, ttr_ms = self._admit_bodies(topic, bodies, delay_ms, ttr_ms, at_once=at_once)
        self.room.take_for_puts(len(bodies), body_bytes)
        due_ms = ceil_to_tick(now_ms + delay_ms, self.tick_ms) if delay_ms else now_ms
        state = _DELAYED if delay_ms else _READY
        ttr_ms = ttr_ms or TTR_MS_FOR_ZERO
        if self._turn_ms != store.time_ms:
            self._stamp()
        if not topic.recorded:
            self._record_topic(topic)
        log = self._log.append
        number = topic.number
        records = []
        for job_id, body in enumerate(bodies, first_id):
            head = _pack_header(job_id, due_ms, now_ms, ttr_ms, priority, number, state, 0)
            record = head + body
            # One item for each record: a turn that fits no file whole is divided between items.
            log(pack_put(_PUT, len(record)) + record)
            records.append(record)
        self._must_sync = True
        if len(records) == 1:
            store.put(topic, first_id, priority, due_ms, records[0])
        else:
            store.put_alike(topic, first_id, priority, due_ms, records)
        if topic.waiters:
            self._serve(topic, now_ms)
        return first_id

    def _admit_bodies(
        self,
        topic: Topic,
        bodies: Sequence[bytes],
        delay_ms: int,
        ttr_ms: int,
        *,
        at_once: bool,
    ) -> tuple[int, int]:
        """Return what delay and ttr jobs with these bodies get in a topic that is not plain."""
        return self._admit(
            topic,
            jobs=len(bodies),
            record_bytes=HEADER_BYTES * len(bodies) + sum(map(len, bodies)),
            body_bytes=max(map(len, bodies)),
            delay_ms=delay_ms,
            ttr_ms=ttr_ms,
            at_once=at_once,
        )

    # --- Handing out -----------------------------------------------------------------------------

    def reserve(self, session: Session, now_ms: int) -> Handed | None:
        """Hand out the best ready job of the topics watched; None when there is none.

        `OutOfSpace` when there is one and no room to record that it is held.
        """
        watched = session.watched
        best = watched[0]
        if len(watched) > 1:
            heads = [topic for topic in watched if topic.ready and not topic.blocks]
            if not heads:
                return None
            best = min(heads, key=head_key)
        elif not best.ready or best.blocks:
            return None
        if self.room.free_bytes < RESERVE_COST_BYTES:
            self.room.require(RESERVE_COST_BYTES)
        return self._hand_out(best, session, now_ms)

    def reserve_batch(
        self, session: Session, jobs_max: int, bytes_max: int, now_ms: int
    ) -> list[Handed]:
        """Hand out the best ready jobs, at most so many, until their bodies exceed `bytes_max`.

        None at all when there is no room for one: `reserve` then says so.
        """
        if len(session.watched) == 1:
            return self._reserve_run(session, jobs_max, bytes_max, now_ms)
        jobs: list[Handed] = []
        while len(jobs) < jobs_max and bytes_max >= 0:
            try:
                job = self.reserve(session, now_ms)
            except OutOfSpace:
                break
            if job is None:
                break
            bytes_max -= len(job[1])
            jobs.append(job)
        return jobs

    def _reserve_run(
        self, session: Session, jobs_max: int, bytes_max: int, now_ms: int
    ) -> list[Handed]:
        """Hand out the next ready jobs of the one topic watched, all at once."""
        topic = session.watched[0]
        room = self.room
        jobs_max = min(jobs_max, room.free_bytes // RESERVE_COST_BYTES)
        if not topic.ready or topic.blocks or jobs_max <= 0:
            return []
        if self._turn_ms != self.store.time_ms:
            self._stamp()
        run = self.store.hand_out_run(topic, session, jobs_max, bytes_max, now_ms)
        room.free_bytes -= RESERVE_COST_BYTES * len(run)
        self._log += [pack_reserve(_RESERVE, job_id, deadline) for job_id, deadline, _ in run]
        return [(job_id, body) for job_id, _, body in run]

    def reserve_job(self, session: Session, job_id: int, now_ms: int) -> Handed:
        """Hand out this very job, whatever its topic, pause and delay; `JobNotFound`."""
        record = self._job(job_id, Event.RESERVE, now_ms)
        deadline_ms = ceil_to_tick(now_ms + U64.unpack_from(record, TTR_AT)[0], self.tick_ms)
        self._write(pack_reserve(Kind.RESERVE, job_id, deadline_ms), HELD_RETURN_BYTES)
        topic = self.store.take(job_id)
        self.store.hold(topic, job_id, session, deadline_ms)
        return job_id, body_of(record)

    # --- By the holder ---------------------------------------------------------------------------

    def touch(self, session: Session, job_id: int, now_ms: int) -> None:
        """Let the hold last a full ttr from now; `JobNotFound`."""
        record = self._held(session, job_id)
        deadline_ms = ceil_to_tick(now_ms + U64.unpack_from(record, TTR_AT)[0], self.tick_ms)
        self._write(pack_touch(Kind.TOUCH, job_id, deadline_ms))
        self.store.extend(job_id, deadline_ms)
        self.store.count(self.store.topic_of(record), Operation.TOUCH)

    # --- By anybody ------------------------------------------------------------------------------

    def delete(self, session: Session, job_id: int, now_ms: int) -> None:
        """Delete a job that the session holds, or one at rest; `JobNotFound`, `TopicIsInternal`."""
        if not self.delete_batch(session, (job_id,), now_ms)[0]:
            self.require_writable_job(self.settled(job_id, now_ms)[0])
            raise JobNotFound(job_id)

    def delete_batch(self, session: Session, job_ids: Sequence[int], now_ms: int) -> list[bool]:
        """Delete these jobs in turn; tell of each whether it was there to be deleted."""
        are_alive = session.soonest_ms > self.store.time_ms
        once = set(job_ids)
        if are_alive and 0 < len(once) == len(job_ids) and once <= session.deadlines.keys():
            self._delete_held(session, job_ids, now_ms)
            return [True] * len(job_ids)
        return [self._delete(session, job_id, now_ms) for job_id in job_ids]

    def _delete_held(self, session: Session, job_ids: Sequence[int], now_ms: int) -> None:
        """Delete jobs that the session holds, each named once."""
        store = self.store
        if self._turn_ms != store.time_ms:
            self._stamp()
        self._log += [pack_delete(_DELETE, job_id) for job_id in job_ids]
        for topic in store.delete_held(session, job_ids):
            store.drop_if_unwanted(topic)
            self._serve(topic, now_ms)
        self.room.jobs -= len(job_ids)
        self._must_sync = True

    def _delete(self, session: Session, job_id: int, now_ms: int) -> bool:
        """Delete the job if it is there to be deleted; tell whether it was."""
        store = self.store
        if session.deadlines.get(job_id, 0) <= store.time_ms and not self._is_free(job_id, now_ms):
            return False
        self._write_promised(pack_delete(_DELETE, job_id))
        topic = store.delete(job_id)
        if store.time_ms >= topic.roll_ms:
            store.roll(topic)
        topic.deletes += 1
        store.counters.deletes += 1
        if topic.throttle is not None:
            self._serve(topic, now_ms)
        if not topic.jobs:
            store.drop_if_unwanted(topic)
        self.room.jobs -= 1
        return True

    def _is_free(self, job_id: int, now_ms: int) -> bool:
        """Tell whether the job exists and nobody holds it, nor the daemon keeps it for itself."""
        try:
            record, state = self.settled(job_id, now_ms)
        except JobNotFound:
            return False
        if self.store.topics.internal is not None and self.is_write_protected(record):
            return False
        return state is not State.RESERVED

    def kick_job(self, job_id: int, now_ms: int) -> None:
        """Make a buried or delayed job ready; `JobNotFound`, `TopicIsInternal`."""
        record = self._job(job_id, Event.KICK, now_ms)
        self._write(pack_kick(Kind.KICK, job_id))
        topic = self.store.move(job_id, kicked(record))
        self.store.count(topic, Operation.KICK)
        self._serve(topic, now_ms)

    def kick(self, topic: Topic, bound: int, now_ms: int) -> int:
        """Make up to `bound` buried jobs ready, or, when none is buried, delayed ones; count them.

        The longest buried first; of the delayed, the soonest due first. Raises `TopicIsInternal`.
        """
        self.require_writable(topic.name)
        kicked_count = 0
        job_ids = list(map(job_id_of, islice(topic.buried, bound)))
        for job_id in job_ids or topic.delays.wheel.soonest(bound):
            try:
                self.kick_job(job_id, now_ms)
            except JobNotFound:  # it was just due, and went to somebody who waited
                continue
            except OutOfSpace:
                if not kicked_count:
                    raise
                break
            kicked_count += 1
        return kicked_count

    def reschedule(self, job_id: int, delay_ms: int, now_ms: int) -> None:
        """Let a delayed or ready job come due after this delay instead.

        Raises `JobNotFound`, `TopicIsInternal`, `ValueOutOfRange`, `DelayTooLong`.
        """
        check_range("delay in ms", delay_ms, DURATION_MS_MAX)
        record = self._job(job_id, Event.RESCHEDULE, now_ms)
        check_delay(self.store.topic_of(record), delay_ms)
        due_ms = ceil_to_tick(now_ms + delay_ms, self.tick_ms) if delay_ms else now_ms
        self._write(pack_reschedule(Kind.RESCHEDULE, job_id, due_ms, delay_ms))
        topic = self.store.move(job_id, rescheduled(record, due_ms, delay_ms))
        self.store.count(topic, Operation.RESCHEDULE)
        self._serve(topic, now_ms)

    def pause(self, name: str, pause_ms: int, now_ms: int) -> None:
        """Hand out nothing of the topic for that long; 0 resumes at once.

        Raises `TopicNotFound`, `TopicIsInternal`, `ValueOutOfRange`.
        """
        self.require_writable(name)
        topic = self.store.topics.by_name.get(checked_name(name))
        if topic is None:
            raise TopicNotFound(name)
        check_range("pause in ms", pause_ms, DURATION_MS_MAX)
        until_ms = ceil_to_tick(now_ms + pause_ms, self.tick_ms) if pause_ms else 0
        if not topic.recorded:
            self._record_topic(topic)
        self._write(pack_pause(Kind.PAUSE, topic.number, until_ms, pause_ms))
        topic.pauses += 1
        self.store.count(topic, Operation.PAUSE)
        self.store.pause(topic, until_ms, pause_ms)
        if not pause_ms:
            self._serve(topic, now_ms)
