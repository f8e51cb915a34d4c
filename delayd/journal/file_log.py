"""The log in files: a journal, when and how it is synced, and whether files have vanished.

    quick disk:  settle ─► sync in the turn ─► settled

    any other:   settle ─► sync, elsewhere ─┐        what is appended meanwhile is covered by the
                           (the loop goes on)└─► settled            next `settle`

On a quick disk the turn itself syncs: giving it to others and hearing of its end takes as long as
the sync. A disk that begins to hang is met by one such sync, which holds the loop until it ends.
From then on syncs are elsewhere, and only one in a while tries again (`SLOW_SYNC_PAUSE_TIMES`).

Elsewhere the kernel carries it out (`aio.py`); where it takes more than one file, or the kernel
cannot, a thread does. Then the loop never waits for the disk.

Once a second, before something is appended, it is seen whether the files are still there. While
something is missing nothing is settled: a snapshot has to replace it.
"""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from delayd.clock import NEVER_NS, NS_PER_MS, monotonic_ns, processor_wait_ns
from delayd.journal.aio import KernelSync, open_kernel_sync
from delayd.journal.directory import look_first
from delayd.journal.disk import RealDisk
from delayd.journal.errors import JournalCorrupt, JournalError, JournalFull
from delayd.journal.file_space import FileSpace
from delayd.journal.format import FRAME_OVERHEAD_BYTES, Frame
from delayd.journal.journal import Journal, SyncTicket
from delayd.journal.snapshot import SnapshotWriter
from delayd.limits import (
    LOOK_MS,
    QUICK_SYNC_NS,
    QUICK_SYNCS_AVERAGED,
    SLOW_SYNC_PAUSE_TIMES,
    SYNC_IN_TURN_BYTES_MAX,
    WATCHED_SYNC_NS,
)
from delayd.log import LogError, LogFinding, LogSize, LogUser, Loop
from delayd.log_lines import Log

_SNAPSHOT_STEPS_PER_FILE = 8
"""How often to check whether a snapshot is due; `retention` leaves a whole file free for it."""


def open_log(
    directory: str, news: Log, *, segment_bytes: int, is_virtual: bool, syncs_in_turn: bool
) -> "FileLog":
    """Open the log in this directory of the machine; `follow` comes next. Raises JournalError.

    `is_virtual`: the times to come are those of a virtual clock.
    """
    disk = RealDisk()
    look_first(disk, directory)
    journal = Journal.open(directory, disk=disk, segment_bytes=segment_bytes, is_virtual=is_virtual)
    return FileLog(
        *(journal, news, open_kernel_sync()),
        syncs_in_turn=syncs_in_turn,
        processor_wait_ns=processor_wait_ns,
    )


class FileLog:
    """A journal as a log; see `delayd.log.DurableLog` for what each method promises."""

    owner: Final = ""
    is_shared: Final = False
    ownership: Final = None
    keeper: Final = "disk"
    wall_ns: Final = None

    def __init__(
        self,
        journal: Journal,
        news: Log,
        kernel: KernelSync | None = None,
        *,
        syncs_in_turn: bool = False,
        processor_wait_ns: Callable[[], int] = int,
    ) -> None:
        """Keep frames in this journal; `kernel` syncs elsewhere, or else a thread does.

        Trouble is logged in `news`. `syncs_in_turn`: the turn itself syncs while the disk is quick.
        `processor_wait_ns` returns how long the thread has waited for a processor so far, or 0:
        that part of a sync is not the disk's.
        """
        self._journal = journal
        self._news = news
        self._kernel = kernel
        self._writer: SnapshotWriter | None = None  # of the snapshot that was begun last
        self._ticket: SyncTicket | None = None  # for the sync that the kernel is carrying out
        self.space = FileSpace(journal)
        journal.on_trouble = self._note_trouble
        journal.on_unproved = self._note_unproved
        journal.on_space_lost = self._note_space_lost
        self._loop: Loop | None = None
        self._user: LogUser | None = None
        self._read_bytes = 0
        self.appended_bytes = 0  # of records, since the start
        self.is_settling = False  # a sync is in progress elsewhere
        self._begun_ns = 0  # when it began
        self.is_whole = True
        self._look_ms = 0  # when to look for the files again
        self.last_in_turn_ns = (0, 0)
        self._average_ns = 0  # how long the disk takes in turns; newer syncs count more
        self._processor_wait_ns = processor_wait_ns
        self._elsewhere_until_ns = 0 if syncs_in_turn else NEVER_NS
        """No turn syncs before: such syncs were not quick."""
        self._is_over = False  # the journal has failed, or settles no more
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._sync_in_thread, name="sync", daemon=True)

    # --- A start ---------------------------------------------------------------------------------

    def follow(self) -> Iterator[Frame]:
        for frame in self._journal.follow():
            self._read_bytes += FRAME_OVERHEAD_BYTES + len(frame.payload)
            yield frame

    @property
    def followed_percent(self) -> int:
        """About how much of them was yielded. It looks at the files each time."""
        return min(99, 100 * self._read_bytes // self._journal.replay_bytes)

    def unreadable(self, why: str) -> JournalCorrupt:
        return JournalCorrupt(self._journal.directory, 0, why)

    def take_over(self) -> bool:
        """Make the files ready for writing; the owner is the process that holds the lock."""
        self._journal.take_over()
        return True

    @property
    def findings(self) -> list[LogFinding]:
        """Damaged snapshots, torn tails, and what may be a loss that nothing can prove."""
        journal = self._journal
        skipped = "a damaged snapshot was skipped"
        cut = "the torn end of the last write was cut off"
        found = [LogFinding(skipped, {"snapshot": str(each)}) for each in journal.damaged_snapshots]
        found += [LogFinding(cut, {"tail": str(tail)}) for tail in journal.torn_tails]
        found += [LogFinding(each.sentence, {"found": each.found}) for each in journal.warnings]
        return found

    @property
    def identity(self) -> bytes:
        return self._journal.identity

    def serve(self, loop: Loop, user: LogUser) -> None:
        self._loop, self._user = loop, user
        self._worker.start()

    def watch_standbys(self) -> None:
        """There are none."""

    # --- Appending -------------------------------------------------------------------------------

    @property
    def appended_sequence(self) -> int:
        return self._journal.appended_sequence

    @property
    def wall_offset_ms(self) -> int:
        return self._journal.wall_offset_ms

    def append(self, records: Sequence[bytes], time_ms: int, wall_ms: int) -> int:
        """Append the records as one frame; as several where only the ends of files are left.

        Every state between two records is one that could have been.
        """
        if time_ms >= self._look_ms:
            self._look_ms = time_ms + LOOK_MS
            self.find_lost()
            if self._loop is not None:  # and once more when nothing may follow
                self._loop.call_later(LOOK_MS / 1_000, self.find_lost)
        payload = b"".join(records)
        try:
            sequence = self._journal.append(payload, time_ms, wall_ms)
        except JournalFull:
            if len(records) < 2:
                raise
            middle = len(records) // 2
            self.append(records[:middle], time_ms, wall_ms)
            return self.append(records[middle:], time_ms, wall_ms)
        self.appended_bytes += len(payload)
        return sequence

    # --- What has vanished -----------------------------------------------------------------------

    def find_lost(self) -> str:
        """See whether the files are still there; return what is missing."""
        if self._is_over:
            return ""
        try:
            self._journal.find_lost()
        except JournalError as error:
            self._fail(error)
            return str(error)
        lost = self._journal.lost
        if lost and self.is_whole:
            self.is_whole = False
            if self._user is not None:
                self._user.lost(lost)
        return lost

    def end_snapshot(self) -> None:
        """Take note of its time, and settle again if it holds all that was missing."""
        writer = self._writer
        assert writer is not None, "`begin_snapshot` comes before `end_snapshot`"
        self._journal.snapshot_ms = writer.time_ms
        for path in writer.left_behind:
            self._news.warning("an obsolete file cannot be removed", file=path)
        if not self.is_whole and not self.find_lost() and not self._is_over:
            self.is_whole = True
            if self._user is not None:
                self._user.restored()

    # --- Settling --------------------------------------------------------------------------------

    @property
    def settling_ms(self) -> int:
        if not self.is_settling:
            return 0
        return (monotonic_ns() - self._begun_ns) // NS_PER_MS

    @property
    def is_behind(self) -> bool:
        """Whether too many files wait; they can only be many while a sync goes on elsewhere."""
        return self.is_settling and self._journal.is_behind

    def in_turn_ns(self, now_ns: int) -> int:
        return self._average_ns if now_ns >= self._elsewhere_until_ns else 0

    def settle(self, *, in_turn: bool) -> None:
        """Sync, in the turn or elsewhere."""
        if not (in_turn and self._sync_in_turn()):
            self.is_settling = True
            self._begun_ns = monotonic_ns()
            if self._kernel is None or not self._begin_in_kernel(self._kernel):
                self._jobs.put(True)

    def _sync_in_turn(self) -> bool:
        """Sync in the middle of the turn; False: it has to be elsewhere."""
        begun_ns = monotonic_ns()
        if begun_ns < self._elsewhere_until_ns:
            return False
        is_watched = self._average_ns > WATCHED_SYNC_NS
        waited_ns = self._processor_wait_ns() if is_watched else 0
        try:
            if not self._journal.sync_at_once(SYNC_IN_TURN_BYTES_MAX):
                return False
        except JournalError as error:
            self._fail(error)
            return True
        sync_ns = monotonic_ns() - begun_ns
        self.last_in_turn_ns = begun_ns, sync_ns
        disk_ns = sync_ns
        if is_watched:
            disk_ns = max(0, sync_ns - (self._processor_wait_ns() - waited_ns))
        self._average_ns += (disk_ns - self._average_ns) // QUICK_SYNCS_AVERAGED
        if self._average_ns > QUICK_SYNC_NS:
            # The first one after the pause decides: quick, and the average is low enough again.
            self._average_ns = QUICK_SYNC_NS
            self._elsewhere_until_ns = begun_ns + SLOW_SYNC_PAUSE_TIMES * disk_ns
        self._tell_settled(sync_ns)
        return True

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

    def fileno(self) -> int | None:
        """Return the descriptor that is readable when the kernel's sync has ended, if there is."""
        return None if self._kernel is None else self._kernel.fileno()

    def reap(self) -> None:
        """See whether the kernel's sync has ended."""
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
            self._synced(None, monotonic_ns() - self._begun_ns)
        else:
            # The file was given up. What was in it must be durable in the next one.
            self._jobs.put(True)

    def _sync_in_thread(self) -> None:
        # They are the loop's, and this thread may outlive their handlers for a moment.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        loop = self._loop
        assert loop is not None, "begun by `serve`"
        while self._jobs.get():
            started_ns = monotonic_ns()
            error: Exception | None = None
            try:
                self._journal.sync()
            except Exception as caught:  # noqa: BLE001 (the loop must hear of it, whatever it is)
                error = caught
            sync_ns = monotonic_ns() - started_ns
            try:
                loop.call_soon_threadsafe(partial(self._synced, error, sync_ns))
            except RuntimeError:  # the loop was closed while the disk was busy
                return

    def _synced(self, error: Exception | None, sync_ns: int) -> None:
        if isinstance(error, JournalError):
            self._fail(error)
        elif error is not None:
            raise error
        if self._is_over:
            return
        self.is_settling = False
        self._tell_settled(sync_ns)

    def _tell_settled(self, sync_ns: int) -> None:
        """Tell what is durable, unless it is durable in a log that a start may refuse."""
        if self.is_whole and self._user is not None:
            self._user.settled(self._journal.synced_sequence, sync_ns)

    def _fail(self, error: LogError) -> None:
        self._is_over = True
        if self._user is not None:
            self._user.failed(error)

    def _note_trouble(self, failure: str) -> None:
        """Tell of it, in whichever thread it happens; beginning anew has used some space."""
        self._news.error("the disk failed, the log continues in a new file", what=failure)
        self.space.is_stale = True

    def _note_space_lost(self, paths: str) -> None:
        """Tell that there is less space than was set aside; the turn that wrote looks again."""
        self._news.error("files of reserved space were removed, cut or replaced", missing=paths)
        self.space.is_stale = True

    def _note_unproved(self, failure: str) -> None:
        """Tell that a start will not notice it if the end of the log is missing."""
        self._news.error("the disk failed, how far the log goes cannot be noted", what=failure)

    # --- Snapshots -------------------------------------------------------------------------------

    @property
    def step_bytes(self) -> int:
        return self._journal.segment_bytes // _SNAPSHOT_STEPS_PER_FILE

    @property
    def grown_bytes(self) -> int:
        return self._journal.retention.log_bytes_since_snapshot

    @property
    def free_bytes(self) -> int:
        return self._journal.space_bytes

    @property
    def snapshot_ms(self) -> int | None:
        return self._journal.snapshot_ms

    @property
    def is_full(self) -> bool:
        return self._journal.retention.is_full

    def snapshot_is_due(self, live_bytes: int) -> bool:
        return self._journal.snapshot_is_due(live_bytes)

    def is_mostly_garbage(self, live_bytes: int) -> bool:
        """Tell whether the files are much longer than what they say."""
        return self._journal.retention.is_mostly_garbage(live_bytes)

    def shrink(self, free_bytes: int, time_ms: int, wall_ms: int) -> bool:
        """Continue in a small file."""
        return self._journal.shrink(free_bytes, time_ms, wall_ms)

    def begin_snapshot(self, time_ms: int, wall_ms: int) -> SnapshotWriter:
        sequence = self._journal.appended_sequence
        self._writer = self._journal.begin_snapshot(sequence, time_ms, wall_ms)
        return self._writer

    def size(self) -> LogSize:
        """Return what all files take, which the first and the last are, and what was copied."""
        retention = self._journal.retention
        return LogSize(retention.disk_bytes, *retention.file_numbers, retention.jobs_copied)

    # --- The end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the thread and what the kernel is at; blocks while the disk does."""
        self._is_over = True
        if self._kernel is not None:
            if self._ticket is not None:
                self._kernel.finish(wait=True)
                with contextlib.suppress(JournalError):  # the last sync meets it again
                    self._journal.end_sync(self._ticket, self._kernel.error)
                self._ticket = None
            self._kernel.close()
        if self._loop is not None:
            self._jobs.put(False)
            self._worker.join()
        self.is_settling = False

    def settle_all(self) -> bool:
        """Sync all that was appended; blocks while the disk does."""
        self._journal.sync()
        return self.is_whole

    def close(self) -> None:
        """Mark the end, and give the directory up."""
        self._journal.close()
