"""T-G1: the disk takes 2 x live data + one segment, whatever the pattern of delays."""

from collections.abc import Callable

import pytest

from tests.faults.bytes_of_a_log import recovered
from tests.faults.conftest import Runs
from tests.faults.growth import PATTERNS, House
from tests.faults.parts import digest

SMALL = (2_000, 256 << 10)
LARGE = (100_000, 4 << 20)


def check(pattern: Callable[[House, int], None], jobs: int, segment_bytes: int) -> House:
    house = House(segment_bytes)
    pattern(house, jobs)
    assert house.excess_bytes <= 0
    house.settle()
    assert house.disk_bytes() <= house.bound_bytes()
    assert house.snapshots.taken, "a pattern that needs no snapshot proves nothing"
    state = digest(house.engine)
    house.disk.crash()
    engine, _ = recovered(house.disk, segment_bytes)
    engine.store.time_ms = house.engine.store.time_ms
    assert digest(engine) == state
    return house


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_disk_stays_within_its_bound(pattern: Callable[[House, int], None], runs: Runs) -> None:
    """T-G1, small."""
    house = check(pattern, *SMALL)
    runs.count("T-G1", house.turns, f"{pattern.__name__}, {SMALL[0]:,} jobs: turns")


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_disk_stays_within_its_bound_with_many_jobs(
    pattern: Callable[[House, int], None], runs: Runs
) -> None:
    """T-G1, 100,000 jobs."""
    house = check(pattern, *LARGE)
    runs.count("T-G1", house.turns, f"{pattern.__name__}, {LARGE[0]:,} jobs: turns")


def test_400_buried_jobs_do_not_keep_the_log_of_all_others() -> None:
    """T-G1: what grew beanstalkd's log without bound."""
    house = House(SMALL[1])
    PATTERNS[1](house, 8_000)
    house.settle()
    assert len(house.engine.store.jobs) == 400
    assert house.disk_bytes() <= house.bound_bytes() < 512 << 10
