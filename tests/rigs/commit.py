"""What stands behind the engine, in memory: journal, group commit, turns, snapshots.

    rig = CommitRig(SyncPolicy.ALWAYS)                            # a group commit, scripted journal
    rig = CommitRig(SyncPolicy.ALWAYS, disk=GatedDisk(), kernel=True)      # ... with kernel syncs
    rig = CommitRig(SyncPolicy.NEVER, disk=SimulatedDisk(), space=True)     # ... with a full disk
    rig = CommitRig(watch=Watch())                                # turns over a scripted commit
    rig = CommitRig(disk=SimulatedDisk(), snapshots=True)         # an engine and its snapshots

A part that a test does not switch on is not there, or scripted: it notes in `events` what it is
asked, and does what the test says. Nothing here sleeps or depends on which thread is faster.

    rig.commit.commit([b"put"], [(rig.a, b"INSERTED")], must_sync=True, time_ms=1, wall_ms=2)
    assert rig.look() == ["append put"]
    assert rig.thread_syncs() == ["synced 1", "a gets INSERTED"]

The thread that syncs for a group commit is the real one; it waits in each sync until the test opens
the gate. The thread of snapshots is a list of tasks that the rig carries out.
"""

import io
import math
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

import pytest

from delayd import turns as turns_module
from delayd.clock import NS_PER_MS, NS_PER_S
from delayd.commit import GroupCommit
from delayd.config import SyncPolicy
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import OutOfSpace
from delayd.core.operations.ack import delete, delete_batch
from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session
from delayd.core.operations.tick import advance
from delayd.core.operations.waiting import serve_waiting
from delayd.core.session import Handed, Session, WaitEnd
from delayd.core.times import RequestMs
from delayd.journal.errors import JournalError, JournalFull
from delayd.journal.file_log import FileLog
from delayd.journal.journal import Journal
from delayd.limits import LOOK_MS
from delayd.log_lines import Log
from delayd.snapshots import Snapshots, Task
from delayd.turns import Turns
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.clock import FakeClock
from tests.rigs.disk import SimulatedDisk
from tests.rigs.engine import played

if TYPE_CHECKING:
    from delayd.commit import ReplyReceiver
    from delayd.journal.aio import KernelSync
    from delayd.line.server import LineServer
    from delayd.log import LogError, Space
    from delayd.net.poller import Poller

HANG_S_MAX: Final = 60.0
QUICK_NS: Final = 1_000
INTERVAL_MS: Final = 50
DIRECTORY: Final = "data"
SEGMENT_BYTES: Final = 256 << 10
HOUR_MS: Final = 3_600_000
YEAR_MS: Final = 365 * 24 * HOUR_MS
DESCRIPTOR: Final = 77
BODY: Final = b"x" * 150

Happening = Callable[[], object]

# --- Time ----------------------------------------------------------------------------------------


class Watch:
    """The time that `turns` measures its own work with."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.step_ns = 0
        """What each look costs."""

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns

    def pass_ms(self, ms: int) -> None:
        self.now_ns += ms * NS_PER_MS


def set_watch(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Watch:
    """Let these modules, `turns` if none is named, measure by a watch that the test winds."""
    made = Watch()
    for module in modules or (turns_module,):
        monkeypatch.setattr(module, "monotonic_ns", made)
    return made


class CrankedLoop:
    """Calls nothing back until it is told to."""

    is_woken = False

    def __init__(self) -> None:
        self.timers: list[tuple[float, Happening]] = []
        self.looks: list[Happening] = []
        """When nothing follows, for the files of the journal."""
        self.soon: queue.SimpleQueue[Happening] = queue.SimpleQueue()

    def call_later(self, delay: float, callback: Happening) -> object:
        if delay == LOOK_MS / 1_000:
            self.looks.append(callback)
        else:
            self.timers.append((delay, callback))
        return None

    def call_soon_threadsafe(self, callback: Happening) -> object:
        self.soon.put(callback)
        return None

    def crank(self) -> None:
        """Run one callback of another thread, when it comes."""
        self.soon.get(timeout=HANG_S_MAX)()

    def ring(self) -> None:
        """Let the timers that are set run out."""
        timers, self.timers = self.timers, []
        for _, callback in timers:
            callback()


# --- Parts that follow a script ------------------------------------------------------------------


class Recipient:
    """Where replies and deliveries go."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events

    def send(self, data: bytes) -> None:
        self._events.append(f"{self._name} gets {data.decode()}")

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
        del now_ms
        what = outcome.name if isinstance(outcome, WaitEnd) else f"job {outcome[0]}"
        self._events.append(f"{self._name} is told {what}")


class ScriptedJournal:
    """Notes every call. A failed sync or write fails for ever after, as the real journal's does."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.appended: list[bytes] = []
        self.synced = 0
        self.now_ns = 0
        self.sync_ns = QUICK_NS
        self.append_error: JournalError | None = None
        self.frame_bytes_max = 1 << 40
        """No frame longer than this finds space."""
        self.sync_error: JournalError | None = None
        self.gate = threading.Semaphore(0)
        self.sync_begun = threading.Semaphore(0)
        self._main = threading.current_thread()
        self.thread_syncs = 0

    is_behind = False
    lost = ""
    on_trouble = on_unproved = on_space_lost = None

    @property
    def appended_sequence(self) -> int:
        return len(self.appended)

    @property
    def synced_sequence(self) -> int:
        return self.synced

    def find_lost(self) -> None:
        """All is there."""

    def append(self, payload: bytes, time_ms: int, wall_ms: int) -> int:
        if self.append_error is not None:
            raise self.append_error
        if len(payload) > self.frame_bytes_max:
            raise JournalFull("directory", "no space")
        self.appended.append(payload)
        self.events.append(f"append {payload.decode()}")
        return len(self.appended)

    def sync(self) -> int:
        target = len(self.appended)
        if threading.current_thread() is not self._main:
            self.thread_syncs += 1
            self.sync_begun.release()
            assert self.gate.acquire(timeout=HANG_S_MAX)
        if self.sync_error is not None:
            self.events.append("sync fails")
            raise self.sync_error
        self.now_ns += self.sync_ns
        self.synced = target
        self.events.append(f"synced {target}")
        return target


class ScriptedKernel:
    """Stands for `KernelSync`: syncs a file of the simulated disk when `carry_out` says so."""

    def __init__(self, disk: SimulatedDisk, events: list[str]) -> None:
        self._disk = disk
        self._events = events
        self._handle: int | None = None
        self._has_ended = False
        self.error: OSError | None = None
        self.refusal: OSError | None = None
        """What `begin` raises."""
        self.is_closed = False

    def fileno(self) -> int:
        return DESCRIPTOR

    def begin(self, handle: int) -> None:
        assert self._handle is None, "one sync at a time"
        assert not self.is_closed
        if self.refusal is not None:
            self._events.append("refused")
            raise self.refusal
        self._handle = handle
        self._has_ended = False
        self._events.append("begin")

    def carry_out(self) -> None:
        assert self._handle is not None, "no sync is going on"
        try:
            self._disk.sync(self._handle)
            self.error = None
        except OSError as error:
            self.error = error
        self._has_ended = True

    def finish(self, *, wait: bool = False) -> bool:
        if self._handle is None:
            return False
        if wait and not self._has_ended:
            self.carry_out()
        if self._has_ended:
            self._handle = None
        return self._has_ended

    def close(self) -> None:
        assert self._handle is None, "the sync going on was forgotten"
        self.is_closed = True


class GatedDisk(SimulatedDisk):
    """Lets other threads sync only while `may_go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self._main = threading.current_thread()

    def sync(self, handle: int, /) -> None:
        if threading.current_thread() is not self._main:
            assert self.may_go_on.wait(HANG_S_MAX)
        super().sync(handle)


class ScriptedLine:
    """Poller and clients of the line in one."""

    def __init__(self, clock: FakeClock, watch: Watch, events: list[str]) -> None:
        self._clock = clock
        self._watch = watch
        self._events = events
        self.waits_s: list[float | None] = []
        self.heard_clients: list[bool] = []
        self.script: list[Happening] = []
        """What happens at the end of each poll."""
        self.events: list[tuple[int, int]] = []
        """What the next poll returns."""
        self.has_more = False
        self.replies: list[tuple[Recipient, bytes]] = []
        self.free: list[tuple[Recipient, bytes]] = []
        self.served_ms: list[int] = []

    def poll(self, wait_s: float | None, *, hears_clients: bool = True) -> list[tuple[int, int]]:
        self.waits_s.append(wait_s)
        self.heard_clients.append(hears_clients)
        assert len(self.waits_s) < 1_000, "it never sleeps"
        if wait_s:
            self._watch.now_ns += round(wait_s * NS_PER_S)
            self._clock.advance(round(wait_s * 1_000))
        if self.script:
            self.script.pop(0)()
        else:
            assert wait_s is not None, "it sleeps for ever"
        events, self.events = self.events, []
        return events

    def serve(self, events: Sequence[tuple[int, int]]) -> None:
        del events
        self.served_ms.append(self._clock.request_ms())
        self.has_more = False

    def take_replies(self) -> list[tuple[Recipient, bytes]]:
        replies, self.replies = self.replies, []
        return replies

    def take_free_replies(self) -> list[tuple[Recipient, bytes]]:
        free, self.free = self.free, []
        return free


class ScriptedCommit:
    """A group commit without a log: notes what turns commit, and sends replies unless it holds."""

    def __init__(self, events: list[str] | None = None) -> None:
        self._events = events
        self.is_syncing = False
        self.is_backed_up = False
        self.in_turn_sync_ns = (0, 0)
        self.gathers_until_ns = 0
        self.durable_id = 0
        self.is_cut_off = False
        self.out_of_order_ids: dict[int, int] = {}
        self.on_commit: Happening = int
        self.is_holding = False
        """Nothing becomes durable: the test sends what is in `replies`."""
        self.synced: list[bool] = []
        """Of each commit whether it has to be synced."""
        self.replies: list[list[tuple[ReplyReceiver, bytes]]] = []
        """Of each commit the replies that wait for it."""
        self.log_bytes = 0
        self.times_ms: list[tuple[int, int]] = []
        """What the frames say of delayd time and the wall clock."""

    def fileno(self) -> int | None:
        return None if self._events is None else DESCRIPTOR

    def reap(self) -> None:
        self._note("reap")

    def note_late(self, job_ids: Sequence[int]) -> None:
        """All replies wait for all of the log here."""

    def commit(
        self,
        log: list[bytes],
        replies: Iterable[tuple["ReplyReceiver", bytes]],
        *,
        must_sync: bool,
        time_ms: int,
        wall_ms: int,
        last_id: int,
        free: Iterable[tuple["ReplyReceiver", bytes]],
    ) -> None:
        self.synced.append(must_sync)
        self.log_bytes += sum(map(len, log))
        self.replies.append([*replies])
        self.times_ms.append((time_ms, wall_ms))
        self._note(f"commit {len(log)} up to {last_id}")
        self.on_commit()
        for sink, data in free:
            sink.send(data)
        if not self.is_holding:
            self.durable_id = last_id
            for sink, data in self.replies[-1]:
                sink.send(data)

    def _note(self, event: str) -> None:
        if self._events is not None:
            self._events.append(event)


class ScriptedSnapshots:
    """Takes whatever steps a test says."""

    def __init__(self, step: Callable[[], float | None], step_bytes: int = 0) -> None:
        self.step = step
        self.step_bytes = step_bytes


class CountedSpace:
    """The space on the disk, with a count of how often it was looked at."""

    def __init__(self, space: "Space") -> None:
        self._space = space
        self.is_stale = False
        self.looks = 0

    def beyond(self, set_aside_bytes: int) -> int:
        self.looks += 1
        return self._space.beyond(set_aside_bytes)

    def more(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        return self._space.more(missing_bytes, body_bytes, places)


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


# --- The rig -------------------------------------------------------------------------------------


class CommitRig:
    """An engine and what stands behind it; the arguments switch its parts on.

    `policy`       `commit`: a group commit. Without it `commits` notes what turns commit
    `disk`         `journal`: a journal on it, from which the engine is recovered; else `script`
    `kernel`       `kernel`: the group commit syncs by a scripted kernel
    `syncs_in_turn`  the turn itself syncs while the disk is quick
    `space`        `space`: the engine's log space is limited by what the disk has
    `watch`        `turns`, over the scripted `line`; `keeps`: with a commit
    `snapshots`    `snapshots`; with each step their thread does `pace` of its tasks, None: all
    """

    disk: SimulatedDisk
    journal: Journal
    log: FileLog
    kernel: ScriptedKernel
    commit: GroupCommit
    space: CountedSpace
    turns: Turns
    snapshots: Snapshots

    def __init__(
        self,
        policy: SyncPolicy | None = None,
        *,
        disk: SimulatedDisk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        clock: FakeClock | None = None,
        kernel: bool = False,
        syncs_in_turn: bool = False,
        space: bool = False,
        watch: Watch | None = None,
        keeps: bool = True,
        snapshots: bool = False,
        pace: int | None = None,
    ) -> None:
        self.events: list[str] = []
        self.failures: list[LogError] = []
        self.a, self.b = Recipient("a", self.events), Recipient("b", self.events)
        self.clock = clock or FakeClock()
        self.watch = watch or Watch()
        self.loop = CrankedLoop()
        self.segment_bytes = segment_bytes
        self.pace = pace
        self.script = ScriptedJournal(self.events)
        self.is_scripted = disk is None
        if disk is not None:
            self.disk = disk
            self.journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=segment_bytes)
        self.engine = self._recovered()
        self.engine.log_space.jobs = len(self.engine.store.jobs)
        self.session = open_session(self.engine, self.a)
        self.sessions = [open_session(self.engine) for _ in range(4)] if space else []
        self.line = ScriptedLine(self.clock, self.watch, self.events)
        self.tasks = BackgroundTasks(self.engine)
        self.commits = ScriptedCommit(self.events)
        self.turns_taken = 0
        self.changes: list[bool] = []
        """Of the disk: whether it has become full."""
        self.workers: list[HandWorker] = []
        self.told: list[Task] = []
        self.said = io.StringIO()
        self.processor_wait_ns: Callable[[], int] = int
        self.log = self._opened(with_kernel=kernel, syncs_in_turn=syncs_in_turn)
        self.excess_bytes = 0
        """How far the bound on disk use was exceeded, at the worst moment."""
        if policy is not None:
            self.commit = GroupCommit(
                self.log, policy, INTERVAL_MS, self.loop, self.failures.append
            )
        if space:
            self.log.space.on_change = self.changes.append
            self.space = CountedSpace(self.log.space)
            self.limit()
        if watch is not None:
            self._add_turns(keeps=keeps, has_commit=policy is not None, has_space=space)
        if snapshots:
            self._add_snapshots()

    def _recovered(self) -> Engine:
        replay = None if self.is_scripted else played(self.journal.replay())
        if replay is None:
            return Engine(start_ms=self.clock.now_ms())
        replay.finish(max(self.clock.now_ms(), replay.engine.store.time_ms))
        check(replay.engine)
        return replay.engine

    def _opened(self, *, with_kernel: bool, syncs_in_turn: bool) -> FileLog:
        journal = cast("Journal", self.script) if self.is_scripted else self.journal
        kernel = None
        if with_kernel:
            self.kernel = ScriptedKernel(self.disk, self.events)
            kernel = cast("KernelSync", self.kernel)
        news = Log(self.said, self.clock.wall_ms)
        return FileLog(
            *(journal, news, kernel), syncs_in_turn=syncs_in_turn, processor_wait_ns=self._waited_ns
        )

    def _waited_ns(self) -> int:
        return self.processor_wait_ns()  # a test may exchange it

    def _add_turns(self, *, keeps: bool, has_commit: bool, has_space: bool) -> None:
        commit = self.commit if has_commit else cast("GroupCommit", self.commits)
        self.turns = Turns(
            self.engine,
            self.clock,
            cast("Poller", self.line),
            cast("LineServer", self.line),
            self.tasks,
            self.loop,
            commit if keeps else None,
            cast("Space", self.space) if has_space else None,
        )

    def _add_snapshots(self) -> None:
        self.snapshots = Snapshots(
            self.engine,
            self.log,
            Log(self.said, self.clock.wall_ms),
            wall_at=self.clock.wall_at,
            tell=self.told.append,
            on_failure=self.failures.append,
            new_worker=self._new_worker,
            now_ns=lambda: self.clock.now_ms() * NS_PER_MS,
        )

    def _new_worker(self) -> HandWorker:
        self.workers.append(HandWorker())
        return self.workers[-1]

    def look(self) -> list[str]:
        """What has happened since the last look."""
        events, self.events[:] = list(self.events), []
        return events

    def close(self) -> None:
        """End the commit's thread, and close the journal."""
        if self.is_scripted:
            self.script.gate.release(1_000)
        self.commit.close()
        if not self.is_scripted:
            self.journal.close()

    # --- Jobs ------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> RequestMs:
        """What a request made now is told: with snapshots rounded up, as in the service."""
        now_ms = max(self.clock.now_ms(), self.engine.store.time_ms)
        return RequestMs(now_ms + 1 if hasattr(self, "snapshots") else now_ms)

    def put(
        self, jobs: int = 1, *, delay_ms: int = 0, ttr_ms: int = HOUR_MS, body: bytes = BODY
    ) -> list[int]:
        first_id = put_alike(
            self.engine,
            self.engine.store.topic("default"),
            priority=0,
            delay_ms=delay_ms,
            ttr_ms=ttr_ms,
            bodies=[body] * jobs,
            now_ms=self.now_ms,
        )
        return list(range(first_id, first_id + jobs))

    def reserve(self, session: Session | None = None) -> int:
        job = reserve(self.engine, session or self.session, self.now_ms)
        assert job is not None
        return job[0]

    def delete(self, job_ids: list[int]) -> None:
        assert all(delete_batch(self.engine, self.session, job_ids, self.now_ms))

    # --- Commits ---------------------------------------------------------------------------------

    def thread_syncs(self) -> list[str]:
        """Let the sync that runs in the thread end, and its callback run."""
        if self.is_scripted:
            assert self.script.sync_begun.acquire(timeout=HANG_S_MAX)
            self.script.gate.release()
            self.loop.crank()
            return self.look()
        assert isinstance(self.disk, GatedDisk)
        self.disk.may_go_on.set()
        callback = self.loop.soon.get(timeout=HANG_S_MAX)
        self.disk.may_go_on.clear()
        callback()
        return [f"durable {self.journal.synced_sequence - 1}", *self.look()]

    def sync_ended(self, took_ns: int, sequence: int = 0) -> None:
        """Have the loop hear of a sync elsewhere, up to this frame or of all there are."""
        self.script.synced = sequence or len(self.script.appended)
        self.log._synced(None, took_ns)

    def reaps(self) -> list[str]:
        """What happens when the loop asks whether the kernel's sync has ended."""
        before = self.journal.synced_sequence
        self.commit.reap()
        if self.journal.synced_sequence != before:
            self.events.insert(0, f"durable {self.journal.synced_sequence - 1}")
        return self.look()

    def kernel_syncs(self) -> list[str]:
        self.kernel.carry_out()
        return self.reaps()

    # --- Space -----------------------------------------------------------------------------------

    def limit(self) -> None:
        log_space = self.engine.log_space
        log_space.limit(self.space.beyond(self._set_aside_bytes()), self.space.more)

    def _set_aside_bytes(self) -> int:
        held = len(self.engine.store.leases.sessions)
        return self.engine.log_space.set_aside_bytes(held)

    def end_turn(self) -> None:
        """End a turn as the service does; what was accepted can be recorded."""
        engine = self.engine
        if hasattr(self, "turns"):
            self.turns_taken += 1
            self.turns.end_turn()
        else:
            if engine.log_space.is_short:
                serve_waiting(engine, self.now_ms)
            engine.take_deliveries()
            log, must_sync = engine.take_log()
            if log:
                self.commit.commit(log, [], must_sync=must_sync, time_ms=self.now_ms, wall_ms=0)
        assert not self.failures, "something was accepted that could not be recorded"
        assert engine.log_space.jobs == len(engine.store.jobs)
        if hasattr(self, "turns"):
            free_bytes = self.journal.space_bytes - self._set_aside_bytes()
            assert engine.log_space.free_bytes <= free_bytes
        else:
            self.limit()

    def fill(self) -> int:
        """Put one job a turn until that is refused; count them."""
        jobs = 0
        while True:
            try:
                self.put(body=b"x" * 100)
            except OutOfSpace:
                return jobs
            jobs += 1
            self.end_turn()

    def drain(self) -> int:
        """Reserve and delete one job after the other, each in a turn of its own; count them."""
        jobs = 0
        while job := reserve(self.engine, self.sessions[0], self.now_ms):
            self.end_turn()
            delete(self.engine, self.sessions[0], job[0], self.now_ms)
            self.end_turn()
            jobs += 1
        return jobs

    def take_the_rest(self) -> None:
        """Let another program use up the disk."""
        self.disk.capacity_bytes = 0

    # --- Turns -----------------------------------------------------------------------------------

    def slept(self, timeout_s: float | None, *script: Happening) -> list[float | None]:
        """Sleep with that script, and then be woken; how long each poll might have taken."""
        self.line.waits_s.clear()
        self.line.script = [*script, self.turns.wake_loop]
        self.turns.sleep(timeout_s)
        return self.line.waits_s

    # --- Snapshots -------------------------------------------------------------------------------

    @property
    def worker(self) -> HandWorker:
        """The one of the snapshot that was begun last."""
        return self.workers[-1]

    def append(self) -> None:
        """Append what was recorded, and sync it."""
        log, _ = self.engine.take_log()
        if log:
            self.journal.append(b"".join(log), self.engine.store.time_ms, self.clock.wall_ms())
            self.journal.sync()

    def pass_turn(self, ms: int = 0) -> float | None:
        """Let time pass, fire what is due, append what was recorded, then a step of snapshots."""
        self.clock.advance(ms)
        while advance(self.engine, self.clock.now_ms(), self.now_ms):
            pass
        self.append()
        return self.step()

    def step(self) -> float | None:
        """Take a step of snapshots, and what the thread is quick enough for."""
        wanted_s = self.snapshots.step()
        if self.workers and self.worker.tasks and self.pace != 0:
            self.work(self.pace)
            wanted_s = 0.0
        live_bytes = self.engine.store.live_bytes
        excess = self.journal.retention.disk_bytes - 2 * live_bytes - self.segment_bytes
        self.excess_bytes = max(self.excess_bytes, excess)
        return wanted_s

    def work(self, tasks: int | None = None) -> None:
        """Let the thread do so many tasks, and the loop what it is told."""
        self.worker.work(tasks)
        while self.told:
            self.told.pop(0)()

    def rest(self, ms: int = YEAR_MS, *, works: bool = True) -> None:
        """Let time pass without requests, until snapshots want nothing or the time is over.

        With `works` the thread does what it had left undone.
        """
        ends_ms = self.clock.now_ms() + ms
        while self.clock.now_ms() < ends_ms:
            wanted_s = self.step()
            if wanted_s is None:
                if not works or not self.workers or not self.worker.tasks:
                    return
                self.work()
            else:
                wanted_ms = math.ceil(wanted_s * 1_000)
                self.clock.advance(min(wanted_ms, ends_ms - self.clock.now_ms()))

    @property
    def names(self) -> list[str]:
        return sorted(self.disk.list_directory(DIRECTORY))

    def log_lines(self) -> list[str]:
        return self.said.getvalue().splitlines()

    def state(self) -> list[object]:
        return list(canonical(self.engine))

    def restarted(self) -> "CommitRig":
        """What comes up after kill -9, with snapshots."""
        self.disk.heal()
        self.disk.kill()
        rig = CommitRig(disk=self.disk, segment_bytes=self.segment_bytes, snapshots=True)
        rig.clock.advance(max(0, self.clock.now_ms() - rig.clock.now_ms()))
        return rig


def snapshot_rig(*, segment_bytes: int = SEGMENT_BYTES, pace: int | None = None) -> CommitRig:
    """An engine with its journal on a new disk, whose snapshots are taken in virtual time."""
    return CommitRig(disk=SimulatedDisk(), segment_bytes=segment_bytes, snapshots=True, pace=pace)
