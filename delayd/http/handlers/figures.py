"""How topics and the daemon are doing, as replies tell of it.

Times are in seconds, rates in jobs a second. What was counted was counted since the start of the
daemon; rates are those of the last minute.

>>> usage(3, None), usage(3, 10)
({'in_use': 3, 'max': None}, {'in_use': 3, 'max': 10})
"""

from typing import TYPE_CHECKING, Any

from delayd.core.policy import Policy

if TYPE_CHECKING:
    from delayd.core.stats.figures import DaemonFigures, Lateness, TopicFigures


def usage(in_use: int, cap: int | None) -> dict[str, int | None]:
    """Return how much of a cap is used; None: there is no cap."""
    return {"in_use": in_use, "max": cap}


def _seconds(duration_ms: float | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1_000


def lateness_member(lateness: "Lateness") -> dict[str, float | None]:
    """Return how long something took."""
    return {
        "jobs": lateness.jobs,
        "mean": _seconds(lateness.mean_ms),
        "p50": _seconds(lateness.p50_ms),
        "p90": _seconds(lateness.p90_ms),
        "p99": _seconds(lateness.p99_ms),
    }


def topic_member(figures: "TopicFigures") -> dict[str, Any]:
    """Return what there is to say of a topic beside its counts and its policy."""
    policy = figures.policy or Policy()
    return {
        "using": figures.using,
        "watching": figures.watching,
        "blocks": figures.blocks,
        "oldest_ready_age": _seconds(figures.oldest_ready_age_ms),
        "rates": figures.rates._asdict(),
        "due_to_ready": lateness_member(figures.due_to_ready),
        "ready_to_reserved": lateness_member(figures.ready_to_reserved),
        "operations": figures.operations,
        "usage": {
            "jobs": usage(figures.jobs, policy.jobs_max),
            "bytes": usage(figures.record_bytes, policy.bytes_max),
            "reserved": usage(figures.counts.reserved, policy.reserved_max),
        },
    }


def daemon_member(figures: "DaemonFigures") -> dict[str, Any]:
    """Return what there is to say of all topics together."""
    used = figures.usage
    return {
        "draining": figures.draining,
        "topics": figures.topics,
        "jobs": figures.counts._asdict(),
        "oldest_ready_age": _seconds(figures.oldest_ready_age_ms),
        "rates": figures.rates._asdict(),
        "operations": figures.operations,
        "usage": {
            "jobs": usage(used.jobs, used.jobs_max),
            "bytes": usage(used.record_bytes, used.bytes_max),
        },
    }
