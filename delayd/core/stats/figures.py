"""How a topic and the daemon are doing: operations, rates, ages, as plain values.

Operations are counted since the start of the daemon. Rates are those of the last minute, or since
the start if that was later.
"""

from delayd.core.engine import Engine
from delayd.core.stats.counters import RATES, Counters, Operation, counts_of
from delayd.core.stats.history import Minute
from delayd.core.topic import Topic
from delayd.limits import RATE_WINDOW_MS, RATE_WINDOW_MS_MIN


def begin_figures(engine: Engine) -> None:
    """Count from zero: what was counted so far was the past. O(topics)."""
    store = engine.store
    store.counters = Counters(store.time_ms)
    store.wheel_counts.cascaded = 0
    for topic in store.topics.listing:
        topic.begin_figures()
        topic.queues.ready.ages.tidy()


def age_ms(oldest_ms: int | None, now_ms: int) -> int | None:
    """Return how old that is."""
    return None if oldest_ms is None else max(0, now_ms - oldest_ms)


def oldest_ready_ms(topic: Topic) -> int | None:
    """Return when the oldest ready job became ready, at the latest; None when none is ready.

    Exact to 128 ms or a 64th of its age.
    """
    return topic.queues.ready.ages.oldest_ms() if topic.queues.ready.count else None


def topic_operations(topic: Topic) -> dict[str, int]:
    """Return how often each operation has happened to jobs of the topic."""
    counted = topic.operations or [0] * len(Operation)
    return _named((topic.jobs_put, topic.reserves, topic.deletes), counted)


def daemon_operations(engine: Engine) -> dict[str, int]:
    """Return the same for all topics, also those that are gone."""
    counters = engine.store.counters
    return _named((counters.jobs_put, counters.reserves, counters.deletes), counters.operations)


def _named(apart: tuple[int, int, int], counted: list[int]) -> dict[str, int]:
    numbers = (*apart, *counted[len(apart) :])
    return {operation.word: numbers[operation] for operation in Operation}


def window_ms(engine: Engine, now_ms: int) -> int:
    """Return how long the time is that rates are of: a minute, or less after the start."""
    running_ms = now_ms - engine.store.counters.history.start_ms
    return min(RATE_WINDOW_MS, max(RATE_WINDOW_MS_MIN, running_ms))


def topic_rates(engine: Engine, topic: Topic, now_ms: int) -> tuple[float, ...]:
    """Return how many jobs of the topic are put, reserved and deleted, and fail, a second."""
    if topic.rates is None:
        return (0.0,) * RATES
    return _per_s(engine, topic.rates.counted(now_ms, counts_of(topic)), now_ms)


def daemon_rates(engine: Engine, now_ms: int) -> tuple[float, ...]:
    """Return the same of all topics."""
    counters = engine.store.counters
    return _per_s(engine, counters.rates.counted(now_ms, counts_of(counters)), now_ms)


def _per_s(engine: Engine, counted: list[float], now_ms: int) -> tuple[float, ...]:
    window_s = window_ms(engine, now_ms) / 1_000
    return tuple(jobs / window_s for jobs in counted)


def late_lately(of: Topic | Counters, now_ms: int) -> list[float]:
    """Return the histogram of how late delays ended in the last minute; empty: none has."""
    return [] if of.late is None else of.late.counted(now_ms, of.overdue)


def daemon_history(engine: Engine, minutes: int) -> list[Minute]:
    """Return what has happened in each of so many minutes and in this one, the oldest first."""
    counters = engine.store.counters
    return counters.history.last(minutes, counts_of(counters), counters.overdue)
