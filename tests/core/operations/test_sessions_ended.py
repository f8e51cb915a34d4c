"""What a session held that has ended comes back in slices, and counts as returned at once."""

from collections.abc import Callable

import pytest

from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import JobAlreadyExists
from delayd.core.job_parts import Reason, Retry, failure_of, tally_of
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations.put import Conflict
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import give_back_some, leave
from delayd.core.operations.tick import catch_up_leases, caught_up, reach
from delayd.core.operations.topics import Clear, SetPolicy
from delayd.core.policy import Policy
from delayd.core.scans.list import Search
from delayd.core.scans.scan import Wanted
from delayd.core.session import Session
from delayd.core.stats.counters import Operation
from delayd.core.times import PlayedMs
from delayd.limits import (
    PASS_ACTION_COST,
    RETURN_SEARCHES_PER_TURN,
    RETURNS_PER_TURN,
    TASK_STEP_JOBS,
)
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig

JOBS = RETURNS_PER_TURN + 200
LADDER = Policy(retry_ms=(1_000, 9_000), attempts_max=2)


def holding(
    jobs: int = JOBS, policy: Policy | None = None, *, ttr_ms: int = TTR_MS, delay_ms: int = 0
) -> tuple[EngineRig, Session]:
    """Return a rig in which a client holds so many jobs, with the ids from 1 on."""
    rig = EngineRig(time_ms=1_000)
    if policy is not None:
        SetPolicy(rig.engine, "default", policy).step(1, rig.now_ms)
    holder = rig.client()
    rig.put_many(jobs, ttr_ms=ttr_ms, delay_ms=delay_ms)
    assert len(rig.reserve_all(holder)) == jobs
    rig.take_log()
    return rig, holder


def closed(
    jobs: int = JOBS, policy: Policy | None = None, *, ttr_ms: int = TTR_MS
) -> tuple[EngineRig, Session]:
    """Return a rig in which the client that held so many jobs has closed just now."""
    rig, holder = holding(jobs, policy, ttr_ms=ttr_ms)
    rig.close(holder)
    return rig, holder


def return_all(rig: EngineRig) -> int:
    """Take steps until all has come back; count them."""
    tasks = BackgroundTasks(rig.engine)
    steps = 0
    while tasks.has_more:
        tasks.step(rig.now_ms)
        check(rig.engine)
        steps += 1
    return steps


def returns(rig: EngineRig) -> int:
    """Return how many have come back since the log was last taken."""
    return rig.kinds().count(Kind.RETURN)


def counts(engine: Engine) -> tuple[int, int]:
    topic = engine.store.topics.by_name["default"]
    return len(topic.queues.ready), topic.reserved


def test_what_a_turn_can_take_is_ready_at_once_and_more_comes_back_in_bounded_steps() -> None:
    rig, holder = closed(RETURNS_PER_TURN)
    assert not rig.engine.ended_sessions
    assert not holder.deadlines
    assert counts(rig.engine) == (RETURNS_PER_TURN, 0)
    rig, holder = closed()
    assert counts(rig.engine) == (RETURNS_PER_TURN, JOBS - RETURNS_PER_TURN)
    check(rig.engine)
    rig.take_log()
    tasks = BackgroundTasks(rig.engine)
    while tasks.has_more:
        tasks.step(rig.now_ms)
        check(rig.engine)
        assert returns(rig) <= 1 + TASK_STEP_JOBS // PASS_ACTION_COST
    assert counts(rig.engine) == (JOBS, 0)
    assert not holder.deadlines
    assert rig.engine.store.counters.operations[Operation.RETURN] == JOBS


def test_the_sessions_that_end_in_one_turn_share_what_comes_back_at_once() -> None:
    rig = EngineRig()
    holders = [rig.client() for _ in range(4)]
    for holder in holders:
        rig.put_many(RETURNS_PER_TURN // 2)
        rig.reserve_all(holder)
    for holder in holders:
        rig.close(holder)
    assert counts(rig.engine) == (RETURNS_PER_TURN, RETURNS_PER_TURN)
    rig.take_log()
    assert rig.engine.returns_left == RETURNS_PER_TURN
    return_all(rig)
    assert counts(rig.engine) == (2 * RETURNS_PER_TURN, 0)


def test_a_client_with_few_jobs_does_not_wait_for_one_with_many() -> None:
    rig, _ = closed(10 * JOBS)
    rig.put()
    small = rig.client()
    rig.reserve_job(small, 10 * JOBS + 1)
    rig.take_log()
    rig.close(small)
    assert not small.deadlines
    assert rig.engine.ended_sessions


@pytest.mark.parametrize("job_id", [1, JOBS])
def test_it_is_ready_to_whoever_looks_at_it_and_is_reserved_by_its_id(job_id: int) -> None:
    rig, _ = closed()
    assert caught_up(rig.engine, job_id, rig.now_ms)[1] is State.READY
    me = rig.client()
    assert rig.reserve_job(me, job_id)[0] == job_id
    return_all(rig)
    assert list(me.deadlines) == [job_id]
    assert counts(rig.engine) == (JOBS - 1, 1)


def test_its_key_is_that_of_a_job_that_is_ready_and_it_is_deleted_by_its_id() -> None:
    rig = EngineRig()
    holder = rig.client()
    for number in range(JOBS):
        rig.put_keyed(b"k%d" % number)
    rig.reserve_all(holder)
    rig.close(holder)
    with pytest.raises(JobAlreadyExists):
        rig.put_keyed(b"k%d" % (JOBS - 1))
    rig.put_keyed(b"k%d" % (JOBS - 2), Conflict.REPLACE, body=b"new")
    assert rig.delete_batch(rig.client(), range(1, JOBS)) == [True] * (JOBS - 1)
    check(rig.engine)
    return_all(rig)
    assert counts(rig.engine) == (1, 0)


def test_a_reserve_gets_one_as_long_as_there_is_one() -> None:
    rig, _ = closed(JOBS)
    me = rig.client()
    got = {rig.reserve(me) for _ in range(JOBS)}
    assert got == set(range(1, JOBS + 1))
    assert reserve(rig.engine, me, rig.now_ms) is None
    check(rig.engine)


def test_who_waits_gets_what_comes_back() -> None:
    rig, holder = holding()
    waiting = [rig.client() for _ in range(JOBS)]
    for each in waiting:
        rig.wait(each)
    rig.close(holder)
    assert len(rig.delivered()) == RETURNS_PER_TURN
    return_all(rig)
    assert len(rig.delivered()) == JOBS - RETURNS_PER_TURN
    assert rig.engine.store.leases.sessions.keys() == set(range(1, JOBS + 1))


def test_the_reserves_of_one_turn_look_for_jobs_of_other_topics_in_vain_only_so_often() -> None:
    rig, _ = closed(2 * JOBS)
    me = rig.client("other")
    rig.take_log()
    for _ in range(3):
        assert reserve(rig.engine, me, rig.now_ms) is None
    assert returns(rig) == RETURN_SEARCHES_PER_TURN
    assert reserve(rig.engine, me, rig.now_ms) is None
    assert returns(rig) == RETURN_SEARCHES_PER_TURN


def test_under_a_ladder_the_attempt_failed_when_the_connection_closed() -> None:
    rig, _ = closed(policy=LADDER)
    closed_ms = rig.now_ms
    rig.run(closed_ms + 700)
    for job_id in (1, JOBS):
        record, state = caught_up(rig.engine, job_id, rig.now_ms)
        assert state is State.DELAYED
        failure = failure_of(record)
        assert failure is not None
        assert (failure.reason, failure.failed_ms) == (Reason.HOLDER_LEFT, closed_ms)
    rig.play(closed_ms + 999)
    assert counts(rig.engine)[0] == 0
    rig.play(closed_ms + 1_000)
    assert caught_up(rig.engine, JOBS - 1, rig.now_ms)[1] is State.READY
    return_all(rig)
    rig.play(closed_ms + 1_000)
    assert counts(rig.engine) == (JOBS, 0)


@pytest.mark.parametrize("has_fired", [False, True])
def test_a_ttr_that_runs_out_before_the_slice_has_come_is_that_of_a_held_job(
    has_fired: bool,
) -> None:
    rig, _ = closed(ttr_ms=2_000)
    if has_fired:
        rig.play(rig.now_ms + 2_000)
    else:
        reach(rig.engine, PlayedMs(rig.time_ms + 2_000))
    check(rig.engine)
    return_all(rig)
    operations = rig.engine.store.counters.operations
    assert operations[Operation.RETURN] == RETURNS_PER_TURN
    assert operations[Operation.TIMEOUT] == JOBS - RETURNS_PER_TURN
    assert counts(rig.engine) == (JOBS, 0)
    rig.agree_with_the_log()


@pytest.mark.parametrize("policy", [None, LADDER])
@pytest.mark.parametrize("steps", [0, 1, 3, 99])
def test_a_crash_leaves_with_their_ttr_what_has_not_come_back(
    policy: Policy | None, steps: int
) -> None:
    rig, holder = closed(policy=policy)
    for _ in range(steps):
        give_back_some(rig.engine, 10, rig.now_ms)
    left = dict(holder.deadlines)
    rig.agree_with_the_log()
    rig.restart()
    assert rig.engine.store.orphans.deadlines == left
    check(rig.engine)


@pytest.mark.parametrize("is_stopping", [False, True])
def test_whoever_closed_before_the_stop_is_not_excused_by_it(is_stopping: bool) -> None:
    rig, holder = holding(policy=LADDER)
    rig.engine.is_stopping = is_stopping
    rig.close(holder)
    rig.engine.is_stopping = True
    return_all(rig)
    record, state = caught_up(rig.engine, JOBS, rig.now_ms)
    failure = failure_of(record)
    assert failure is not None
    expected = (Reason.EXCUSED, State.READY) if is_stopping else (Reason.HOLDER_LEFT, State.DELAYED)
    assert (failure.reason, state) == expected


def test_undelivered_jobs_come_back_in_slices_with_their_attempts_uncounted() -> None:
    rig, holder = holding(policy=LADDER)
    leave(rig.engine, holder, Reason.UNDELIVERED, rig.now_ms)
    leave(rig.engine, holder, Reason.UNDELIVERED, rig.now_ms)
    assert len(rig.engine.ended_sessions) == 1
    return_all(rig)
    assert counts(rig.engine) == (JOBS, 0)
    record = caught_up(rig.engine, JOBS, rig.now_ms)[0]
    failure = failure_of(record)
    assert failure is not None
    assert failure.attempts_before == tally_of(record).reserves


# --- Whatever looks at many jobs -----------------------------------------------------------------


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
def test_it_comes_after_all_that_comes_back(work: Callable[[EngineRig], object]) -> None:
    rig, _ = closed()
    assert work(rig) == JOBS
    assert not rig.engine.ended_sessions


def test_catching_up_is_bounded_too() -> None:
    rig, _ = closed(3 * JOBS)
    rig.take_log()
    assert not catch_up_leases(rig.engine, TASK_STEP_JOBS, rig.now_ms)
    assert returns(rig) == 1 + TASK_STEP_JOBS // PASS_ACTION_COST


def test_a_job_with_a_rule_of_its_own_may_be_buried_and_kicked_at_once() -> None:
    rig = EngineRig()
    holder = rig.client()
    topic = rig.topic()
    for _ in range(JOBS):
        rig.put(retry=Retry((), 1))
    rig.reserve_all(holder)
    rig.close(holder)
    rig.kick_job(JOBS)
    rig.delete(rig.client(), JOBS - 1)
    return_all(rig)
    assert (len(topic.queues.ready), len(topic.queues.buried)) == (1, JOBS - 2)
