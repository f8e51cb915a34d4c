"""Reserves: the best job, a batch, a certain job; and leases extended."""

from heapq import heapify, heappop, heapreplace
from typing import Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import OutOfSpace
from delayd.core.job_parts import body_of
from delayd.core.job_record import TTR_AT, U64, Event
from delayd.core.log_records import Kind, pack_reserve
from delayd.core.log_space import RESERVE_COST_BYTES
from delayd.core.operations.attempts import held
from delayd.core.operations.sessions import give_back_some
from delayd.core.operations.tick import job_for
from delayd.core.operations.waiting import hand_out
from delayd.core.session import Handed, Session
from delayd.core.stats.counters import Operation
from delayd.core.store import Store
from delayd.core.times import RequestMs
from delayd.core.topic import Topic, head_key
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import HELD_RETURN_BYTES

_RESERVE: Final = int(Kind.RESERVE)


def reserve(engine: Engine, session: Session, now_ms: RequestMs) -> Handed | None:
    """Hand out the best ready job of the topics watched; None when there is none.

    `OutOfSpace` when there is one and no log space to record that it is held. O(topics watched), or
    O(topics with ready jobs) where those are fewer.
    """
    watched = session.watched
    best = watched[0]
    if len(watched) > 1:
        handing_out = _handing_out(engine.store, session)
        if not handing_out:
            return _reserve_returning(engine, session, now_ms) if engine.ended_sessions else None
        best = handing_out[0] if len(handing_out) == 1 else min(handing_out, key=head_key)
    elif not best.queues.ready.count or best.blocks:
        return _reserve_returning(engine, session, now_ms) if engine.ended_sessions else None
    if engine.log_space.free_bytes < RESERVE_COST_BYTES:
        engine.log_space.require(RESERVE_COST_BYTES)
    return hand_out(engine, best, session, now_ms)


def _handing_out(store: Store, session: Session) -> list[Topic]:
    """Return the topics watched that have ready jobs and hand them out."""
    if len(session.watched) <= len(store.ready_topics.stocked):
        stocked = [topic for topic in session.watched if topic.queues.ready.is_listed]
    else:
        places = session.places
        stocked = [topic for topic in store.ready_topics.stocked if topic in places]
    handing_out = []
    for topic in stocked:
        if not topic.queues.ready.count:
            store.ready_topics.unstock(topic)
        elif not topic.blocks:
            handing_out.append(topic)
    return handing_out


def _reserve_returning(engine: Engine, session: Session, now_ms: RequestMs) -> Handed | None:
    """Hand out a job that a session held which has ended; there is no other.

    None when none of the topics watched has any that is near: looking further would hold up others.
    """
    while engine.ended_sessions and engine.searches_left:
        give_back_some(engine, 1, now_ms)
        if _handing_out(engine.store, session):
            return reserve(engine, session, now_ms)
        engine.searches_left -= 1
    return None


def reserve_batch(
    engine: Engine, session: Session, jobs_max: int, bytes_max: int, now_ms: RequestMs
) -> list[Handed]:
    """Hand out the best ready jobs, at most `jobs_max`, until their bodies exceed `bytes_max`.

    None at all when there is no log space for one: `reserve` then raises.
    """
    if len(session.watched) == 1:
        return _reserve_run(engine, session, jobs_max, bytes_max, now_ms)
    heads = [(head_key(topic), topic) for topic in _handing_out(engine.store, session)]
    heapify(heads)
    jobs: list[Handed] = []
    while heads and len(jobs) < jobs_max and bytes_max >= 0:
        try:
            engine.log_space.require(RESERVE_COST_BYTES)
        except OutOfSpace:
            break
        topic = heads[0][1]
        job = hand_out(engine, topic, session, now_ms)
        bytes_max -= len(job[1])
        jobs.append(job)
        if topic.queues.ready.count and not topic.blocks:
            heapreplace(heads, (head_key(topic), topic))
        else:
            heappop(heads)
    return jobs


def _reserve_run(
    engine: Engine, session: Session, jobs_max: int, bytes_max: int, now_ms: RequestMs
) -> list[Handed]:
    """Hand out the next ready jobs of the one topic watched, all at once."""
    topic = session.watched[0]
    log_space = engine.log_space
    jobs_max = min(jobs_max, log_space.free_bytes // RESERVE_COST_BYTES)
    if not topic.queues.ready.count or topic.blocks or jobs_max <= 0:
        return []
    if engine.turn_ms != engine.store.time_ms:
        engine.stamp()
    run, leased = engine.store.hand_out_run(topic, session, jobs_max, bytes_max, now_ms)
    log_space.free_bytes -= RESERVE_COST_BYTES * len(run)
    for deadline_ms, job_ids in leased:
        engine.log += [pack_reserve(_RESERVE, job_id, deadline_ms) for job_id in job_ids]
    return run


def reserve_job(engine: Engine, session: Session, job_id: int, now_ms: RequestMs) -> Handed:
    """Hand out this very job, whatever its topic, pause and delay; `JobNotFound`."""
    record = job_for(engine, job_id, Event.RESERVE, now_ms)
    deadline_ms = ceil_to_tick(now_ms + U64.unpack_from(record, TTR_AT)[0], engine.tick_ms)
    engine.write(pack_reserve(_RESERVE, job_id, deadline_ms), HELD_RETURN_BYTES)
    apply.reserve(engine.store, job_id, deadline_ms, session)
    return job_id, body_of(record)


def touch(engine: Engine, session: Session, job_id: int, now_ms: RequestMs) -> None:
    """Extend the lease to a full ttr from now; `JobNotFound`."""
    record = held(engine, session, job_id)
    deadline_ms = ceil_to_tick(now_ms + U64.unpack_from(record, TTR_AT)[0], engine.tick_ms)
    engine.record(Kind.TOUCH, job_id, deadline_ms)
    apply.touch(engine.store, job_id, deadline_ms)
    engine.store.counters.count(engine.store.topic_of(record), Operation.TOUCH)
