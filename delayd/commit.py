"""Group commit: replies leave when what they promise is as durable as the policy says.

    quick disk:  records ─► append ─► sync ─► replies

    any other:   turn 1: records ─► append ─┐                     ┌─► replies of turn 1
                 turn 2: records ─► append ─┤ (waits its turn)    │
                                            └─► sync, elsewhere ──┘─► sync ─► replies of 2 to n

On a quick disk the turn itself syncs: giving it to others and hearing of its end takes as long as
the sync. A disk that begins to hang is met by one such sync, which holds the loop until it ends.
From then on syncs are elsewhere, and only one in a while tries again (`SLOW_SYNC_PAUSE_TIMES`).

Clients whose replies left together send their next commands one after the other. So that the first
of these has no sync to itself, on which all others would wait before their own, a turn with fewer
replies than the last sync released keeps them for as long as a sync takes, for more to come.

While a sync elsewhere runs the loop continues collecting; everything that arrives meanwhile shares
the next one. The kernel carries it out (`journal/aio.py`); where it takes more than one file, or
the kernel cannot, a thread does. Then the loop never waits for the disk.

A slow disk costs memory up to a limit: `is_backed_up` then says that no more should be read. With
the policies under which no reply waits, enough unsynced records begin a sync before its time.

Before a turn is committed the journal looks once a second whether its files are still there. While
something is missing, nothing is acknowledged: replies are held until a snapshot has replaced it.

Replies that depend on nothing unsynced leave at once. After a failure nothing leaves any more:
clients see their connections close, the honest answer when the outcome is not known.
"""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from delayd.clock import NEVER_NS, NS_PER_MS, monotonic_ns
from delayd.config import SyncPolicy
from delayd.core.stats.histogram import Histogram
from delayd.journal.aio import KernelSync
from delayd.journal.errors import JournalError, JournalFull
from delayd.journal.journal import Journal, SyncTicket
from delayd.limits import (
    BATCH_BOUNDS_RECORDS,
    EMERGENCY_BYTES,
    JOURNAL_RECORD_HEAD_BYTES,
    LOOK_MS,
    QUICK_SYNC_NS,
    QUICK_SYNCS_AVERAGED,
    ROOM_RETRY_MS,
    SLOW_SYNC_MS,
    SLOW_SYNC_PAUSE_TIMES,
    SPARE_BYTES_MIN,
    SYNC_BOUNDS_NS,
    SYNC_IN_TURN_BYTES_MAX,
    UNSYNCED_BYTES_MAX,
)


class ReplyReceiver(Protocol):
    """Where replies go: one client."""

    def send(self, data: bytes) -> None:
        """Send them, in one piece."""


class Loop(Protocol):
    """What is needed of the event loop."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Call back in so many seconds."""

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        """Call back from another thread."""


Replies = Sequence[tuple[ReplyReceiver, bytes]]


class GroupCommit:
    """Appends the records of each turn, syncs by the policy, releases the replies."""

    def __init__(
        self,
        journal: Journal,
        policy: SyncPolicy,
        interval_ms: int,
        loop: Loop,
        on_failure: Callable[[JournalError], None],
        kernel: KernelSync | None = None,
        *,
        syncs_in_turn: bool = False,
    ) -> None:
        """Commit to this journal; elsewhere `kernel` syncs, or else a thread does.

        `on_failure` is called once, and nothing is released after it. `syncs_in_turn`: the turn
        itself syncs while the disk is quick.
        """
        self._journal = journal
        self._policy = policy
        self._replies_wait = policy is SyncPolicy.ALWAYS
        self._interval_s = interval_ms / 1_000
        self._loop = loop
        self._on_failure = on_failure
        self._kernel = kernel
        self._ticket: SyncTicket | None = None  # for the sync that the kernel is carrying out
        self._waiting: list[tuple[ReplyReceiver, bytes]] = []
        """Replies that depend on records appended but not covered by the current sync."""
        self.is_syncing = False  # a sync is in progress elsewhere
        self._syncing: Replies = ()  # which it will release
        self._waiting_bytes = 0
        self._must_sync = self._timer_is_set = False
        self.durable_id = 0
        """Jobs up to this id are synced, `out_of_order_ids` aside, or the policy does not wait."""
        self.out_of_order_ids: dict[int, int] = {}
        """Jobs with earlier ids whose put ended late → number of the sync that covers it."""
        self._syncs_begun = self._last_id = self._syncing_id = self._sync_begun_ns = 0
        self.on_slow_sync: Callable[[int], object] = _ignore
        """Called with the milliseconds of each sync that took longer than SLOW_SYNC_MS."""
        self.on_lost: Callable[[str], object] = _ignore
        """Called with what is missing when replies begin to be held: a snapshot has to be taken."""
        self._look_ms = 0  # when to look for the files again
        self.in_turn_sync_ns = (0, 0)  # when the last sync in a turn began, how long it took
        self._in_turn_ns = 0  # how long they take: an average in which newer ones count more
        self._elsewhere_until_ns = 0 if syncs_in_turn else NEVER_NS
        """No turn syncs before: such syncs were not quick."""
        self._released = 0  # how many replies the last sync in a turn has released
        self.gathers_until_ns = 0
        """Until when replies wait for others to share a sync: call `commit` then. 0: none do."""
        self._in_turn = Histogram(SYNC_BOUNDS_NS)  # of those in the turn for which none had waited
        self.sync_ns = Histogram(SYNC_BOUNDS_NS, self._in_turn)  # how long syncs took
        self.commit_ns = Histogram(SYNC_BOUNDS_NS, self._in_turn)
        """For each sync, how long the first turn it covers has waited, or else the sync took."""
        self.batch_records = Histogram(BATCH_BOUNDS_RECORDS)  # how many each sync has covered
        self._unsynced_records = self.log_bytes = 0  # records since that sync; bytes of all
        # Since when the first turn has waited for the next sync, and for the current one; 0: none.
        self._waits_since_ns = self._batch_since_ns = 0
        self._failure: JournalError | None = None
        self._is_closed = self._is_held = False  # held: something is missing on the disk
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._sync_in_thread, name="sync", daemon=True)
        self._worker.start()

    @property
    def is_backed_up(self) -> bool:
        """Tell whether so much waits for the disk that no more should be read from clients."""
        # Files can only be many while a sync goes on elsewhere.
        return self._waiting_bytes > UNSYNCED_BYTES_MAX or (
            self.is_syncing and self._journal.is_behind
        )

    @property
    def wall_offset_ms(self) -> int:
        """How far the wall clock is ahead of delayd time, as the log has it."""
        return self._journal.wall_offset_ms

    def fileno(self) -> int | None:
        """Return the descriptor that is readable when `reap` has something to do, if there is."""
        return None if self._kernel is None else self._kernel.fileno()

    @property
    def sync_going_on_ms(self) -> int:
        """Return for how long the sync elsewhere has been in progress; 0 when there is none."""
        if not self.is_syncing:
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
        last_id: int = 0,
        free: Replies = (),
    ) -> None:
        """Append the records of a turn and send its replies as soon as they may leave.

        No job has an id above `last_id`. `free` are replies that depend on nothing unsynced.
        """
        if time_ms >= self._look_ms:
            self._look_ms = time_ms + LOOK_MS
            self.look()
            if log:  # and when nothing may follow it
                self._loop.call_later(LOOK_MS / 1_000, self.look)
        if self._failure is not None:
            return
        if log:
            try:
                self._append(log, time_ms, wall_ms)
            except JournalError as error:
                self._fail(error)
                return
            self._unsynced_records += len(log)
        self._last_id = last_id
        if free:
            _release(free)
        if self._is_held:
            self._add_waiting(log, replies)
            return
        if not self._replies_wait:
            self.durable_id = last_id
            _release(replies)
            if log:
                self._sync_some_time(log)
            return
        self._must_sync = self._must_sync or must_sync
        if self.is_syncing:
            self._add_waiting(log, replies)
        elif not self._must_sync:
            _release(replies)
        elif len(self._waiting) + len(replies) < self._released and self._gathers():
            self._add_waiting(log, replies)
        else:
            self._sync_now(replies)

    def _add_waiting(self, log: Sequence[bytes], replies: Replies) -> None:
        """Keep replies for a sync that comes later."""
        if not self._waits_since_ns:
            self._waits_since_ns = monotonic_ns()
        self._waiting += replies
        self._waiting_bytes += sum(map(len, log)) + sum(len(data) for _, data in replies)

    def note_late(self, job_ids: Sequence[int]) -> None:
        """Take note that these jobs are in the log to come, though their ids were taken before."""
        if self._replies_wait:
            self.out_of_order_ids.update(dict.fromkeys(job_ids, self._syncs_begun + 1))

    def _append(self, log: Sequence[bytes], time_ms: int, wall_ms: int) -> None:
        """Append the records as one frame; as several where only the ends of files are left.

        A record is never divided, and every state between two records is one that could have been.
        """
        try:
            payload = b"".join(log)
            self._journal.append(payload, time_ms, wall_ms)
            self.log_bytes += len(payload)
        except JournalFull:
            if len(log) < 2:
                raise
            middle = len(log) // 2
            self._append(log[:middle], time_ms, wall_ms)
            self._append(log[middle:], time_ms, wall_ms)

    # --- Looking for the files -------------------------------------------------------------------

    def look(self) -> str:
        """See whether the files of the journal are still there; return what is missing.

        Nothing is acknowledged from then on, until `resume` finds that it was replaced.
        """
        if self._is_over:
            return ""
        try:
            self._journal.look()
        except JournalError as error:
            self._fail(error)
            return str(error)
        lost = self._journal.lost
        if lost and not self._is_held:
            self._is_held = True
            self.gathers_until_ns = 0
            self.on_lost(lost)
        return lost

    def resume(self) -> None:
        """Acknowledge again if a snapshot holds all that was missing; called after each."""
        if self._is_held and not self.look() and not self._is_over:
            self._is_held = False
            self._must_sync = True
            if not self.is_syncing:
                self._start_sync()

    # --- Syncing ---------------------------------------------------------------------------------

    def _gathers(self) -> bool:
        """Tell whether there is time for more replies before the sync; it begins with the first."""
        now_ns = monotonic_ns()
        if not self.gathers_until_ns and now_ns >= self._elsewhere_until_ns:
            self.gathers_until_ns = now_ns + self._in_turn_ns
        return now_ns < self.gathers_until_ns

    def _sync_now(self, replies: Replies) -> None:
        """Sync for these replies and those that were gathered."""
        if self.gathers_until_ns:
            self.gathers_until_ns = 0
            replies = [*self._waiting, *replies]
            self._waiting = []
        if not self._sync_in_turn(replies):
            self._waiting += replies
            self._start_sync()

    def _sync_in_turn(self, replies: Replies) -> bool:
        """Sync in the middle of the turn and send the replies; False: it has to be elsewhere."""
        begun_ns = monotonic_ns()
        if begun_ns < self._elsewhere_until_ns:
            return False
        try:
            if not self._journal.sync_at_once(SYNC_IN_TURN_BYTES_MAX):
                return False
        except JournalError as error:
            self._fail(error)
            return True
        sync_ns = monotonic_ns() - begun_ns
        self.in_turn_sync_ns = begun_ns, sync_ns
        self._in_turn_ns += (sync_ns - self._in_turn_ns) // QUICK_SYNCS_AVERAGED
        if self._in_turn_ns > QUICK_SYNC_NS:
            # The first one after the pause decides: quick, and the average is low enough again.
            self._in_turn_ns = QUICK_SYNC_NS
            self._elsewhere_until_ns = begun_ns + SLOW_SYNC_PAUSE_TIMES * sync_ns
        self._must_sync = False
        self._syncs_begun += 1
        self.durable_id = self._last_id
        if self.out_of_order_ids:
            self._forget_late()
        _release(replies)
        self._released = len(replies)
        self.batch_records.note(self._unsynced_records)
        self._unsynced_records = 0
        if self._waits_since_ns:
            self.sync_ns.note(sync_ns)
            self.commit_ns.note(begun_ns + sync_ns - self._waits_since_ns)
            self._waiting_bytes = self._waits_since_ns = 0
        else:
            self._in_turn.note(sync_ns)
        if sync_ns > SLOW_SYNC_MS * NS_PER_MS:
            self.on_slow_sync(sync_ns // NS_PER_MS)
        return True

    def _start_sync(self) -> None:
        self._syncing, self._waiting = self._waiting, []
        self.is_syncing = True
        self._waiting_bytes = 0
        self._must_sync = False
        self._syncing_id = self._last_id
        self._syncs_begun += 1
        self._sync_begun_ns = monotonic_ns()
        self._batch_since_ns = self._waits_since_ns or self._sync_begun_ns
        self._waits_since_ns = 0
        self.batch_records.note(self._unsynced_records)
        self._unsynced_records = 0
        if self._kernel is None or not self._begin_in_kernel(self._kernel):
            self._jobs.put(True)

    def _begin_in_kernel(self, kernel: KernelSync) -> bool:
        """Hand the sync over to the kernel; False when a thread must do it."""
        try:
            ticket = self._journal.begin_sync()
        except JournalError:
            return False  # the thread will meet the same, and tell
        if ticket is None:
            return False
        try:
            kernel.begin(ticket.segment.handle)
        except OSError:
            self._journal.end_sync(ticket, is_done=False)
            return False
        self._ticket = ticket
        return True

    def reap(self) -> None:
        """See whether the kernel's sync has ended, and release what waited for it."""
        ticket = self._ticket
        if ticket is None or self._kernel is None:
            return
        if not self._kernel.finish():
            return
        self._ticket = None
        try:
            is_durable = self._journal.end_sync(ticket, self._kernel.error)
        except JournalError as error:
            self._fail(error)
            return
        if is_durable:
            self._synced(None, monotonic_ns() - self._sync_begun_ns)
        else:
            # The file was given up. What was in it must be durable in the next one.
            self._jobs.put(True)

    def _sync_in_thread(self) -> None:
        # They are the loop's, and this thread may outlive their handlers for a moment.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
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
        if self._is_held:
            # Durable in a log that a start may refuse.
            self._waiting[:0] = self._syncing
            self._syncing, self.is_syncing = (), False
            return
        replies = self._syncing
        self.durable_id = max(self.durable_id, self._syncing_id)
        if self.out_of_order_ids:
            self._forget_late()
        self.sync_ns.note(sync_ns)
        self.commit_ns.note(monotonic_ns() - self._batch_since_ns)
        if sync_ns > SLOW_SYNC_MS * NS_PER_MS:
            self.on_slow_sync(sync_ns // NS_PER_MS)
        if self._must_sync:
            self._start_sync()
        else:
            # What waits depends on nothing newer than what has just been synced.
            replies = [*replies, *self._waiting]
            self._syncing, self._waiting = (), []
            self.is_syncing = False
            self._waiting_bytes = self._waits_since_ns = 0
        _release(replies)

    def _forget_late(self) -> None:
        """Forget late jobs that the sync just ended has covered."""
        out_of_order_ids, ended = self.out_of_order_ids, self._syncs_begun
        for job_id in [job_id for job_id, sync in out_of_order_ids.items() if sync <= ended]:
            del out_of_order_ids[job_id]

    def _sync_some_time(self, log: Sequence[bytes]) -> None:
        """See that what was appended is synced when the policy says, or when it gets too much."""
        self._waiting_bytes += sum(map(len, log))
        if self._waiting_bytes > UNSYNCED_BYTES_MAX // 2 and not self.is_syncing:
            self._start_sync()
        if self._policy is SyncPolicy.INTERVAL and not self._timer_is_set:
            self._timer_is_set = True
            self._loop.call_later(self._interval_s, self._interval_is_over)

    def _interval_is_over(self) -> None:
        self._timer_is_set = False
        if self._is_over:
            return
        if self.is_syncing:
            self._must_sync = True
        else:
            self._start_sync()

    def _fail(self, error: JournalError) -> None:
        if self._failure is None:
            self._failure = error
            self.gathers_until_ns = 0
            self._on_failure(error)

    # --- The end ---------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        """Tell whether nothing may be synced or released any more; late callbacks do nothing."""
        return self._is_closed or self._failure is not None

    def close(self) -> None:
        """Sync what is left, release its replies, stop the thread. Blocks while the disk does."""
        self._is_closed = True
        if self._kernel is not None:
            if self._ticket is not None:
                self._kernel.finish(wait=True)
                with contextlib.suppress(JournalError):  # the last sync meets it again
                    self._journal.end_sync(self._ticket, self._kernel.error)
                self._ticket = None
            self._kernel.close()
        self._jobs.put(False)
        self._worker.join()
        if self._failure is not None:
            return
        replies = () if self._is_held else (*self._syncing, *self._waiting)
        self._syncing, self._waiting = (), []
        self.is_syncing = False
        try:
            self._journal.sync()
        except JournalError as error:
            self._fail(error)
            return
        _release(replies)


class Space:
    """Gets room from the journal for the engine; asks a full disk once a second at most.

    Only what is written causes a request, and who asks whether a put would be taken: nothing polls.
    """

    def __init__(self, journal: Journal, on_change: Callable[[bool], object]) -> None:
        """Ask this journal; `on_change` is called when the disk becomes full or no longer is."""
        self._journal = journal
        self._on_change = on_change
        self._places = 0
        self._asked_ns: int | None = None
        self.is_full = False  # the last request for more room failed

    def beyond(self, set_aside_bytes: int) -> int:
        """Return the room for the next turn, without what is set aside for removals."""
        self._places = 0
        journal = self._journal
        room_bytes = journal.room_bytes
        enough_bytes = set_aside_bytes + EMERGENCY_BYTES + journal.segment_bytes
        if room_bytes > enough_bytes + journal.segment_bytes:
            journal.shrink_room(enough_bytes)
            room_bytes = journal.room_bytes
        if self.is_full:
            wanted_bytes = set_aside_bytes + EMERGENCY_BYTES + SPARE_BYTES_MIN
            if room_bytes >= wanted_bytes:
                # A snapshot or removals have made room: there is no need to ask.
                self._note_full(is_full=False)
            else:
                # Perhaps only short jobs are put, which still fit: they would never ask.
                self.more(wanted_bytes - room_bytes, 0, 0)
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
        self._note_full(is_full=is_full)
        return -1 if is_full else journal.room_bytes - before_bytes

    def _note_full(self, *, is_full: bool) -> None:
        """Tell when it is the other way round than before."""
        if is_full is not self.is_full:
            self.is_full = is_full
            self._on_change(is_full)


def _ignore(_what: object) -> None:
    """Take no notice."""


def _release(replies: Replies) -> None:
    for sink, data in replies:
        sink.send(data)
