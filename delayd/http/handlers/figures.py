"""The figures of a topic and of the daemon, as answers have them.

Times are in seconds, rates in jobs a second. Counters and what took how long begin with the start
of the daemon; rates and lateness are those of the last minute.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from delayd.core.engine import Engine
from delayd.core.policy import NO_POLICY
from delayd.core.stats.figures import (
    age_ms,
    daemon_operations,
    daemon_rates,
    late_lately,
    oldest_ready_ms,
    topic_operations,
    topic_rates,
    window_ms,
)
from delayd.core.stats.histogram import count_of, quantile_ms, sum_ms
from delayd.core.stats.history import Minute
from delayd.core.stats.totals import TotalsScan
from delayd.core.stats.trouble import trouble_of
from delayd.core.throttle import Block, PushBlock
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.http import answer_forms
from delayd.http.values import UNSET
from delayd.moments import moment_text

if TYPE_CHECKING:
    from delayd.schedules.schedules import Schedules


def _seconds(duration_ms: float | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1_000


def _lateness(histogram: Sequence[float]) -> answer_forms.LatenessAnswer:
    jobs = round(count_of(histogram))
    if not jobs:
        return answer_forms.LatenessAnswer(jobs=0, mean=None, p50=None, p90=None, p99=None)
    p50, p90, p99 = (_seconds(quantile_ms(histogram, share)) for share in (0.5, 0.9, 0.99))
    mean = _seconds(sum_ms(histogram) / count_of(histogram))
    return answer_forms.LatenessAnswer(jobs=jobs, mean=mean, p50=p50, p90=p90, p99=p99)


def _rates(engine: Engine, rates: Sequence[float], now_ms: int) -> answer_forms.RatesAnswer:
    put, reserved, deleted, failed = rates
    window_s = window_ms(engine, now_ms) / 1_000
    return answer_forms.RatesAnswer(
        put=put, reserved=reserved, deleted=deleted, failed=failed, window=window_s
    )


def _use(in_use: int, cap: int | None) -> answer_forms.UseAnswer:
    return answer_forms.UseAnswer(in_use=in_use, max=cap)


def topic_counts(
    engine: Engine, topic: Topic, now_ms: RequestMs, paused_until: str | None
) -> answer_forms.TopicCountsAnswer:
    """Return a topic's jobs by state, and how it is doing. About 30 µs."""
    ready_age_ms = age_ms(oldest_ready_ms(topic), now_ms)
    rates = topic_rates(engine, topic, now_ms)
    _put, reserved, _deleted, failed = rates
    trouble = trouble_of(topic, ready_age_ms, reserved, failed)
    return answer_forms.TopicCountsAnswer(
        name=topic.name,
        jobs=topic.jobs,
        delayed=topic.delayed,
        ready=len(topic.queues.ready),
        reserved=topic.reserved,
        buried=len(topic.queues.buried),
        urgent=topic.queues.ready.urgent,
        waiting=len(topic.clients_waiting),
        paused_until=paused_until,
        oldest_ready_age=_seconds(ready_age_ms),
        trouble=None if trouble is None else trouble.value,
        rates=_rates(engine, rates, now_ms),
        late=_lateness(late_lately(topic, now_ms)),
        groups=topic.queues.ready.group_count or UNSET,
    )


def topic_answer(
    topic: Topic,
    counts: answer_forms.TopicCountsAnswer,
    policy: answer_forms.PolicyOfTopicAnswer,
    push_blocks: Iterable[PushBlock],
) -> answer_forms.TopicAnswer:
    """Return everything about a topic."""
    caps = topic.policy or NO_POLICY
    blocks = topic.blocks if len(topic.queues.ready) else topic.blocks & ~Block.HELD
    return answer_forms.TopicAnswer(
        **msgspec.structs.asdict(counts),
        using=topic.users,
        watching=topic.clients_watching,
        blocks=[
            *((block.name or "").lower() for block in Block if blocks & block),
            *(block.value for block in push_blocks),
        ],
        due_to_ready=_lateness(topic.overdue),
        ready_to_reserved=_lateness(topic.waited),
        operations=topic_operations(topic),
        usage=answer_forms.TopicUsageAnswer(
            jobs=_use(topic.jobs, caps.jobs_max),
            bytes=_use(topic.bytes, caps.bytes_max),
            reserved=_use(topic.reserved, caps.reserved_max),
        ),
        policy=policy.policy,
        policy_tag=policy.policy_tag,
        source=policy.source,
    )


def minute_answer(minute: Minute, offset_ms: int) -> answer_forms.MinuteAnswer:
    """Return the figures of a minute; the wall clock is so far ahead of delayd time."""
    put, reserved, deleted, failed = minute.counted
    return answer_forms.MinuteAnswer(
        from_=moment_text(minute.from_ms + offset_ms),
        put=put,
        reserved=reserved,
        deleted=deleted,
        failed=failed,
        late_p50=_seconds(minute.late_p50_ms),
        late_p99=_seconds(minute.late_p99_ms),
    )


def schedules_answer(schedules: "Schedules | None") -> answer_forms.SchedulesAnswer:
    """Return the totals of the schedules; None: there were none yet."""
    if schedules is None:
        return answer_forms.SchedulesAnswer(
            active=0, paused=0, over=0, runs=0, missed=0, skipped=0, refused=0, late=0
        )
    totals = schedules.book.totals
    counts = totals.by_event
    return answer_forms.SchedulesAnswer(runs=counts.pop("put"), **totals.by_state, **counts)


def stats_answer(
    beside_jobs: Mapping[str, Any],
    http: answer_forms.HttpAnswer,
    engine: Engine,
    scan: TotalsScan,
    schedules: "Schedules | None",
    now_ms: RequestMs,
) -> answer_forms.StatsAnswer:
    """Return everything about the daemon, by a finished scan; `beside_jobs` is the service's."""
    assert scan.is_over, "the sums are not complete"
    sums = scan.all
    return answer_forms.StatsAnswer(
        **beside_jobs,
        http=http,
        draining=engine.draining,
        topics=sums.topics,
        jobs=msgspec.convert(sums, answer_forms.JobCountsAnswer, from_attributes=True),
        oldest_ready_age=_seconds(age_ms(sums.oldest_ms, now_ms)),
        rates=_rates(engine, daemon_rates(engine, now_ms), now_ms),
        late=_lateness(late_lately(engine.store.counters, now_ms)),
        operations=daemon_operations(engine),
        usage=answer_forms.DaemonUsageAnswer(
            jobs=_use(engine.log_space.jobs, engine.jobs_max),
            bytes=_use(engine.record_bytes, engine.bytes_max),
        ),
        schedules=schedules_answer(schedules),
        body_bytes_max=engine.body_bytes_max,
    )
