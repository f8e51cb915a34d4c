"""A job and a topic as `stats-job` and `stats-tube` show them, for tests to compare."""

from collections.abc import Iterator
from typing import NamedTuple

from delayd.core.engine import Engine
from delayd.core.job_parts import (
    Failure,
    Retry,
    attempts_of,
    failure_of,
    key_of,
    note_of,
    retry_of,
    tally_of,
)
from delayd.core.job_record import HEADER, State
from delayd.core.operations.checks import topic_named
from delayd.core.operations.tick import caught_up
from delayd.core.store import Store
from delayd.core.times import RequestMs
from delayd.core.transitions import renumbered


class JobView(NamedTuple):
    """One job; times in milliseconds."""

    job_id: int
    topic: str
    state: State
    priority: int
    age_ms: int
    delay_ms: int
    ttr_ms: int
    left_ms: int
    """Until the delay or the reservation ends; 0 in other states."""
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int


class TopicView(NamedTuple):
    """One topic; times in milliseconds."""

    name: str
    urgent: int
    ready: int
    reserved: int
    delayed: int
    buried: int
    jobs_put: int
    using: int
    watching: int
    waiting: int
    deletes: int
    pauses: int
    pause_ms: int
    pause_left_ms: int


class JobDetails(NamedTuple):
    """One job; its attempts count since it was put, moved or revived."""

    key: str
    retry: Retry | None
    """Its own rule."""
    attempts: int
    failure: Failure | None
    origin: str
    """The topic that it was moved from."""
    error: str


def view_job(engine: Engine, job_id: int, now_ms: RequestMs) -> JobView:
    """Return everything about a job except its body; `JobNotFound`."""
    record, state = caught_up(engine, job_id, now_ms)
    _, due_ms, created_ms, ttr_ms, priority, number, _, _ = HEADER.unpack_from(record)
    tally = tally_of(record)
    in_hand = int(state is State.RESERVED)
    if in_hand:
        left_ms = engine.store.leases.sessions[job_id].deadlines[job_id] - now_ms
    else:
        left_ms = due_ms - now_ms if state is State.DELAYED else 0
    return JobView(
        job_id,
        engine.store.topics.by_number[number].name,
        state,
        priority,
        max(0, now_ms - created_ms),
        tally.delay_ms,
        ttr_ms,
        max(0, left_ms),
        tally.reserves + in_hand,
        tally.timeouts,
        tally.releases,
        tally.buries,
        tally.kicks,
    )


def view_topic(engine: Engine, name: str, now_ms: RequestMs) -> TopicView:
    """Return the counters of a topic; `TopicNotFound`, `TopicNameInvalid`."""
    topic = topic_named(engine, name)
    until_ms = topic.paused_until_ms
    return TopicView(
        topic.name,
        topic.queues.ready.urgent,
        len(topic.queues.ready),
        topic.reserved,
        topic.delayed,
        len(topic.queues.buried),
        topic.jobs_put,
        topic.users,
        topic.clients_watching,
        len(topic.clients_waiting),
        topic.deletes,
        topic.pauses,
        topic.pause_ms,
        0 if until_ms is None else max(0, until_ms - now_ms),
    )


def job_details(engine: Engine, job_id: int, now_ms: RequestMs) -> JobDetails:
    """Return what beanstalkd does not know of a job; `JobNotFound`."""
    record, state = caught_up(engine, job_id, now_ms)
    note = note_of(record)
    return JobDetails(
        key_of(record).decode(),
        retry_of(record),
        attempts_of(record) + (state is State.RESERVED),
        failure_of(record),
        "" if note is None else note.origin,
        "" if note is None else note.error,
    )


def totals(engine: Engine) -> tuple[int, ...]:
    """Count the jobs that are urgent, ready, reserved, delayed, buried, and that were put."""
    topics = engine.store.topics.listing
    return (
        sum(topic.queues.ready.urgent for topic in topics),
        sum(len(topic.queues.ready) for topic in topics),
        sum(topic.reserved for topic in topics),
        sum(topic.delayed for topic in topics),
        sum(len(topic.queues.buried) for topic in topics),
        engine.store.counters.jobs_put,
    )


def live_jobs(store: Store) -> Iterator[tuple[int, bytes]]:
    """Yield (id, record), with the present topic number in the records of reserved jobs."""
    for job_id, record in store.jobs:
        if job_id in store.leases.sessions:
            yield job_id, renumbered(record, store.topic_of(record).number)
        elif not store.cleared.has(record):
            yield job_id, record
