"""The sum over all topics in steps, whose metrics have a name, and what is told of topics."""

from bisect import bisect_left

import pytest

from delayd.core.stats.histogram import Histogram, Longest
from delayd.core.stats.refusals import OTHER_REASONS, Refusals
from delayd.core.stats.totals import TotalsScan
from delayd.core.topic import Topic
from delayd.limits import (
    HISTOGRAM_FRESH_MAX,
    LONGEST_CELL_NS,
    LONGEST_CELLS,
    REFUSAL_REASONS_MAX,
    TOPIC_SWAPS_MAX,
    TOPICS_SHOWN_MAX,
)
from tests.core import views
from tests.core.check import check
from tests.rigs.engine import EngineRig


def taken(rig: EngineRig, step: int = 1_000_000) -> TotalsScan:
    scan = TotalsScan(rig.engine.store)
    while not scan.step(step):
        pass
    return scan


def crowd(rig: EngineRig, topics: int, jobs: int = 1) -> list[Topic]:
    """So many topics with so many ready jobs each."""
    for number in range(topics):
        rig.put_many(jobs, f"topic-{number}")
    return [rig.topic(f"topic-{number}") for number in range(topics)]


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_a_scan_counts_every_job_once_however_long_its_steps(step: int) -> None:
    rig = EngineRig(time_ms=1_000_000)
    session = rig.client("topic-3", "topic-4")
    crowd(rig, TOPICS_SHOWN_MAX + 50, jobs=2)
    for delay_ms in (100, 5_000):
        rig.put("topic-3", delay_ms=delay_ms, priority=5_000)
    job_id = rig.reserve(session)
    rig.bury(session, job_id)
    rig.reserve(session)
    rig.play(rig.time_ms + 1_000)
    scan = taken(rig, step)
    expected = views.totals(rig.engine)
    sums = scan.all
    counted = (sums.urgent, sums.ready, sums.reserved, sums.delayed, sums.buried)
    assert counted == expected[:5]
    assert (
        sums.topics == len(rig.engine.store.topics.listing) == len(scan.shown) + scan.others.topics
    )
    assert sums.oldest_ms is not None
    assert 1_000_000 <= sums.oldest_ms < 1_000_128


def test_topics_that_come_and_go_between_steps_do_no_harm(rig: EngineRig) -> None:
    crowd(rig, 30)
    scan = TotalsScan(rig.engine.store)
    scan.step(10)
    session = rig.client(*(f"topic-{number}" for number in range(20, 30)))
    rig.delete_batch(session, rig.reserve_all(session))
    rig.close(session)
    rig.put("late")
    assert scan.step(1_000)
    assert scan.all.topics == 31
    assert scan.all.ready == 20


# --- Who has a name ------------------------------------------------------------------------------


def test_so_many_topics_have_a_name_and_no_more(rig: EngineRig) -> None:
    topics = crowd(rig, TOPICS_SHOWN_MAX + 10)
    # One of them is `default`, which is always there.
    assert sum(topic.has_own_metrics for topic in topics) == TOPICS_SHOWN_MAX - 1
    assert rig.engine.store.topics.shown == TOPICS_SHOWN_MAX
    assert len(taken(rig).shown) == TOPICS_SHOWN_MAX


def test_a_topic_that_vanishes_leaves_its_name_to_the_next(rig: EngineRig) -> None:
    topics = crowd(rig, TOPICS_SHOWN_MAX + 10)
    session = rig.client("topic-0")
    rig.delete(session, rig.reserve(session))
    rig.close(session)
    assert "topic-0" not in rig.engine.store.topics.by_name
    rig.put("new")
    assert rig.topic("new").has_own_metrics
    assert not topics[-1].has_own_metrics
    check(rig.engine)


def test_a_topic_that_becomes_much_busier_takes_the_place_of_the_idlest(rig: EngineRig) -> None:
    topics = crowd(rig, TOPICS_SHOWN_MAX + 40, jobs=2)
    busy = topics[-1]
    rig.put_many(50, busy.name)
    assert busy not in taken(rig).shown, "names change between scans, never within one"
    scan = taken(rig)
    assert busy in scan.shown
    assert len(scan.shown) == TOPICS_SHOWN_MAX
    check(rig.engine)


def test_names_do_not_change_hands_for_little(rig: EngineRig) -> None:
    topics = crowd(rig, TOPICS_SHOWN_MAX + 40, jobs=4)
    for topic in topics[-40:]:
        rig.put(topic.name)
    taken(rig)  # `default`, which nobody uses, makes way for one of them
    shown = taken(rig).shown
    for _ in range(5):
        assert taken(rig).shown == shown


def test_only_so_many_names_change_hands_at_once(rig: EngineRig) -> None:
    topics = crowd(rig, TOPICS_SHOWN_MAX + 40)
    for topic in topics[-40:]:
        rig.put_many(20, topic.name)
    before = set(taken(rig).shown)
    after = set(taken(rig).shown)
    assert len(after - before) == TOPIC_SWAPS_MAX


def test_what_is_counted_is_counted_for_the_others_only_without_a_name() -> None:
    rig = EngineRig(time_ms=1_000_000)
    topics = crowd(rig, TOPICS_SHOWN_MAX + 1)
    counters = rig.engine.store.counters
    rig.reserve(rig.client(topics[0].name))
    assert not any(counters.others_waited)
    rig.reserve(rig.client(topics[-1].name))
    assert sum(counters.others_waited) == 1
    assert sum(topics[-1].waited) == 1


# --- Other counts --------------------------------------------------------------------------------


def test_reasons_of_refusals_are_bounded() -> None:
    refusals = Refusals()
    for number in range(REFUSAL_REASONS_MAX + 50):
        refusals.note(f"REASON_{number}", 2)
    assert len(refusals.by_reason) == REFUSAL_REASONS_MAX + 1
    assert refusals.by_reason[OTHER_REASONS] == 100
    assert refusals.by_reason["REASON_0"] == 2


def test_however_many_values_are_noted_each_is_counted_once() -> None:
    histogram, bounds = Histogram((10, 20)), (10, 20)
    counts = [0, 0, 0]
    for number in range(3 * HISTOGRAM_FRESH_MAX + 5):
        value = number * 7_919 % 31
        histogram.note(value)
        counts[bisect_left(bounds, value)] += 1
        assert len(histogram._fresh) < HISTOGRAM_FRESH_MAX
        if number % 100 == 0:
            assert histogram.counts[:-1] == counts
    assert (histogram.counts[:-1], sum(counts)) == (counts, number + 1)
    assert histogram.counts[-1] == sum(number * 7_919 % 31 for number in range(number + 1))


def test_the_longest_is_forgotten_after_a_minute() -> None:
    longest = Longest()
    assert longest.within(5 * LONGEST_CELL_NS) == 0
    longest.note(9, 5 * LONGEST_CELL_NS)
    longest.note(7, 5 * LONGEST_CELL_NS + 1)
    assert longest.within((5 + LONGEST_CELLS - 1) * LONGEST_CELL_NS) == 9
    assert longest.within((5 + LONGEST_CELLS) * LONGEST_CELL_NS) == 0
    longest.note(3, (5 + LONGEST_CELLS) * LONGEST_CELL_NS)
    assert longest.within((5 + LONGEST_CELLS) * LONGEST_CELL_NS) == 3
