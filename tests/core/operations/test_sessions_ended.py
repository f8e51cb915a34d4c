"""What ended sessions held comes back in bounded steps. What it is meanwhile: facts.txt."""

from collections.abc import Callable

import pytest

from delayd.core.background_tasks import BackgroundTasks
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations.reserve import reserve
from delayd.core.operations.tick import catch_up_leases
from delayd.core.operations.topics import Clear, SetPolicy
from delayd.core.policy import Policy
from delayd.core.scans.list import Search
from delayd.core.scans.scan import Wanted
from delayd.core.stats.counters import Operation
from delayd.limits import (
    PASS_ACTION_COST,
    RETURN_SEARCHES_PER_TURN,
    RETURNS_PER_TURN,
    TASK_STEP_JOBS,
)
from tests.core.check import check
from tests.rigs.engine import EngineRig

JOBS = 3 * RETURNS_PER_TURN


def hold_and_close(rig: EngineRig, jobs: int = JOBS) -> None:
    """Have a client hold so many jobs, and close."""
    holder = rig.client()
    rig.put_many(jobs)
    assert len(rig.reserve_all(holder)) == jobs
    rig.take_log()
    rig.close(holder)


def returns(rig: EngineRig) -> int:
    """Return how many have come back since the log was last taken."""
    return rig.kinds().count(Kind.RETURN)


def test_what_sessions_held_comes_back_in_bounded_turns_and_steps(rig: EngineRig) -> None:
    hold_and_close(rig)
    assert returns(rig) == RETURNS_PER_TURN
    tasks = BackgroundTasks(rig.engine)
    while tasks.has_more:
        tasks.step(rig.now_ms)
        check(rig.engine)
        assert returns(rig) <= 1 + TASK_STEP_JOBS // PASS_ACTION_COST
    assert (len(rig.topic().queues.ready), rig.topic().reserved) == (JOBS, 0)
    assert rig.engine.store.counters.operations[Operation.RETURN] == JOBS


def test_the_sessions_that_end_in_one_turn_share_what_comes_back_at_once(rig: EngineRig) -> None:
    holders = [rig.client() for _ in range(4)]
    for holder in holders:
        rig.put_many(RETURNS_PER_TURN // 2)
        rig.reserve_all(holder)
    for holder in holders:
        rig.close(holder)
    assert returns(rig) == RETURNS_PER_TURN
    assert rig.engine.returns_left == RETURNS_PER_TURN


def test_the_reserves_of_one_turn_look_for_jobs_of_other_topics_in_vain_only_so_often(
    rig: EngineRig,
) -> None:
    hold_and_close(rig)
    me = rig.client("other")
    rig.take_log()
    for _ in range(2):
        for _ in range(3):
            assert reserve(rig.engine, me, rig.now_ms) is None
        assert returns(rig) == RETURN_SEARCHES_PER_TURN


def cleared(rig: EngineRig) -> object:
    clear = Clear(rig.engine, "default")
    while not clear.step(TASK_STEP_JOBS, rig.now_ms):
        check(rig.engine)
    return clear.count


def listed(rig: EngineRig) -> object:
    search = Search(rig.engine, "default", Wanted(frozenset({State.READY})), limit=1_000)
    while not search.step(TASK_STEP_JOBS, rig.now_ms):
        check(rig.engine)
    return len(search.page.rows)


def other_policy(rig: EngineRig) -> object:
    work = SetPolicy(rig.engine, "default", Policy(attempts_max=1))
    while not work.step(TASK_STEP_JOBS, rig.now_ms):
        check(rig.engine)
    return len(rig.topic().queues.ready)


@pytest.mark.parametrize("work", [cleared, listed, other_policy])
def test_whatever_looks_at_many_jobs_comes_after_all_that_comes_back(
    rig: EngineRig, work: Callable[[EngineRig], object]
) -> None:
    hold_and_close(rig)
    assert work(rig) == JOBS
    assert not rig.engine.ended_sessions


def test_catching_up_is_bounded_too(rig: EngineRig) -> None:
    hold_and_close(rig)
    rig.take_log()
    assert not catch_up_leases(rig.engine, TASK_STEP_JOBS, rig.now_ms)
    assert returns(rig) == 1 + TASK_STEP_JOBS // PASS_ACTION_COST
