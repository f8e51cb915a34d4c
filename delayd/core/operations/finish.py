"""Ends of attempts that a client asks for: a job is deleted, released, nacked, buried.

Under a *retry rule*, the topic's or the job's own, each of these but the delete is a failed
attempt, and so are a connection that closes (`returns.leave`) and a ttr that runs out
(`expiry.expire`). `core.policy` decides the outcome for the job. Without a rule everything is as
in beanstalkd.

What a client did is recorded with its outcome, as one FAIL record: a restart needs no policy to
replay it. What time did is not recorded, so a restart decides it again. Therefore the log has
POLICY records wherever another policy begins to apply, and every reservation that was over by then
has been ended before (`returns.catch_up_leases`).
"""

from collections.abc import Sequence
from typing import Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.job import State
from delayd.core.operations.checks import check_range, is_write_protected, require_writable_job
from delayd.core.operations.clock import caught_up
from delayd.core.operations.reserve import held
from delayd.core.operations.returns import fail, rule_under, verdict_on
from delayd.core.operations.waiting import serve
from delayd.core.parts import Reason, Retry
from delayd.core.policy import Verdict
from delayd.core.records import Kind, pack_delete
from delayd.core.session import Session
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import DURATION_MS_MAX, PRIORITY_MAX

_DELETE: Final = int(Kind.DELETE)
_NO_RULE: Final = Retry()
"""A rule without maximum and delays."""


# --- Deleting ------------------------------------------------------------------------------------


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
    if topic.throttle is not None:
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
    if engine.store.topics.internal is not None and is_write_protected(engine, record):
        return False
    return job_state is not State.RESERVED


# --- By the holder -------------------------------------------------------------------------------


def release(
    engine: Engine, session: Session, job_id: int, priority: int, delay_ms: int, now_ms: RequestMs
) -> None:
    """Release a job, ready at once or after a delay; `JobNotFound`, `ValueOutOfRange`.

    Under a retry rule an attempt has failed: the ladder replaces a delay of 0.
    """
    record = held(engine, session, job_id)
    check_range("priority", priority, PRIORITY_MAX)
    check_range("delay in ms", delay_ms, DURATION_MS_MAX)
    topic = engine.store.topic_of(record)
    rule = rule_under(topic, record)
    if rule is None:
        due_ms = ceil_to_tick(now_ms + delay_ms, engine.tick_ms) if delay_ms else now_ms
        fields = job_id, due_ms, delay_ms, priority
        engine.record(Kind.RELEASE, *fields)
        engine.store.counters.count(topic, Operation.RELEASE)
        serve(engine, apply.release(engine.store, *fields), now_ms)
    else:
        verdict = verdict_on(engine, topic, record, rule, now_ms, delay_ms)
        fail(engine, topic, job_id, record, verdict, Reason.RELEASED, now_ms, priority)


def nack(
    engine: Engine,
    session: Session,
    job_id: int,
    now_ms: RequestMs,
    *,
    delay_ms: int = 0,
    priority: int | None = None,
    error: str = "",
) -> None:
    """Release a job as failed, with an error; `JobNotFound`, `ValueOutOfRange`, `OutOfSpace`.

    Without a retry rule it is ready again after the delay, and the error is still kept, at most
    `ERROR_BYTES_MAX` of it.
    """
    record = held(engine, session, job_id)
    check_range("delay in ms", delay_ms, DURATION_MS_MAX)
    if priority is not None:
        check_range("priority", priority, PRIORITY_MAX)
    topic = engine.store.topic_of(record)
    rule = rule_under(topic, record) or _NO_RULE
    verdict = verdict_on(engine, topic, record, rule, now_ms, delay_ms)
    fail(engine, topic, job_id, record, verdict, Reason.NACKED, now_ms, priority, error)


def bury(
    engine: Engine, session: Session, job_id: int, priority: int, now_ms: RequestMs, error: str = ""
) -> None:
    """Bury a job until it is kicked; `JobNotFound`, `ValueOutOfRange`, `OutOfSpace`.

    Under a retry rule, or with an error, it is a dead letter like those that are exhausted.
    """
    record = held(engine, session, job_id)
    check_range("priority", priority, PRIORITY_MAX)
    store = engine.store
    topic = store.topic_of(record)
    if rule_under(topic, record) is None and not error:
        engine.record(Kind.BURY, job_id, priority)
        apply.bury(store, job_id, priority)
        store.counters.count(topic, Operation.BURY)
        if topic.throttle is not None:
            serve(engine, topic, now_ms)
    else:
        verdict = Verdict(State.BURIED, now_ms)
        fail(engine, topic, job_id, record, verdict, Reason.BURIED, now_ms, priority, error)
