"""Delays, holds and pauses end when they should: never early, and due when `due <= now`."""

import random

import pytest

from delayd.core.job_record import State
from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve_job
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.topics import pause
from delayd.core.times import PlayedMs, RequestMs
from delayd.limits import ADVANCE_SLICE_JOBS
from tests.core import views
from tests.core.check import check
from tests.rigs.engine import EngineRig

YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize("tick_ms", [1, 7, 10, 1000])
def test_nothing_is_early_with_any_tick_and_nothing_is_late_by_more_than_one(
    tick_ms: int, rng: random.Random
) -> None:
    rig = EngineRig(time_ms=12_345, tick_ms=tick_ms, wheel_size=20, skew_ms=1)
    topic = rig.engine.store.topics.by_name["default"]
    asked_ms: dict[int, int] = {}
    came: set[int] = set()
    while len(came) < 300:
        if len(asked_ms) < 300:
            delay_ms = rng.choice((1, 10, 1000, 50_000)) + rng.randrange(2000)
            asked_ms[rig.put(delay_ms=delay_ms)] = rig.now_ms + delay_ms
        deadline_ms = next_deadline(rig.engine)
        assert deadline_ms is not None
        rig.advance(max(rig.time_ms, min(deadline_ms, rig.time_ms + rng.randrange(200))))
        for job_id in {*topic.queues.ready} - came:
            came.add(job_id)
            assert 0 <= rig.time_ms - asked_ms[job_id] < tick_ms


@pytest.mark.parametrize("tick_ms", [1, 7, 10, 1000])
def test_no_hold_and_no_pause_is_early_with_any_tick(tick_ms: int, rng: random.Random) -> None:
    rig = EngineRig(time_ms=12_345, tick_ms=tick_ms, wheel_size=20, skew_ms=1)
    for number in range(50):
        ttr_ms = rng.randrange(1, 5000)
        job_id = rig.put(f"t{number}", ttr_ms=ttr_ms)
        if number % 2:
            reserve_job(rig.engine, rig.client(), job_id, rig.now_ms)
        else:
            assert rig.reserve(rig.client(f"t{number}")) == job_id
        pause(rig.engine, f"t{number}", ttr_ms, rig.now_ms)
        until_ms = rig.now_ms + ttr_ms
        rig.play(until_ms - 1)
        topic = rig.engine.store.topics.by_name[f"t{number}"]
        assert (topic.reserved, topic.pause_ms) == (1, ttr_ms)
        rig.play(until_ms + tick_ms - 1)
        assert (topic.reserved, topic.pause_ms) == (0, 0)


def test_a_job_that_is_due_is_ready_for_who_asks_though_its_slice_has_not_come() -> None:
    rig = EngineRig()
    rig.put(delay_ms=1000)
    rig.put(ttr_ms=1000)
    holder, me = rig.client(), rig.client()
    rig.reserve(holder)
    rig.engine.store.time_ms = PlayedMs(1000)
    assert views.view_job(rig.engine, 1, rig.now_ms).state is State.READY
    assert reserve_job(rig.engine, me, 2, rig.now_ms)[0] == 2
    check(rig.engine)
    rig.run(1000)  # the slice comes, and finds nothing left to do
    check(rig.engine)
    assert rig.reserve_all(me) == [1]


def test_jobs_of_one_topic_come_due_oldest_first_in_slices_that_are_bounded() -> None:
    rig = EngineRig()
    jobs = 3 * ADVANCE_SLICE_JOBS
    for number in range(jobs):
        rig.put(delay_ms=jobs - number)
    topic = rig.engine.store.topics.by_name["default"]
    seen = 0
    while rig.advance(jobs):
        assert len(topic.queues.ready) - seen <= ADVANCE_SLICE_JOBS
        seen = len(topic.queues.ready)
        # What has come is what is oldest, which was put last.
        assert list(topic.queues.ready) == list(range(jobs - seen + 1, jobs + 1))
    assert seen == jobs


def test_a_hundred_thousand_jobs_at_one_instant_delay_others_by_one_slice_each() -> None:
    rig = EngineRig()
    crowd = rig.engine.store.topic("crowd")
    for _ in range(100):
        put_alike(
            rig.engine,
            crowd,
            priority=0,
            delay_ms=10_000,
            ttr_ms=0,
            bodies=[b""] * 1000,
            now_ms=RequestMs(0),
        )
    me = rig.client("quiet", "other")
    rig.play(5000)
    rig.put("quiet", delay_ms=5000)
    rig.put("other", delay_ms=5000)
    rig.wait(me)
    slices = 0
    # Each topic's cascade may take a slice of its own.
    while not rig.delivered():
        assert rig.advance(10_000)
        slices += 1
    assert slices <= 2 * len(rig.engine.store.topics.listing)
    # And again, while the crowd still comes.
    rig.put("quiet", delay_ms=1)
    rig.engine.store.time_ms = PlayedMs(10_001)
    assert len(crowd.queues.ready) < 100_000
    rig.wait(me)
    got = []
    for _ in range(2 * len(rig.engine.store.topics.listing)):
        rig.advance(10_001)
        got += rig.delivered()
    assert got
    assert rig.run(10_001) >= 100
    assert len(crowd.queues.ready) == 100_000


def test_an_idle_daemon_with_jobs_in_years_has_nothing_to_wake_for() -> None:
    rig = EngineRig()
    for years in range(1, 100):
        rig.put(delay_ms=years * YEAR_MS)
    wake_ups = 0
    while (deadline_ms := next_deadline(rig.engine)) is not None and deadline_ms < YEAR_MS:
        rig.advance(deadline_ms)
        wake_ups += 1
    # Once for each level that the first of them goes down.
    assert wake_ups <= 5
