"""What every log does, tried on the one in files, in memory, and in PostgreSQL."""

import io
import random
import select
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

from delayd.core.engine import Engine
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.put import put_alike
from delayd.core.operations.sessions import open_session
from delayd.core.replay import Replay
from delayd.core.times import RequestMs
from delayd.exits import Exit
from delayd.journal.file_log import FileLog
from delayd.journal.journal import Journal
from delayd.log import DurableLog, LogError, LogFrame
from delayd.log_lines import Log
from delayd.snapshots import Snapshots, Task
from tests.core.canonical import canonical
from tests.postgres_server import PostgresServer, postgres_server
from tests.rigs.commit import DIRECTORY, SEGMENT_BYTES, CrankedLoop, HandWorker
from tests.rigs.disk import SimulatedDisk
from tests.rigs.log import MemoryLog, Place, User

if TYPE_CHECKING:
    from collections.abc import Callable


class Files:
    """A directory, and who opens a log in it."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()

    def opened(self) -> DurableLog:
        journal = Journal.open(DIRECTORY, disk=self.disk, segment_bytes=SEGMENT_BYTES)
        return FileLog(journal, Log(io.StringIO(), int), syncs_in_turn=True)

    def power_cut(self) -> None:
        self.disk.crash()


class Memory:
    def __init__(self) -> None:
        self.place = Place()

    def opened(self) -> DurableLog:
        return MemoryLog(self.place)

    def power_cut(self) -> None:
        """What was not settled is the log's own, and gone with it."""


class Database:
    """A log in a PostgreSQL that a module has started."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = self.server.new_log()

    def opened(self) -> DurableLog:
        from tests.rigs.postgres import opened

        return opened(self.server, self.name, LEASE_MS)

    def power_cut(self) -> None:
        self.server.kill()
        self.server.start()


Home = Files | Memory | Database
DATABASE = pytest.param(Database, marks=pytest.mark.process)
LEASE_MS = 1_000


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture(params=[Files, Memory, DATABASE])
def home(request: pytest.FixtureRequest) -> Home:
    """Each place where a log can be."""
    if request.param is Database:
        return Database(request.getfixturevalue("server"))
    make: Callable[[], Home] = request.param
    return make()


@pytest.fixture(params=[Memory, DATABASE])
def shared(request: pytest.FixtureRequest) -> Home:
    """Each place of which another daemon may become the owner."""
    return Memory() if request.param is Memory else Database(request.getfixturevalue("server"))


def settle(log: DurableLog) -> None:
    """Have all settled, and wait for it where it takes a while."""
    log.settle(in_turn=True)
    while log.is_settling and (descriptor := log.fileno()) is not None:
        assert select.select([descriptor], [], [], 60)[0]
        log.reap()


Seen = tuple[int, int, bytes]
WALL_DOUBT_MS_MAX: Final = 60_000
"""An answer takes no longer."""


def seen(frame: LogFrame) -> Seen:
    return frame.sequence, frame.time_ms, frame.payload


def begun(home: Home) -> tuple[DurableLog, User, list[Seen]]:
    """A log after its start, its user, and the frames that it had."""
    log, user = home.opened(), User()
    frames = [seen(frame) for frame in log.follow() if frame is not None]
    assert log.take_over()
    log.serve(CrankedLoop(), user)
    return log, user, frames


def end(*logs: DurableLog) -> None:
    for log in logs:
        log.stop()
        log.close()


def test_what_was_settled_is_followed_by_the_next_owner(home: Home) -> None:
    log, user, frames = begun(home)
    assert frames == []
    assert log.append([b"a", b"bc"], 5, 7) == 1
    assert log.append([b"d"], 6, 9) == log.appended_sequence == 2
    settle(log)
    assert user.settled_to == [2]
    assert log.wall_offset_ms == 3
    assert log.appended_bytes == 4
    log.append([b"not settled"], 8, 8)
    log.stop()
    home.power_cut()
    again, _, frames = begun(home)
    assert [frame for frame in frames if frame[2]] == [(1, 5, b"abc"), (2, 6, b"d")]
    # What another machine's clock says is known between bounds: the latest is written down.
    assert 9 - 6 <= again.wall_offset_ms <= 9 - 6 + again.is_shared * WALL_DOUBT_MS_MAX
    assert again.identity == log.identity
    again.stop()


def test_a_log_goes_on_behind_its_last_frame(home: Home) -> None:
    log, _, _ = begun(home)
    log.append([b"one"], 1, 1)
    log.stop()
    assert log.settle_all()
    log.close()
    log.close()
    again, _, frames = begun(home)
    assert [frame[2] for frame in frames if frame[2]] == [b"one"]
    last = again.appended_sequence
    assert again.append([b"two"], 2, 2) == last + 1
    again.stop()


def test_settled_covers_what_was_appended_before(home: Home, rng: random.Random) -> None:
    log, user, _ = begun(home)
    sequence = 0
    for _ in range(50):
        for _ in range(rng.randrange(1, 4)):
            sequence = log.append([rng.randbytes(rng.randrange(1, 100))], 1, 1)
        settle(log)
        assert user.settled_to[-1] == sequence
    assert user.settled_to == sorted(user.settled_to)
    log.stop()


def played(log: DurableLog) -> Engine:
    """The engine of a log, as a start makes it."""
    replay = None
    for frame in filter(None, log.follow()):
        replay = replay or Replay(Engine(start_ms=frame.time_ms))
        replay.play(frame.payload)
    assert log.take_over()
    if replay is None:
        return Engine(start_ms=0)
    replay.finish(replay.engine.store.time_ms)
    return replay.engine


def test_a_snapshot_and_the_frames_behind_it_are_the_state(home: Home) -> None:
    log = home.opened()
    engine = played(log)
    log.serve(CrankedLoop(), User())
    told: list[Task] = []
    failures: list[LogError] = []
    snapshots = Snapshots(
        engine,
        log,
        Log(io.StringIO(), int),
        wall_at=int,
        tell=told.append,
        on_failure=failures.append,
        new_worker=HandWorker,
        now_ns=lambda: 1 << 60,
    )
    topic, me = engine.store.topic("default"), open_session(engine)
    while snapshots.taken < 2:
        first_id = put_alike(engine, topic, 0, 50, 1, [bytes(100)] * 20, RequestMs(0))
        delete_batch(engine, me, range(first_id, first_id + 19), RequestMs(0))
        log.append(engine.take_log()[0], 0, 0)
        settle(log)
        snapshots.step()
        if snapshots._making is not None:
            worker = snapshots._making.worker
            assert isinstance(worker, HandWorker)
            worker.work()
        while told:
            told.pop(0)()
    put_alike(engine, topic, 0, 50, 1, [b"behind"], RequestMs(0))
    log.append(engine.take_log()[0], 0, 0)
    settle(log)
    snapshots.close()
    log.stop()
    home.power_cut()
    assert log.snapshot_ms == 0
    assert not failures
    assert list(canonical(played(home.opened()))) == list(canonical(engine))


def test_a_standby_follows_its_owner_and_takes_over_with_all_that_was_durable(shared: Home) -> None:
    owner, _, _ = begun(shared)
    standby = shared.opened()
    following = standby.follow()
    assert next(following) is None
    assert standby.owner
    owner.append([b"one"], 1, 1)
    settle(owner)
    assert [seen(frame) for frame in islice(following, 1) if frame] == [(1, 1, b"one")]
    assert next(following) is None
    owner.append([b"two"], 2, 2)
    settle(owner)
    end(owner)
    assert [seen(frame) for frame in following if frame] == [(2, 2, b"two")]
    assert standby.take_over()
    standby.serve(CrankedLoop(), user := User())
    assert standby.append([b"three"], 3, 3) == 3
    settle(standby)
    assert user.settled_to == [3]
    end(standby)


def test_of_two_standbys_one_takes_over_and_the_other_goes_on_following(shared: Home) -> None:
    owner, _, _ = begun(shared)
    first, second = shared.opened(), shared.opened()
    end(owner)
    assert not [*first.follow(), *second.follow()]
    assert first.take_over()
    assert not second.take_over()
    assert next(second.follow()) is None
    end(first)
    second.close()


def test_an_owner_that_was_paused_for_longer_than_its_lease_is_fenced(shared: Home) -> None:
    paused, user, _ = begun(shared)
    paused.append([b"kept"], 1, 1)
    settle(paused)
    if isinstance(shared, Memory):
        shared.place.is_owned = False  # its lease is over
    other, _, frames = begun(shared)
    assert frames == [(1, 1, b"kept")]
    other.append([b"new"], 2, 2)
    settle(other)
    paused.append([b"late"], 2, 2)
    paused.settle(in_turn=True)
    while not user.failures:
        select.select([paused.fileno() or 0], [], [], 60)
        paused.reap()
    assert [error.exit_code for error in user.failures] == [Exit.FENCED]
    assert user.settled_to == [1]
    end(other, paused)
    again, _, frames = begun(shared)
    assert [frame[2] for frame in frames] == [b"kept", b"new"]
    end(again)
