"""Since when ready jobs have been ready, and how old the oldest is."""

import random

import pytest

from delayd.core.stats.ready_ages import ReadyAges
from delayd.limits import AGE_SLOT_BITS, AGE_SLOTS_MAX, AGES_KEPT_MAX

SLOT_MS = 1 << AGE_SLOT_BITS
DAY_MS = 86_400_000


@pytest.mark.thorough
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


@pytest.mark.thorough
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
