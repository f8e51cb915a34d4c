"""T-G1: the disk takes 2 x live data + one segment, whatever the pattern of delays.

Of each pattern that is known to make logs grow a long time is played in a moment.
"""

import random
from collections.abc import Callable

import pytest

from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import reschedule
from delayd.core.operations.reserve import reserve_batch
from tests.faults.conftest import Runs
from tests.rigs.commit import HOUR_MS, YEAR_MS, CommitRig, snapshot_rig

Pattern = Callable[[CommitRig, int, random.Random], object]


def an_hour_of_work(rig: CommitRig, jobs: int, rng: random.Random) -> None:
    """Reserve each job and release it with a delay, again and again for an hour."""
    for number in range(jobs):
        rig.put(body=rng.randbytes(100))
        if number % 500 == 499:
            rig.pass_turn()
    ends_ms = rig.clock.now_ms() + HOUR_MS
    while rig.clock.now_ms() < ends_ms:
        for job_id, _ in reserve_batch(rig.engine, rig.session, 100, 1 << 40, rig.now_ms):
            delay_ms = rng.randrange(60_000, 900_000)
            release(rig.engine, rig.session, job_id, 0, delay_ms, rig.now_ms)
        rig.pass_turn(ms=200)


def a_few_buried_among_many(rig: CommitRig, jobs: int, rng: random.Random) -> None:
    """Bury 400 jobs in all, and delete all others: what grew beanstalkd's log without bound."""
    for number in range(jobs):
        rig.put(body=rng.randbytes(100))
        job_id = rig.reserve()
        if number % (jobs // 400) == 0:
            bury(rig.engine, rig.session, job_id, 0, rig.now_ms)
        else:
            rig.delete([job_id])
        if number % 20 == 19:
            rig.pass_turn(ms=10)
    assert len(rig.engine.store.jobs) == 400


def nothing_but_next_year(rig: CommitRig, jobs: int, rng: random.Random) -> None:
    """Put jobs for next year, and put them off again and again."""
    for number in range(jobs):
        (job_id,) = rig.put(delay_ms=YEAR_MS, body=rng.randbytes(100))
        for _ in range(8):
            reschedule(rig.engine, rng.randrange(1, job_id + 1), YEAR_MS, rig.now_ms)
        if number % 20 == 19:
            rig.pass_turn(ms=10)


@pytest.mark.parametrize(
    ("jobs", "segment_bytes"),
    [(2_000, 256 << 10), pytest.param(100_000, 4 << 20, marks=pytest.mark.long)],
)
@pytest.mark.parametrize(
    "pattern", [an_hour_of_work, a_few_buried_among_many, nothing_but_next_year]
)
def test_the_disk_stays_within_its_bound(
    pattern: Pattern, jobs: int, segment_bytes: int, rng: random.Random, runs: Runs
) -> None:
    """T-G1."""
    rig = snapshot_rig(segment_bytes=segment_bytes)
    pattern(rig, jobs, rng)
    rig.rest()
    rig.pass_turn()
    assert rig.excess_bytes <= 0
    assert rig.snapshots.taken, "a pattern that needs no snapshot proves nothing"
    rig.disk.crash()
    again = rig.restarted()
    again.pass_turn()  # no frame says what came due since the last one
    assert again.state() == rig.state()
    runs.count("T-G1", jobs, f"{pattern.__name__}: jobs")
