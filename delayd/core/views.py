"""Looking at jobs and topics without changing them: peeks, statistics.

Nothing here is journaled or changes what a client could see. Times are as of `now_ms`. The views
have what beanstalkd has too; keys, failures, policies and caps are in the details, which a job or
topic may lack.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, TopicNotFound
from delayd.core.job import (
    FLAGS_AT,
    HEADER,
    Failure,
    Flag,
    Retry,
    State,
    attempts_of,
    body_of,
    failure_of,
    key_of,
    note_of,
    retry_of,
    tally_of,
)
from delayd.core.names import checked_name
from delayd.core.operations.clock import caught_up
from delayd.core.policy import Policy
from delayd.core.queues import job_id_of
from delayd.core.session import Handed
from delayd.core.store import Store
from delayd.core.topic import Source, Topic, head_key
from delayd.core.transitions import renumbered

_DETAILED: Final = int(Flag.KEY | Flag.RETRY | Flag.FAILURE | Flag.NOTE)


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


class Totals(NamedTuple):
    """The jobs of all topics, by state."""

    urgent: int
    ready: int
    reserved: int
    delayed: int
    buried: int
    jobs_put: int


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


class TopicDetails(NamedTuple):
    """One topic that has a policy, and how much of its caps is used."""

    policy: Policy
    source: Source
    jobs: int
    record_bytes: int


class CapUsage(NamedTuple):
    """The totals of all topics, and the caps on them; None: no cap."""

    jobs: int
    record_bytes: int
    jobs_max: int | None
    bytes_max: int | None


def view_job(engine: Engine, job_id: int, now_ms: int) -> JobView:
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


def view_topic(engine: Engine, name: str, now_ms: int) -> TopicView:
    """Return the counters of a topic; `TopicNotFound`, `TopicNameInvalid`."""
    topic = engine.store.topics.by_name.get(checked_name(name))
    if topic is None:
        raise TopicNotFound(name)
    until_ms = topic.paused_until_ms
    return TopicView(
        topic.name,
        topic.queues.urgent,
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


def usage(engine: Engine) -> CapUsage:
    """Return how near the daemon is to its caps. O(1)."""
    return CapUsage(engine.log_space.jobs, engine.record_bytes, engine.jobs_max, engine.bytes_max)


def job_details(engine: Engine, job_id: int, now_ms: int) -> JobDetails | None:
    """Return the details of a job, None if it has none; `JobNotFound`."""
    record, state = caught_up(engine, job_id, now_ms)
    if not record[FLAGS_AT] & _DETAILED:
        return None
    note = note_of(record)
    return JobDetails(
        key_of(record).decode(),
        retry_of(record),
        attempts_of(record) + (state is State.RESERVED),
        failure_of(record),
        "" if note is None else note.origin,
        "" if note is None else note.error,
    )


def topic_details(engine: Engine, name: str) -> TopicDetails | None:
    """Return the details of a topic, None if it has none."""
    topic = engine.store.topics.by_name.get(name)
    if topic is None or topic.policy is None:
        return None
    return TopicDetails(topic.policy, topic.policy_source, topic.jobs, topic.bytes)


def totals(engine: Engine) -> Totals:
    """Return the counts over all topics. O(topics)."""
    topics = engine.store.topics.listing
    return Totals(
        sum(topic.queues.urgent for topic in topics),
        sum(len(topic.queues.ready) for topic in topics),
        sum(topic.reserved for topic in topics),
        sum(topic.delayed for topic in topics),
        sum(len(topic.queues.buried) for topic in topics),
        engine.store.jobs_put,
    )


def peek(engine: Engine, job_id: int) -> Handed:
    """Return a job in whatever state, without reserving it; `JobNotFound`."""
    return job_id, body_of(live_record(engine.store, job_id))


def live_record(store: Store, job_id: int) -> bytes:
    """Return the record of a job as it is, caught up or not; `JobNotFound`."""
    record = store.jobs.get(job_id)
    if record is None or (
        store.cleared and job_id not in store.leases.sessions and store.is_cleared(record)
    ):
        raise JobNotFound(job_id)
    return record


def peek_ready(engine: Engine, topic: Topic) -> Handed | None:
    """Return the job that would be handed out next, paused or not."""
    return peek(engine, job_id_of(head_key(topic))) if topic.queues.ready else None


def peek_delayed(engine: Engine, topic: Topic) -> Handed | None:
    """Return the delayed job that comes due first. O(jobs in the first bucket of the wheel)."""
    soonest = topic.queues.delays.wheel.soonest(1)
    return peek(engine, soonest[0]) if soonest else None


def peek_buried(engine: Engine, topic: Topic) -> Handed | None:
    """Return the job that has been buried the longest."""
    return peek(engine, job_id_of(topic.queues.buried[0])) if topic.queues.buried else None


def live_jobs(store: Store) -> Iterator[tuple[int, bytes]]:
    """Yield (id, record), with the present topic number in the records of reserved jobs."""
    for job_id, record in store.jobs:
        if job_id in store.leases.sessions:
            yield job_id, renumbered(record, store.topic_of(record).number)
        elif not store.is_cleared(record):
            yield job_id, record
