"""Deletes: a job is done, which its holder acknowledges, or is not wanted any more."""

from collections.abc import Sequence
from typing import Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.job_record import State
from delayd.core.log_records import Kind, pack_delete
from delayd.core.operations.checks import is_write_protected, require_writable_job
from delayd.core.operations.tick import caught_up
from delayd.core.operations.waiting import serve
from delayd.core.session import Session
from delayd.core.times import RequestMs

_DELETE: Final = int(Kind.DELETE)


def delete(engine: Engine, session: Session, job_id: int, now_ms: RequestMs) -> None:
    """Delete a job that the session holds, or one at rest; `JobNotFound`, `TopicIsInternal`."""
    if not delete_batch(engine, session, (job_id,), now_ms)[0]:
        require_writable_job(engine, caught_up(engine, job_id, now_ms)[0])
        raise JobNotFound(job_id)


def delete_batch(
    engine: Engine, session: Session, job_ids: Sequence[int], now_ms: RequestMs
) -> list[bool]:
    """Delete these jobs in turn; return for each whether it could be deleted."""
    are_alive = session.soonest_ms > engine.store.time_ms
    once = set(job_ids)
    if are_alive and 0 < len(once) == len(job_ids) and once <= session.deadlines.keys():
        _delete_held(engine, session, job_ids, now_ms)
        return [True] * len(job_ids)
    return [_delete(engine, session, job_id, now_ms) for job_id in job_ids]


def delete_held(engine: Engine, session: Session, job_id: int, now_ms: RequestMs) -> bool:
    """Delete a job that the session holds; False if it does not, or one may be out of time."""
    if session.soonest_ms <= engine.store.time_ms or job_id not in session.deadlines:
        return False
    _delete_held(engine, session, (job_id,), now_ms)
    return True


def _delete_held(
    engine: Engine, session: Session, job_ids: Sequence[int], now_ms: RequestMs
) -> None:
    """Delete jobs that the session holds, each named once."""
    store = engine.store
    if engine.turn_ms != store.time_ms:
        engine.stamp()
    for job_id in job_ids:
        engine.log.append(pack_delete(_DELETE, job_id))
    for topic in store.delete_held(session, job_ids):
        store.drop_if_unwanted(topic)
        serve(engine, topic, now_ms)
    engine.log_space.jobs -= len(job_ids)
    engine.must_sync = True


def _delete(engine: Engine, session: Session, job_id: int, now_ms: RequestMs) -> bool:
    """Delete the job if possible; tell whether it was."""
    store = engine.store
    if session.deadlines.get(job_id, 0) <= store.time_ms and not _is_free(engine, job_id, now_ms):
        return False
    engine.write_promised(pack_delete(_DELETE, job_id))
    topic = apply.delete(store, job_id)
    if store.time_ms >= topic.roll_ms:
        store.roll(topic)
    topic.deletes += 1
    store.counters.deletes += 1
    if topic.is_limited:
        serve(engine, topic, now_ms)
    if not topic.jobs:
        store.drop_if_unwanted(topic)
    engine.log_space.jobs -= 1
    return True


def _is_free(engine: Engine, job_id: int, now_ms: RequestMs) -> bool:
    """Tell whether the job exists, no client holds it and it may be written."""
    try:
        record, job_state = caught_up(engine, job_id, now_ms)
    except JobNotFound:
        return False
    if engine.store.topics.internal and is_write_protected(engine, record):
        return False
    return job_state is not State.RESERVED
