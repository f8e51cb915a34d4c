"""Playing records back into an engine that has just started.

Each record is carried out by the store, with the methods and the changed records that the live
operation used. What the clock did in between follows from the TURN records: the engine is advanced
to each of their times, by the code that does it live. Holders are gone after a restart, so what was
reserved belongs to the orphans until its ttr runs out. Nothing here writes to the log.
"""

import struct
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from delayd.core.engine import Engine
from delayd.core.job import (
    FLAGS_END,
    HEADER,
    buried,
    kicked,
    released,
    rescheduled,
    returned,
)
from delayd.core.records import LAYOUTS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_PUT: Final = int(Kind.PUT)


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
        self._has_ranks = False
        self._play_kind: dict[int, Callable[..., object]] = {
            Kind.TURN: self._turn,
            Kind.RESERVE: self._reserve,
            Kind.TOUCH: self._store.extend,
            Kind.RELEASE: self._release,
            Kind.RETURN: self._return,
            Kind.BURY: self._bury,
            Kind.KICK: self._kick,
            Kind.RESCHEDULE: self._reschedule,
            Kind.DELETE: self._store.delete,
            Kind.PAUSE: self._pause,
            Kind.LAST: self._last,
            Kind.RANK: self._rank,
            Kind.OFFSET: self._offset,
            Kind.APPOINT: self._appoint,
        }

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
                elif kind == Kind.TOPIC:
                    _, number, length = LAYOUTS[Kind.TOPIC].unpack_from(payload, at)
                    at += LAYOUTS[Kind.TOPIC].size
                    name = payload[at : at + length].decode("ascii")
                    self._store.number_topic(name, number).recorded = True
                    at += length
                else:
                    if kind not in self._play_kind:
                        raise UnknownRecord(at, f"its kind is {kind}")
                    layout = LAYOUTS[Kind(kind)]
                    self._play_kind[kind](*layout.unpack_from(payload, at)[1:])
                    at += layout.size
        except struct.error:
            at = -1
        except (AssertionError, KeyError, ValueError) as error:
            raise UnknownRecord(at, f"it does not fit what came before ({error!r})") from error
        if at != end:
            raise UnknownRecord(end, "the last record is cut short")

    def finish(self, now_ms: int) -> None:
        """Let the topics that nothing holds on to vanish; count from zero; go on at `now_ms`."""
        store = self._store
        for topic in list(store.listing):
            topic.jobs_put = 0
            if self._has_ranks:
                topic.buried = dict(sorted(topic.buried.items(), key=itemgetter(1)))
            store.drop_if_unwanted(topic)
        store.jobs_put = 0
        self.engine.timeouts = 0
        store.time_ms = max(store.time_ms, now_ms)

    def _turn(self, time_ms: int) -> None:
        engine = self.engine
        self._store.time_ms = time_ms
        while engine.advance(time_ms):
            pass

    def _put(self, record: bytes) -> None:
        job_id, due_ms, _, _, priority, number, _, flags = HEADER.unpack_from(record)
        store = self._store
        if flags > 1:
            assert flags < FLAGS_END, f"the flags of job {job_id} are {flags}"
            self._check_offset(job_id)
        store.put(store.numbered[number], job_id, priority, due_ms, record)
        if flags > 1:
            store.note_wall(job_id, record)
        store.last_id = max(store.last_id, job_id)

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

    def _bury(self, job_id: int, priority: int) -> None:
        self._store.put_back(job_id, buried(self._record(job_id), priority))

    def _kick(self, job_id: int) -> None:
        self._store.move(job_id, kicked(self._record(job_id)))

    def _reschedule(self, job_id: int, due_ms: int, delay_ms: int) -> None:
        self._store.move(job_id, rescheduled(self._record(job_id), due_ms, delay_ms))

    def _appoint(self, job_id: int, due_ms: int, delay_ms: int, wall_ms: int) -> None:
        changed = rescheduled(self._record(job_id), due_ms, delay_ms, wall_ms)
        self._check_offset(job_id)
        self._store.move(job_id, changed)
        self._store.note_wall(job_id, changed)

    def _check_offset(self, job_id: int) -> None:
        is_known = self._store.absolute.recorded_ms is not None
        assert is_known, f"no record says where the time of {job_id} is"

    def _offset(self, offset_ms: int) -> None:
        store = self._store
        if offset_ms != store.absolute.offset_ms:
            store.step_wall(offset_ms)
        store.absolute.recorded_ms = offset_ms
        self._turn(store.time_ms)

    def _last(self, job_id: int, topic_number: int) -> None:
        store = self._store
        store.last_id = max(store.last_id, job_id)
        store.last_put_id = max(store.last_put_id, job_id)
        store.last_topic_number = max(store.last_topic_number, topic_number)

    def _rank(self, job_id: int, rank: int) -> None:
        """Give a buried job its place; `finish` puts all of them in order."""
        store = self._store
        buried = store.topic_of(self._record(job_id)).buried
        assert job_id in buried, f"a record ranks job {job_id}, which is not buried"
        buried[job_id] = rank
        store.last_rank = max(store.last_rank, rank)
        self._has_ranks = True

    def _pause(self, number: int, until_ms: int, pause_ms: int) -> None:
        self._store.pause(self._store.numbered[number], until_ms, pause_ms)
