"""Playing records back into an engine that has just started.

Each record is carried out by the store, with the methods and the changed records that the live
operation used. What the clock did in between follows from the TURN records: the engine is advanced
to each of their times, by the code that does it live. Holders are gone after a restart, so what was
reserved belongs to the orphans until its ttr runs out. Nothing here writes to the log.
"""

import struct
from typing import TYPE_CHECKING, Final

from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job import (
    FLAGS_AT,
    FLAGS_END,
    HEADER,
    STATE_AT,
    Flag,
    Reason,
    State,
    head_bytes_of,
    key_of,
)
from delayd.core.policy import Policy, Verdict
from delayd.core.records import LAYOUTS, Kind
from delayd.core.retry_decision import failed
from delayd.core.topic import Source
from delayd.core.transitions import amended, kicked, ranked, released, rescheduled, returned
from delayd.limits import TASK_STEP_JOBS

if TYPE_CHECKING:
    from collections.abc import Callable

# Tested for every job; an enum member's arithmetic costs 40 ns more than an int's.
_PUT: Final = int(Kind.PUT)
_BURIED: Final = int(State.BURIED)
_WALL: Final = int(Flag.WALL)
_RANK: Final = int(Flag.RANK)


class UnknownRecord(Exception):
    """The payload of a frame holds something that is not a record of this version."""

    def __init__(self, offset: int, why: str) -> None:
        """Say where in the payload, in bytes, and why."""
        super().__init__(f"no record of this version at byte {offset} of its payload: {why}")
        self.offset = offset


class Replay:
    """One replay into one engine."""

    def __init__(self, engine: Engine) -> None:
        """Play into this engine, which must be new."""
        self.engine = engine
        self._store = engine.store
        self._play_kind: dict[int, Callable[..., object]] = {
            Kind.TURN: self._turn,
            Kind.RESERVE: self._reserve,
            Kind.TOUCH: self._store.extend,
            Kind.RELEASE: self._release,
            Kind.RETURN: self._return,
            Kind.BURY: self._store.bury,
            Kind.KICK: self._kick,
            Kind.RESCHEDULE: self._reschedule,
            Kind.DELETE: self._store.delete,
            Kind.PAUSE: self._pause,
            Kind.LAST: self._last,
            Kind.RANK: self._rank,
            Kind.OFFSET: self._offset,
            Kind.APPOINT: self._appoint,
            Kind.CLEAR: self._clear,
            Kind.AMEND: self._amend,
        }
        self._play_tailed: dict[int, Callable[..., object]] = {
            Kind.TOPIC: self._topic,
            Kind.FAIL: self._fail,
            Kind.POLICY: self._policy,
            Kind.REWRITE: self._rewrite,
        }
        self._store.topics.keeps_all = True

    def play(self, payload: bytes) -> None:
        """Carry out all records of one frame; `UnknownRecord` when it holds something else."""
        at = 0
        end = len(payload)
        put_head = LAYOUTS[Kind.PUT]
        try:
            while at < end:
                kind = payload[at]
                if kind == _PUT:
                    length: int = put_head.unpack_from(payload, at)[1]
                    at += put_head.size
                    self._put(payload[at : at + length])
                    at += length
                elif kind in self._play_tailed:
                    layout = LAYOUTS[Kind(kind)]
                    *fields, length = layout.unpack_from(payload, at)[1:]
                    at += layout.size
                    self._play_tailed[kind](*fields, payload[at : at + length])
                    at += length
                else:
                    if kind not in self._play_kind:
                        raise UnknownRecord(at, f"its kind is {kind}")
                    layout = LAYOUTS[Kind(kind)]
                    self._play_kind[kind](*layout.unpack_from(payload, at)[1:])
                    at += layout.size
        except struct.error:
            at = -1
        except (AssertionError, LookupError, ValueError, Refusal) as error:
            raise UnknownRecord(at, f"it does not fit what came before ({error!r})") from error
        if at != end:
            raise UnknownRecord(end, "the last record is cut short")

    def finish(self, now_ms: int) -> None:
        """Let the topics that nothing holds on to vanish; count from zero; go on at `now_ms`."""
        store = self._store
        store.topics.keeps_all = False
        for topic in list(store.topics.listing):
            store.drop_if_unwanted(topic)
        store.begin_figures()
        self.engine.timeouts = 0
        self.engine.room.jobs = len(store.jobs)
        store.time_ms = max(store.time_ms, now_ms)

    def _turn(self, time_ms: int) -> None:
        engine = self.engine
        self._store.time_ms = time_ms
        while engine.advance(time_ms):
            pass

    def _put(self, record: bytes) -> None:
        job_id, due_ms, _, _, priority, number, state, flags = HEADER.unpack_from(record)
        store = self._store
        if flags:
            self._check_parts(job_id, flags, record)
        if state == _BURIED and not flags & _RANK:
            # By an older delayd or an import; a RANK record follows, or the order is that of PUTs.
            record = ranked(record, store.last_rank + 1)
        store.put(store.topics.by_number[number], job_id, priority, due_ms, record)
        if flags & _WALL:
            store.note_wall(job_id, record)
        store.last_id = max(store.last_id, job_id)

    def _check_parts(self, job_id: int, flags: int, record: bytes) -> None:
        assert flags < FLAGS_END, f"the flags of job {job_id} are {flags}"
        if flags & _WALL:
            self._check_offset(job_id)
        assert head_bytes_of(record) <= len(record), f"job {job_id} is shorter than its parts"

    def _record(self, job_id: int) -> bytes:
        record = self._store.jobs.get(job_id)
        assert record is not None, f"a record names job {job_id}, which is not there"
        return record

    def _reserve(self, job_id: int, deadline_ms: int) -> None:
        topic = self._store.take(job_id)
        self._store.hold(topic, job_id, self._store.orphans, deadline_ms)

    def _release(self, job_id: int, due_ms: int, delay_ms: int, priority: int) -> None:
        changed = released(self._record(job_id), due_ms, delay_ms, priority)
        self._store.put_back(job_id, changed)

    def _return(self, job_id: int) -> None:
        self._store.put_back(job_id, returned(self._record(job_id)))

    def _fail(
        self,
        job_id: int,
        failed_ms: int,
        due_ms: int,
        delay_ms: int,
        priority: int,
        reason: int,
        state: int,
        target: int,
        error: bytes,
    ) -> None:
        store = self._store
        record = self._record(job_id)
        changed = failed(
            record,
            Verdict(State(state), due_ms, delay_ms, target),
            Reason(reason),
            failed_ms,
            origin=store.topic_of(record).name,
            rank=store.next_rank(),
            priority=priority,
            error=error.decode(),
        )
        put_back = store.move_over if target else store.put_back
        put_back(job_id, changed)

    def _topic(self, number: int, name: bytes) -> None:
        self._store.number_topic(name.decode("ascii"), number).recorded = True

    def _policy(self, number: int, source: int, text: bytes) -> None:
        policy = Policy.from_json(text) if text else None
        self._store.set_policy(self._store.topics.by_number[number], policy, Source(source))

    def _kick(self, job_id: int) -> None:
        self._store.move(job_id, kicked(self._record(job_id)))

    def _reschedule(self, job_id: int, due_ms: int, delay_ms: int) -> None:
        self._store.move(job_id, rescheduled(self._record(job_id), due_ms, delay_ms))

    def _appoint(self, job_id: int, due_ms: int, delay_ms: int, wall_ms: int) -> None:
        changed = rescheduled(self._record(job_id), due_ms, delay_ms, wall_ms)
        self._check_offset(job_id)
        self._store.move(job_id, changed)
        self._store.note_wall(job_id, changed)

    def _amend(self, job_id: int, *fields: int) -> None:
        self._change(job_id, amended(self._record(job_id), *fields))

    def _rewrite(self, record: bytes) -> None:
        job_id, *_, number, state, flags = HEADER.unpack_from(record)
        self._check_parts(job_id, flags, record)
        old = self._record(job_id)
        assert key_of(record) == key_of(old), f"job {job_id} has another key"
        is_at_home = self._store.topic_of(old) is self._store.topics.by_number[number]
        assert is_at_home, f"job {job_id} has another topic"
        assert (state == _BURIED) == bool(flags & _RANK), f"job {job_id} is buried nowhere"
        self._change(job_id, record)

    def _change(self, job_id: int, changed: bytes) -> None:
        store = self._store
        assert job_id not in store.leases.sessions, f"job {job_id} is held and cannot be changed"
        if changed[FLAGS_AT] & _WALL:
            self._check_offset(job_id)
        store.move(job_id, changed)
        store.note_wall(job_id, changed)

    def _check_offset(self, job_id: int) -> None:
        is_known = self._store.wall_times.recorded_ms is not None
        assert is_known, f"no record says where the time of {job_id} is"

    def _offset(self, offset_ms: int) -> None:
        store = self._store
        if offset_ms != store.wall_times.offset_ms:
            store.step_wall(offset_ms)
        store.wall_times.recorded_ms = offset_ms
        self._turn(store.time_ms)

    def _last(self, job_id: int, topic_number: int) -> None:
        store = self._store
        store.last_id = max(store.last_id, job_id)
        store.last_put_id = max(store.last_put_id, job_id)
        store.topics.last_number = max(store.topics.last_number, topic_number)

    def _rank(self, job_id: int, rank: int) -> None:
        """Give a buried job its place, or, without a job, say which place was given last."""
        store = self._store
        if job_id:
            record = self._record(job_id)
            assert record[STATE_AT] == _BURIED, f"job {job_id} has a rank and is not buried"
            assert job_id not in store.leases.sessions, f"job {job_id} has a rank and is held"
            store.move(job_id, ranked(record, rank))
        else:
            store.last_rank = max(store.last_rank, rank)

    def _pause(self, number: int, until_ms: int, pause_ms: int) -> None:
        self._store.pause(self._store.topics.by_number[number], until_ms, pause_ms)

    def _clear(self, number: int, next_number: int) -> None:
        """Forget a topic's waiting jobs at once: nobody waits while it is swept."""
        store = self._store
        topic = store.topics.by_number[number]
        assert topic.number == number, f"topic {number} was cleared before"
        assert next_number not in store.topics.by_number, f"topic {next_number} is there already"
        store.clear(topic, next_number)
        while store.cleared:
            store.sweep(TASK_STEP_JOBS)
