"""Group commit and the engine's space on a disk that is full, slow or broken.

The long test here runs a whole rig without sockets in memory: an engine, a journal on a
simulated disk with little space, and everything clients do, from a seed. Whatever the engine
accepts can be recorded, and in the end every job can be removed.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from delayd import commit as commit_module
from delayd import turns as turns_module
from delayd.config import SyncPolicy
from delayd.core.errors import JobNotFound, OutOfSpace
from delayd.core.operations.ack import delete, delete_batch
from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import kick_job, reschedule
from delayd.core.operations.reserve import reserve, reserve_batch, reserve_job, touch
from delayd.core.operations.sessions import (
    close_session,
    give_back_some,
    ignore,
    open_session,
    watch,
)
from delayd.core.operations.tick import advance
from delayd.core.operations.topics import pause
from delayd.core.operations.waiting import serve_waiting, wait
from delayd.core.times import PlayedMs, RequestMs
from delayd.journal import file_log as file_log_module
from delayd.journal import file_space as file_space_module
from delayd.limits import EMERGENCY_BYTES, SPACE_RETRY_MS
from tests.rigs.clock import FakeClock
from tests.rigs.commit import CommitRig, Watch, set_watch
from tests.rigs.disk import SimulatedDisk
from tests.rigs.engine import kick, put

SEGMENT_BYTES: Final = 128 << 10
TTR_MS: Final = 60_000


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch, commit_module, file_log_module, file_space_module, turns_module)


def full_disk_rig(
    disk: SimulatedDisk, segment_bytes: int = SEGMENT_BYTES, watch: Watch | None = None
) -> CommitRig:
    """`watch`: with turns."""
    return CommitRig(
        SyncPolicy.NEVER,
        disk=disk,
        segment_bytes=segment_bytes,
        clock=FakeClock(0),
        space=True,
        watch=watch,
    )


@pytest.fixture
def rig(clockwork: Watch) -> Iterator[CommitRig]:
    del clockwork
    made = full_disk_rig(SimulatedDisk(capacity_bytes=2 << 20))
    yield made
    made.close()


@pytest.mark.thorough
@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_full_disk_refuses_puts_and_can_be_drained_one_job_at_a_time(
    rig: CommitRig, is_started_again: bool
) -> None:
    jobs = rig.fill()
    assert jobs > 2_000
    rig.take_the_rest()
    again = rig
    if is_started_again:
        rig.disk.kill()
        again = full_disk_rig(rig.disk)
    last_id = again.engine.store.last_id
    with pytest.raises(OutOfSpace):
        again.put()
    assert again.engine.store.last_id == last_id + 1, "the id is burnt"
    assert again.drain() == jobs
    if is_started_again:
        again.close()
        rig.journal = again.journal


@pytest.mark.thorough
def test_on_a_full_disk_jobs_can_be_touched_buried_kicked_and_released(rig: CommitRig) -> None:
    rig.fill()
    rig.take_the_rest()
    engine, session = rig.engine, rig.sessions[0]
    for _ in range(300):
        job = reserve(engine, session, rig.now_ms)
        assert job
        touch(engine, session, job[0], rig.now_ms)
        rig.end_turn()
        bury(engine, session, job[0], 0, RequestMs(engine.store.time_ms))
        rig.end_turn()
        kick_job(engine, job[0], rig.now_ms)
        rig.end_turn()
        reserve_job(engine, session, job[0], rig.now_ms)
        release(engine, session, job[0], 0, 0, rig.now_ms)
        rig.end_turn()


@pytest.mark.thorough
def test_when_the_emergency_space_is_used_up_deletes_and_returns_still_go(rig: CommitRig) -> None:
    jobs = rig.fill()
    rig.take_the_rest()
    engine, session = rig.engine, rig.sessions[0]
    job = reserve(engine, session, rig.now_ms)
    assert job
    touches = 0
    with contextlib.suppress(OutOfSpace):
        while True:
            touch(engine, session, job[0], rig.now_ms)
            touches += 1
            rig.end_turn()
    assert touches * 71 > EMERGENCY_BYTES // 2
    with pytest.raises(OutOfSpace):
        reserve(engine, rig.sessions[1], rig.now_ms)
    assert reserve_batch(engine, rig.sessions[1], 5, 1_000, rig.now_ms) == []
    close_session(engine, session, rig.now_ms)
    rig.end_turn()
    deleted = delete_batch(engine, rig.sessions[1], range(1, jobs + 1), rig.now_ms)
    assert all(deleted)
    rig.end_turn()


def test_a_waiting_consumer_gets_its_job_when_there_is_space_again(rig: CommitRig) -> None:
    engine, waiter = rig.engine, rig.sessions[1]
    watch(engine, waiter, "later")
    ignore(engine, waiter, "default")
    topic = engine.store.topics.by_name["later"]
    put(engine, topic, priority=0, delay_ms=5, ttr_ms=1_000, body=b"", now_ms=rig.now_ms)
    wait(engine, waiter, rig.now_ms, None)
    rig.end_turn()
    engine.log_space.free_bytes = 0
    while advance(engine, PlayedMs(10)):
        pass
    assert engine.take_deliveries() == []
    assert engine.log_space.is_short
    rig.limit()
    serve_waiting(engine, RequestMs(10))
    assert engine.take_deliveries() == [(waiter, (1, b""))]
    rig.end_turn()


@pytest.mark.thorough
def test_a_full_disk_is_asked_once_a_second_and_told_when_it_is_not_any_more(
    rig: CommitRig, clockwork: Watch
) -> None:
    def is_told_after(act: Callable[[], object]) -> bool:
        calls = rig.disk.call_count
        rig.changes.clear()
        act()
        return rig.changes == [False] and rig.disk.call_count > calls

    def refused() -> None:
        with pytest.raises(OutOfSpace):
            rig.put()

    rig.fill()
    assert rig.changes == [True]
    capacity_bytes = rig.disk.capacity_bytes
    for act in (rig.put, rig.limit):  # a put, and a turn of others
        clockwork.pass_ms(SPACE_RETRY_MS - 1)
        assert not any(is_told_after(refused) for _ in range(20))
        rig.disk.capacity_bytes = None
        assert not is_told_after(rig.limit), "once a second"
        clockwork.pass_ms(1)
        assert is_told_after(act)
        rig.end_turn()
        rig.disk.capacity_bytes = capacity_bytes
        rig.fill()
    rig.disk.capacity_bytes = None
    assert rig.journal.make_space(4 << 20, 0, 0), "it came without asking"
    assert is_told_after(rig.limit)


def test_long_bodies_get_places_of_their_own(rig: CommitRig) -> None:
    rig.engine.body_bytes_max = 1 << 20
    rig.put(body=b"y" * 400_000)
    rig.put(body=b"y" * 300_000)
    rig.take_the_rest()
    rig.end_turn()
    with pytest.raises(OutOfSpace):
        rig.put(body=b"y" * 400_000)


def test_space_that_jobs_no_longer_need_is_given_back(rig: CommitRig) -> None:
    rig.disk.capacity_bytes = None
    for _ in range(10):
        rig.put(jobs=1_000)
        rig.end_turn()
    most = rig.journal.space_bytes
    delete_batch(rig.engine, rig.sessions[0], range(1, 10_001), rig.now_ms)
    rig.end_turn()
    rig.end_turn()
    assert most > 1_360_000
    assert rig.journal.space_bytes < EMERGENCY_BYTES + 3 * SEGMENT_BYTES


def do_something(rig: CommitRig, rng: random.Random) -> None:
    """One operation of a client; most of them make sense."""
    engine, now_ms = rig.engine, rig.now_ms
    session = rng.choice(rig.sessions)
    job_id = rng.randrange(1, engine.store.last_id + 2)
    held = rng.choice(list(session.deadlines) or [job_id])
    topic = session.used
    assert topic is not None
    operations: list[Callable[[], object]] = [
        lambda: rig.put(
            body=b"z" * rng.choice([0, 10, 1_000]), jobs=rng.choice([1, 1, 30]), ttr_ms=TTR_MS
        ),
        lambda: rig.put(body=b"z" * rng.choice([5_000, 60_000, 130_000]), ttr_ms=TTR_MS),
        lambda: reserve(engine, session, now_ms),
        lambda: reserve_batch(engine, session, 20, 100_000, now_ms),
        lambda: touch(engine, session, held, now_ms),
        lambda: release(engine, session, held, 0, rng.choice([0, 5]), now_ms),
        lambda: bury(engine, session, held, 0, RequestMs(engine.store.time_ms)),
        lambda: kick(engine, topic, 30, now_ms),
        lambda: reschedule(engine, job_id, rng.choice([0, 7]), now_ms),
        lambda: delete(engine, session, held, now_ms),
        lambda: delete_batch(engine, session, range(job_id, job_id + 10), now_ms),
        lambda: pause(engine, "default", rng.choice([0, 0, 3]), now_ms),
        lambda: advance(engine, PlayedMs(now_ms + rng.randrange(3))),
        lambda: advance(engine, PlayedMs(now_ms + 70_000)),
    ]
    weights = [30, 2, 6, 2, 6, 6, 4, 2, 4, 3, 2, 1, 6, 0.05]
    if rng.random() < 0.01:
        close_session(engine, session, now_ms)
        rig.sessions[rig.sessions.index(session)] = open_session(engine)
        return
    if session.waiting:
        return
    with contextlib.suppress(JobNotFound):
        rng.choices(operations, weights)[0]()


def test_whatever_clients_do_on_a_full_disk_is_recorded_or_refused(
    rng: random.Random, clockwork: Watch, often: Callable[[int, int], range]
) -> None:
    """Nor is more space promised than there is: the rig looks after each turn."""
    for number in often(4, 60):
        is_roomy = number % 4 == 3
        disk = SimulatedDisk(capacity_bytes=(9 if is_roomy else 1 + number % 4) << 20)
        segment_bytes = 12 << 20 if is_roomy else SEGMENT_BYTES
        rig = full_disk_rig(disk, segment_bytes, clockwork)
        rig.engine.body_bytes_max = 200_000
        refused = 0
        for turn in range(400):
            for _operation in range(rng.choice([1, 1, 3, 40])):
                try:
                    do_something(rig, rng)
                except OutOfSpace:
                    refused += 1
            rig.end_turn()
            clockwork.pass_ms(rng.choice([0, 10, 500]))
            if turn == 200:
                assert not is_roomy or rig.space.looks < rig.turns_taken, "it need not always look"
                rig.take_the_rest()
        assert refused
        records = dict(rig.engine.store.jobs)
        for session in rig.sessions:
            close_session(rig.engine, session, rig.now_ms)
        while rig.engine.ended_sessions:
            rig.end_turn()
            give_back_some(rig.engine, 50, rig.now_ms)
        rig.end_turn()
        rig.disk.kill()
        again = full_disk_rig(rig.disk, segment_bytes, clockwork)
        while advance(again.engine, PlayedMs(rig.now_ms)):
            again.end_turn()
        assert dict(again.engine.store.jobs).keys() == records.keys()
        assert all(delete_batch(again.engine, again.sessions[0], list(records), again.now_ms))
        again.end_turn()
        again.close()
