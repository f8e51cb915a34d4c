"""Jobs with wall-clock times, as a part: what is placed, what is not, and when each is due."""

import random
from collections.abc import Callable

import pytest

from delayd.core.times import PlayedMs
from delayd.core.wall_times import IdSet, Layer, WallTimes
from delayd.limits import WALL_STEPS_MAX


def with_jobs(*job_ids: int) -> WallTimes:
    """These jobs, placed by an offset of 1,000."""
    wall_times = WallTimes(tick_ms=1)
    wall_times.offset_ms = wall_times.recorded_ms = 1_000
    for job_id in job_ids:
        wall_times.add(job_id)
    wall_times.check()
    return wall_times


def step(wall_times: WallTimes, offset_ms: int, time_ms: int) -> None:
    wall_times.step(offset_ms, PlayedMs(time_ms))
    wall_times.recorded_ms = offset_ms
    wall_times.check()


@pytest.mark.thorough
def test_a_set_of_ids_is_a_set_of_ids(rng: random.Random) -> None:
    ids, model = IdSet(), set[int]()
    for _ in range(3_000):
        job_id = rng.choice((rng.randrange(200), rng.randrange(2**63, 2**63 + 50)))
        if job_id in model and rng.random() < 0.7:
            assert ids.discard(job_id)
            model.discard(job_id)
        elif job_id not in model:
            assert not ids.discard(job_id)
            ids.add(job_id)
            model.add(job_id)
        assert (job_id in ids) == (job_id in model)
        assert bool(ids) == bool(model)
        assert set(ids) == model
        if model:
            some = ids.some()
            assert some == sorted(some)
            assert 1 <= len(some) <= 64
            assert set(some) <= model


def test_after_so_many_steps_the_oldest_jobs_have_to_be_placed() -> None:
    wall_times = with_jobs(7)
    for number in range(WALL_STEPS_MAX):
        assert not wall_times.is_full
        step(wall_times, number, time_ms=2_000 + number)
    assert wall_times.is_full
    assert wall_times.some_unplaced() == [7]
    wall_times.discard(7)
    assert not wall_times.is_full


def lose_count(wall_times: WallTimes) -> None:
    wall_times.count += 1


def keep_an_empty_layer(wall_times: WallTimes) -> None:
    wall_times.layers.append(Layer(IdSet()))


def place_an_unplaced_one(wall_times: WallTimes) -> None:
    wall_times.add(7)


def step_without_a_record(wall_times: WallTimes) -> None:
    wall_times.step(1, PlayedMs(3_000))


@pytest.mark.parametrize(
    "plant", [lose_count, keep_an_empty_layer, place_an_unplaced_one, step_without_a_record]
)
def test_check_finds_a_planted_fault(plant: Callable[[WallTimes], None]) -> None:
    wall_times = with_jobs(7)
    step(wall_times, 700, time_ms=2_000)
    plant(wall_times)
    with pytest.raises(AssertionError):
        wall_times.check()
