"""The journal as the service sees it: open, replay, append, sync, close.

    journal = Journal.open("/var/lib/delayd", disk=RealDisk(), segment_bytes=64 << 20)
    for frame in journal.replay():       # everything that was durable, in order
        engine.apply(frame)
    sequence = journal.append(payload, time_ms, wall_ms)      # written, not yet durable
    if journal.sync() >= sequence:                            # now it is: replies may leave
        ...

Two threads may use it: one appends, another syncs. Frames are durable in order: `sync` goes through
the segments from the oldest, and a frame counts only when every segment before its own, its own,
and their names in the directory are on disk.

After an error of a write or a sync the file is given up: what the disk holds is unknown, and a
second sync of it would report success over lost pages. The journal begins again, once, in a fresh
segment: its header says how much of the one before had been synced, and what was not is written
again, from memory. If that fails too, every later call raises JournalFailed at once.

A lack of room is different: `append` raises JournalFull, the journal is as it was before the call,
and the next call tries again. Who must be sure asks first: `make_room` takes space ahead of need,
and what `room_bytes` says is there, an append does not have to ask the disk for.

The journal refuses to know what a payload means, what time it is, and when it should sync.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delayd.journal.disk import NO_ROOM, Disk
from delayd.journal.errors import JournalFailed
from delayd.journal.format import HEADER_BYTES, IDENTITY_BYTES, Frame, FrameKind
from delayd.journal.inspection import names_in
from delayd.journal.names import VIRTUAL_NAME, check_clock, check_names
from delayd.journal.open_directory import release_directory, take_directory, take_over
from delayd.journal.recovery import Recovery
from delayd.journal.snapshot import Damage, SnapshotHeader
from delayd.journal.snapshot_writer import SnapshotWriter
from delayd.journal.warnings import StartWarning, doubts
from delayd.journal.writer import Writer
from delayd.limits import JOURNAL_SEGMENT_BYTES_MIN, JOURNAL_SHRUNK_BYTES

if TYPE_CHECKING:
    from delayd.journal.repair import TornTail


class Journal(Writer):
    """One directory of segments, owned for as long as this object is open."""

    __slots__ = (
        "_found",
        "_is_virtual",
        "_lock_handle",
        "_snapshot",
        "damaged_snapshots",
        "doubts",
        "replay_bytes",
        "snapshot_ms",
        "torn_tails",
    )

    def __init__(
        self,
        directory: str,
        disk: Disk,
        segment_bytes: int,
        lock_handle: int,
        found: list[str],
        *,
        is_virtual: bool = False,
    ) -> None:
        """Use `Journal.open`."""
        super().__init__(directory, disk, segment_bytes)
        self._is_virtual = is_virtual
        self._snapshot: SnapshotWriter | None = None
        self._lock_handle = lock_handle
        self._found = found
        """What was in the directory when it was taken."""
        self.replay_bytes = 0
        """About how many bytes of frames `replay` yields, once it has yielded the first."""
        self.snapshot_ms: int | None = None
        """The delayd time of the newest snapshot; None when there is none."""
        self.torn_tails: list[TornTail] = []
        """What replay had to cut; for the log."""
        self.damaged_snapshots: list[Damage] = []
        """Snapshots that replay could not use; for the log."""
        self.doubts: list[StartWarning] = []
        """What may be a loss that nothing on the disk can prove; for the log."""

    @classmethod
    def open(
        cls, directory: str, *, disk: Disk, segment_bytes: int, is_virtual: bool = False
    ) -> "Journal":
        """Take the directory, making it if needed; `replay` comes next.

        `is_virtual`: the times to come are those of a virtual clock.
        Raises DirectoryLocked when another process has it, JournalFailed when it cannot be used.
        """
        assert segment_bytes >= JOURNAL_SEGMENT_BYTES_MIN, "configuration has a higher minimum"
        handle, found = take_directory(disk, directory)
        return cls(directory, disk, segment_bytes, handle, found, is_virtual=is_virtual)

    def replay(self) -> Iterator[Frame]:
        """Yield every durable frame in order; after the last one the journal takes appends.

        A torn tail is cut after a copy was kept (see `torn_tails`). Raises JournalCorrupt,
        JournalVersion or WrongClock, with nothing changed, and JournalFailed when a file cannot be
        used.
        Frames with an empty payload mark a clean close; their time counts, they carry nothing.
        """
        assert not self._is_replayed, "a journal is replayed once"
        names = names_in(self._disk, self._directory)
        check_names(self._directory, names)
        check_clock(self._directory, names, is_virtual=self._is_virtual)
        recovery = Recovery(self._disk, self._directory, names)
        frame = None
        for frame in recovery.frames():
            self.replay_bytes = recovery.expected_bytes
            yield frame
        if frame is not None:
            self._times = (frame.time_ms, frame.wall_ms)
        self.doubts = doubts(self._directory, self._found, recovery)
        try:
            self._take_over(recovery, names)
        except OSError as error:
            raise JournalFailed(
                self._directory, f"cannot be made ready for writing: {error.strerror}"
            ) from error

    def _take_over(self, recovery: Recovery, names: list[str]) -> None:
        """Make the directory ready for appends."""
        if self._is_virtual and VIRTUAL_NAME not in names:
            # Durable, with all other names, before the first frame can be: no time of this clock
            # may ever pass for the other's.
            self._disk.close(self._disk.create(f"{self._directory}/{VIRTUAL_NAME}"))
        books = (self._reserve, self._retention)
        self.torn_tails, active = take_over(
            self._disk, self._directory, names, recovery, *books, self._segment_bytes
        )
        self.damaged_snapshots = recovery.base.damaged
        if recovery.base.snapshot is not None:
            self.snapshot_ms = recovery.base.snapshot.header.time_ms
        self._appended = self._synced = recovery.sequence
        self._identity = recovery.identity or self._disk.unique_bytes(IDENTITY_BYTES)
        if active is not None:
            self._active = active
            self._unsynced.append(active)
        self._is_replayed = True

    # --- Snapshots -------------------------------------------------------------------------------

    @property
    def log_bytes_since_snapshot(self) -> int:
        """How much log recovery would read after the newest snapshot."""
        return self._retention.log_bytes_since_snapshot

    @property
    def disk_bytes(self) -> int:
        """What log and snapshots take on disk, without the reserve; see `retention`."""
        return self._retention.disk_bytes

    @property
    def file_numbers(self) -> tuple[int, int]:
        """The numbers of the log's oldest and newest file; zeros where there is none."""
        return self._retention.file_numbers

    @property
    def jobs_copied(self) -> int:
        """How many jobs the snapshots of this run hold, all together."""
        return self._retention.jobs_copied

    def snapshot_is_due(self, live_bytes: int) -> bool:
        """Tell whether to begin a snapshot now; `live_bytes` is about what it would hold.

        Never while one is in the making, but it should be asked even then: what is live decides how
        much may be written. After a failure it is still due: when to try again is up to the caller.
        """
        is_due = self._retention.is_due(live_bytes)
        return is_due and (self._snapshot is None or self._snapshot.is_over)

    def is_mostly_garbage(self, live_bytes: int) -> bool:
        """Tell whether `shrink` and two snapshots would make much less of the log."""
        return self._retention.is_mostly_garbage(live_bytes)

    def shrink(self, room_bytes: int, time_ms: int, wall_ms: int) -> bool:
        """Continue in a small file, which leaves this much room; tell whether that was done.

        It is so already when the last one is hardly used, and it is not where the disk has no room
        for both the file and snapshots: those come first. All other files go with the second
        snapshot that is taken from here on, the part of the reserve that is not needed goes at
        once. Called between appends, like them; raises JournalFull and JournalFailed.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        active = self._active
        if active is None or active.end <= self._retention.garbage_bytes_min:
            return True
        capacity = min(self._segment_bytes, max(JOURNAL_SHRUNK_BYTES, 2 * room_bytes))
        if self._reserve.room_bytes + capacity - 2 * HEADER_BYTES < room_bytes:
            return False
        needed_bytes = capacity + 2 * self._retention.next_snapshot_bytes
        with self._writing:
            try:
                if self._disk.free_bytes(self._directory) < needed_bytes:
                    return False
                self._rotate(0, time_ms, wall_ms, capacity)
            except OSError as error:
                if error.errno in NO_ROOM:
                    return False
                self._begin_anew(self._directory, f"no file for a shorter log: {error.strerror}")
        self.append(b"", time_ms, wall_ms)
        self.shrink_room(room_bytes)
        return True

    def begin_snapshot(self, sequence: int, time_ms: int, wall_ms: int) -> SnapshotWriter:
        """Begin a snapshot of the state after the last frame, which is `sequence`.

        Called between appends; what the writer does may happen in another thread, and the writer is
        finished or abandoned before the journal is closed. Raises JournalFull and JournalFailed.
        """
        assert self._snapshot is None or self._snapshot.is_over, "one snapshot at a time"
        assert sequence == self._appended, "a snapshot is of the state after the last frame"
        if sequence == self._retention.newest_sequence:
            # A second snapshot of the same state needs a number of its own.
            sequence = self.append(b"", time_ms, wall_ms)
        header = SnapshotHeader(self._identity, sequence, time_ms, wall_ms)
        with self._writing:
            # So that no later frame, the closing one above all, tells an earlier time than this.
            self._times = (time_ms, wall_ms)
        log = (self._make_durable, self._fail)
        self._snapshot = SnapshotWriter(self._disk, self._directory, header, self._retention, *log)
        return self._snapshot

    def _make_durable(self, sequence: int) -> None:
        assert self._is_open, "the journal is closed"
        if self._synced < sequence:
            self.sync()

    # --- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, mark the end, give unused space and the directory back. Does nothing twice.

        Raises JournalFailed when the last sync fails; the directory is released even then.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._active is not None and self._failure is None:
                self._finish()
        finally:
            self._retired += self._unsynced
            self._close_retired()
            self._reserve.close()
            self._unsynced.clear()
            self._active = None
            release_directory(self._disk, self._lock_handle)

    def _finish(self) -> None:
        """Sync, then write and sync the frame that testifies to it."""
        synced = self.sync()
        segment = self._active
        assert segment is not None
        try:
            # Writing past the preallocated end is fine: the file is cut to its frames anyway.
            segment.append(FrameKind.CLOSED, self._appended + 1, synced, *self._times, b"")
            if not self._reserve.is_exhausted:
                # On a full disk the room is kept: the next run needs it to remove jobs.
                segment.trim()
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._failure = (segment.path, f"cannot be closed: {error.strerror}")
                raise JournalFailed(*self._failure) from error
        else:
            self._appended += 1
        self.sync()
