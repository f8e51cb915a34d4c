"""The minutes of the last day."""

import pytest

from delayd.core.operations.tick import reach
from delayd.core.stats.figures import daemon_history
from delayd.core.times import PlayedMs
from delayd.limits import HISTORY_MINUTES_MAX, MINUTE_MS
from tests.rigs.engine import EngineRig

START_MS = 60_000_000


@pytest.fixture
def rig() -> EngineRig:
    """An engine that starts with a minute of the clock."""
    return EngineRig(time_ms=START_MS)


def minutes(rig: EngineRig, count: int = HISTORY_MINUTES_MAX) -> dict[int, tuple[int, ...]]:
    """What was counted, by the minute since the start."""
    told = daemon_history(rig.engine, count)
    return {(minute.from_ms - START_MS) // MINUTE_MS: minute.counted for minute in told}


def test_jobs_that_come_due_while_nobody_asks_are_counted_in_their_minute(rig: EngineRig) -> None:
    for second in range(130):
        rig.put(delay_ms=1_000 * second + 500)
    for second in range(131):
        rig.play(START_MS + 1_000 * second)
    late = [minute.late_p50_ms is not None for minute in daemon_history(rig.engine, 60)]
    assert late == [True, True, True]
    topic, session = rig.topic(), rig.client()
    assert topic.queues.ready.count == 130
    rig.reserve_all(session)
    assert minutes(rig) == {0: (130, 0, 0, 0), 1: (0, 0, 0, 0), 2: (0, 130, 0, 0)}


def test_a_minute_begins_with_the_clock_and_not_with_the_next_client(rig: EngineRig) -> None:
    rig.put()
    rig.play(START_MS + 59_999)
    rig.put()
    rig.play(START_MS + 60_000)
    rig.put("other")
    rig.reserve(rig.client("other", "default"))
    rig.play(START_MS + 120_000)  # its ttr runs out
    assert minutes(rig) == {0: (2, 0, 0, 0), 1: (1, 1, 0, 0), 2: (0, 0, 0, 1)}


def test_the_first_minute_begins_with_the_daemon(rig: EngineRig) -> None:
    rig.play(START_MS + 45_000)
    rig.restart()
    rig.put()
    rig.play(START_MS + 61_000)
    begins = [minute.from_ms - START_MS for minute in daemon_history(rig.engine, 60)]
    assert begins == [45_000, 60_000]
    assert rig.engine.store.counters.history.start_ms == START_MS + 45_000


DAY = HISTORY_MINUTES_MAX


@pytest.mark.parametrize("idle", [2, DAY - 1, DAY, DAY + 1, DAY + 2, 1_000_000])
def test_minutes_in_which_nothing_is_done_are_there_and_at_most_a_day_of_them(
    rig: EngineRig, idle: int
) -> None:
    rig.put()
    reach(rig.engine, PlayedMs(START_MS + idle * MINUTE_MS + 7))
    rig.put()
    told = minutes(rig)
    assert [*told] == [*range(max(0, idle - DAY), idle + 1)]
    assert told[idle] == (1, 0, 0, 0)
    assert sum(counted[0] for counted in told.values()) == 1 + (idle <= DAY)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_so_many_minutes_are_told_and_the_one_that_is_not_over(rig: EngineRig, count: int) -> None:
    rig.play(START_MS + 3 * MINUTE_MS)
    assert [*minutes(rig, count)] == [*range(max(0, 3 - count), 4)]
