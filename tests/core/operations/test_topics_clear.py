"""A cleared topic is empty for everybody at once; what is left of its jobs is swept away later."""

import gc
import tracemalloc

import pytest

from delayd.core.background_tasks import BackgroundTask, BackgroundTasks, Work
from delayd.core.errors import TopicNotFound
from delayd.core.job_table import PAGE_BITS, PAGE_MASK
from delayd.core.log_records import (
    Kind,
    UnknownRecord,
    pack,
)
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury
from delayd.core.operations.sessions import close_session
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.topics import Clear, pause
from delayd.core.operations.topics import clear as clear_topic
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.replay import Replay
from delayd.core.scans.list import Search
from delayd.core.scans.scan import Wanted
from delayd.core.session import Session
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import RequestMs
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig, kinds_of, put

WHOLE = 1 << 40


def crowded(rig: EngineRig, name: str = "default", each: int = 4) -> Session:
    """Jobs in all states; return who holds some of them."""
    me = rig.client(name)
    for _ in range(3 * each):
        rig.put(name)
    for _ in range(each):
        bury(rig.engine, me, rig.reserve(me), 0, RequestMs(rig.engine.store.time_ms))
        rig.reserve(me)
    for delay_ms in range(each):
        rig.put(name, delay_ms=100 + delay_ms)
    return me


def clear(rig: EngineRig, name: str = "default") -> int:
    return clear_topic(rig.engine, rig.engine.store.topics.by_name[name])


def sweep(rig: EngineRig) -> None:
    tasks = BackgroundTasks(rig.engine)
    while tasks.has_more:
        assert tasks.step(rig.now_ms, budget=3) is None


def same_after_a_restart(rig: EngineRig) -> bool:
    check(rig.engine)
    return list(canonical(rig.replayed())) == list(canonical(rig.engine))


def test_one_record_says_it_and_no_record_says_that_there_was_nothing() -> None:
    rig = EngineRig()
    me = crowded(rig)
    rig.take_log()
    clear(rig)
    payload, must_sync = rig.take_log()
    assert kinds_of(payload) == [Kind.CLEAR]
    assert must_sync
    assert clear(rig) == 0
    assert rig.take_log() == (b"", False)
    close_session(rig.engine, me, rig.now_ms)
    assert clear(rig) == 4


def test_a_clear_looks_at_no_jobs_but_those_in_hand() -> None:
    rig = EngineRig()
    me = crowded(rig, each=500)
    topic = rig.engine.store.topics.by_name["default"]
    jobs = rig.engine.store.jobs
    bytes_in_hand = sum(len(record) for job_id, record in jobs if job_id in me.deadlines)
    for job_id in {job_id for job_id, _ in jobs} - me.deadlines.keys():
        jobs._pages[job_id >> PAGE_BITS][job_id & PAGE_MASK] = b""  # reading it fails
    assert clear(rig) == 1500
    assert topic.bytes == bytes_in_hand


def test_what_is_in_hand_counts_against_the_cap_on_bytes_after_a_clear() -> None:
    rig = EngineRig()
    me = crowded(rig)
    topic = rig.engine.store.topics.by_name["default"]
    clear(rig)
    records = [rig.engine.store.jobs.get(job_id) or b"" for job_id in me.deadlines]
    assert topic.bytes == sum(map(len, records)) > 0
    for job_id in list(me.deadlines):
        delete(rig.engine, me, job_id, rig.now_ms)
    assert topic.bytes == 0


def test_waiters_go_on_waiting_and_pauses_go_on() -> None:
    rig = EngineRig()
    rig.put(delay_ms=50)
    you = rig.client()
    rig.wait(you)
    pause(rig.engine, "default", 500, rig.now_ms)
    clear(rig)
    assert views.view_topic(rig.engine, "default", rig.now_ms).pause_left_ms == 500
    job_id = rig.put()
    assert same_after_a_restart(rig)
    rig.play(499)
    assert rig.delivered() == []
    rig.play(500)
    assert rig.delivered() == [(you, job_id)]


def test_a_job_whose_ttr_has_run_out_waits_again_and_is_cleared() -> None:
    rig = EngineRig()
    me = rig.client()
    for _ in range(500):
        rig.put(ttr_ms=50)
    rig.reserve_all(me)
    kept = rig.put(ttr_ms=5_000)
    rig.reserve(me)
    rig.advance(50)
    with pytest.raises(AssertionError):
        clear(rig)
    pass_ = Clear(rig.engine, "default")
    steps = 1
    while not pass_.step(100, rig.now_ms):
        steps += 1
    assert steps > 2
    assert pass_.count == 500
    assert list(me.deadlines) == [kept]
    assert same_after_a_restart(rig)


def test_absolute_times_of_cleared_jobs_are_forgotten_placed_or_not() -> None:
    rig = EngineRig()
    engine = rig.engine
    topic = engine.store.topics.by_name["default"]
    for number in range(300):
        put(engine, topic, priority=0, due_wall_ms=9_000 + number, ttr_ms=9, body=b"", now_ms=0)
    follow_wall(engine, -5_000)
    engine.store.place_some()
    clear(rig)
    check(engine)
    kept = put(engine, topic, priority=0, due_wall_ms=9_000, ttr_ms=9, body=b"", now_ms=0)
    follow_wall(engine, -6_000)
    rig.run(1)
    check(engine)
    assert topic.delayed == 1
    sweep(rig)
    assert engine.store.wall_times.ids() == ({kept}, set())
    assert same_after_a_restart(rig)


def test_a_clear_is_not_refused_when_the_disk_is_full() -> None:
    rig = EngineRig()
    crowded(rig)
    jobs = rig.engine.log_space.jobs
    rig.engine.log_space.limit(0, ask=lambda _missing, _body, _places: 0)
    assert clear(rig) == 12
    assert rig.engine.log_space.jobs == jobs - 12


def test_no_copy_begins_before_all_is_swept_away() -> None:
    rig = EngineRig()
    crowded(rig)
    clear(rig)
    assert not SnapshotCopy.can_begin(rig.engine.store)
    with pytest.raises(AssertionError):
        SnapshotCopy(rig.engine.store)
    sweep(rig)
    assert SnapshotCopy.can_begin(rig.engine.store)


def test_a_copy_gives_jobs_in_hand_the_number_that_their_topic_has() -> None:
    rig = EngineRig()
    me = crowded(rig)
    clear(rig)
    sweep(rig)
    rig.advance(10)
    payload = SnapshotCopy(rig.engine.store).take(WHOLE, WHOLE)
    replay = Replay(rig.new_engine())
    replay.play(payload)
    replay.finish(rig.time_ms)
    check(replay.engine)
    live = list(canonical(rig.engine))[1:]
    assert list(canonical(replay.engine))[1:] == live
    assert replay.engine.store.orphans.deadlines == me.deadlines
    assert replay.engine.store.topics.by_name["default"].old_held == {}


def test_memory_and_everything_else_is_as_it_was_before() -> None:
    rig = EngineRig()
    store = rig.engine.store
    rig.put()
    clear(rig)
    sweep(rig)
    rig.engine.take_log()
    gc.collect()
    tracemalloc.start()
    for number in range(20_000):
        rig.put(delay_ms=number % 3 * 1_000_000, body=b"x" * 50)
        rig.engine.take_log()
    filled_bytes = tracemalloc.get_traced_memory()[0]
    clear(rig)
    sweep(rig)
    rig.engine.take_log()
    gc.collect()
    left_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert filled_bytes > 20_000 * 150
    assert left_bytes < filled_bytes / 50
    assert (store.jobs.put_bytes, len(store.jobs), store.jobs.page_numbers()) == (0, 0, [])
    assert len(store.topics.by_number) == 1
    assert next_deadline(rig.engine) is None


def test_a_sweep_shares_the_steps_with_passes_that_take_turns() -> None:
    rig = EngineRig()
    crowded(rig, each=50)
    clear(rig)
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


def test_a_topic_that_is_not_there_is_refused_at_once_and_one_that_vanishes_is_clear() -> None:
    rig = EngineRig()
    with pytest.raises(TopicNotFound):
        Clear(rig.engine, "nobody")
    job_id = rig.put("mail")
    pass_ = Clear(rig.engine, "mail")
    delete(rig.engine, rig.client(), job_id, rig.now_ms)
    assert pass_.step(1, rig.now_ms)
    assert pass_.count == 0


@pytest.mark.parametrize("numbers", [(7, 8), (1, 1), (1, 2)])
def test_a_clear_that_does_not_fit_what_came_before_is_no_record(numbers: tuple[int, int]) -> None:
    replay = Replay(EngineRig().engine)
    named = pack(Kind.TOPIC, 1, 1) + b"a" + pack(Kind.TOPIC, 2, 1) + b"b"
    replay.play(named)
    with pytest.raises(UnknownRecord):
        replay.play(pack(Kind.CLEAR, *numbers))
