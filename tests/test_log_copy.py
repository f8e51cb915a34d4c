"""A log that is copied leads to the same state, and there is all of the copy or nothing."""

# ruff: noqa: ANN401 - connections, and what is given to them

import contextlib
import io
import random
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from delayd.journal.copies import DirectorySource, DirectoryTarget
from delayd.journal.errors import DirectoryLocked, ForeignFile, JournalError, NotEmpty
from delayd.journal.format import BACKUP_MARKER
from delayd.journal.journal import Journal
from delayd.journal.snapshot import SnapshotHeader
from delayd.log import DurableLog, LogError, LogFrame
from delayd.log_copy import CopySource, CopyTarget, copy_log
from delayd.log_lines import Log
from tests.core.canonical import canonical
from tests.core.test_engine_walk import Scan
from tests.postgres_server import PostgresServer, postgres_server
from tests.rigs.disk import PowerCut, SimulatedDisk
from tests.rigs.engine import EngineRig

SEGMENT_BYTES = 4096
WALL_MS = 1_795_256_100_000
LEASE_MS = 1_000


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def filled(rng: random.Random, steps: int = 250) -> tuple[SimulatedDisk, EngineRig]:
    """A directory `data` with a log of many steps, and the engine that wrote it."""
    disk, walk = SimulatedDisk(), Scan(rng)
    for _ in range(steps):
        walk.step()
    rig: EngineRig = walk.machine.rig
    rig.take_log()
    journal = Journal.open("data", disk=disk, segment_bytes=SEGMENT_BYTES)
    assert [*journal.replay()] == []
    for payload in rig.log:
        journal.append(payload, rig.start_ms, WALL_MS)
    journal.close()
    return disk, rig


def files(disk: SimulatedDisk, directory: str) -> dict[str, bytes]:
    names = disk.list_directory(directory)
    return {name: disk.file_bytes(f"{directory}/{name}") for name in names}


def state_in(source: CopySource, rig: EngineRig) -> tuple[list[object], LogFrame]:
    """What a start makes of this log, and its last frame."""
    with contextlib.closing(source):
        frames = [*source.frames()]
    rig.log = [frame.payload for frame in frames]
    return [*canonical(rig.replayed())], frames[-1]


class InDatabase:
    """A log in the server, as both ends of a copy and as a daemon opens it."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        from delayd.postgres.place import DatabasePlace

        self.place = DatabasePlace.of(server.url, name=name, lease_ms=LEASE_MS, address="here")

    def source(self) -> CopySource:
        from delayd.postgres.copies import DatabaseSource

        return DatabaseSource(self.place, Log(io.StringIO(), int))

    def target(self) -> CopyTarget:
        from delayd.postgres.copies import DatabaseTarget

        return DatabaseTarget(self.place)

    def owned(self) -> DurableLog:
        from delayd.postgres.postgres_log import open_log

        log = open_log(self.place, Log(io.StringIO(), int), segment_bytes=SEGMENT_BYTES)
        assert [*log.follow()]
        assert log.take_over()
        return log


@pytest.mark.walk(3, 60)
def test_a_copy_leads_to_the_same_state_and_the_source_stays(
    number: int, rng: random.Random
) -> None:
    disk, rig = filled(rng)
    before = files(disk, "data")
    copied = copy_log(DirectorySource(disk, "data"), DirectoryTarget(disk, "copy", SEGMENT_BYTES))
    assert files(disk, "data") == before
    wanted, last = state_in(DirectorySource(disk, "data"), rig)
    found, copy_last = state_in(DirectorySource(disk, "copy"), rig)
    assert found == wanted
    assert copied.sequence == last.sequence
    assert (copy_last.time_ms, copy_last.wall_ms) == (last.time_ms, last.wall_ms)
    assert BACKUP_MARKER not in disk.list_directory("copy")


@pytest.mark.thorough
def test_a_copy_that_is_cut_off_is_nothing_and_can_be_made_again(rng: random.Random) -> None:
    disk, rig = filled(rng, steps=60)
    wanted, _ = state_in(DirectorySource(disk, "data"), rig)
    begun = disk.call_count
    copy_log(DirectorySource(disk, "data"), DirectoryTarget(disk, "copy", SEGMENT_BYTES))
    calls = disk.call_count - begun
    outcomes = set()
    for number in range(1, calls + 1):
        again = SimulatedDisk()
        for name, data in files(disk, "data").items():
            again.put_file(f"data/{name}", data)
        again.fail(again.call_count + number, PowerCut())
        with pytest.raises(PowerCut):
            copy_log(DirectorySource(again, "data"), DirectoryTarget(again, "copy", SEGMENT_BYTES))
        again.crash(survives=lambda piece: piece.offset % 2 == 0)
        try:
            found, _ = state_in(DirectorySource(again, "copy"), rig)
            outcomes.add("whole")
            assert found == wanted
        except (JournalError, IndexError) as error:
            outcomes.add(type(error).__name__)
            target = DirectoryTarget(again, "copy", SEGMENT_BYTES)
            copy_log(DirectorySource(again, "data"), target)
            assert state_in(DirectorySource(again, "copy"), rig)[0] == wanted
    assert outcomes == {"whole", "ForeignFile", "IndexError"}


def test_a_source_in_use_one_without_a_log_and_a_target_with_files_are_refused(
    rng: random.Random,
) -> None:
    disk, _ = filled(rng, steps=60)
    target = DirectoryTarget(disk, "copy", SEGMENT_BYTES)
    journal = Journal.open("data", disk=disk, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(DirectoryLocked, match="is held by"):
        copy_log(DirectorySource(disk, "data"), target)
    journal.close()
    with pytest.raises(LogError, match="there is no log in empty"):
        copy_log(DirectorySource(disk, "empty"), target)
    disk.put_file("copy/notes.txt", b"precious")
    with pytest.raises(NotEmpty, match=r"copy .*notes\.txt"):
        copy_log(DirectorySource(disk, "data"), target)
    assert disk.file_bytes("copy/notes.txt") == b"precious"
    with pytest.raises(ForeignFile, match=r"notes\.txt is not delayd's.*nothing was touched"):
        copy_log(DirectorySource(disk, "copy"), target)
    assert disk.list_directory("copy") == ["notes.txt"]


def test_what_is_read_again_is_compared_and_doubt_about_clocks_is_late(rng: random.Random) -> None:
    disk, _ = filled(rng, steps=60)
    with contextlib.closing(DirectorySource(disk, "data")) as source:
        last = [*source.frames()][-1]
    headers = []

    @contextlib.contextmanager
    def kept(
        header: SnapshotHeader, payloads: Iterator[bytes], jobs: Callable[[], int]
    ) -> Iterator[Iterator[LogFrame]]:
        headers.append(header)
        pieces = [*payloads]
        assert jobs() >= 0
        rig = EngineRig()
        for _ in range(number):
            rig.put()
        yield iter([last._replace(payload=piece + rig.take_log()[0]) for piece in pieces])

    target = SimpleNamespace(shown="x", wall_ahead_ns=(-5_000_000, 6_000_001), filled=kept)
    number = 0
    copy_log(DirectorySource(disk, "data"), target)
    number = 1
    with pytest.raises(LogError, match=r"x does not hold what was written to it|holds .* not fit"):
        copy_log(DirectorySource(disk, "data"), target)
    assert [header.wall_ms - last.wall_ms for header in headers] == [7, 7]


@pytest.mark.process
@pytest.mark.walk(2, 20)
def test_a_log_goes_to_a_database_and_back(
    number: int, rng: random.Random, server: PostgresServer
) -> None:
    disk, rig = filled(rng)
    name = f"copy_{number}"
    wanted, last = state_in(DirectorySource(disk, "data"), rig)
    opened = InDatabase(server, name)
    source = DirectorySource(disk, "data")
    copied = copy_log(source, opened.target())
    assert copied.sequence == last.sequence
    found, stored = state_in(opened.source(), rig)
    assert found == wanted
    with contextlib.closing(opened.source()) as stored_source:
        assert stored_source.identity == source.identity
    assert 0 <= stored.wall_ms - last.wall_ms < 60_000
    copy_log(opened.source(), DirectoryTarget(disk, "back", SEGMENT_BYTES))
    found, back = state_in(DirectorySource(disk, "back"), rig)
    assert found == wanted
    assert 0 <= back.wall_ms - last.wall_ms < 60_000
    with pytest.raises(LogError, match=f"has a log called {name}: copy to another name"):
        copy_log(DirectorySource(disk, "data"), opened.target())
    assert state_in(opened.source(), rig)[0] == wanted


@pytest.mark.process
def test_a_database_gets_nothing_of_a_copy_that_fails(
    rng: random.Random, server: PostgresServer
) -> None:
    disk, _ = filled(rng, steps=60)
    opened = InDatabase(server, "nothing")
    target = opened.target()

    @contextlib.contextmanager
    def cut_off(*given: Any) -> Iterator[Iterator[LogFrame]]:
        with target.filled(*given) as frames:
            next(frames)
            yield iter(())

    broken = SimpleNamespace(shown="x", wall_ahead_ns=(0, 0), filled=cut_off)
    with pytest.raises(LogError, match="there is no log in x"):
        copy_log(DirectorySource(disk, "data"), broken)
    with pytest.raises(LogError, match="there is no log called nothing in"):
        opened.source()
    copy_log(DirectorySource(disk, "data"), opened.target())


def rows(server: PostgresServer, name: str) -> list[tuple[Any, ...]]:
    """What is in the tables of a log."""
    import psycopg

    with psycopg.connect(server.url) as asked:
        tables = ("log", "snapshot_0", "snapshot_1", "frame_0")
        return [row for table in tables for row in asked.execute(f'TABLE "{name}".{table}')]


class Cuts:
    """Connections to a server, of which one is lost behind the statement of that number.

    It is carried out: to lose the one after it would be the same.
    """

    def __init__(self, at: int) -> None:
        self.at = at

    def connection(self, conninfo: bytes, shown: str) -> object:
        from delayd.postgres.connection import Connection

        real: Any = Connection(conninfo, shown)
        real.run, real.ask = self._counted(real, real.run), self._counted(real, real.ask)
        real.stream = self._streamed(real, real.stream)
        return real

    def _counted(self, real: Any, statement: Callable[..., object]) -> Callable[..., object]:
        def carried_out(*what: object, **how: object) -> object:
            answer = statement(*what, **how)
            self._count(real)
            return answer

        return carried_out

    def _streamed(self, real: Any, stream: Callable[..., Any]) -> Callable[..., Iterator[object]]:
        def streamed(*what: object, **how: object) -> Iterator[object]:
            yield from stream(*what, **how)
            self._count(real)

        return streamed

    def _count(self, real: Any) -> None:
        from delayd.postgres.errors import DatabaseLost

        self.at -= 1
        if not self.at:
            real.close()
            raise DatabaseLost("cut off by the test")


@pytest.mark.process
@pytest.mark.walk(1, 10)
def test_a_copy_to_or_from_a_database_that_is_cut_off_is_all_or_nothing(
    number: int, rng: random.Random, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T-H8: at every statement; the source stays."""
    disk, rig = filled(rng, steps=40)
    before = files(disk, "data")
    wanted, _ = state_in(DirectorySource(disk, "data"), rig)

    said: list[str] = []

    def is_cut(at: int, source: Callable[[], CopySource], target: Callable[[], CopyTarget]) -> bool:
        cuts = Cuts(at)
        with monkeypatch.context() as patch:
            patch.setattr("delayd.postgres.place.Connection", cuts.connection)
            try:
                copy_log(source(), target())
            except LogError as error:
                said.append(str(error))
        return cuts.at <= 0

    outcomes: list[str] = []
    opened = InDatabase(server, f"cut_{number}_1")
    while is_cut(len(outcomes) + 1, lambda: DirectorySource(disk, "data"), opened.target):
        try:
            source = opened.source()
        except LogError:
            outcomes.append("nothing")  # and the next one begins with that
        else:
            outcomes.append("all")
            assert state_in(source, rig)[0] == wanted
            opened = InDatabase(server, f"cut_{number}_2")
        assert files(disk, "data") == before
    assert len(outcomes) > 10
    assert outcomes == ["nothing"] * (len(outcomes) - 1) + ["all"]
    assert ["the copy may be there" in each for each in said] == [it == "all" for it in outcomes]
    assert state_in(opened.source(), rig)[0] == wanted

    stored = rows(server, opened.place.name)
    copy = SimulatedDisk()
    for at in count(1):
        copy = SimulatedDisk()
        if not is_cut(at, opened.source, lambda: DirectoryTarget(copy, "copy", SEGMENT_BYTES)):  # noqa: B023 - called here
            break
        with contextlib.suppress(FileNotFoundError):
            assert BACKUP_MARKER in copy.list_directory("copy")
    assert state_in(DirectorySource(copy, "copy"), rig)[0] == wanted
    assert rows(server, opened.place.name) == stored


@pytest.mark.process
def test_a_log_that_a_daemon_owns_is_not_copied_nor_one_that_it_owned_meanwhile(
    rng: random.Random, server: PostgresServer
) -> None:
    disk, _ = filled(rng, steps=60)
    opened = InDatabase(server, "owned")
    copy_log(DirectorySource(disk, "data"), opened.target())
    target = DirectoryTarget(disk, "copy", SEGMENT_BYTES)

    log = opened.owned()
    with pytest.raises(LogError, match=r"here owns the log in .*: stop it before"):
        copy_log(opened.source(), target)
    log.close()

    @contextlib.contextmanager
    def late(*given: Any) -> Iterator[Iterator[LogFrame]]:
        with target.filled(*given) as frames:
            opened.owned().close()
            yield frames

    with pytest.raises(LogError, match=r"a daemon has owned the log in .* meanwhile"):
        copy_log(opened.source(), SimpleNamespace(shown="x", wall_ahead_ns=(0, 0), filled=late))
    assert BACKUP_MARKER in disk.list_directory("copy")
    copy_log(opened.source(), target)
