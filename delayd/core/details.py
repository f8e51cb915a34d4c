"""What there is to say of jobs and topics beyond what beanstalkd knows: keys, failures, caps.

Like `core.views`, nothing here is journaled or alters anything. Of a job without key, retry rule
and failure, and of a topic without a policy, there is nothing to say.
"""

from typing import Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.job import (
    FLAGS_AT,
    Failure,
    Flag,
    Retry,
    State,
    attempts_of,
    failure_of,
    key_of,
    note_of,
    retry_of,
)
from delayd.core.policy import Policy
from delayd.core.topic import Source

_TOLD: Final = int(Flag.KEY | Flag.RETRY | Flag.FAILURE | Flag.NOTE)


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


class Usage(NamedTuple):
    """What all topics hold together, and the caps on it; None: there is none."""

    jobs: int
    record_bytes: int
    jobs_max: int | None
    bytes_max: int | None


def usage(engine: Engine) -> Usage:
    """Return how near the daemon is to its caps. O(1)."""
    return Usage(engine.room.jobs, engine.record_bytes, engine.jobs_max, engine.bytes_max)


def job_details(engine: Engine, job_id: int, now_ms: int) -> JobDetails | None:
    """Return what there is to say of a job, None for nothing; `JobNotFound`."""
    record, state = engine.settled(job_id, now_ms)
    if not record[FLAGS_AT] & _TOLD:
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
    """Return what there is to say of a topic, None for nothing."""
    topic = engine.store.topics.by_name.get(name)
    if topic is None or topic.policy is None:
        return None
    return TopicDetails(topic.policy, topic.policy_source, topic.jobs, topic.bytes)
