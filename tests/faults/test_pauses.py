"""Pauses at each reading of a clock, and kills: nothing comes early by a third clock, the true one.

A process may be paused at any moment, so also between reading two clocks, and then what it knows of
their difference is wrong by the length of the pause. Time that a start takes from that must be late
and never early.
"""

import random
from typing import Any, Final

import pytest

from delayd.clock import NS_PER_MS, SystemClock
from delayd.commit import GroupCommit
from delayd.config import SyncPolicy
from delayd.core.engine import Engine
from delayd.core.operations.attempts import release
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session, watch
from delayd.log import LogError
from tests.rigs.commit import INTERVAL_MS, CrankedLoop
from tests.rigs.engine import played, put
from tests.rigs.log import MemoryLog, Place
from tests.test_turns_wall_clock import turns_without_clients

WALL_NS: Final = 1_700_000_000_123_456_789
BOOT_NS: Final = 86_400_000_654_321
PAUSES_NS: Final = (*[70] * 60, 1_000, 60_000, 400_000, 1_500_000, 12_000_000)
"""Seldom, or what comes early would be found after the next pause, when it no longer is."""
MACHINES: Final = 4
LIVES: Final = 10
"""Of each machine: a life begins with a replay of all those before."""
STEPS: Final = 30
SPREAD_MS: Final = 60


class Machine:
    """Two clocks, and pauses before and after each reading."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.true_ns = 0
        self.set_ns = 0
        """How far the wall clock was set ahead."""
        self.pauses_ns: tuple[int, ...] = PAUSES_NS

    def pause(self) -> None:
        self.true_ns += self.rng.choice(self.pauses_ns)

    def boot_ns(self) -> int:
        return BOOT_NS + self._read()

    def wall_ns(self) -> int:
        return WALL_NS + self._read() + self.set_ns

    def _read(self) -> int:
        self.pause()
        read_ns = self.true_ns
        self.pause()
        return read_ns


class Lives:
    """A daemon that is killed and started again, and when each job may come by the true clock."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.machine = Machine(rng)
        self.place = Place()
        self.due_ns: dict[int, int] = {}
        self.due_wall_ns: dict[int, int] = {}
        self.came: set[int] = set()
        self.ttr_ms: dict[int, int] = {}
        self.held: set[int] = set()
        self.start()

    def start(self) -> None:
        """Begin a life, with what the log has of the last one, as `recover` does."""
        for job_id in self.held:  # the kill has closed its connection
            self.due_ns[job_id] = 0
        self.held.clear()
        self.clock = SystemClock(self.machine.boot_ns, self.machine.wall_ns)
        log = MemoryLog(self.place)
        self.place.is_owned = False
        frames = [frame for frame in log.follow() if frame is not None]
        assert log.take_over()
        self.engine = Engine(start_ms=self.clock.now_ms())
        if replay := played(frames):
            self.clock.resume(frames[-1].time_ms, frames[-1].wall_ms)
            self.engine = replay.engine
            replay.finish(self.clock.now_ms())
        loop = CrankedLoop()
        commit = GroupCommit(log, SyncPolicy.ALWAYS, INTERVAL_MS, loop, self.failed)
        self.turns = turns_without_clients(self.engine, self.clock, loop, commit)
        self.turns.look_at_wall_clock()
        self.topic = self.engine.store.topic("default")
        self.worker = open_session(self.engine)
        watch(self.engine, self.worker, "default")

    @staticmethod
    def failed(error: LogError) -> None:
        raise error

    def put(self) -> None:
        """Put a job that is due after a delay, or at a time of the wall clock."""
        delay_ms, ttr_ms = (self.rng.randrange(1, SPREAD_MS) for _ in range(2))
        true_ns = self.machine.true_ns
        what: dict[str, Any] = {"ttr_ms": ttr_ms}
        if self.rng.random() < 0.5:
            what["delay_ms"] = delay_ms
            due_ns, moment_ns = self.due_ns, true_ns + delay_ms * NS_PER_MS
        else:
            self.turns.look_at_wall_clock()
            what["due_wall_ms"] = (WALL_NS + true_ns + self.machine.set_ns) // NS_PER_MS + delay_ms
            due_ns, moment_ns = self.due_wall_ns, what["due_wall_ms"] * NS_PER_MS
        job_id = put(self.engine, self.topic, now_ms=self.clock.request_ms(), **what)
        due_ns[job_id], self.ttr_ms[job_id] = moment_ns, ttr_ms

    def work(self) -> None:
        """Take the first job in hand, and maybe put it back for later."""
        true_ns = self.machine.true_ns
        got = reserve(self.engine, self.worker, self.clock.request_ms())
        if got is None:
            return
        job_id = got[0]
        self.came.discard(job_id)
        self.due_wall_ns.pop(job_id, 0)
        self.due_ns[job_id] = true_ns + self.ttr_ms[job_id] * NS_PER_MS
        self.held.add(job_id)
        if self.rng.random() < 0.7:
            delay_ms = self.rng.randrange(1, SPREAD_MS)
            true_ns = self.machine.true_ns
            now_ms = self.clock.request_ms()
            release(self.engine, self.worker, job_id, 0, delay_ms, now_ms)
            self.due_ns[job_id] = true_ns + delay_ms * NS_PER_MS
            self.held.discard(job_id)

    def turn(self) -> int:
        """Take turns until all has come that is due; return how many jobs came early."""
        self.turns.turn()
        self.turns.turn()
        early = 0
        for job_id in self.topic.queues.ready:
            if job_id not in self.came:
                self.came.add(job_id)
                wall_ns = WALL_NS + self.machine.true_ns + self.machine.set_ns
                early += self.machine.true_ns < self.due_ns.get(job_id, 0)
                early += wall_ns < self.due_wall_ns.get(job_id, 0)
        return early

    def live(self) -> int:
        """Put, work and let time pass; return how many jobs came early."""
        early = 0
        for _ in range(STEPS):
            self.rng.choice((self.put, self.put, self.work, self.machine.pause))()
            self.machine.true_ns += self.rng.randrange(2 * NS_PER_MS)
            early += self.turn()
        return early


@pytest.mark.parametrize("step_ns", [0, 1, 900_000, 1_900_000])
def test_whatever_pauses_the_daemon_nothing_is_early(rng: random.Random, step_ns: int) -> None:
    """A wall clock that was set forward is noted before the kill, however little it was."""
    early = puts = 0
    for _ in range(MACHINES):
        daemon = Lives(rng)
        for _ in range(LIVES):
            early += daemon.live()
            if step_ns:
                daemon.machine.set_ns += step_ns
                daemon.turns.note_wall_clock(is_set=True)
                early += daemon.turn()
            daemon.machine.true_ns += rng.randrange(20 * NS_PER_MS)
            daemon.start()
        puts += len(daemon.due_ns)
    assert puts > 10 * MACHINES * LIVES / 2
    assert early == 0


def test_a_start_on_a_wall_clock_that_nobody_set_writes_nothing(rng: random.Random) -> None:
    """The first file of the log takes its space when there is something to keep."""
    for _ in range(MACHINES):
        daemon = Lives(rng)
        daemon.machine.pauses_ns = (70, 1_000)
        daemon.start()
        for _ in range(LIVES):
            daemon.turns.turn()  # places jobs with absolute times
            daemon.turns.note_wall_clock()
            assert not daemon.engine.log
            daemon.live()
            daemon.machine.true_ns += rng.randrange(20 * NS_PER_MS)
            daemon.start()
        assert daemon.came
