"""How a topic and the daemon are doing, as plain values for whoever shows them.

    topic_figures(topic, now_ms)             one topic: 20 µs
    daemon_figures(engine, census, now_ms)   all of them, once a census of them has been taken

What was counted was counted since the start of the daemon. Rates are those of the last minute.
"""

from typing import NamedTuple

from delayd.core.engine import Engine
from delayd.core.policy import Policy
from delayd.core.stats.latency import SUM_AT, Histogram, count_of, quantile_ms
from delayd.core.stats.operations import Operation
from delayd.core.stats.totals import TotalsScan
from delayd.core.throttle import Block
from delayd.core.topic import Source, Topic
from delayd.core.views import CapUsage, usage


class Counts(NamedTuple):
    """Jobs by state."""

    ready: int
    urgent: int
    """Of the ready: with a priority below 1,024."""
    reserved: int
    delayed: int
    buried: int


class Speeds(NamedTuple):
    """Jobs a second, in the last minute."""

    put: float
    reserved: float
    deleted: float


class Lateness(NamedTuple):
    """How long something took, over all jobs; milliseconds, None when there were none."""

    jobs: int
    mean_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


class TopicFigures(NamedTuple):
    """One topic; times in milliseconds."""

    name: str
    counts: Counts
    jobs: int
    record_bytes: int
    """What counts against a cap on bytes."""
    using: int
    watching: int
    waiting: int
    blocks: tuple[str, ...]
    """Why nothing is handed out: paused, full (of jobs in hand), slow (its rate is used up)."""
    pause_ms: int
    """How long it was paused for; 0 when it is not."""
    pause_left_ms: int
    operations: dict[str, int]
    rates: Speeds
    oldest_ready_age_ms: int | None
    """How long the oldest ready job has been ready, at least; exact to 128 ms or a 64th."""
    due_to_ready: Lateness
    """How late delays ended."""
    ready_to_reserved: Lateness
    """How long jobs were ready until they were reserved."""
    policy: Policy | None
    policy_source: Source


class DaemonFigures(NamedTuple):
    """All topics together; times in milliseconds."""

    topics: int
    counts: Counts
    usage: CapUsage
    operations: dict[str, int]
    rates: Speeds
    oldest_ready_age_ms: int | None
    draining: bool


def lateness_of(histogram: Histogram) -> Lateness:
    """Return what a histogram says."""
    jobs = count_of(histogram)
    mean_ms = histogram[SUM_AT] / jobs if jobs else None
    return Lateness(jobs, mean_ms, *(quantile_ms(histogram, share) for share in (0.5, 0.9, 0.99)))


def age_ms(oldest_ms: int | None, now_ms: int) -> int | None:
    """Return how old that is."""
    return None if oldest_ms is None else max(0, now_ms - oldest_ms)


def topic_operations(topic: Topic) -> dict[str, int]:
    """Return how often what has happened to jobs of the topic."""
    counted = topic.operations or [0] * len(Operation)
    return _named((topic.jobs_put, topic.reserves, topic.deletes), counted)


def daemon_operations(engine: Engine) -> dict[str, int]:
    """Return how often what has happened to jobs of all topics, also of those that are gone."""
    store, counters = engine.store, engine.store.counters
    return _named((store.jobs_put, counters.reserves, counters.deletes), counters.operations)


def _named(apart: tuple[int, int, int], counted: list[int]) -> dict[str, int]:
    numbers = (*apart, *counted[len(apart) :])
    return {operation.word: numbers[operation] for operation in Operation}


def topic_figures(topic: Topic, now_ms: int) -> TopicFigures:
    """Return all there is to say of a topic."""
    until_ms = topic.paused_until_ms
    apart = (topic.jobs_put, topic.reserves, topic.deletes)
    rates = Speeds(0.0, 0.0, 0.0)
    if topic.rates is not None:
        rates = Speeds(*topic.rates.per_s(now_ms, apart))
    return TopicFigures(
        name=topic.name,
        counts=Counts(
            len(topic.queues.ready),
            topic.queues.urgent,
            topic.reserved,
            topic.delayed,
            len(topic.queues.buried),
        ),
        jobs=topic.jobs,
        record_bytes=topic.bytes,
        using=topic.users,
        watching=topic.clients_watching,
        waiting=len(topic.clients_waiting),
        blocks=tuple((block.name or "").lower() for block in Block if topic.blocks & block),
        pause_ms=topic.pause_ms,
        pause_left_ms=0 if until_ms is None else max(0, until_ms - now_ms),
        operations=topic_operations(topic),
        rates=rates,
        oldest_ready_age_ms=age_ms(topic.queues.ages.oldest_ms(), now_ms)
        if topic.queues.ready
        else None,
        due_to_ready=lateness_of(topic.overdue),
        ready_to_reserved=lateness_of(topic.waited),
        policy=topic.policy,
        policy_source=topic.policy_source,
    )


def daemon_figures(engine: Engine, census: TotalsScan, now_ms: int) -> DaemonFigures:
    """Return all there is to say of all topics together, by a census that is over."""
    assert census.is_over, "what is summed is not all"
    store, sums = engine.store, census.all
    apart = (store.jobs_put, store.counters.reserves, store.counters.deletes)
    return DaemonFigures(
        topics=sums.topics,
        counts=Counts(sums.ready, sums.urgent, sums.reserved, sums.delayed, sums.buried),
        usage=usage(engine),
        operations=daemon_operations(engine),
        rates=Speeds(*store.counters.rates.per_s(now_ms, apart)),
        oldest_ready_age_ms=age_ms(sums.oldest_ms, now_ms),
        draining=engine.draining,
    )
