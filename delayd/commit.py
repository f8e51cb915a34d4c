"""Group commit: replies leave when what they promise is as durable as the policy says.

    turn 1: records ─► append ─┐                    ┌─► replies of turn 1
    turn 2: records ─► append ─┤ (waits its turn)   │
                               └─► sync in a thread ┘─► sync ─► replies of turns 2 to n

While one sync runs the loop goes on collecting; everything that arrives meanwhile shares the next
one. Only when a single client has been the only one to say anything for a while, and nothing is
due soon, does the loop sync on the spot: handing a sync over to a thread and back costs as much
again as the sync (measured: 5,200 against 6,300 puts a second for one waiting client), and the one
who would be held up by a slow disk is waiting for it anyway. A disk that has just been slow is not
trusted with that. A disk that hangs all of a sudden can still catch the loop in one such sync:
handing each over and waiting a bounded time for the thread would prevent it, and cost that client
15 % of its puts a second (measured: 127 against 110 µs for an append and its sync).

A slow disk costs memory up to a limit: `is_backed_up` then says that no more should be read. With
the policies under which no reply waits, enough unsynced records begin a sync before its time.

Replies that depend on nothing unsynced leave at once. After a failure nothing leaves any more:
clients see their connections close, the honest answer when the outcome is not known.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from delayd.clock import monotonic_ns
from delayd.config import SyncPolicy
from delayd.core.limits import (
    EMERGENCY_BYTES,
    INLINE_SYNC_IDLE_MS,
    INLINE_SYNC_NS_MAX,
    INLINE_SYNC_TRUST,
    INLINE_SYNC_TURNS,
    JOURNAL_RECORD_HEAD_BYTES,
    ROOM_RETRY_MS,
    SLOW_SYNC_MS,
    UNSYNCED_BYTES_MAX,
)
from delayd.core.records import LAYOUTS, Kind
from delayd.journal.errors import JournalError, JournalFull
from delayd.journal.journal import Journal

NS_PER_MS: Final = 1_000_000
_PUT_HEAD_BYTES: Final = LAYOUTS[Kind.PUT].size


class Sink(Protocol):
    """Where replies go: one client."""

    def send(self, data: bytes) -> None:
        """Send them, in one piece."""
        ...


class Loop(Protocol):
    """What is needed of the event loop."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Call back in so many seconds."""
        ...

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        """Call back from another thread."""
        ...


Replies = Sequence[tuple[Sink, bytes]]


class GroupCommit:
    """Appends the records of each turn, syncs by the policy, releases the replies."""

    def __init__(
        self,
        journal: Journal,
        policy: SyncPolicy,
        interval_ms: int,
        loop: Loop,
        on_failure: Callable[[JournalError], None],
        on_release: Callable[[], None],
    ) -> None:
        """Commit to this journal.

        `on_failure` is called once, and nothing is released after it. `on_release` is called when a
        sync in the thread has released replies: `is_backed_up` may have ended.
        """
        self._journal = journal
        self._policy = policy
        self._interval_s = interval_ms / 1_000
        self._loop = loop
        self._on_failure = on_failure
        self._on_release = on_release
        self._waiting: list[tuple[Sink, bytes]] = []
        """Replies that depend on records appended but not covered by the sync going on."""
        self._syncing: Replies | None = None
        """Replies that the sync going on will release; None when none is going on."""
        self._waiting_bytes = 0
        self._must_sync = False
        self._timer_is_set = False
        self._trust = INLINE_SYNC_TRUST
        self._last_sink: Sink | None = None
        self._turns_alone = 0
        """How many turns in a row one and the same client was the only one to be answered."""
        self.syncs = 0
        self.slow_syncs = 0
        """Those that took longer than SLOW_SYNC_MS."""
        self.longest_sync_ns = 0
        self.on_slow_sync: Callable[[int], object] = _ignore
        """Is told of each slow sync, in milliseconds."""
        self._sync_begun_ns = 0
        self._failure: JournalError | None = None
        self._is_closed = False
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._sync_in_thread, name="sync", daemon=True)
        self._thread.start()

    @property
    def is_backed_up(self) -> bool:
        """Tell whether so much waits for the disk that no more should be read from clients."""
        return self._waiting_bytes > UNSYNCED_BYTES_MAX

    @property
    def sync_going_on_ms(self) -> int:
        """Return for how long the sync in the thread has been going on; 0 when there is none."""
        if self._syncing is None:
            return 0
        return (monotonic_ns() - self._sync_begun_ns) // NS_PER_MS

    # --- Each turn -------------------------------------------------------------------------------

    def commit(
        self,
        log: list[bytes],
        replies: Replies,
        *,
        must_sync: bool,
        time_ms: int,
        wall_ms: int,
        idle_ms: int,
    ) -> None:
        """Append the records of a turn and send its replies as soon as they may leave.

        Nothing is due for `idle_ms`, as far as is known.
        """
        if self._failure is not None:
            return
        if log:
            try:
                self._append(log, time_ms, wall_ms)
            except JournalError as error:
                self._fail(error)
                return
        if self._policy is not SyncPolicy.ALWAYS:
            _release(replies)
            if log:
                self._sync_some_time(log)
            return
        self._must_sync = self._must_sync or must_sync
        if self._syncing is not None:
            self._waiting += replies
            self._waiting_bytes += sum(map(len, log)) + sum(len(data) for _, data in replies)
        elif not self._must_sync:
            _release(replies)
        elif self._is_alone(replies) and idle_ms >= INLINE_SYNC_IDLE_MS:
            self._sync_here(replies)
        else:
            self._waiting += replies
            self._start_sync()

    def _append(self, log: Sequence[bytes], time_ms: int, wall_ms: int) -> None:
        """Append the records as one frame; as several where only the ends of files are left.

        A record is never divided, and every state between two records is one that could have been.
        A put is two pieces of the log, its head and the job.
        """
        try:
            self._journal.append(b"".join(log), time_ms, wall_ms)
        except JournalFull:
            middle = len(log) // 2
            if _is_put_head(log[middle - 1]):
                middle += 1
            if middle in {0, len(log)}:
                raise
            self._append(log[:middle], time_ms, wall_ms)
            self._append(log[middle:], time_ms, wall_ms)

    def _is_alone(self, replies: Replies) -> bool:
        """Tell whether nobody but one client would wait for the disk, which it does anyway."""
        if len(replies) != 1 or replies[0][0] is not self._last_sink:
            self._turns_alone = 0
            self._last_sink = replies[0][0] if replies else None
            return False
        self._turns_alone += 1
        return self._turns_alone >= INLINE_SYNC_TURNS and self._trust >= INLINE_SYNC_TRUST

    # --- Syncing ---------------------------------------------------------------------------------

    def _sync_here(self, replies: Replies) -> None:
        started_ns = monotonic_ns()
        try:
            self._journal.sync()
        except JournalError as error:
            self._fail(error)
            return
        self._must_sync = False
        self._judge(monotonic_ns() - started_ns)
        _release(replies)

    def _judge(self, sync_ns: int) -> None:
        """Count the sync; trust the disk again only after a row of quick ones."""
        self.syncs += 1
        self.longest_sync_ns = max(self.longest_sync_ns, sync_ns)
        if sync_ns > SLOW_SYNC_MS * NS_PER_MS:
            self.slow_syncs += 1
            self.on_slow_sync(sync_ns // NS_PER_MS)
        self._trust = 0 if sync_ns > INLINE_SYNC_NS_MAX else self._trust + 1

    def _start_sync(self) -> None:
        self._syncing, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        self._must_sync = False
        self._sync_begun_ns = monotonic_ns()
        self._jobs.put(True)

    def _sync_in_thread(self) -> None:
        while self._jobs.get():
            started_ns = monotonic_ns()
            error: Exception | None = None
            try:
                self._journal.sync()
            except Exception as caught:  # noqa: BLE001 (the loop must hear of it, whatever it is)
                error = caught
            sync_ns = monotonic_ns() - started_ns
            try:
                self._loop.call_soon_threadsafe(partial(self._synced, error, sync_ns))
            except RuntimeError:  # the loop was closed while the disk was busy
                return

    def _synced(self, error: Exception | None, sync_ns: int) -> None:
        if isinstance(error, JournalError):
            self._fail(error)
        elif error is not None:
            raise error
        if self._is_over:
            return
        replies = self._syncing or ()
        self._judge(sync_ns)
        if self._must_sync:
            self._start_sync()
        else:
            # What waits depends on nothing newer than what has just been synced.
            replies = [*replies, *self._waiting]
            self._syncing, self._waiting = None, []
            self._waiting_bytes = 0
        _release(replies)
        self._on_release()

    def _sync_some_time(self, log: Sequence[bytes]) -> None:
        """See that what was appended is synced when the policy says, or when it gets too much."""
        self._waiting_bytes += sum(map(len, log))
        if self._waiting_bytes > UNSYNCED_BYTES_MAX // 2 and self._syncing is None:
            self._start_sync()
        if self._policy is SyncPolicy.INTERVAL and not self._timer_is_set:
            self._timer_is_set = True
            self._loop.call_later(self._interval_s, self._interval_is_over)

    def _interval_is_over(self) -> None:
        self._timer_is_set = False
        if self._is_over:
            return
        if self._syncing is None:
            self._start_sync()
        else:
            self._must_sync = True

    def _fail(self, error: JournalError) -> None:
        if self._failure is None:
            self._failure = error
            self._on_failure(error)

    # --- The end ---------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        """Tell whether nothing may be synced or released any more, whoever still calls back."""
        return self._is_closed or self._failure is not None

    def close(self) -> None:
        """Sync what is left, release its replies, stop the thread. Blocks while the disk does."""
        self._is_closed = True
        self._jobs.put(False)
        self._thread.join()
        if self._failure is not None:
            return
        replies = [*(self._syncing or ()), *self._waiting]
        self._syncing, self._waiting = None, []
        try:
            self._journal.sync()
        except JournalError as error:
            self._fail(error)
            return
        _release(replies)


class Space:
    """Gets room from the journal for the engine; asks a full disk once a second at most.

    Only who wants to put asks at all: with nobody there, nothing polls.
    """

    def __init__(self, journal: Journal, on_change: Callable[[bool], object]) -> None:
        """Ask this journal; `on_change` is told when the disk is found full, or no longer so."""
        self._journal = journal
        self._on_change = on_change
        self._places = 0
        self._asked_ns: int | None = None
        self.is_full = False
        """The last time somebody wanted more room there was none."""

    def beyond(self, set_aside_bytes: int) -> int:
        """Return the room there is for the next turn beyond what is set aside for removals."""
        self._places = 0
        journal = self._journal
        room_bytes = journal.room_bytes
        enough_bytes = set_aside_bytes + EMERGENCY_BYTES + journal.segment_bytes
        if room_bytes > enough_bytes + journal.segment_bytes:
            journal.shrink_room(enough_bytes)
            room_bytes = journal.room_bytes
        return room_bytes - set_aside_bytes

    def more(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        """Get more room, and places for records with long bodies; -1 when that cannot be had."""
        now_ns = monotonic_ns()
        if self._asked_ns is not None and now_ns - self._asked_ns < ROOM_RETRY_MS * NS_PER_MS:
            return -1
        self._places += places
        journal = self._journal
        before_bytes = journal.room_bytes
        record_bytes = body_bytes + JOURNAL_RECORD_HEAD_BYTES if places else 0
        is_full = not journal.make_room(before_bytes + missing_bytes, record_bytes, self._places)
        self._asked_ns = now_ns if is_full else None
        if is_full is not self.is_full:
            self.is_full = is_full
            self._on_change(is_full)
        return -1 if is_full else journal.room_bytes - before_bytes


def _is_put_head(piece: bytes) -> bool:
    return len(piece) == _PUT_HEAD_BYTES and piece[0] == Kind.PUT


def _ignore(_sync_ms: int) -> None:
    """Take no notice."""


def _release(replies: Replies) -> None:
    for sink, data in replies:
        sink.send(data)
