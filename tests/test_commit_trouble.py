"""Group commit and the engine's room on a disk that is full, slow or broken.

The long test here runs a whole daemon without sockets in memory: an engine, a journal on a
simulated disk with little space, and everything clients do, from a seed. Whatever the engine
accepts can be recorded, and in the end every job can be removed.
"""

import contextlib
import queue
import random
import threading
from collections.abc import Callable, Iterator
from typing import Final, cast

import pytest

from delayd import commit as commit_module
from delayd.commit import NS_PER_MS, GroupCommit, Space
from delayd.config import SyncPolicy
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, OutOfSpace
from delayd.core.replay import Replay
from delayd.journal.errors import JournalError, JournalFull
from delayd.journal.journal import Journal
from delayd.limits import EMERGENCY_BYTES, ROOM_RETRY_MS, SLOW_SYNC_MS, UNSYNCED_BYTES_MAX
from delayd.testing.disk import SimulatedDisk

DIRECTORY: Final = "data"
SEGMENT_BYTES: Final = 128 << 10


class Clockwork:
    """The time that `commit` sees."""

    def __init__(self) -> None:
        self.now_ns = 0

    def pass_ms(self, ms: int) -> None:
        self.now_ns += ms * NS_PER_MS


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    made = Clockwork()
    monkeypatch.setattr(commit_module, "monotonic_ns", lambda: made.now_ns)
    return made


class Loop:
    """Runs what threads ask for when the test says so."""

    def __init__(self) -> None:
        self.soon: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        return (delay, callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        self.soon.put(callback)
        return None


class Failures:
    """Takes note of what should not happen."""

    def __init__(self) -> None:
        self.errors: list[JournalError] = []

    def __call__(self, error: JournalError) -> None:
        self.errors.append(error)


class Daemon:
    """What the service does in a turn, on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=SEGMENT_BYTES)
        self.engine = Engine(start_ms=0)
        replay = Replay(self.engine)
        for frame in self.journal.replay():
            replay.play(frame.payload)
        replay.finish(self.engine.store.time_ms)
        self.failures = Failures()
        self.changes: list[bool] = []
        self.space = Space(self.journal, self.changes.append)
        self.commit = GroupCommit(self.journal, SyncPolicy.NEVER, 50, Loop(), self.failures)
        self.engine.log_space.jobs = len(self.engine.store.jobs)
        self.sessions = [self.engine.open_session() for _ in range(4)]
        self.limit()

    def limit(self) -> None:
        room = self.engine.log_space
        held = len(self.engine.store.leases.sessions)
        room.limit(self.space.beyond(room.set_aside_bytes(held)), self.space.more)

    @property
    def now_ms(self) -> int:
        return self.engine.store.time_ms

    def end_turn(self) -> None:
        engine = self.engine
        if engine.log_space.is_short:
            engine.serve_waiting(self.now_ms)
        engine.take_deliveries()
        log, must_sync = engine.take_log()
        if log:
            self.commit.commit(log, [], must_sync=must_sync, time_ms=self.now_ms, wall_ms=0)
        assert not self.failures.errors, "something was accepted that could not be recorded"
        assert engine.log_space.jobs == len(engine.store.jobs)
        self.limit()

    def put(self, body: bytes = b"x" * 100, jobs: int = 1) -> int:
        topic = self.sessions[0].used
        assert topic is not None
        return self.engine.put_alike(
            topic,
            priority=0,
            delay_ms=0,
            ttr_ms=60_000,
            bodies=[body] * jobs,
            now_ms=self.now_ms,
        )

    def fill(self) -> int:
        """Put one job a turn until that is refused; count them."""
        jobs = 0
        while True:
            try:
                self.put()
            except OutOfSpace:
                return jobs
            jobs += 1
            self.end_turn()

    def drain(self) -> int:
        """Reserve and delete one job after the other, each in a turn of its own; count them."""
        jobs = 0
        while job := self.engine.reserve(self.sessions[0], self.now_ms):
            self.end_turn()
            self.engine.delete(self.sessions[0], job[0], self.now_ms)
            self.end_turn()
            jobs += 1
        return jobs

    def take_the_rest(self) -> None:
        """Let somebody else use up the disk."""
        self.disk.capacity_bytes = 0

    def stop(self) -> None:
        self.commit.close()
        self.journal.close()


@pytest.fixture
def daemon(clockwork: Clockwork) -> Iterator[Daemon]:
    del clockwork
    made = Daemon(SimulatedDisk(capacity_bytes=2 << 20))
    yield made
    made.stop()


def test_a_full_disk_refuses_puts_and_can_be_drained_one_job_at_a_time(daemon: Daemon) -> None:
    jobs = daemon.fill()
    assert jobs > 2_000
    daemon.take_the_rest()
    last_id = daemon.engine.store.last_id
    with pytest.raises(OutOfSpace):
        daemon.put()
    assert daemon.engine.store.last_id == last_id + 1, "the id is burnt"
    assert daemon.drain() == jobs


def test_on_a_full_disk_jobs_can_be_touched_buried_kicked_and_released(daemon: Daemon) -> None:
    daemon.fill()
    daemon.take_the_rest()
    engine, session = daemon.engine, daemon.sessions[0]
    for _ in range(300):
        job = engine.reserve(session, daemon.now_ms)
        assert job
        engine.touch(session, job[0], daemon.now_ms)
        daemon.end_turn()
        engine.bury(session, job[0], 0, engine.store.time_ms)
        daemon.end_turn()
        engine.kick_job(job[0], daemon.now_ms)
        daemon.end_turn()
        engine.reserve_job(session, job[0], daemon.now_ms)
        engine.release(session, job[0], 0, 0, daemon.now_ms)
        daemon.end_turn()


def test_when_the_emergency_room_is_used_up_deletes_and_returns_still_go(daemon: Daemon) -> None:
    jobs = daemon.fill()
    daemon.take_the_rest()
    engine, session = daemon.engine, daemon.sessions[0]
    job = engine.reserve(session, daemon.now_ms)
    assert job
    touches = 0
    with contextlib.suppress(OutOfSpace):
        while True:
            engine.touch(session, job[0], daemon.now_ms)
            touches += 1
            daemon.end_turn()
    assert touches * 71 > EMERGENCY_BYTES // 2
    with pytest.raises(OutOfSpace):
        engine.reserve(daemon.sessions[1], daemon.now_ms)
    assert engine.reserve_batch(daemon.sessions[1], 5, 1_000, daemon.now_ms) == []
    engine.close_session(session, daemon.now_ms)
    daemon.end_turn()
    deleted = engine.delete_batch(daemon.sessions[1], range(1, jobs + 1), daemon.now_ms)
    assert all(deleted)
    daemon.end_turn()


def test_a_waiting_consumer_gets_its_job_when_there_is_room_again(daemon: Daemon) -> None:
    engine, waiter = daemon.engine, daemon.sessions[1]
    engine.watch(waiter, "later")
    engine.ignore(waiter, "default")
    topic = engine.store.topics.by_name["later"]
    engine.put(topic, priority=0, delay_ms=5, ttr_ms=1_000, body=b"", now_ms=daemon.now_ms)
    engine.wait(waiter, daemon.now_ms, None)
    daemon.end_turn()
    engine.log_space.free_bytes = 0
    while engine.advance(10):
        pass
    assert engine.take_deliveries() == []
    assert engine.log_space.is_short
    daemon.limit()
    engine.serve_waiting(10)
    assert engine.take_deliveries() == [(waiter, (1, b""))]
    daemon.end_turn()


def test_a_daemon_that_starts_on_a_full_disk_can_be_drained(daemon: Daemon) -> None:
    jobs = daemon.fill()
    daemon.take_the_rest()
    daemon.disk.kill()
    again = Daemon(daemon.disk)
    with pytest.raises(OutOfSpace):
        again.put()
    assert again.drain() == jobs
    again.stop()
    daemon.journal = again.journal


def test_room_that_came_without_asking_is_told_too(daemon: Daemon) -> None:
    daemon.fill()
    assert daemon.changes == [True]
    daemon.limit()
    assert daemon.changes == [True]
    daemon.disk.capacity_bytes = None
    assert daemon.journal.make_room(4 << 20, 0, 0)
    daemon.limit()
    assert daemon.changes == [True, False]


def test_a_full_disk_is_asked_once_a_second_and_puts_go_on_by_themselves(
    daemon: Daemon, clockwork: Clockwork
) -> None:
    daemon.fill()
    assert daemon.changes == [True]
    calls = daemon.disk.call_count
    clockwork.pass_ms(ROOM_RETRY_MS - 1)
    for _ in range(20):
        with pytest.raises(OutOfSpace):
            daemon.put()
    assert daemon.disk.call_count == calls
    daemon.disk.capacity_bytes = None
    clockwork.pass_ms(1)
    daemon.put()
    daemon.end_turn()
    assert daemon.changes == [True, False]


def test_long_bodies_get_places_of_their_own(daemon: Daemon) -> None:
    daemon.engine.state.body_bytes_max = 1 << 20
    daemon.put(b"y" * 400_000)
    daemon.put(b"y" * 300_000)
    daemon.take_the_rest()
    daemon.end_turn()
    with pytest.raises(OutOfSpace):
        daemon.put(b"y" * 400_000)


def test_space_that_jobs_no_longer_need_is_given_back(daemon: Daemon) -> None:
    daemon.disk.capacity_bytes = None
    for _ in range(10):
        daemon.put(jobs=1_000)
        daemon.end_turn()
    most = daemon.journal.room_bytes
    daemon.engine.delete_batch(daemon.sessions[0], range(1, 10_001), daemon.now_ms)
    daemon.end_turn()
    daemon.end_turn()
    assert most > 1_360_000
    assert daemon.journal.room_bytes < EMERGENCY_BYTES + 3 * SEGMENT_BYTES


def do_something(daemon: Daemon, rng: random.Random) -> None:
    """One operation of a client; most of them make sense."""
    engine, now_ms = daemon.engine, daemon.now_ms
    session = rng.choice(daemon.sessions)
    job_id = rng.randrange(1, engine.store.last_id + 2)
    held = rng.choice(list(session.deadlines) or [job_id])
    topic = session.used
    assert topic is not None
    operations: list[Callable[[], object]] = [
        lambda: daemon.put(b"z" * rng.choice([0, 10, 1_000]), rng.choice([1, 1, 30])),
        lambda: daemon.put(b"z" * rng.choice([5_000, 60_000, 130_000])),
        lambda: engine.reserve(session, now_ms),
        lambda: engine.reserve_batch(session, 20, 100_000, now_ms),
        lambda: engine.touch(session, held, now_ms),
        lambda: engine.release(session, held, 0, rng.choice([0, 5]), now_ms),
        lambda: engine.bury(session, held, 0, engine.store.time_ms),
        lambda: engine.kick(topic, 30, now_ms),
        lambda: engine.reschedule(job_id, rng.choice([0, 7]), now_ms),
        lambda: engine.delete(session, held, now_ms),
        lambda: engine.delete_batch(session, range(job_id, job_id + 10), now_ms),
        lambda: engine.pause("default", rng.choice([0, 0, 3]), now_ms),
        lambda: engine.advance(now_ms + rng.randrange(3)),
        lambda: engine.advance(now_ms + 70_000),
    ]
    weights = [30, 2, 6, 2, 6, 6, 4, 2, 4, 3, 2, 1, 6, 0.05]
    if rng.random() < 0.01:
        engine.close_session(session, now_ms)
        daemon.sessions[daemon.sessions.index(session)] = engine.open_session()
        return
    if session.waiting:
        return
    with contextlib.suppress(JobNotFound):
        rng.choices(operations, weights)[0]()


def test_whatever_clients_do_on_a_full_disk_is_recorded_or_refused(
    rng: random.Random, clockwork: Clockwork
) -> None:
    for _ in range(4):
        daemon = Daemon(SimulatedDisk(capacity_bytes=rng.choice([1, 2, 3]) << 20))
        daemon.engine.state.body_bytes_max = 200_000
        refused = 0
        for turn in range(1_500):
            for _operation in range(rng.choice([1, 1, 3, 40])):
                try:
                    do_something(daemon, rng)
                except OutOfSpace:
                    refused += 1
            daemon.end_turn()
            clockwork.pass_ms(rng.choice([0, 10, 500]))
            if turn == 700:
                daemon.take_the_rest()
        assert refused
        records = dict(daemon.engine.store.jobs)
        for session in daemon.sessions:
            daemon.engine.close_session(session, daemon.now_ms)
        daemon.end_turn()
        daemon.disk.kill()
        again = Daemon(daemon.disk)
        while again.engine.advance(daemon.now_ms):
            again.end_turn()
        assert dict(again.engine.store.jobs).keys() == records.keys()
        assert all(again.engine.delete_batch(again.sessions[0], list(records), again.now_ms))
        again.end_turn()
        again.stop()


# --- Group commit by itself ----------------------------------------------------------------------


class NarrowJournal:
    """Takes frames of at most so many bytes, and syncs when it is let."""

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.frames: list[bytes] = []
        self.gate = threading.Semaphore(0)

    is_behind = False

    def append(self, payload: bytes, time_ms: int, wall_ms: int) -> int:
        del time_ms, wall_ms
        if len(payload) > self.frame_bytes:
            raise JournalFull(DIRECTORY, "no room")
        self.frames.append(payload)
        return len(self.frames)

    def sync(self) -> int:
        assert self.gate.acquire(timeout=20)
        return len(self.frames)


class Desk:
    """A group commit on such a journal."""

    def __init__(self, policy: SyncPolicy, frame_bytes: int = 1 << 40) -> None:
        self.journal = NarrowJournal(frame_bytes)
        self.loop = Loop()
        self.failures = Failures()
        self.commit = GroupCommit(
            cast("Journal", self.journal), policy, 50, self.loop, self.failures
        )

    def turn(self, *records: bytes) -> None:
        self.commit.commit(list(records), [], must_sync=True, time_ms=0, wall_ms=0)

    def sync_ends(self) -> None:
        self.journal.gate.release()
        self.loop.soon.get(timeout=20)()

    def close(self) -> None:
        self.journal.gate.release(100)
        self.commit.close()


def test_a_turn_that_fits_nowhere_whole_is_written_in_pieces_in_order() -> None:
    desk = Desk(SyncPolicy.NEVER, frame_bytes=10)
    desk.turn(b"aaaa", b"bbbb", b"cccc", b"dddddddd", b"e")
    assert b"".join(desk.journal.frames) == b"aaaabbbbccccdddddddde"
    assert len(desk.journal.frames) < 5
    assert not desk.failures.errors
    desk.close()


def test_a_record_that_fits_nowhere_is_a_failure() -> None:
    desk = Desk(SyncPolicy.NEVER, frame_bytes=10)
    desk.turn(b"aaaa", b"b" * 11)
    assert [type(error) for error in desk.failures.errors] == [JournalFull]
    desk.close()


@pytest.mark.parametrize("policy", [SyncPolicy.NEVER, SyncPolicy.INTERVAL])
def test_without_waiting_replies_much_unsynced_begins_a_sync_and_more_stops_reading(
    policy: SyncPolicy,
) -> None:
    desk = Desk(policy)
    record = bytes(UNSYNCED_BYTES_MAX // 4)
    desk.turn(record)
    desk.turn(record)
    assert desk.commit.sync_going_on_ms == 0
    desk.turn(record)
    backed_up = [desk.commit.is_backed_up]
    for _ in range(5):
        desk.turn(record)
    backed_up.append(desk.commit.is_backed_up)
    desk.sync_ends()
    backed_up.append(desk.commit.is_backed_up)
    assert backed_up == [False, True, False], "the sync in the thread covers what was before"
    desk.close()


def test_slow_syncs_are_told_and_counted(clockwork: Clockwork) -> None:
    desk = Desk(SyncPolicy.ALWAYS)
    told: list[int] = []
    desk.commit.on_slow_sync = told.append
    desk.turn(b"record")
    clockwork.pass_ms(300)
    assert desk.commit.sync_going_on_ms == 300
    desk.commit._synced(None, (SLOW_SYNC_MS + 1) * NS_PER_MS)
    assert desk.commit.sync_going_on_ms == 0
    assert (desk.commit.syncs, desk.commit.slow_syncs) == (1, 1)
    assert desk.commit.longest_sync_ns == (SLOW_SYNC_MS + 1) * NS_PER_MS
    assert told == [SLOW_SYNC_MS + 1]
    desk.close()
