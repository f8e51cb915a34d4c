"""Since when ready jobs have been ready, and how old the oldest is."""

import random

import pytest

from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session
from delayd.core.stats.ready_ages import ReadyAges
from delayd.limits import AGE_SLOT_BITS, AGE_SLOTS_MAX, AGES_KEPT_MAX
from tests.core.check import check
from tests.rigs.engine import EngineRig
from tests.rigs.engine import put as put_job

SLOT_MS = 1 << AGE_SLOT_BITS
DAY_MS = 86_400_000


def oldest_age_ms(rig: EngineRig) -> int | None:
    oldest_ms = rig.topic().queues.ready.ages.oldest_ms()
    return None if oldest_ms is None else rig.time_ms - oldest_ms


def assert_is_about(age_ms: int | None, true_ms: int) -> None:
    """It is never told too old, and by no more than a slot too young."""
    assert age_ms is not None
    assert true_ms - SLOT_MS < age_ms <= true_ms


def put(rig: EngineRig, *, priority: int = 0, delay_ms: int = 0) -> int:
    topic = rig.engine.store.topic("default")
    return put_job(
        rig.engine,
        topic,
        priority=priority,
        delay_ms=delay_ms,
        ttr_ms=60_000,
        body=b"",
        now_ms=rig.now_ms,
    )


def test_no_ready_job_has_no_age() -> None:
    rig = EngineRig(time_ms=1_000_000)
    put(rig, delay_ms=5_000)
    assert oldest_age_ms(rig) is None


def test_a_job_without_priority_behind_others_is_the_oldest() -> None:
    rig = EngineRig(time_ms=1_000_000)
    session = open_session(rig.engine)
    put(rig, priority=9)
    for _ in range(100):
        rig.play(rig.time_ms + 1_000)
        put(rig, priority=0)
        rig.delete(session, rig.reserve(session))
    assert_is_about(oldest_age_ms(rig), 100_000)
    reserve(rig.engine, session, rig.now_ms)
    assert oldest_age_ms(rig) is None


def test_a_delayed_job_is_ready_since_it_was_due() -> None:
    rig = EngineRig(time_ms=1_000_000)
    put(rig, delay_ms=5_000)
    rig.play(1_012_000)
    assert_is_about(oldest_age_ms(rig), 7_000)


def test_a_job_whose_reservation_ran_out_is_ready_since_then() -> None:
    rig = EngineRig(time_ms=1_000_000)
    session = open_session(rig.engine)
    put(rig)
    reserve(rig.engine, session, rig.now_ms)
    rig.play(rig.time_ms + 60_000 + 3_000)
    assert_is_about(oldest_age_ms(rig), 3_000)
    reserve(rig.engine, session, rig.now_ms)
    assert oldest_age_ms(rig) is None


def test_a_kicked_job_is_ready_since_then_and_keeps_it_when_its_priority_is_changed() -> None:
    rig = EngineRig(time_ms=1_000_000)
    session = open_session(rig.engine)
    buried = put(rig)
    reserve(rig.engine, session, rig.now_ms)
    rig.bury(session, buried)
    early = put(rig, delay_ms=DAY_MS)
    rig.play(rig.time_ms + 500_000)
    rig.kick_job(buried)
    rig.kick_job(early)
    rig.play(rig.time_ms + 4_000)
    rig.change(buried, priority=7)
    assert_is_about(oldest_age_ms(rig), 4_000)
    check(rig.engine)
    rig.delete_batch(session, [buried, early])
    assert oldest_age_ms(rig) is None
    check(rig.engine)


def test_a_cleared_topic_has_no_ages() -> None:
    rig = EngineRig(time_ms=1_000_000)
    put(rig)
    rig.play(rig.time_ms + 50_000)
    rig.clear()
    assert oldest_age_ms(rig) is None


def test_after_a_restart_the_oldest_is_as_old_as_before() -> None:
    rig = EngineRig(time_ms=1_000_000)
    put(rig, delay_ms=2_000)
    rig.play(1_040_000)
    before_ms = oldest_age_ms(rig)
    rig.restart()
    rig.play(1_040_000)
    assert oldest_age_ms(rig) == before_ms
    assert_is_about(before_ms, 38_000)


@pytest.mark.parametrize("seed", range(5))
def test_slots_stay_few_and_the_oldest_is_never_told_too_old(seed: int) -> None:
    rng = random.Random(seed)
    ages = ReadyAges()
    jobs: dict[int, int] = {}
    now_ms = 1_000_000
    for job_id in range(5_000):
        now_ms += rng.choice((0, 1, 100, 10_000))
        jobs[job_id] = now_ms - rng.choice((0, 0, 0, 5, DAY_MS))
        ages.add(jobs[job_id])
        while jobs and rng.random() < 0.4:
            ages.leave(gone := rng.choice(list(jobs)), jobs.pop(gone))
        if job_id % 50 == 0:
            ages.tidy()
            ages.check(jobs.items())
            oldest_ms = ages.oldest_ms()
            assert (oldest_ms is None) == (not jobs)
            if oldest_ms is not None:
                wide_ms = max(SLOT_MS, (now_ms - min(jobs.values())) // (AGE_SLOTS_MAX // 4))
                assert min(jobs.values()) <= oldest_ms < min(jobs.values()) + wide_ms
    for job_id, since_ms in jobs.items():
        ages.leave(job_id, since_ms)
    ages.tidy()
    assert ages.oldest_ms() is None
    assert ages.shift == AGE_SLOT_BITS


def test_a_backlog_of_years_is_tidied_up_at_once() -> None:
    ages = ReadyAges()
    jobs = {job_id: job_id * 10_000_000 for job_id in range(10_000)}
    for since_ms in jobs.values():
        ages.add(since_ms)
    ages.tidy()
    assert len(ages._jobs) <= AGE_SLOTS_MAX
    ages.check(jobs.items())


def test_slots_that_are_empty_are_forgotten_without_anybody_asking() -> None:
    ages = ReadyAges()
    for time_ms in range(0, 10_000 * SLOT_MS, SLOT_MS):
        ages.add(time_ms)
        ages.add(time_ms, -1)
    assert len(ages._jobs) <= 2 * AGE_SLOTS_MAX


def test_beyond_so_many_it_is_not_kept_since_when_they_are_ready() -> None:
    ages = ReadyAges()
    assert all(ages.keep(job_id, 5) for job_id in range(AGES_KEPT_MAX))
    assert not ages.keep(AGES_KEPT_MAX, 5)
