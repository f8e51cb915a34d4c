"""The wall clock is set while the daemon runs, and while it does not: what turns make of it."""

import ctypes
import errno
import io
import random
import select
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from delayd.clock import NS_PER_MS, SetWatch, SystemClock, open_set_watch
from delayd.config import SyncPolicy, load
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.operations.change import kick_job
from delayd.core.operations.tick import advance
from delayd.core.times import RequestMs
from delayd.journal.disk import RealDisk
from delayd.journal.journal import Journal
from delayd.limits import TURN_OVERHEAD_BYTES, WALL_BRACKET_NS, WALL_READINGS_MAX, WALL_STEP_MS
from delayd.log_lines import Log
from delayd.recover import recover
from delayd.systemd import Notifier
from delayd.turns import Turns
from tests.core import views
from tests.core.check import check
from tests.rigs.clock import FakeClock
from tests.rigs.commit import CommitRig, CrankedLoop, Watch
from tests.rigs.disk import SimulatedDisk
from tests.rigs.engine import put

if TYPE_CHECKING:
    from delayd.clock import Clock
    from delayd.commit import GroupCommit

from tests.test_clock import HOUR_MS, WALL_MS, Machine, MovableClock, both_clocks

IN_1970_MS: Final = 600_000


def turns_without_clients(
    engine: Engine, clock: "Clock", loop: CrankedLoop, commit: "GroupCommit | None" = None
) -> Turns:
    nobody: Any = SimpleNamespace(
        has_more=False, serve=lambda _: None, take_replies=list, take_free_replies=list
    )
    return Turns(engine, clock, nobody, nobody, BackgroundTasks(engine), loop, commit)


class TurnsOnClock:
    """Engine, clock and turns, without clients and without a disk."""

    def __init__(self, clock: MovableClock | SystemClock, engine: Engine | None = None) -> None:
        self.clock = clock
        self.engine = engine or Engine(start_ms=clock.now_ms())
        self.turns = turns_without_clients(self.engine, clock, CrankedLoop())
        self.steps_ms: list[int] = []
        self.turns.on_wall_step = self.steps_ms.append
        self.turns.look_at_wall_clock()
        self.topic = self.engine.store.topic("default")

    def put_at(self, wall_ms: int) -> int:
        self.turns.look_at_wall_clock()
        now_ms = self.clock.now_ms() + 1
        return put(self.engine, self.topic, due_wall_ms=wall_ms, now_ms=now_ms)

    def put(self, delay_ms: int) -> int:
        return put(self.engine, self.topic, delay_ms=delay_ms, now_ms=self.clock.now_ms() + 1)

    def turn(self) -> None:
        """Take turns until nothing is left to be done now."""
        self.turns.turn()
        while self.engine.store.wall_times.layers:
            self.turns.turn()
        self.turns.turn()

    def is_ready(self, job_id: int) -> bool:
        """Whether it came, seen without making it come."""
        return job_id in self.topic.queues.ready


@both_clocks
def test_set_forward_past_its_time_a_job_comes_in_the_next_turn(
    new_clock: Callable[[], MovableClock],
) -> None:
    clock = new_clock()
    daemon = TurnsOnClock(clock)
    job_id, other_id = daemon.put_at(WALL_MS + HOUR_MS), daemon.put(HOUR_MS)
    for step_ms in (0, WALL_STEP_MS - 1, 0):
        clock.advance(777)
        clock.step_wall(step_ms)
        daemon.turn()
    assert not daemon.steps_ms, "it was not set"
    clock.step_wall(1)
    daemon.turn()
    clock.step_wall(HOUR_MS)
    daemon.turns.turn()
    assert daemon.is_ready(job_id)
    assert not daemon.is_ready(other_id)
    assert daemon.steps_ms == [WALL_STEP_MS, HOUR_MS]


@both_clocks
@pytest.mark.parametrize("step_ms", [-1, -HOUR_MS, IN_1970_MS - WALL_MS])
def test_set_back_in_the_very_turn_in_which_it_was_due_a_job_does_not_come(
    new_clock: Callable[[], MovableClock], step_ms: int
) -> None:
    clock = new_clock()
    daemon = TurnsOnClock(clock)
    job_id, other_id = daemon.put_at(WALL_MS + 5_000), daemon.put(4_999)
    daemon.turn()
    clock.advance(5_000)
    clock.step_wall(step_ms)
    daemon.turn()
    assert daemon.is_ready(other_id)
    assert not daemon.is_ready(job_id)
    assert daemon.steps_ms == [step_ms]
    clock.advance(-step_ms - 1)
    daemon.turn()
    assert not daemon.is_ready(job_id)
    clock.advance(1)
    daemon.turn()
    assert daemon.is_ready(job_id)


def test_nobody_reads_the_wall_clock_while_no_job_follows_it() -> None:
    machine = Machine()
    readings = []

    def wall_ns() -> int:
        readings.append(machine.wall_ns)
        return machine.wall_ns

    daemon = TurnsOnClock(SystemClock(lambda: machine.boot_ns, wall_ns))
    daemon.put(HOUR_MS)
    readings.clear()
    for _ in range(5):
        daemon.turn()
    assert not readings
    daemon.put_at(WALL_MS + HOUR_MS)
    readings.clear()
    daemon.turn()
    assert readings


@pytest.mark.thorough
@pytest.mark.parametrize("drift_ppm", [0, 500, -500, 100_000, -100_000])
def test_never_early_and_hardly_late_with_clocks_that_step_and_drift(
    drift_ppm: int, rng: random.Random
) -> None:
    """By the nanosecond: whenever a job comes the wall clock says its time or later."""
    machine = Machine()
    daemon = TurnsOnClock(machine.clock())
    moments: dict[int, int] = {}
    came = 0
    for _ in range(500):
        passed_ns = rng.choice((rng.randrange(1_000), rng.randrange(3_000_000), 40_000_000))
        machine.boot_ns += passed_ns
        machine.wall_ns += passed_ns + passed_ns * drift_ppm // 1_000_000
        if rng.random() < 0.05:
            machine.wall_ns += rng.choice((-1, 1)) * rng.choice((1_500_000, 90_000_000, 3 * 10**9))
        daemon.turn()
        for job_id in [job_id for job_id in moments if daemon.is_ready(job_id)]:
            assert machine.wall_ns >= moments.pop(job_id) * NS_PER_MS, f"{job_id} is early"
            came += 1
        for job_id, wall_ms in moments.items():
            assert machine.wall_ns < (wall_ms + WALL_STEP_MS + 2) * NS_PER_MS, f"{job_id} is late"
        wall_ms = machine.wall_ns // NS_PER_MS + rng.randrange(1, 200)
        moments[daemon.put_at(wall_ms)] = wall_ms
    assert came > 150
    check(daemon.engine)


# --- Reading both clocks -------------------------------------------------------------------------


def test_the_offset_lies_between_what_two_readings_of_the_boot_clock_allow() -> None:
    machine = Machine(boot_ns=0)
    clock = machine.clock()

    def boot_ns() -> int:
        machine.pass_time(100)
        return machine.boot_ns

    clock._boot_ns = boot_ns
    assert clock.wall_offset_ns() == (-100, 0)


@pytest.mark.parametrize(("slow", "readings"), [(0, 1), (1, 2), (2, 3), (99, WALL_READINGS_MAX)])
def test_a_reading_with_a_gap_in_it_is_taken_again(slow: int, readings: int) -> None:
    machine = Machine()
    walls: list[int] = []

    def wall_ns() -> int:
        if len(walls) < slow:
            machine.pass_time(WALL_BRACKET_NS + 1)
        walls.append(machine.wall_ns)
        return machine.wall_ns

    clock = machine.clock()
    clock._wall_ns = wall_ns
    at_least_ns, at_most_ns = clock.wall_offset_ns()
    assert len(walls) == readings
    assert at_least_ns <= 0 <= at_most_ns


def test_a_watch_is_silent_until_the_clock_is_set() -> None:
    watch = open_set_watch()
    assert watch is not None
    for _ in range(3):
        assert not select.select([watch.fileno()], [], [], 0)[0]
        watch.arm()
    watch.close()


class Library:
    """A C library whose calls end as the test says."""

    def __init__(self, descriptor: int, armed: int) -> None:
        self.timerfd_create = lambda *_: descriptor
        self.timerfd_settime = lambda *_: armed


@pytest.mark.parametrize("library", [Library(-1, 0), Library(9, -1), object()])
def test_where_there_is_no_watch_the_daemon_does_without(
    library: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EINVAL)
    assert open_set_watch() is None


def test_a_clock_that_was_set_while_it_is_armed_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library(9, -1))
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.ECANCELED)
    SetWatch().arm()


# --- Across a restart ----------------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [0, HOUR_MS, -HOUR_MS, IN_1970_MS - WALL_MS])
def test_c3_the_clock_was_set_while_nobody_ran(
    step_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T-C3: set back, delayd time goes on where it stopped; the log's times never decrease.

    An absolute time is placed by the wall clock of the new start, whatever the old one was.
    """
    home = str(tmp_path / "data")
    config = load(None, {}, {"--data-dir": home})
    clock = FakeClock(WALL_MS)
    absolute_ms, relative_ms = WALL_MS + 2 * HOUR_MS, 2 * HOUR_MS
    ids = []
    for run in range(4):
        if run:
            # A new process knows the wall clock alone.
            clock = FakeClock(clock.wall_ms() + (step_ms if run == 1 else 0))
        log = Log(io.StringIO(), clock.wall_ms)
        engine, durable = recover(config, clock, log, Notifier({}, 1))
        assert durable is not None
        daemon = TurnsOnClock(clock, engine)
        if not run:
            ids = [daemon.put_at(absolute_ms), daemon.put(relative_ms)]
        while advance(engine, clock.now_ms(), RequestMs(clock.now_ms() + 1)):
            pass
        left = [views.view_job(engine, job_id, RequestMs(clock.now_ms())).left_ms for job_id in ids]
        assert left[0] == max(0, absolute_ms - clock.wall_ms())
        assert left[1] <= relative_ms + 1 - max(0, step_ms if run else 0)
        kick_job(engine, daemon.put(HOUR_MS), RequestMs(clock.now_ms() + 1))
        for _ in range(3):
            clock.advance(10)
            while advance(engine, clock.now_ms(), RequestMs(clock.now_ms() + 1)):
                pass
            daemon.put(HOUR_MS)
            durable.append(engine.take_log()[0], engine.store.time_ms, clock.wall_ms())
        durable.settle_all()
        durable.close()
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=1 << 20)
    times = [frame.time_ms for frame in journal.replay()]
    journal.close()
    assert len(times) == 4 * 4  # three frames of each run, and its end
    assert times == sorted(times)
    assert not capsys.readouterr().err


class Lives:
    """A daemon with a job that is killed and started again, and time as it should be."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.true_ms = WALL_MS
        self.clock = FakeClock(WALL_MS)
        self.rig = self._started()
        topic = self.rig.engine.store.topic("default")
        put(self.rig.engine, topic, delay_ms=30 * HOUR_MS, now_ms=self.clock.request_ms())
        self.rig.turns.turn()

    def _started(self) -> CommitRig:
        return CommitRig(
            SyncPolicy.NEVER, disk=self.disk, clock=self.clock, space=True, watch=Watch()
        )

    def pass_quietly(self, ms: int) -> None:
        """Let time pass in which nothing is written."""
        frames = self.rig.journal.appended_sequence
        self.clock.advance(ms)
        self.true_ms += ms
        self.rig.turns.turn()
        assert self.rig.journal.appended_sequence == frames

    def note(self) -> int:
        """Look at the wall clock as the service does; how many frames were written."""
        frames = self.rig.journal.appended_sequence
        self.rig.turns.note_wall_clock()
        self.rig.turns.turn()
        assert not self.rig.failures
        return self.rig.journal.appended_sequence - frames

    def is_killed_for(self, stop_ms: int, step_ms: int = 0) -> None:
        """Kill it, and start it again on a wall clock that went on, and was set meanwhile."""
        self.disk.kill()
        journal = Journal.open("data", disk=self.disk, segment_bytes=self.rig.segment_bytes)
        *_, last = journal.replay()
        self.disk.kill()
        self.clock = FakeClock(self.clock.wall_ms() + stop_ms + step_ms)
        self.clock.resume(last.time_ms, last.wall_ms)
        self.true_ms += stop_ms
        self.rig = self._started()


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 1, -WALL_STEP_MS, IN_1970_MS - WALL_MS])
def test_c1_a_clock_that_was_set_before_a_kill_is_no_longer_stop(step_ms: int) -> None:
    """T-C1: though clients had nothing written since, before which it would have been unknown."""
    daemon = Lives()
    daemon.pass_quietly(7 * HOUR_MS)
    daemon.clock.step_wall(step_ms)
    assert daemon.note() == 1
    daemon.pass_quietly(HOUR_MS // 2)
    daemon.is_killed_for(5_000)
    assert daemon.clock.now_ms() == daemon.true_ms


def test_c3_after_the_clock_was_set_back_while_nobody_ran_later_stops_count_in_full() -> None:
    """T-C3: late by the first stop, and by nothing else."""
    daemon = Lives()
    daemon.is_killed_for(5_000, step_ms=-HOUR_MS)
    assert daemon.clock.now_ms() == daemon.true_ms - 5_000
    assert daemon.note() == 1
    daemon.pass_quietly(HOUR_MS // 2)
    daemon.is_killed_for(60_000)
    assert daemon.clock.now_ms() == daemon.true_ms - 5_000


def test_where_the_wall_clock_was_not_set_nothing_is_written() -> None:
    daemon = Lives()
    for _ in range(3):
        daemon.pass_quietly(HOUR_MS)
        assert daemon.note() == 0
    daemon.is_killed_for(5_000)
    assert daemon.note() == 0
    daemon.clock.step_wall(1 - WALL_STEP_MS)
    assert daemon.note() == 0, "a start that believes the frame is late by that, and not early"


def test_the_space_that_removals_need_is_not_taken_to_note_the_wall_clock() -> None:
    daemon = Lives()
    daemon.disk.capacity_bytes = 0
    space = daemon.rig.engine.log_space
    space.limit(TURN_OVERHEAD_BYTES - 1, ask=lambda missing_bytes, body_bytes, places: -1)
    daemon.clock.step_wall(HOUR_MS)
    assert daemon.note() == 0


def test_without_a_journal_there_is_nothing_to_note() -> None:
    clock = FakeClock(WALL_MS)
    daemon = TurnsOnClock(clock)
    clock.step_wall(HOUR_MS)
    daemon.turns.note_wall_clock()
    assert not daemon.engine.log
