"""Attempts: each reservation of a job, and how it ends without the job being done.

    release, nack, bury    its holder gives it back
    fail_call              a push was not taken; `give_back_call`: it was not sent, or may have been
    expire                 its ttr ran out
    give_back              its holder's session has ended (`core.operations.sessions`)

Under a *retry rule*, the topic's or the job's own, each of these is a failed attempt, and
`core.retry` decides the outcome: delayed by the ladder, or exhausted, which is buried or moved to
another topic. Without a rule everything is as in beanstalkd. A job that is done is deleted
(`core.operations.ack`).

What a client caused is recorded with its outcome, as one FAIL record: a restart needs no policy to
replay it. What time did is not recorded: the deadline and the policy are in the log, so a replay
arrives at the same outcome with this code. It counts from the deadline, so that it does not matter
when the slice of a lease comes. Therefore the log has POLICY records wherever another policy begins
to apply, and every reservation that was over by then has been ended before
(`tick.catch_up_leases`).
"""

from typing import Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.job_parts import Reason, Retry
from delayd.core.job_record import FLAGS_AT, TTR_AT, U64, State
from delayd.core.log_records import Kind, pack
from delayd.core.operations.checks import check_range
from delayd.core.operations.waiting import serve
from delayd.core.retry import (
    BRINGS_RULE,
    UNCOUNTED,
    RetryDecision,
    cut_error,
    cut_who,
    decide,
    ended,
    exhausted,
    expired_under,
    kept_under,
    rule_of,
)
from delayd.core.session import Session
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from delayd.core.topic import Topic, place_of
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import DURATION_MS_MAX, PRIORITY_MAX

_NO_RULE: Final = Retry()
"""A rule without maximum and delays."""

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


def held(engine: Engine, session: Session, job_id: int) -> bytes:
    """Return the record of a job that the session holds, its ttr not run out; `JobNotFound`."""
    deadline_ms = session.deadlines.get(job_id)
    if deadline_ms is None or deadline_ms <= engine.store.time_ms:
        raise JobNotFound(job_id)
    record = engine.store.jobs.get(job_id)
    assert record is not None
    return record


def _rule_under(topic: Topic, record: bytes) -> Retry | None:
    """Return the retry rule that a job of the topic is under; None: none."""
    if topic.policy is None and record[FLAGS_AT] < BRINGS_RULE:
        return None
    return rule_of(record, topic.policy)


def _decide(
    engine: Engine,
    topic: Topic,
    record: bytes,
    rule: Retry,
    reason: Reason,
    failed_ms: RequestMs,
    *,
    delay_ms: int = 0,
    priority: int | None = None,
) -> RetryDecision:
    """Return the outcome of an attempt that has failed under the rule."""
    return decide(
        *(record, rule, reason, failed_ms),
        tick_ms=engine.tick_ms,
        delay_ms=delay_ms,
        priority=priority,
        target=place_of(topic).target,
    )


def _end(
    engine: Engine,
    session: Session,
    topic: Topic,
    outcome: RetryDecision,
    now_ms: RequestMs,
    error: str = "",
) -> None:
    """Record how an attempt of the session has ended, and apply it.

    Raises `OutOfSpace`, unless no client asked for it and there is no error text. Then the history
    does without what its end would need more space for: how long it was, and who made it.
    """
    text = cut_error(error)
    item = pack(Kind.FAIL, *outcome, tail=text)
    store, space = engine.store, engine.log_space
    who, lasted_ms, about = cut_who(session.who), 0, b""
    if outcome.reason not in UNCOUNTED and kept_under(topic.policy):
        lasted_ms = _lasted_ms(engine, outcome)
        about = pack(Kind.ATTEMPT, outcome.job_id, lasted_ms, tail=who)
    # One item of the log: the first belongs to the attempt that the second ends.
    if outcome.reason not in _UNASKED or text:
        engine.write(about + item)
    else:
        if space.free_bytes >= 2 * len(about):
            space.free_bytes -= 2 * len(about)
        else:
            about = b""
        engine.write_promised(about + item)
    if about:
        apply.attempt(store, outcome.job_id, lasted_ms, who)
    if store.time_ms >= topic.roll_ms:
        store.roll(topic)
    store.counters.count(topic, _COUNTED_AS[Reason(outcome.reason)])
    _serve_both(engine, topic, apply.fail(store, *outcome, text), now_ms)


def _lasted_ms(engine: Engine, outcome: RetryDecision) -> int:
    """Return how long an attempt was that ends so."""
    record = engine.store.jobs.get(outcome.job_id)
    assert record is not None
    ttr_ms: int = U64.unpack_from(record, TTR_AT)[0]
    return max(1, outcome.failed_ms - engine.store.leases.begun_ms(outcome.job_id, ttr_ms))


def _serve_both(engine: Engine, former: Topic, here: Topic, now_ms: RequestMs) -> None:
    """Serve the topic that a job left when its lease ended, and the one that it is in now."""
    if here is not former:
        serve(engine, here, now_ms)
        engine.store.drop_if_unwanted(former)
    serve(engine, former, now_ms)


# --- By its holder -------------------------------------------------------------------------------


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
    rule = _rule_under(topic, record)
    if rule is None:
        due_ms = ceil_to_tick(now_ms + delay_ms, engine.tick_ms) if delay_ms else now_ms
        fields = job_id, due_ms, delay_ms, priority
        engine.record(Kind.RELEASE, *fields)
        engine.store.counters.count(topic, Operation.RELEASE)
        serve(engine, apply.release(engine.store, *fields), now_ms)
    else:
        failed = (engine, topic, record, rule, Reason.RELEASED, now_ms)
        outcome = _decide(*failed, delay_ms=delay_ms, priority=priority)
        _end(engine, session, topic, outcome, now_ms)


def nack(
    engine: Engine,
    session: Session,
    job_id: int,
    now_ms: RequestMs,
    *,
    delay_ms: int = 0,
    priority: int | None = None,
    error: str = "",
    counts: bool = True,
    dead: bool = False,
) -> None:
    """Release a job as failed, with an error; `JobNotFound`, `ValueOutOfRange`, `OutOfSpace`.

    Without a retry rule it is ready again after the delay, and the error is still kept, at most
    `ERROR_BYTES_MAX` of it. So it is where no attempt `counts`: nobody has worked on it. One that
    is `dead` is not tried again: it is exhausted, whatever its rule says.
    """
    record = held(engine, session, job_id)
    check_range("delay in ms", delay_ms, DURATION_MS_MAX)
    if priority is not None:
        check_range("priority", priority, PRIORITY_MAX)
    topic = engine.store.topic_of(record)
    rule = _rule_under(topic, record) or _NO_RULE
    if dead:
        target = place_of(topic).target
        outcome = exhausted(record, Reason.NACKED, now_ms, priority=priority, target=target)
    elif counts:
        failed = (engine, topic, record, rule, Reason.NACKED, now_ms)
        outcome = _decide(*failed, delay_ms=delay_ms, priority=priority)
    else:
        outcome = ended(record, Reason.UNDELIVERED, now_ms, State.READY, priority=priority)
        if delay_ms:
            due_ms = ceil_to_tick(now_ms + delay_ms, engine.tick_ms)
            outcome = outcome._replace(state=State.DELAYED, due_ms=due_ms, delay_ms=delay_ms)
    _end(engine, session, topic, outcome, now_ms, error)


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
    if _rule_under(topic, record) is None and not error:
        engine.record(Kind.BURY, job_id, priority)
        apply.bury(store, job_id, priority)
        store.counters.count(topic, Operation.BURY)
        if topic.is_limited:
            serve(engine, topic, now_ms)
    else:
        outcome = ended(record, Reason.BURIED, now_ms, State.BURIED, priority=priority)
        _end(engine, session, topic, outcome, now_ms, error)


# --- By the scheduler that pushes it -------------------------------------------------------------


def fail_call(
    engine: Engine,
    session: Session,
    job_id: int,
    now_ms: RequestMs,
    *,
    error: str,
    delay_ms: int = 0,
    is_exhausted: bool = False,
) -> bool:
    """End an attempt as failed, and tell whether the job is a dead letter now.

    With a `delay_ms` it waits at least so long. `is_exhausted`: it is not tried again. Raises
    `JobNotFound`, `ValueOutOfRange`, `OutOfSpace`.
    """
    record = held(engine, session, job_id)
    check_range("delay in ms", delay_ms, DURATION_MS_MAX)
    topic = engine.store.topic_of(record)
    rule, reason = _rule_under(topic, record) or _NO_RULE, Reason.PUSH_FAILED
    outcome = _decide(engine, topic, record, rule, reason, now_ms)
    if is_exhausted:
        outcome = exhausted(record, reason, now_ms, target=place_of(topic).target)
    elif outcome.delay_ms < delay_ms:
        outcome = _decide(engine, topic, record, rule, reason, now_ms, delay_ms=delay_ms)
    _end(engine, session, topic, outcome, now_ms, error)
    return outcome.state == State.BURIED or bool(outcome.target)


def give_back_call(
    engine: Engine, session: Session, job_id: int, now_ms: RequestMs, *, error: str = ""
) -> None:
    """Take back a job, ready again and its attempt not counted; `JobNotFound`.

    With an `error`, which it keeps, also `OutOfSpace`.
    """
    record = held(engine, session, job_id)
    topic = engine.store.topic_of(record)
    outcome = ended(record, Reason.UNDELIVERED, now_ms, State.READY)
    _end(engine, session, topic, outcome, now_ms, error)


# --- By time, and with its session ---------------------------------------------------------------


def expire(engine: Engine, job_id: int, now_ms: RequestMs, *, lease_fired: bool = False) -> None:
    """Take back a job whose ttr ran out; `lease_fired`: the wheel has dropped its entry."""
    store = engine.store
    record = store.jobs.get(job_id)
    assert record is not None
    topic = store.topic_of(record)
    if store.time_ms >= topic.roll_ms:
        store.roll(topic)
    store.counters.count(topic, Operation.TIMEOUT)
    # Counted from the deadline, not from now: when its slice comes makes no difference.
    deadline_ms = store.leases.sessions[job_id].deadlines[job_id]
    changed = expired_under(
        *(record, topic.policy, place_of(topic), deadline_ms),
        tick_ms=engine.tick_ms,
        begun_ms=store.leases.begun.get(job_id, 0),
    )
    here = store.put_back(job_id, record, changed, ended_ms=deadline_ms, lease_fired=lease_fired)
    _serve_both(engine, topic, here, now_ms)


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
    outcome = ended(record, reason, session.left_ms, State.READY)
    if reason is not Reason.UNDELIVERED:
        rule = _rule_under(topic, record)
        if rule is None:
            engine.write_promised(pack(Kind.RETURN, job_id))
            store.counters.count(topic, Operation.RETURN)
            serve(engine, apply.give_back(store, job_id), now_ms)
            return
        if topic.policy is not None and topic.policy.returns_on_close:
            outcome = outcome._replace(reason=Reason.EXCUSED)
        elif reason is Reason.HOLDER_LEFT:
            outcome = _decide(engine, topic, record, rule, reason, session.left_ms)
    _end(engine, session, topic, outcome, now_ms)
