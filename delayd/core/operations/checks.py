"""What operations check before they change anything: ranges, caps, the internal topics.

The daemon keeps jobs of its own in *internal topics*: HTTP its Idempotency-Keys in `$idempotency`,
and `delayd.schedules` each schedule in `$schedules`. They are readable by all and changed only by
the daemon: an Idempotency-Key that a client could kick, delete or reschedule would protect nothing,
since the same put, sent again, would make a second job.
The rule is the same on every wire, with tokens and without:

    require_writable(name)        for operations on a topic: watch, kick, pause, clear, policy
    require_writable_job(record)  for operations on one job, in `tick.job_for` and `delete`;
                                  runs of deletes use `is_write_protected`
    put_keyed, admit              for puts: the topic has rules (`Topics.mark_rules`), so that puts
                                  into other topics have nothing more to look at
    as_daemon()                   lifts the rule inside a block, for the owners of these jobs

Clients cannot watch it and so hold none of its jobs: operations of holders need no check.

A replay does not check: daemons before this rule allowed clients to change the topic.
`topics.reclaim` and `topics.lawful_policy` repair at the start what such clients have left.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from delayd.core.engine import Engine
from delayd.core.errors import (
    BodyTooBig,
    CapReached,
    DelayTooLong,
    Draining,
    PushIsOff,
    TargetRefused,
    TopicIsInternal,
    TopicNotFound,
    ValueOutOfRange,
)
from delayd.core.names import INTERNAL_TOPICS, checked_name
from delayd.core.targets import Target, pack_own
from delayd.core.topic import Topic
from delayd.limits import DURATION_MS_MAX, PRIORITY_MAX, TARGET_URL_BYTES_MAX, WALL_MS_MAX


def check_range(field: str, value: int, highest: int, lowest: int = 0) -> None:
    """Raise `ValueOutOfRange` unless the value is between these two, both included."""
    if not lowest <= value <= highest:
        raise ValueOutOfRange(field, value, lowest, highest)


def check_delay(topic: Topic, delay_ms: int, *, is_wall_time: bool = False) -> None:
    """Raise `DelayTooLong` if the topic's policy forbids such a long delay.

    `is_wall_time`: it was put for a wall-clock time, and it is that long until then.
    """
    policy = topic.policy
    if policy is not None and policy.delay_ms_max is not None and delay_ms > policy.delay_ms_max:
        raise DelayTooLong(delay_ms, policy.delay_ms_max, topic.name, is_moment=is_wall_time)


def topic_named(engine: Engine, name: str) -> Topic:
    """Return the topic; `TopicNotFound`, `TopicNameInvalid`."""
    topic = engine.store.topics.by_name.get(checked_name(name))
    if topic is None:
        raise TopicNotFound(name)
    return topic


def vet_put(
    engine: Engine,
    priority: int,
    delay_ms: int,
    ttr_ms: int,
    body_bytes: int,
    due_wall_ms: int | None = None,
) -> None:
    """Check a put as far as it does not depend on the topic; raise the refusal.

    The daemon's own jobs may be longer: that of a schedule has the body of its runs, and more.
    """
    if body_bytes > engine.body_bytes_max and not engine.acts_as_daemon:
        raise BodyTooBig(body_bytes, engine.body_bytes_max)
    if engine.draining:
        raise Draining
    check_range("priority", priority, PRIORITY_MAX)
    check_range("delay in ms", delay_ms, DURATION_MS_MAX)
    check_range("ttr in ms", ttr_ms, DURATION_MS_MAX)
    if due_wall_ms is not None:
        check_range("moment in ms", due_wall_ms, WALL_MS_MAX)


def admit(
    engine: Engine,
    topic: Topic,
    *,
    jobs: int,
    record_bytes: int,
    body_bytes: int,
    delay_ms: int,
    ttr_ms: int,
    at_once: bool = False,
    is_wall_time: bool = False,
) -> tuple[int, int]:
    """Return delay and ttr of jobs that are put to a topic with rules.

    `record_bytes` is the length of all their records, `body_bytes` the longest body; for an
    existing job `jobs` is 0 and `record_bytes` is how much longer its record gets. `at_once`: the
    policy's delay does not replace a delay of 0. `is_wall_time` as in `check_delay`. Raises
    `TopicIsInternal`, `BodyTooBig`, `DelayTooLong`, `CapReached`.
    """
    require_writable(engine, topic.name)
    policy = topic.policy
    if policy is not None:
        if policy.body_bytes_max is not None and body_bytes > policy.body_bytes_max:
            raise BodyTooBig(body_bytes, policy.body_bytes_max, topic.name)
        check_delay(topic, delay_ms, is_wall_time=is_wall_time)
        _check_cap("jobs_max", policy.jobs_max, topic.jobs, jobs, topic.name)
        _check_cap("bytes_max", policy.bytes_max, topic.bytes, record_bytes, topic.name)
        delay_ms = delay_ms or (0 if at_once else policy.delay_ms or 0)
        ttr_ms = ttr_ms or policy.ttr_ms or 0
    _check_cap("jobs_max", engine.jobs_max, engine.log_space.jobs, jobs)
    _check_cap("bytes_max", engine.bytes_max, engine.record_bytes, record_bytes)
    return delay_ms, ttr_ms


def _check_cap(
    name: str, cap: int | None, used: int, needed: int, topic: str | None = None
) -> None:
    """Raise `CapReached` if more is needed than the cap leaves; what needs nothing passes."""
    if cap is not None and needed > max(0, cap - used):
        raise CapReached(name, cap, used, topic, needed=needed)


def vetted_target(engine: Engine, target: Target, topic: str | None) -> Target:
    """Return the target of a push as it is to be kept; `TargetRefused`, `PushIsOff`.

    `topic` is the name of the one whose jobs go there; None: there is no such job.
    """
    if engine.vet_target is None:
        raise PushIsOff
    kept = engine.vet_target(target)
    if len(kept.url) > TARGET_URL_BYTES_MAX:  # a replay would not read it
        raise TargetRefused(
            "the url", f"has more than {TARGET_URL_BYTES_MAX} bytes when encoded", field="url"
        )
    if engine.vet_use is not None and topic is not None:
        engine.vet_use(kept, topic)
    return kept


def check_own_target(topic: Topic, target: bytes | None) -> None:
    """Raise `TargetRefused` if jobs of the topic go elsewhere than to targets of their own."""
    if target and topic.policy is not None and topic.policy.push is not None:
        raise TargetRefused("url", f"cannot be given: topic {topic.name!r} has a target")


def vetted_own(engine: Engine, target: Target, topic: str | None) -> bytes:
    """Return the own target of a job of that topic as its record has it; see `vetted_target`."""
    kept = vetted_target(engine, target, topic)
    return pack_own(kept.method, kept.url, kept.headers)


# --- The internal topics -------------------------------------------------------------------------


@contextmanager
def as_daemon(engine: Engine) -> Iterator[None]:
    """Allow changes of the internal topics inside the block."""
    engine.acts_as_daemon = True
    try:
        yield
    finally:
        engine.acts_as_daemon = False


def require_writable(engine: Engine, name: str) -> None:
    """Raise `TopicIsInternal` if that is an internal topic, and a client changes it."""
    if name in INTERNAL_TOPICS and not engine.acts_as_daemon:
        raise TopicIsInternal(name)


def is_write_protected(engine: Engine, record: bytes) -> bool:
    """Tell whether the job is in an internal topic, and a client changes it.

    Frequent operations test `topics.internal` before: 20 ns where there is none.
    """
    return not engine.acts_as_daemon and engine.store.topic_of(record).is_internal


def require_writable_job(engine: Engine, record: bytes) -> None:
    """Raise `TopicIsInternal` if the job is of an internal topic, and a client changes it."""
    if is_write_protected(engine, record):
        raise TopicIsInternal(engine.store.topic_of(record).name)
