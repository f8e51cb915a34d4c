"""An engine with its journal on a simulated disk, whose snapshots are taken in virtual time.

    scene = Scene()
    scene.put(100)
    scene.turn()                     # appended, synced; then the chore
    scene.rest()                     # time passes until nothing is left to be done

The thread is a list of tasks that the scene carries out when it says so, and what the thread tells
the loop is called at once after that: nothing here depends on who is faster.
"""

import io
import math
from typing import TYPE_CHECKING, Final

from delayd.core import views
from delayd.core.check import check
from delayd.core.engine import Engine
from delayd.core.replay import Replay
from delayd.core.session import Session
from delayd.journal.journal import Journal
from delayd.logs import Log
from delayd.snapshots import Snapshots, Task
from delayd.testing.clock import FakeClock
from delayd.testing.disk import SimulatedDisk

if TYPE_CHECKING:
    from delayd.journal.errors import JournalError

DIRECTORY: Final = "data"
SEGMENT: Final = 256 << 10
NS_PER_MS: Final = 1_000_000
HOUR_MS: Final = 3_600_000
YEAR_MS: Final = 365 * 24 * HOUR_MS


class HandWorker:
    """Carries its tasks out when it is told to, or at its end."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.is_over = False

    def do(self, task: Task) -> None:
        assert not self.is_over
        self.tasks.append(task)

    def work(self, tasks: int | None = None) -> None:
        """Do so many of them, or all."""
        for _ in range(len(self.tasks) if tasks is None else tasks):
            if self.tasks:
                self.tasks.pop(0)()

    def end(self) -> None:
        self.work()
        self.is_over = True


class Scene:
    """A daemon without sockets. With each chore the thread does `pace` of its tasks, None: all."""

    def __init__(
        self, disk: SimulatedDisk | None = None, *, segment: int = SEGMENT, pace: int | None = None
    ) -> None:
        self.disk = disk or SimulatedDisk()
        self.segment = segment
        self.pace = pace
        self.clock = FakeClock()
        self.workers: list[HandWorker] = []
        self.told: list[Task] = []
        self.failures: list[JournalError] = []
        self.said = io.StringIO()
        self.excess_bytes = 0
        """How far the bound was exceeded, at the worst moment."""
        self.slices = 0
        self.journal = Journal.open(DIRECTORY, disk=self.disk, segment_bytes=segment)
        self.engine = self._recovered()
        self.engine.log_space.jobs = len(self.engine.store.jobs)
        self.me = self.engine.open_session()
        self.snapshots = Snapshots(
            self.engine,
            self.journal,
            Log(self.said, self.clock.wall_ms),
            wall_ms=self.clock.wall_ms,
            tell=self.told.append,
            on_failure=self.failures.append,
            new_worker=self._new_worker,
            now_ns=lambda: self.clock.now_ms() * NS_PER_MS,
        )

    def _recovered(self) -> Engine:
        replay = None
        for frame in self.journal.replay():
            if replay is None:
                replay = Replay(Engine(start_ms=frame.time_ms))
            replay.play(frame.payload)
        if replay is None:
            return Engine(start_ms=self.clock.now_ms())
        replay.finish(self.clock.now_ms())
        check(replay.engine)
        return replay.engine

    def _new_worker(self) -> HandWorker:
        self.workers.append(HandWorker())
        return self.workers[-1]

    # --- What happens ----------------------------------------------------------------------------

    @property
    def worker(self) -> HandWorker:
        """The one of the snapshot that was begun last."""
        return self.workers[-1]

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms() + 1

    def put(self, jobs: int = 1, delay_ms: int = 0, body: bytes = b"x" * 150) -> list[int]:
        first_id = self.engine.put_alike(
            self.engine.store.topic("default"),
            priority=0,
            delay_ms=delay_ms,
            ttr_ms=HOUR_MS,
            bodies=[body] * jobs,
            now_ms=self.now_ms,
        )
        return list(range(first_id, first_id + jobs))

    def reserve(self, session: Session | None = None) -> int:
        job = self.engine.reserve(session or self.me, self.now_ms)
        assert job is not None
        return job[0]

    def delete(self, job_ids: list[int]) -> None:
        assert all(self.engine.delete_batch(self.me, job_ids, self.now_ms))

    def commit(self) -> None:
        """End a turn: what was recorded is appended and synced."""
        log, _ = self.engine.take_log()
        if log:
            self.journal.append(b"".join(log), self.engine.store.time_ms, self.clock.wall_ms())
            self.journal.sync()

    def turn(self, ms: int = 0) -> float | None:
        """Let time pass, fire what is due, commit what was done, then the chore."""
        self.clock.advance(ms)
        while self.engine.advance(self.clock.now_ms(), self.now_ms):
            pass
        self.commit()
        return self.chore()

    def chore(self) -> float | None:
        """Do the chore, and what the thread is quick enough for."""
        wanted_s = self.snapshots.chore()
        if self.workers and self.worker.tasks and self.pace != 0:
            self.work(self.pace)
            wanted_s = 0.0
        excess = self.journal.disk_bytes - 2 * self.engine.store.live_bytes - self.segment
        self.excess_bytes = max(self.excess_bytes, excess)
        return wanted_s

    def work(self, tasks: int | None = None) -> None:
        """Let the thread do so many tasks, and the loop what it is told."""
        self.worker.work(tasks)
        while self.told:
            self.told.pop(0)()

    def rest(self, ms: int = YEAR_MS, *, works: bool = True) -> None:
        """Let time pass with nobody there, until the chore wants nothing or the time is over.

        With `works` the thread does what it had left undone.
        """
        ends_ms = self.clock.now_ms() + ms
        while self.clock.now_ms() < ends_ms:
            wanted_s = self.chore()
            if wanted_s is None:
                if not works or not self.workers or not self.worker.tasks:
                    return
                self.work()
            else:
                wanted_ms = math.ceil(wanted_s * 1_000)
                self.clock.advance(min(wanted_ms, ends_ms - self.clock.now_ms()))

    # --- What can be seen ------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        return sorted(self.disk.list_directory(DIRECTORY))

    def log_lines(self) -> list[str]:
        return self.said.getvalue().splitlines()

    def state(self) -> list[object]:
        return list(views.canonical(self.engine))

    def restarted(self) -> "Scene":
        """What comes up after kill -9."""
        self.disk.heal()
        self.disk.kill()
        scene = Scene(self.disk, segment=self.segment)
        scene.clock.advance(max(0, self.clock.now_ms() - scene.clock.now_ms()))
        return scene
