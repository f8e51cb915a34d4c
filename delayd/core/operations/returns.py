"""Jobs that come back: failed attempts, sessions that have ended, leases that are over.

    leave(session, reason)     the session has ended: what it holds comes back
    give_back(job_id)          one job of such a session
    give_back_some(limit)      a slice of all that such sessions still hold
    catch_up_leases(limit)     a slice of all leases that are over, also those whose ttr has run out

A session may hold a million jobs, so what `RETURNS_PER_TURN` does not cover comes back in slices,
the longest held first (`core.background`). All of it counts as returned from the end of the session
on. An operation on such a job finds it returned (`clock.caught_up`); a reserve that finds nothing
ready has some given back (`reserve`); whatever looks at many jobs, clears them or changes their
policy comes after all of them (`catch_up_leases`). What nobody names is still counted as reserved
until its slice has come, and so is not in the order of ready jobs yet.

Each return is a record of its own, and one that a crash keeps out of the log has not happened: that
job is held until its ttr runs out, as after any crash. The same holds of a ttr that runs out before
the slice has come: a replay knows nothing of sessions, and would not decide otherwise.
"""

from typing import Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.job import FLAGS_AT, PRIORITY_AND_TOPIC, PRIORITY_AT, State
from delayd.core.operations.expiry import expire, look_after
from delayd.core.operations.waiting import serve
from delayd.core.parts import Reason, Retry
from delayd.core.policy import Verdict, decide
from delayd.core.records import Kind, pack
from delayd.core.session import Session
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from delayd.core.topic import Topic, place_of
from delayd.core.transitions import BRINGS_RULE, attempt_of, cut_error, rule_of
from delayd.limits import PASS_ACTION_COST

_COUNTED_AS: Final = {
    Reason.NACKED: Operation.NACK,
    Reason.RELEASED: Operation.RELEASE,
    Reason.BURIED: Operation.BURY,
    Reason.TTR_RAN_OUT: Operation.TIMEOUT,
    Reason.HOLDER_LEFT: Operation.RETURN,
    Reason.EXCUSED: Operation.RETURN,
    Reason.UNDELIVERED: Operation.RETURN,
    Reason.PUSH_FAILED: Operation.NACK,
}

_UNASKED: Final = frozenset({Reason.HOLDER_LEFT, Reason.EXCUSED, Reason.UNDELIVERED})
"""Ends of a reservation that no client asked for: log space is set aside for them."""


# --- Failed attempts -----------------------------------------------------------------------------


def rule_under(topic: Topic, record: bytes) -> Retry | None:
    """Return the retry rule that a job of the topic is under; None: none."""
    if topic.policy is None and record[FLAGS_AT] < BRINGS_RULE:
        return None
    return rule_of(record, topic.policy)


def verdict_on(
    engine: Engine, topic: Topic, record: bytes, rule: Retry, now_ms: RequestMs, delay_ms: int = 0
) -> Verdict:
    """Return what becomes of a job whose attempt fails now."""
    target = place_of(topic).target
    attempt = attempt_of(record)
    return decide(attempt, rule, now_ms, tick_ms=engine.tick_ms, delay_ms=delay_ms, target=target)


def fail(
    engine: Engine,
    topic: Topic,
    job_id: int,
    record: bytes,
    verdict: Verdict,
    reason: Reason,
    now_ms: RequestMs,
    priority: int | None = None,
    error: str = "",
    *,
    failed_ms: RequestMs | None = None,
) -> None:
    """Record the failed attempt with its outcome, and apply it; `failed_ms` if it was not now.

    Raises `OutOfSpace`, unless nobody asked for it and nothing is said of it.
    """
    if priority is None:
        priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
    text = cut_error(error)
    fields = (
        *(job_id, now_ms if failed_ms is None else failed_ms, verdict.due_ms, verdict.delay_ms),
        *(priority, reason, verdict.state, verdict.target),
    )
    item = pack(Kind.FAIL, *fields, tail=text)
    if reason in _UNASKED and not text:
        engine.write_promised(item)
    else:
        engine.write(item)
    engine.store.counters.count(topic, _COUNTED_AS[reason])
    look_after(engine, topic, apply.fail(engine.store, *fields, text), now_ms)


# --- Sessions that have ended --------------------------------------------------------------------


def leave(engine: Engine, session: Session, reason: Reason, now_ms: RequestMs) -> None:
    """Take back what the session holds, which has ended for that reason. Never refused.

    `UNDELIVERED`: ready again whatever the rule says, and the attempt does not count, since the
    client was gone before the reply left. O(jobs held) for a list of them: 10 ns each.
    """
    if session.left_for is None and session.deadlines:
        session.left_for, session.left_ms = reason, now_ms
        job_ids = list(session.deadlines)[::-1]
        engine.returns_left -= _give_back_last(
            engine, session, job_ids, engine.returns_left, now_ms
        )
        if job_ids:
            engine.leavers.append((session, job_ids))


def give_back_some(engine: Engine, limit: int, now_ms: RequestMs) -> None:
    """Take back a slice of what sessions held that have ended; of each of them in turn."""
    while engine.leavers and limit > 0:
        session, job_ids = engine.leavers.popleft()
        limit -= _give_back_last(engine, session, job_ids, limit, now_ms)
        if job_ids:
            engine.leavers.append((session, job_ids))


def _give_back_last(
    engine: Engine, session: Session, job_ids: list[int], limit: int, now_ms: RequestMs
) -> int:
    """Take back so many jobs off the end of the list, if there are as many; count them."""
    count = min(limit, len(job_ids))
    for _ in range(count):
        job_id = job_ids.pop()
        if job_id in session.deadlines:  # neither named nor out of time meanwhile
            give_back(engine, session, job_id, now_ms)
    return count


def give_back(engine: Engine, session: Session, job_id: int, now_ms: RequestMs) -> None:
    """Take back a job of a session that has ended, as of then. Never refused."""
    store, reason = engine.store, session.left_for
    assert reason is not None
    if session.deadlines[job_id] <= store.time_ms:
        expire(engine, job_id, now_ms)
        return
    record = store.jobs.get(job_id)
    assert record is not None
    topic = store.topic_of(record)
    verdict = Verdict(State.READY, session.left_ms)
    if reason is not Reason.UNDELIVERED:
        rule = rule_under(topic, record)
        if rule is None:
            engine.write_promised(pack(Kind.RETURN, job_id))
            store.counters.count(topic, Operation.RETURN)
            serve(engine, apply.give_back(store, job_id), now_ms)
            return
        if topic.policy is not None and topic.policy.returns_on_close:
            reason = Reason.EXCUSED
        elif reason is Reason.HOLDER_LEFT:
            verdict = verdict_on(engine, topic, record, rule, session.left_ms)
    fail(
        *(engine, topic, job_id, record, verdict, reason, now_ms),
        failed_ms=session.left_ms,
    )


# --- Leases that are over ------------------------------------------------------------------------


def leases_are_caught_up(engine: Engine) -> bool:
    """Tell whether every lease has ended whose session or ttr has."""
    deadline_ms = engine.store.leases.lane.wheel.next_deadline()
    return not engine.leavers and (deadline_ms is None or deadline_ms > engine.store.time_ms)


def catch_up_leases(engine: Engine, limit: int, now_ms: RequestMs) -> bool:
    """End a slice of the leases that are over; tell whether all have ended."""
    if engine.leavers:
        give_back_some(engine, 1 + limit // PASS_ACTION_COST, now_ms)
    elif not leases_are_caught_up(engine):
        for job_id in engine.store.leases.lane.wheel.advance(engine.store.time_ms, limit):
            expire(engine, job_id, now_ms, lease_fired=True)
    return leases_are_caught_up(engine)
