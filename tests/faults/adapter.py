"""How the simulation drives the daemon's own turns, group commit and snapshots.

The daemon hands a sync to the kernel, or to a thread, and goes on. Here both wait until the
simulation says that it has ended; what is written meanwhile is not covered. Nothing else in the
simulation knows `delayd.commit` and `delayd.turns`.
"""

import contextlib
import io
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from unittest import mock

import delayd.commit
import delayd.core.background_tasks
import delayd.core.engine
import delayd.core.log_space
import delayd.core.scans.kick
import delayd.journal.file_log
import delayd.journal.file_space
import delayd.journal.segment
import delayd.line.commands
import delayd.line.connection
import delayd.snapshots
import delayd.turns
from delayd.clock import NEVER_NS
from delayd.commit import GroupCommit, Replies, ReplyReceiver
from delayd.config import SyncPolicy
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.journal.errors import JournalError
from delayd.journal.file_log import FileLog
from delayd.journal.journal import Journal
from delayd.limits import TASK_STEP_JOBS
from delayd.line.server import LineServer
from delayd.line.stats import Stats
from delayd.log import LogError
from delayd.log_lines import Log, LogFormat, LogLevel
from delayd.net.poller import Poller
from delayd.schedules.opening import ScheduleOpener
from delayd.snapshots import Snapshots, Task
from delayd.turns import Turns
from tests.faults.disk import BegunSync, BusyDisk
from tests.rigs.clock import FakeClock

if TYPE_CHECKING:
    from delayd.journal.aio import KernelSync

OUT_BYTES_MAX: Final = 1 << 20

INTERVAL_MS: Final = 50
BUSY_SHARE: Final = 0.05
MOMENT_NS: Final = 30_000
"""What each look at the time costs a commit."""

NS_PER_MS: Final = 1_000_000
SMALL_SPARE_BYTES: Final = 8 << 10
SMALL_EMERGENCY_BYTES: Final = 4 << 10


class Loop:
    """The event loop's part that turns and group commit need, on the simulation's clock."""

    is_woken = False

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.timers: list[tuple[int, Callable[[], object]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> object:
        self.timers.append((self._now_ms() + round(delay_s * 1_000), callback))
        return None

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        self.timers.append((0, callback))
        return None

    def ring(self) -> None:
        """Call what is due."""
        due = [timer for timer in self.timers if timer[0] <= self._now_ms()]
        self.timers = [timer for timer in self.timers if timer[0] > self._now_ms()]
        for _, callback in due:
            callback()


class Kernel:
    """Syncs a file of the simulated disk while others go on: the double of `KernelSync`."""

    def __init__(self, disk: BusyDisk) -> None:
        self._disk = disk
        self._begun: BegunSync | None = None
        self.may_end = False
        self.error: OSError | None = None

    @property
    def is_busy(self) -> bool:
        return self._begun is not None

    def fileno(self) -> int:
        return -1

    def begin(self, handle: int) -> None:
        self._begun = self._disk.begin_sync(handle)

    def finish(self, *, wait: bool = False) -> bool:
        if self._begun is None or not (wait or self.may_end):
            return False
        begun, self._begun = self._begun, None
        self.error = None
        try:
            begun.end()
        except OSError as error:
            self.error = error
        return True

    def close(self) -> None:
        pass


class Errands:
    """What the sync thread would be told to do; nobody does it unasked."""

    def __init__(self) -> None:
        self.is_asked = False

    def put(self, does_sync: bool) -> None:
        self.is_asked = does_sync


class SteppedLog(FileLog):
    """A log in files whose syncs elsewhere end when `run_sync` is called."""

    def __init__(self, journal: Journal, news: Log, kernel: Kernel | None) -> None:
        self.kernel = kernel
        super().__init__(journal, news, cast("KernelSync | None", kernel))
        self._errands = Errands()
        self._jobs = self._errands  # type: ignore[assignment]

    def set_quick(self, *, is_quick: bool) -> None:
        """Have the next turn sync by itself, or not."""
        self._elsewhere_until_ns = 0 if is_quick else NEVER_NS

    @property
    def sync_is_asked(self) -> bool:
        """Tell whether a sync has begun and has not ended."""
        return self._errands.is_asked or (self.kernel is not None and self.kernel.is_busy)

    def run_sync(self) -> None:
        """Let the sync end that is going on; one in the thread happens now."""
        if self.kernel is not None and self.kernel.is_busy:
            self.kernel.may_end = True
            self.reap()
            self.kernel.may_end = False
        elif self._errands.is_asked:
            self._errands.is_asked = False
            error: JournalError | None = None
            try:
                self._journal.sync()
            except JournalError as caught:
                error = caught
            self._synced(error, NS_PER_MS)


class Promises:
    """A client, which knows on which frame each of its replies depends; 0: on none."""

    def __init__(self, commit: "SteppedCommit", sink: ReplyReceiver) -> None:
        self._commit = commit
        self._sink = sink
        self.sequences: deque[int] = deque()

    def send(self, data: bytes) -> None:
        self._commit.acked = max(self._commit.acked, self.sequences.popleft())
        self._sink.send(data)


class SteppedCommit(GroupCommit):
    """A group commit that notes which frames its replies depended on, by a log that is stepped."""

    def __init__(
        self,
        log: SteppedLog,
        policy: SyncPolicy,
        loop: Loop,
        on_failure: Callable[[LogError], None],
        is_quick: Callable[[], bool],
    ) -> None:
        """`is_quick` tells for each turn whether the disk has been, so that the turn syncs."""
        self.log = log
        self._is_quick = is_quick
        self.acked = 0
        """The last frame that a reply depended on which has left."""
        self._promises: dict[ReplyReceiver, Promises] = {}
        super().__init__(log, policy, INTERVAL_MS, loop, on_failure)

    def commit(self, records: list[bytes], replies: Replies, **turn: Any) -> None:  # noqa: ANN401
        sequence = self.log.appended_sequence + 1 if turn["must_sync"] else 0
        promised = []
        for sink, data in replies:
            promises = self._promises.setdefault(sink, Promises(self, sink))
            promises.sequences.append(sequence)
            promised.append((promises, data))
        self.log.set_quick(is_quick=self._is_quick())
        super().commit(records, promised, **turn)


def line_of(
    engine: Engine,
    listener: socket.socket,
    clock: FakeClock,
    poller: Poller,
    tasks: BackgroundTasks,
    commit: GroupCommit,
) -> LineServer:
    """Return the daemon's own line server."""
    stats = Stats(engine, clock.now_ms())
    return LineServer(
        *(engine, stats, [listener], clock.request_ms, poller, tasks),
        ScheduleOpener(engine, tasks, lambda: None, print),
        out_bytes_max=OUT_BYTES_MAX,
        durable=commit,
    )


def turn(turns: Turns, poller: Poller, commit: GroupCommit) -> None:
    """Take a turn as `Turns.sleep` does."""
    turns.turn(poller.poll(0, hears_clients=not commit.is_backed_up))


class Worker:
    """Carries out what a snapshot wants of the disk, one task at a time, when it is told to."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()

    def do(self, task: Task) -> None:
        self.tasks.append(task)

    def end(self) -> None:
        while self.tasks:
            self.tasks.popleft()()

    def step(self, *, may_sync_log: bool) -> None:
        """Do one task; the last one syncs the log, which waits for who does so already."""
        is_last = self.tasks and getattr(self.tasks[0], "func", None) == self.finish
        if self.tasks and (may_sync_log or not is_last):
            self.tasks.popleft()()

    finish: object = None


def news_of(clock: FakeClock) -> Log:
    """Return where nobody reads."""
    return Log(io.StringIO(), clock.wall_ms, log_format=LogFormat.TEXT, level=LogLevel.ERROR)


class SteppedSnapshots(Snapshots):
    """The daemon's snapshots, with the thread's part done when `step` is called."""

    def __init__(
        self,
        engine: Engine,
        log: FileLog,
        loop: Loop,
        clock: FakeClock,
        on_failure: Callable[[LogError], None],
    ) -> None:
        self.worker = Worker()
        self.worker.finish = self._finish
        super().__init__(
            engine,
            log,
            news_of(clock),
            wall_at=clock.wall_at,
            tell=loop.call_soon_threadsafe,
            on_failure=on_failure,
            new_worker=lambda: self.worker,
            now_ns=lambda: clock.now_ms() * NS_PER_MS,
        )


@contextlib.contextmanager
def small_limits(clock: FakeClock, rng: random.Random) -> Iterator[None]:
    """Let the log's files be small, so that a short run changes them; and time be the clock's.

    What measures its own work finds now and then that it has taken long, and that a sync has taken
    a moment, for which replies may wait for others.
    """
    worked_ns = synced_ns = 0

    def now_ns() -> int:
        return clock.now_ms() * NS_PER_MS

    def syncing_ns() -> int:
        nonlocal synced_ns
        synced_ns += MOMENT_NS
        return now_ns() + synced_ns

    def busy_ns() -> int:
        nonlocal worked_ns
        worked_ns += (rng.random() < BUSY_SHARE) * 100 * NS_PER_MS
        return now_ns() + worked_ns

    changed: Sequence[tuple[object, str, object]] = (
        (delayd.commit, "monotonic_ns", syncing_ns),
        (delayd.journal.file_log, "monotonic_ns", syncing_ns),
        (delayd.journal.file_space, "monotonic_ns", syncing_ns),
        (delayd.journal.file_log, "threading", mock.Mock()),
        (delayd.snapshots, "_ASK_NS", 20 * NS_PER_MS),
        (delayd.snapshots, "SNAPSHOT_RETRY_MS_MIN", 50),
        (delayd.snapshots, "SNAPSHOT_SLICE_JOBS", 8),
        (delayd.snapshots, "SNAPSHOT_SLICE_BYTES", 2_000),
        (delayd.snapshots, "SNAPSHOT_PAYLOAD_BYTES", 6_000),
        (delayd.snapshots, "SNAPSHOT_AHEAD_BYTES", 8_000),
        (delayd.turns, "monotonic_ns", busy_ns),
        (delayd.turns, "TASK_SLICE_US", -1),  # one step a turn
        (delayd.core.engine, "RETURNS_PER_TURN", 1),
        (delayd.core.engine, "RETURN_SEARCHES_PER_TURN", 1),
        (delayd.core.background_tasks, "PASS_ACTION_COST", TASK_STEP_JOBS + 1),
        (delayd.core.scans.kick, "PASS_ACTION_COST", TASK_STEP_JOBS),
        (delayd.line.commands, "KICKS_AT_ONCE", 1),
        (delayd.line.connection, "LINE_SLICE_MS", 0),  # one command a turn
        (delayd.turns, "SPACE_PLENTY_BYTES", 2 * SMALL_SPARE_BYTES),
        (delayd.journal.file_space, "EMERGENCY_BYTES", SMALL_EMERGENCY_BYTES),
        (delayd.core.log_space, "EMERGENCY_BYTES", SMALL_EMERGENCY_BYTES),
        (delayd.core.log_space, "LONG_BODY_BYTES", SMALL_SPARE_BYTES - 1_024),
        (delayd.journal.segment, "SPARE_BYTES_MIN", SMALL_SPARE_BYTES),
    )
    with contextlib.ExitStack() as patches:
        for module, name, value in changed:
            patches.enter_context(mock.patch.object(module, name, value))
        yield
