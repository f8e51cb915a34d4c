"""Jobs with wall-clock times, as a part: what is placed, what is not, and when each is due."""

from collections.abc import Callable
from typing import Final

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


def test_after_so_many_steps_the_oldest_jobs_have_to_be_placed() -> None:
    wall_times = with_jobs(7)
    for number in range(WALL_STEPS_MAX):
        assert not wall_times.is_full
        step(wall_times, number, time_ms=2_000 + number)
    assert wall_times.is_full
    assert wall_times.some_unplaced() == [7]
    wall_times.discard(7)
    assert not wall_times.is_full


FAULTS: Final[dict[str, Callable[[WallTimes], object]]] = {
    "one is counted twice": lambda them: setattr(them, "count", them.count + 1),
    "an empty layer is kept": lambda them: them.layers.append(Layer(IdSet())),
    "one that is not placed is": lambda them: them.add(7),
    "a step has no record": lambda them: them.step(1, PlayedMs(3_000)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_finds_a_planted_fault_of_wall_times(fault: str) -> None:
    wall_times = with_jobs(7)
    step(wall_times, 700, time_ms=2_000)
    FAULTS[fault](wall_times)
    with pytest.raises(AssertionError):
        wall_times.check()
