"""The figures of a topic and of the daemon, as answers have them.

Times are in seconds, rates in jobs a second. What was counted was counted since the start of the
daemon; rates are those of the last minute.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from delayd.core.policy import Policy
from delayd.core.stats.figures import topic_figures
from delayd.http import structs

if TYPE_CHECKING:
    from delayd.core.stats.figures import DaemonFigures, Lateness
    from delayd.core.topic import Topic


def _seconds(duration_ms: float | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1_000


def _lateness(lateness: "Lateness") -> structs.LatenessAnswer:
    return structs.LatenessAnswer(
        jobs=lateness.jobs,
        mean=_seconds(lateness.mean_ms),
        p50=_seconds(lateness.p50_ms),
        p90=_seconds(lateness.p90_ms),
        p99=_seconds(lateness.p99_ms),
    )


def _use(in_use: int, cap: int | None) -> structs.UseAnswer:
    return structs.UseAnswer(in_use=in_use, max=cap)


def topic_answer(
    topic: "Topic",
    counts: structs.TopicCountsAnswer,
    policy: structs.PolicyOfTopicAnswer,
    now_ms: int,
) -> structs.TopicAnswer:
    """Return everything about a topic."""
    figures = topic_figures(topic, now_ms)
    caps = figures.policy or Policy()
    return structs.TopicAnswer(
        **msgspec.structs.asdict(counts),
        using=figures.using,
        watching=figures.watching,
        blocks=[*figures.blocks],
        oldest_ready_age=_seconds(figures.oldest_ready_age_ms),
        rates=structs.RatesAnswer(**figures.rates._asdict()),
        due_to_ready=_lateness(figures.due_to_ready),
        ready_to_reserved=_lateness(figures.ready_to_reserved),
        operations=figures.operations,
        usage=structs.TopicUsageAnswer(
            jobs=_use(figures.jobs, caps.jobs_max),
            bytes=_use(figures.record_bytes, caps.bytes_max),
            reserved=_use(figures.counts.reserved, caps.reserved_max),
        ),
        policy=policy.policy,
        source=policy.source,
    )


def stats_answer(
    beside_jobs: Mapping[str, Any],
    http: structs.HttpAnswer,
    figures: "DaemonFigures",
    body_bytes_max: int,
) -> structs.StatsAnswer:
    """Return everything about the daemon; `beside_jobs` is the service's part."""
    used = figures.usage
    return structs.StatsAnswer(
        **beside_jobs,
        http=http,
        draining=figures.draining,
        topics=figures.topics,
        jobs=structs.JobCountsAnswer(**figures.counts._asdict()),
        oldest_ready_age=_seconds(figures.oldest_ready_age_ms),
        rates=structs.RatesAnswer(**figures.rates._asdict()),
        operations=figures.operations,
        usage=structs.DaemonUsageAnswer(
            jobs=_use(used.jobs, used.jobs_max), bytes=_use(used.record_bytes, used.bytes_max)
        ),
        body_bytes_max=body_bytes_max,
    )
