"""Snapshots of a running daemon: when one is begun, and how it gets to the disk.

    loop     turn, commit ─► due? ─► begun ─► slice ─ turn ─ slice ─ turn ─ slice
                                                │                │
    thread                                      └─► records: compressed, written, synced
                                                      ... verified, named; older files removed

A snapshot is begun at the end of a turn, when every record of the state has been appended: so it
covers all frames up to the last one. The copy (`core.snapshot_copy`) is taken in slices of a
fraction of a millisecond, with a pause after each. A thread does everything that waits for the disk
or takes long; while it is behind there are no slices. Nothing waits for a snapshot. One that fails
leaves the log as it was, and is tried again after a while that doubles from failure to failure, or
as soon as no more than half of it is live: that may fit a disk that is too full for the whole.

Whether one is due is checked when the log has grown by a part of a file, and once more shortly
after it has grown at all. So an idle daemon sleeps, and a log that is too long for its remaining
jobs gets shorter without another operation:

    1 M jobs put, 1 M deleted ─► a quarter of a second ─► snapshot ─► older files removed

When nearly nothing is left of them and nothing has been appended for a second, the log continues in
a small file, two snapshots follow, and everything else is removed. On a full disk that is done at
once, and as soon as half of the log is garbage.

All of this is done in *steps*: each is taken when the one before has asked for it, earlier if the
log has grown.

The module does not know what is in a snapshot, how its files look, and how much the disk may
hold; `core.snapshot_copy`, `journal.snapshot` and `journal.retention` do.
"""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from delayd.clock import NEVER_NS, NS_PER_MS, NS_PER_S, monotonic_ns
from delayd.core.engine import Engine
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.limits import (
    EMERGENCY_BYTES,
    SNAPSHOT_AHEAD_BYTES,
    SNAPSHOT_ASK_MS,
    SNAPSHOT_CALM_MS,
    SNAPSHOT_NICENESS,
    SNAPSHOT_PAUSE_MS,
    SNAPSHOT_PAYLOAD_BYTES,
    SNAPSHOT_RETRY_MS_MAX,
    SNAPSHOT_RETRY_MS_MIN,
    SNAPSHOT_SLICE_BYTES,
    SNAPSHOT_SLICE_JOBS,
)
from delayd.log import LogError, LogSnapshots, SnapshotSink, SnapshotTaken
from delayd.log_lines import Log

_ASK_NS: Final = SNAPSHOT_ASK_MS * NS_PER_MS
_CALM_NS: Final = SNAPSHOT_CALM_MS * NS_PER_MS
_PAUSE_NS: Final = SNAPSHOT_PAUSE_MS * NS_PER_MS

Task = Callable[[], None]


class Worker(Protocol):
    """Runs tasks that may block, one after the other."""

    def do(self, task: Task) -> None:
        """Carry this out when everything before it is done."""

    def end(self) -> None:
        """Wait until all is done; nothing more will come."""


class Thread:
    """A worker that is a thread of its own."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the loop's
        # Of this thread alone. Otherwise the loop waits for its time slice on a busy machine.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SNAPSHOT_NICENESS)
        while task := self._tasks.get():
            task()

    def do(self, task: Task) -> None:
        """Carry this out when everything before it is done."""
        self._tasks.put(task)

    def end(self) -> None:
        """Wait until all is done; nothing more will come."""
        self._tasks.put(None)
        self._thread.join()


class Making:
    """One unfinished snapshot."""

    __slots__ = (
        *("ahead_bytes", "begun_ns", "copy", "gathered", "gathered_bytes", "is_repetition"),
        *("worker", "writer"),
    )

    def __init__(
        self,
        copy: SnapshotCopy,
        writer: SnapshotSink,
        worker: Worker,
        begun_ns: int,
        *,
        is_repetition: bool,
    ) -> None:
        self.copy = copy
        self.writer = writer
        self.worker = worker
        self.begun_ns = begun_ns
        self.is_repetition = is_repetition  # nothing has been appended since the snapshot before
        self.gathered: list[bytes] = []  # slices of the next payload
        self.gathered_bytes = 0
        self.ahead_bytes = 0  # handed to the worker and not written yet


class Snapshots:
    """Begins snapshots when they are due, and completes them."""

    def __init__(
        self,
        engine: Engine,
        log: LogSnapshots,
        news: Log,
        *,
        wall_at: Callable[[int], int],
        tell: Callable[[Task], object],
        on_failure: Callable[[LogError], None],
        new_worker: Callable[[], Worker] = Thread,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        """Take snapshots of the engine into its log; the first may be due already.

        `news` is told of each. `tell` calls a function in the loop, and `step` after it.
        `on_failure` is called when the log fails: nothing more may be acknowledged.
        """
        self._engine = engine
        self._log = log
        self._news = news
        self._wall_at = wall_at
        self._tell_loop = tell
        self._on_failure = on_failure
        self._new_worker = new_worker
        self._now_ns = now_ns
        self._making: Making | None = None
        self._is_closed = False
        # The last frame at the last check, and how much log there was then.
        self._seen_sequence = log.appended_sequence
        self._asked_bytes = 0
        # The last frame at that time, and since when: after a second the log is idle.
        self._asked_sequence = -1
        self._calm_ns = 0
        self.step_bytes = log.step_bytes
        """After so many bytes of records `step` is to be called before its time."""
        # When to check next, when to take the next slice; no slice is taken while the thread is
        # behind, and nothing is begun before `_retry_ns` that is not half as long as the last try.
        self._ask_ns = now_ns() + _ASK_NS
        self._slice_ns = NEVER_NS
        self._retry_ns = -1  # long ago, and before any check
        self._retry_ms = SNAPSHOT_RETRY_MS_MIN
        self._tried_bytes = 0
        # What the last snapshot covers, and whether it was a repetition of the one before.
        self._covered_sequence = -1
        self._was_repetition = False
        self.taken = 0  # snapshots finished since the start
        self.failed = 0  # snapshots that failed, since the start

    def ask_soon(self) -> None:
        """Let the next step see whether a snapshot is due."""
        self._ask_ns = 0

    # --- When ------------------------------------------------------------------------------------

    def step(self) -> float | None:
        """Do what is to be done now; return in how many seconds there is more, None for nothing.

        Called when the time it returned is over, when the log has grown by `step_bytes` or, after
        None, at all, and when something it was told has been called. Takes a slice at most: 1 ms,
        3 ms to begin with 5 M jobs; 0.6 µs when there is nothing to do.
        """
        sequence = self._log.appended_sequence
        if sequence != self._seen_sequence:
            self._seen_sequence = sequence
            self._note_growth()
        wanted_ns = min(self._ask_ns, self._slice_ns)
        if wanted_ns == NEVER_NS:
            return None
        now_ns = self._now_ns()
        if wanted_ns <= now_ns:
            if self._ask_ns <= now_ns:
                self._ask(now_ns)
            else:
                self._slice()
            wanted_ns = min(self._ask_ns, self._slice_ns)
            if wanted_ns == NEVER_NS:
                return None
        return max(0, wanted_ns - now_ns) / NS_PER_S

    def _note_growth(self) -> None:
        """Schedule the check for now, or later when the log has hardly grown."""
        grown_bytes = self._log.grown_bytes - self._asked_bytes
        if abs(grown_bytes) >= self.step_bytes:  # less than before: a snapshot was finished
            self._ask_ns = 0
        elif self._ask_ns in (NEVER_NS, self._retry_ns):
            self._ask_ns = self._now_ns() + _ASK_NS

    def _ask(self, now_ns: int) -> None:
        """Begin a snapshot if one is due."""
        self._ask_ns = NEVER_NS
        self._asked_bytes = self._log.grown_bytes
        if self._asked_sequence != self._log.appended_sequence:
            self._asked_sequence = self._log.appended_sequence
            self._calm_ns = now_ns
        # A full disk has to be cleared while clients go on.
        is_calm = now_ns - self._calm_ns >= _CALM_NS or self._log.is_full
        live_bytes = self._engine.store.live_bytes
        # Even when none can be begun: the journal needs to know how much is live.
        is_due = self._log.snapshot_is_due(live_bytes)
        is_long = self._log.is_mostly_garbage(live_bytes)
        if is_long and not is_due and not is_calm:
            self._ask_ns = now_ns + _CALM_NS
            return
        shrinks = is_long and is_calm and self._making is None
        if not is_due and not shrinks:
            if self._engine.store.cleared.left:
                # Much less is live than it seems, and nothing is appended when they are gone.
                self._ask_ns = now_ns + _ASK_NS
            return
        if now_ns < self._retry_ns and 2 * live_bytes >= self._tried_bytes:
            self._ask_ns = self._retry_ns
        elif self._engine.log or not SnapshotCopy.can_begin(self._engine.store):
            # What has changed is appended by the turn that comes next. Jobs whose place in time the
            # wall clock has changed are placed by the next ones, cleared ones swept.
            self._ask_ns = now_ns
        elif self._making is None:
            self._begin(is_due=is_due, shrinks=shrinks)

    def _shrink(self) -> bool:
        """Continue the log in a small file; tell whether that was done. Raises JournalError."""
        log, store, space = self._log, self._engine.store, self._engine.log_space
        free_bytes = log.free_bytes
        needed_bytes = space.set_aside_bytes(len(store.leases.sessions))
        if not log.is_full:
            needed_bytes += EMERGENCY_BYTES
        is_short = log.shrink(needed_bytes, store.time_ms, self._wall_at(store.time_ms))
        # At once: what the next turn accepts must find its space in the file that there is now.
        space.free_bytes -= free_bytes - log.free_bytes
        return is_short

    def _begin(self, *, is_due: bool, shrinks: bool) -> None:
        engine, log = self._engine, self._log
        self._tried_bytes = engine.store.live_bytes
        try:
            if shrinks and not self._shrink() and not is_due:
                return  # it would free nothing
            is_repetition = log.appended_sequence == self._covered_sequence
            if is_repetition and self._was_repetition and log.is_whole:
                # When jobs vanish two in a row make both small; a third would be the same again.
                return
            time_ms = engine.store.time_ms
            writer = log.begin_snapshot(time_ms, self._wall_at(time_ms))
        except LogError as error:
            self._fail(error)
        else:
            self._seen_sequence = log.appended_sequence
            if shrinks:  # our own frames cause no wake-up
                self._asked_sequence = log.appended_sequence
            copy, worker = SnapshotCopy(engine.store), self._new_worker()
            self._making = Making(copy, writer, worker, self._now_ns(), is_repetition=is_repetition)
            self._slice_ns = 0

    # --- Slices ----------------------------------------------------------------------------------

    def _slice(self) -> None:
        """Copy some jobs, and hand a payload's worth of them to the thread."""
        making = self._making
        assert making is not None, "slices end with the snapshot"
        copy = making.copy
        piece = copy.take(SNAPSHOT_SLICE_JOBS, SNAPSHOT_SLICE_BYTES)
        making.gathered.append(piece)
        making.gathered_bytes += len(piece)
        if copy.is_over or making.gathered_bytes + SNAPSHOT_SLICE_BYTES > SNAPSHOT_PAYLOAD_BYTES:
            making.ahead_bytes += making.gathered_bytes
            making.worker.do(partial(self._write, making, making.gathered))
            making.gathered, making.gathered_bytes = [], 0
        self._slice_ns = NEVER_NS
        if copy.is_over:
            making.worker.do(partial(self._finish, making))
        elif making.ahead_bytes <= SNAPSHOT_AHEAD_BYTES:
            self._slice_ns = self._now_ns() + _PAUSE_NS

    def _written(self, making: Making, payload_bytes: int) -> None:
        making.ahead_bytes -= payload_bytes
        is_next = making is self._making and not making.copy.is_over
        if is_next and making.ahead_bytes <= SNAPSHOT_AHEAD_BYTES and self._slice_ns == NEVER_NS:
            self._slice_ns = 0

    # --- In the thread ---------------------------------------------------------------------------

    def _write(self, making: Making, pieces: list[bytes]) -> None:
        if making.writer.is_over:
            return
        payload = b"".join(pieces)
        try:
            making.writer.write(payload)
        except Exception as error:  # noqa: BLE001 (the loop must hear of it, whatever it is)
            self._tell(partial(self._gave_up, making, error))
        else:
            self._tell(partial(self._written, making, len(payload)))

    def _finish(self, making: Making) -> None:
        if making.writer.is_over:
            return
        try:
            taken = making.writer.finish(making.copy.jobs)
        except Exception as error:  # noqa: BLE001 (the loop must hear of it, whatever it is)
            self._tell(partial(self._gave_up, making, error))
        else:
            self._tell(partial(self._finished, making, taken))

    def _tell(self, what: Task) -> None:
        # After the close no result is needed, and the loop may be closed as well.
        if not self._is_closed:
            self._tell_loop(what)

    # --- The end of one --------------------------------------------------------------------------

    def _finished(self, making: Making, taken: SnapshotTaken) -> None:
        if making is not self._making:
            return
        self._making = None
        making.worker.end()
        self._covered_sequence = taken.sequence
        self._was_repetition = making.is_repetition
        self.taken += 1
        self._retry_ms = SNAPSHOT_RETRY_MS_MIN
        took_ms = (self._now_ns() - making.begun_ns) // NS_PER_MS
        self._news.info("a snapshot was taken", snapshot=str(taken), ms=took_ms)
        self._ask_ns = 0
        self._log.end_snapshot()

    def _gave_up(self, making: Making, error: Exception) -> None:
        if making is not self._making:
            return
        self._making = None
        self._slice_ns = NEVER_NS
        making.copy.abandon()
        making.worker.end()
        if not isinstance(error, LogError):
            raise error
        self._fail(error)

    def _fail(self, error: LogError) -> None:
        if error.may_be_tried_again:
            self._try_later(error)
        else:
            self._on_failure(error)

    def _try_later(self, error: LogError) -> None:
        self.failed += 1
        self._news.warning(
            "a snapshot failed, the log continues without it",
            reason=str(error),
            retry_ms=self._retry_ms,
        )
        self._ask_ns = self._retry_ns = self._now_ns() + self._retry_ms * NS_PER_MS
        self._retry_ms = min(2 * self._retry_ms, SNAPSHOT_RETRY_MS_MAX)

    def close(self) -> None:
        """Abandon an unfinished snapshot, and wait for its thread; the journal is closed next."""
        self._is_closed = True
        self._ask_ns = self._slice_ns = NEVER_NS
        making, self._making = self._making, None
        if making is not None:
            making.writer.is_wanted = False
            making.copy.abandon()
            making.worker.do(making.writer.abandon)
            making.worker.end()
