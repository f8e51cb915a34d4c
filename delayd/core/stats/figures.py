"""How a topic and the daemon are doing: operations, rates, ages, as plain values.

Operations are counted since the start of the daemon. Rates are those of the last minute.
"""

from delayd.core.engine import Engine
from delayd.core.stats.counters import Counters, Operation
from delayd.core.stats.history import Cell
from delayd.core.topic import Topic


def begin_figures(engine: Engine) -> None:
    """Count from zero: what was counted so far was the past. O(topics)."""
    store = engine.store
    store.counters = Counters()
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


def topic_rates(topic: Topic, now_ms: int) -> tuple[float, float, float]:
    """Return how many jobs of the topic are put, reserved and deleted a second."""
    if topic.rates is None:
        return 0.0, 0.0, 0.0
    return topic.rates.per_s(now_ms, (topic.jobs_put, topic.reserves, topic.deletes))


def daemon_rates(engine: Engine, now_ms: int) -> tuple[float, float, float]:
    """Return the same of all topics."""
    counters = engine.store.counters
    return counters.rates.per_s(now_ms, (counters.jobs_put, counters.reserves, counters.deletes))


def daemon_history(engine: Engine) -> list[Cell]:
    """Return what has happened in each minute of the last hour, the oldest first."""
    counters = engine.store.counters
    counts = (counters.jobs_put, counters.reserves, counters.deletes, counters.attempts_failed)
    return counters.history.cells(counts, counters.overdue)
