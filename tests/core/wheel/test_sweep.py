import random

import pytest

from delayd.core.wheel.buckets import BucketQueue
from delayd.core.wheel.sweep import Sweep
from delayd.limits import (
    SWEEP_BUCKET_COST,
    SWEEP_CHUNK_ENTRIES,
    SWEEP_DEAD_PER_LIVE,
    SWEEP_ENTRIES_PER_CANCEL,
    SWEEP_SLACK_ENTRIES,
)
from tests.core.wheels import Owned

HOUR_MS = 3_600_000


def tolerated(owned: Owned, most_held: int) -> int:
    """What the wheel may hold: dead ones, the slack, and what a sweep takes to go round."""
    held = (1 + SWEEP_DEAD_PER_LIVE) * len(owned.wheel)
    return held + SWEEP_SLACK_ENTRIES + most_held // SWEEP_ENTRIES_PER_CANCEL + 100


@pytest.mark.thorough
@pytest.mark.parametrize(("wheel_size", "run"), [(2, 1), (20, 100), (256, 2_000)])
def test_mass_cancel_frees_the_memory(wheel_size: int, run: int, rng: random.Random) -> None:
    """Also while somebody asks for the soonest."""
    owned = Owned(1, wheel_size)
    for entry in range(20_000):
        owned.insert(entry, rng.randrange(1, HOUR_MS))
    order = list(range(20_000))
    rng.shuffle(order)
    for first in range(0, 20_000, run):
        owned.cancel(*order[first : first + run])
        if first % 1000 == 0:
            owned.wheel.soonest(1)
            assert owned.held() <= tolerated(owned, 20_000)
    assert owned.held() <= tolerated(owned, 2 * SWEEP_SLACK_ENTRIES)
    owned.check()


def test_the_slack_is_tolerated_and_not_one_entry_more() -> None:
    owned = Owned()
    for entry in range(SWEEP_SLACK_ENTRIES):
        owned.insert(entry, 5)
    for entry in range(SWEEP_SLACK_ENTRIES):
        owned.cancel(entry)
    assert owned.held() == SWEEP_SLACK_ENTRIES
    cancels_a_step = SWEEP_CHUNK_ENTRIES // SWEEP_ENTRIES_PER_CANCEL
    for _ in range(cancels_a_step):
        assert owned.questions == 0
        owned.insert(1, 5)
        owned.cancel(1)
    assert owned.held() == cancels_a_step
    owned.check()


def looks_of_cancels(owned: Owned) -> list[int]:
    """Cancel all, one after the other; return how many entries each has examined."""
    looks = []
    for entry in [*owned.due_ms]:
        owned.questions = 0
        owned.cancel(entry)
        looks.append(owned.questions)
    return looks


def test_no_cancel_examines_more_than_a_chunk_and_all_together_16_each() -> None:
    owned = Owned()
    for entry in range(30_000):
        owned.insert(entry, HOUR_MS)
    looks = looks_of_cancels(owned)
    assert max(looks) == SWEEP_CHUNK_ENTRIES
    assert sum(looks) <= 30_000 * SWEEP_ENTRIES_PER_CANCEL
    assert sum(looks) <= 1.7 * 30_000, "the amortised cost is about four entries for three cancels"


def test_going_from_bucket_to_bucket_counts_as_work() -> None:
    owned = Owned(1, 65_536)
    for entry in range(4000):
        owned.insert(entry, 1 + entry)
    assert 0 < max(looks_of_cancels(owned)) <= SWEEP_CHUNK_ENTRIES // SWEEP_BUCKET_COST


def test_a_job_reserved_and_released_over_and_over_does_not_fill_the_memory() -> None:
    # Each time its lease goes to the same far bucket, where the entries all look alive.
    owned = Owned(1, 256)
    for _ in range(30_000):
        owned.insert(1, 24 * HOUR_MS)
        owned.cancel(1)
        owned.insert(1, 24 * HOUR_MS + 5)
        owned.cancel(1)
    owned.insert(1, 24 * HOUR_MS)
    assert owned.held() < 4 * SWEEP_SLACK_ENTRIES
    owned.check()
    assert owned.run() == [(24 * HOUR_MS, 1)]


@pytest.mark.thorough
def test_many_jobs_rescheduled_in_turn_within_a_bucket_do_not_fill_the_memory() -> None:
    owned = Owned(1, 256)
    jobs = 3 * SWEEP_CHUNK_ENTRIES
    for job in range(jobs):
        owned.insert(job, 24 * HOUR_MS)
    for turn in range(1, 20):
        for job in range(jobs):
            owned.reschedule(job, 24 * HOUR_MS + turn)
    assert owned.held() <= tolerated(owned, 3 * jobs)
    owned.check()
    assert len(owned.run()) == jobs


def test_a_bucket_that_comes_due_under_the_broom_loses_and_repeats_nothing() -> None:
    owned = Owned(1, 20)
    jobs = 10 * SWEEP_CHUNK_ENTRIES
    for entry in range(jobs):
        owned.insert(entry, 450)
    cancelled = iter([entry for entry in range(jobs) if entry % 8])
    while owned.questions == 0:
        owned.cancel(next(cancelled))
    # A step has examined a chunk; an eighth of it was alive and stands in the bucket twice.
    assert owned.wheel._sweep is not None
    for entry in range(jobs, jobs + 10):
        owned.insert(entry, 451)
    expected = sorted(owned.due_ms)
    assert [entry for _, entry in owned.advance(451)] == expected
    assert owned.held() == 0
    owned.check()


def test_twins_are_hunted_within_a_bucket_and_left_alone_across_buckets() -> None:
    queue = BucketQueue()
    for key, entries in ((128, [1, 2, 1]), (256, [2, 1, 2, 2, 3])):
        queue.open(key)[0].extend(entries)
    sweep = Sweep(queue, lambda chunk, key: chunk.tolist(), hunts_twins=True)
    removed = 0
    while not sweep.is_over:
        removed += sweep.step(2)
        assert removed <= 3
    assert [bucket.tolist() for bucket in queue.by_key.values()] == [[1, 2], [2, 1, 3]]
    assert removed == 3
