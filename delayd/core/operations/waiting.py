"""Waits: consumers queue for jobs, and ready jobs go to the waiting ones.

    wait(session, ...)    joins the queue of each topic that the session watches
    serve(topic)          called wherever a job becomes ready or a topic hands out again

A wait ends in a delivery: a job, `TIMED_OUT`, or `DEADLINE_SOON`. The caller takes deliveries with
the log after each turn.
"""

from typing import Final

from delayd.core.engine import Engine
from delayd.core.job_parts import body_of
from delayd.core.job_record import FLAGS_AT, HEADER_BYTES
from delayd.core.log_records import Kind, pack_reserve
from delayd.core.log_space import RESERVE_COST_BYTES
from delayd.core.session import NEVER_MS, Handed, Session, WaitEnd
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import DEADLINE_SOON_MS

# For every job that is handed out; an enum member's arithmetic costs 40 ns more than an int's.
_RESERVE: Final = int(Kind.RESERVE)


def wait(engine: Engine, session: Session, now_ms: RequestMs, wait_ms: int | None) -> None:
    """Queue the session for a job of the topics it watches, which all have none ready now.

    Its wait ends in a delivery: a job, TIMED_OUT after `wait_ms` (None: never), DEADLINE_SOON.
    """
    session.waiting = True
    session.wait_ends_ms = (
        None if wait_ms is None else ceil_to_tick(now_ms + wait_ms, engine.tick_ms)
    )
    engine.last_wait += 1
    session.wait_number = engine.last_wait
    engine.waits[engine.last_wait] = session
    for topic in session.watched:
        topic.waiters[engine.last_wait] = None
    set_wait_timer(engine, session)


def cancel_wait(engine: Engine, session: Session) -> None:
    """Take the session out of the queues if it waits."""
    if session.waiting:
        _leave_queues(engine, session)


def end_wait(engine: Engine, session: Session, outcome: Handed | WaitEnd) -> None:
    """End the session's wait in a delivery."""
    _leave_queues(engine, session)
    engine.deliveries.append((session, outcome))


def _leave_queues(engine: Engine, session: Session) -> None:
    session.waiting = False
    del engine.waits[session.wait_number]
    for topic in session.watched:
        del topic.waiters[session.wait_number]
    if session.wait_alarm is not None:
        engine.store.alarms.cancel(session.wait_alarm)
        session.wait_alarm = None


def set_wait_timer(engine: Engine, session: Session) -> None:
    """Set the session's timer: its wait ends, or a job that it holds nears its deadline."""
    ends_ms = NEVER_MS if session.wait_ends_ms is None else session.wait_ends_ms
    ring_ms = min(ends_ms, session.soonest_deadline() - DEADLINE_SOON_MS)
    session.wait_alarm = (
        None
        if ring_ms >= NEVER_MS - DEADLINE_SOON_MS
        else engine.store.alarms.add(ring_ms, session, engine.store.time_ms)
    )


def serve(engine: Engine, topic: Topic, now_ms: RequestMs) -> None:
    """Hand the topic's ready jobs to waiting consumers, the longest waiting first.

    What is left may be pushed.
    """
    while topic.waiters and topic.queues.ready.count and not topic.blocks:
        if not engine.log_space.has_for_reserve():
            return
        session = engine.waits[next(iter(topic.waiters))]
        _leave_queues(engine, session)
        engine.deliveries.append((session, hand_out(engine, topic, session, now_ms)))
    lanes = engine.store.push_lanes
    if lanes.resting and not topic.blocks:
        lanes.wake(topic)


def serve_waiting(engine: Engine, now_ms: RequestMs) -> None:
    """Hand out what could not be handed out for lack of log space. O(topics)."""
    engine.log_space.is_short = False
    for topic in list(engine.store.topics.listing):
        if topic.waiters or topic in engine.store.push_lanes.resting:
            serve(engine, topic, now_ms)


def hand_out(engine: Engine, topic: Topic, session: Session, now_ms: RequestMs) -> Handed:
    """Hand out the topic's next ready job, for which there is log space."""
    job_id, deadline_ms, record = engine.store.hand_out(topic, session, now_ms)
    if engine.turn_ms != engine.store.time_ms:
        engine.stamp()
    engine.log_space.free_bytes -= RESERVE_COST_BYTES
    engine.log.append(pack_reserve(_RESERVE, job_id, deadline_ms))
    # `body_of` does the same with one call more: 1 % of a reserve and delete.
    return job_id, record[HEADER_BYTES:] if not record[FLAGS_AT] else body_of(record)
