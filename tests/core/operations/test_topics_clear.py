"""A cleared topic is empty for everybody at once; what is left of its jobs is swept away later."""

import pytest

from delayd.core.background_tasks import BackgroundTask, BackgroundTasks, Work
from delayd.core.log_records import Kind, UnknownRecord, pack
from delayd.core.operations.topics import Clear
from delayd.core.replay import Replay
from delayd.core.scans.list import Search
from delayd.core.scans.scan import Wanted
from delayd.core.session import Session
from delayd.core.snapshot_copy import SnapshotCopy
from tests.core.check import check
from tests.rigs.engine import EngineRig


def crowded(rig: EngineRig, each: int = 4) -> Session:
    """Jobs in all states; return who holds some of them."""
    me = rig.client("default")
    rig.put_many(3 * each)
    for _ in range(each):
        rig.bury(me, rig.reserve(me))
        rig.reserve(me)
    for delay_ms in range(each):
        rig.put(delay_ms=100 + delay_ms)
    return me


def sweep(rig: EngineRig) -> None:
    tasks = BackgroundTasks(rig.engine)
    while tasks.has_more:
        assert tasks.step(rig.now_ms, budget=3) is None
        check(rig.engine)


def test_a_clear_looks_at_no_jobs_but_those_in_hand_which_count_against_the_caps(
    rig: EngineRig,
) -> None:
    me = crowded(rig, each=500)
    topic, jobs = rig.topic(), rig.engine.store.jobs
    in_hand = [(job_id, len(record)) for job_id, record in jobs if job_id in me.deadlines]
    for job_id in {job_id for job_id, _ in jobs} - me.deadlines.keys():
        jobs.replace(job_id, b"")  # reading it fails
    assert rig.clear() == 1500
    assert topic.bytes == sum(size for _, size in in_hand)
    rig.delete(me, *(job_id for job_id, _ in in_hand))
    assert topic.bytes == 0


def test_a_job_whose_ttr_has_run_out_waits_again_and_is_cleared_in_slices(rig: EngineRig) -> None:
    me = rig.client()
    rig.put_many(500, ttr_ms=50)
    rig.reserve_all(me)
    kept = rig.put(ttr_ms=5_000)
    rig.reserve(me)
    rig.advance(50)
    with pytest.raises(AssertionError):
        rig.clear()
    work = Clear(rig.engine, "default")
    steps = 1
    while not work.step(100, rig.now_ms):
        steps += 1
    assert steps > 2
    assert work.count == 500
    assert list(me.deadlines) == [kept]
    rig.agree_with_the_log()


def test_no_copy_begins_before_all_is_swept_away(rig: EngineRig) -> None:
    crowded(rig)
    rig.clear()
    assert not SnapshotCopy.can_begin(rig.engine.store)
    with pytest.raises(AssertionError):
        SnapshotCopy(rig.engine.store)
    sweep(rig)
    assert SnapshotCopy.can_begin(rig.engine.store)


@pytest.mark.thorough
def test_a_sweep_shares_the_steps_with_passes_that_take_turns(rig: EngineRig) -> None:
    crowded(rig, each=50)
    rig.clear()
    for number in range(100):
        rig.put(delay_ms=number)
    tasks = BackgroundTasks(rig.engine)
    searches = [Search(rig.engine, "default", Wanted(), limit=1) for _ in range(3)]
    added = [BackgroundTask(search, lambda _refusal, _now_ms: None) for search in searches]
    for task in added:
        tasks.add(task)
    tasks.leave(added[1])
    over: list[Work] = []
    before = len(rig.engine.store.jobs)
    while len(over) < 2:
        ended = tasks.step(rig.now_ms, budget=20)
        if ended is not None:
            over.append(ended.work)
    assert over == [searches[0], searches[2]]
    assert not searches[1].is_over
    assert len(rig.engine.store.jobs) < before
    sweep(rig)


def test_a_topic_that_vanishes_is_clear(rig: EngineRig) -> None:
    job_id = rig.put("mail")
    work = Clear(rig.engine, "mail")
    rig.delete(rig.client(), job_id)
    assert work.step(1, rig.now_ms)
    assert work.count == 0


@pytest.mark.parametrize("numbers", [(7, 8), (1, 1), (1, 2)])
def test_a_clear_that_does_not_fit_what_came_before_is_no_record(numbers: tuple[int, int]) -> None:
    replay = Replay(EngineRig().engine)
    replay.play(pack(Kind.TOPIC, 1, 1) + b"a" + pack(Kind.TOPIC, 2, 1) + b"b")
    with pytest.raises(UnknownRecord):
        replay.play(pack(Kind.CLEAR, *numbers))
