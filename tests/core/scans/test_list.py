"""A search finds what looking at every job finds, whatever happens while it is under way."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from delayd.core.errors import TopicNameInvalid, TopicNotFound, ValueOutOfRange
from delayd.core.job_parts import Note
from delayd.core.job_record import State
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.scans import scan
from delayd.core.scans.list import Calendar, Cursor, Page, Row, Search
from delayd.core.scans.scan import Wanted
from delayd.limits import CALENDAR_BINS_MAX, SEARCH_JOBS_MAX
from tests.core import views
from tests.core.check import check
from tests.core.crowds import HOUR_MS, Crowd
from tests.core.views import job_details
from tests.rigs.engine import EngineRig


def page_of(rig: EngineRig, wanted: Wanted, limit: int = 10, after: Cursor | None = None) -> Page:
    search = Search(rig.engine, "default", wanted, limit, after)
    while not search.step(100, rig.now_ms):
        pass
    return search.page


def pages(crowd: Crowd, wanted: Wanted, limit: int, steps_max: int) -> list[Row]:
    """All pages one after the other, with things that happen between their steps."""
    rows: list[Row] = []
    after = None
    while True:
        search = Search(crowd.engine, crowd.topic, wanted, limit, after)
        for _ in crowd.carried_out(search, steps_max):
            pass
        keys = [(row.due_ms, row.job_id) for row in search.page.rows]
        assert keys == sorted(keys)
        assert after is None or not keys or keys[0] > after
        assert len(keys) <= limit
        rows += search.page.rows
        after = search.page.after
        if after is None:
            return rows
        assert not keys or keys[-1] <= after


@pytest.mark.parametrize("held_copied_max", [0, 16_384])
@pytest.mark.walk(2, 100)
def test_pages_put_together_are_all_that_is_wanted_in_due_order(
    number: int, held_copied_max: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "PASS_HELD_COPIED_MAX", held_copied_max)
    for _ in range(10):
        crowd = Crowd(rng)
        wanted = crowd.some_filter()
        expected = crowd.matching(crowd.topic, wanted)
        rows = pages(crowd, wanted, rng.choice((1, 7, 100)), steps_max=0)
        assert [row.job_id for row in rows] == sorted(
            expected, key=lambda job_id: (expected[job_id][0], job_id)
        )
        for row in rows:
            seen = views.view_job(crowd.engine, row.job_id, crowd.rig.now_ms)
            assert row[1:5] == (seen.state, expected[row.job_id][0], seen.priority, "")
            told = job_details(crowd.engine, row.job_id, crowd.rig.now_ms)
            if told.failure is None:
                assert row.failed is None
            else:
                assert row.failed is not None
                assert row.failed[:2] == (told.attempts, told.failure)
                note = row.failed.note or Note()
                assert (note.error, note.origin) == (told.error, told.origin)


@pytest.mark.parametrize("held_copied_max", [0, 16_384])
@pytest.mark.walk(2, 100)
def test_a_job_that_nobody_touches_is_on_one_page_exactly(
    number: int, held_copied_max: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "PASS_HELD_COPIED_MAX", held_copied_max)
    checked = 0
    for _ in range(20):
        crowd = Crowd(rng)
        wanted = crowd.some_filter()
        crowd.watch(wanted)
        listed = Counter(row.job_id for row in pages(crowd, wanted, rng.choice((2, 7, 100)), 3))
        assert all(listed[job_id] == 1 for job_id in crowd.untouched)
        checked += len(crowd.untouched)
        check(crowd.engine)
    assert checked > 20, "the crowd is too restless to say anything"


def test_a_page_tells_what_is_still_true_when_it_is_told() -> None:
    told = set()
    for steps in range(30):
        rig = EngineRig()
        for delay_ms in (10, 20, 30, 40):
            rig.put(delay_ms=delay_ms)
        search = Search(rig.engine, "default", Wanted(), limit=3)
        for _ in range(steps):
            search.step(1, rig.now_ms)
        rig.delete(rig.client(), 2)
        while not search.step(1, rig.now_ms):
            pass
        rest = page_of(rig, Wanted(), after=search.page.after)
        told.add(tuple(tuple(row.job_id for row in page.rows) for page in (search.page, rest)))
    not_found, no_longer_there, told_before = ((1, 3, 4), ()), ((1, 3), (4,)), ((1, 2, 3), (4,))
    assert told == {not_found, no_longer_there, told_before}


def test_what_is_due_counts_as_ready_before_its_slice_has_come(rig: EngineRig) -> None:
    rig.put_many(300, delay_ms=5)
    rig.put(delay_ms=900)
    rig.advance(5)
    assert len(rig.topic().queues.ready) < 300
    ready = page_of(rig, Wanted(frozenset({State.READY})), limit=1000)
    delayed = page_of(rig, Wanted(frozenset({State.DELAYED})), limit=1000)
    assert [row.job_id for row in ready.rows] == list(range(1, 301))
    assert {row.state for row in ready.rows} == {State.READY}
    assert [row.job_id for row in delayed.rows] == [301]


def test_absolute_times_are_placed_before_they_are_looked_at(rig: EngineRig) -> None:
    engine = rig.engine
    for number in range(200):
        rig.put(due_wall_ms=HOUR_MS + number)
    follow_wall(engine, -HOUR_MS)
    assert engine.store.wall_times.layers
    page = page_of(rig, Wanted(from_ms=2 * HOUR_MS, until_ms=2 * HOUR_MS + 50), limit=1000)
    assert [row.due_ms for row in page.rows] == list(range(2 * HOUR_MS, 2 * HOUR_MS + 50))


@pytest.mark.thorough
def test_the_first_page_of_many_delayed_jobs_looks_at_few(rig: EngineRig) -> None:
    for number in range(20_000):
        rig.put(delay_ms=1 + number * 37 % 1_000_003)
    search = Search(rig.engine, "default", Wanted(), limit=50)
    steps = 0
    while not search.step(100, rig.now_ms):
        steps += 1
    assert [row.due_ms for row in search.page.rows] == sorted(
        1 + number * 37 % 1_000_003 for number in range(20_000)
    )[:50]
    assert steps < 40


@pytest.mark.walk(2, 100)
def test_a_calendar_counts_what_looking_at_every_job_counts(
    number: int, rng: random.Random
) -> None:
    for _ in range(10):
        crowd = Crowd(rng)
        from_ms = crowd.rig.time_ms + rng.randrange(crowd.span_ms)
        bin_ms, bins = rng.randrange(1, 2 + crowd.span_ms // 5), rng.choice((1, 3, 20))
        calendar = Calendar(crowd.engine, crowd.topic, from_ms=from_ms, bin_ms=bin_ms, bins=bins)
        wanted = Wanted(frozenset({State.DELAYED}), from_ms, from_ms + bins * bin_ms)
        dues = [due_ms for due_ms, _, _ in crowd.matching(crowd.topic, wanted).values()]
        # Buckets are cascaded on the way, but nothing in the calendar comes due.
        ahead_ms = from_ms - crowd.rig.time_ms
        for _ in crowd.carried_out(calendar):
            leap_ms = rng.randrange(1 + ahead_ms // 10)
            if crowd.rig.time_ms + leap_ms < from_ms:
                crowd.rig.advance(crowd.rig.time_ms + leap_ms)
        expected = [0] * bins
        for due_ms in dues:
            expected[(due_ms - from_ms) // bin_ms] += 1
        assert calendar.counts == expected


def test_what_cannot_be_looked_for_is_refused_at_once() -> None:
    engine = EngineRig().engine
    wanted = Wanted()
    with pytest.raises(TopicNotFound):
        Search(engine, "nobody", wanted)
    with pytest.raises(TopicNameInvalid):
        Calendar(engine, "no body", from_ms=0, bin_ms=1, bins=1)
    for limit in (0, SEARCH_JOBS_MAX + 1):
        with pytest.raises(ValueOutOfRange):
            Search(engine, "default", wanted, limit)
    for bin_ms, bins in ((0, 1), (1, 0), (1, CALENDAR_BINS_MAX + 1)):
        with pytest.raises(ValueOutOfRange):
            Calendar(engine, "default", from_ms=0, bin_ms=bin_ms, bins=bins)


def test_a_page_holds_as_many_jobs_as_are_allowed(rig: EngineRig) -> None:
    rig.put_many(SEARCH_JOBS_MAX + 1)
    page = page_of(rig, Wanted(), limit=SEARCH_JOBS_MAX)
    assert len(page.rows) == SEARCH_JOBS_MAX
    assert all(earlier < later for earlier, later in pairwise(page.rows))
    assert page.after == Cursor(0, SEARCH_JOBS_MAX)
