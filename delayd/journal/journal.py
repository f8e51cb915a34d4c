"""The journal as the service sees it: open, replay, append, sync, close.

    journal = Journal.open("/var/lib/delayd", disk=RealDisk(), segment_bytes=64 << 20)
    for frame in journal.replay():       # everything that was durable, in order
        engine.apply(frame)
    sequence = journal.append(payload, time_ms, wall_ms)      # written, not yet durable
    if journal.sync() >= sequence:                            # now it is: replies may leave
        ...

Two threads may use it: one appends, another syncs. Frames are durable in order: `sync` goes through
the segments from the oldest, and a frame counts only when every segment before its own, its own,
and their names in the directory are on disk. `_sync_turn` is held by the thread that syncs,
`_writing` by the one that changes which segments there are or how far they have got.

After an error of a write or a sync the file is given up: what the disk holds is unknown, for the
system may call pages clean that never reached it, and a second sync would report success over lost
pages. The journal continues, once, in a replacement segment:

    synced ─┐
    ████████│░░░░░   ░░░░░░   ░░░░    not synced (░), in files that are not trusted any more
            └─► replacement: ████████████   the same frames again, from memory (`Pending`)

Its header says where the previous file ends; whatever follows there is void. It takes the
place of the first file that holds nothing durable. Later ones are removed first, durably, so
that a crash in between leaves a log that merely ends earlier. If the replacement fails too, every
later call raises JournalFailed at once.

`look` sees whether the files are still there. One that was removed, replaced or cut short is given
up in the same way. What was durable in it is lost as well: a snapshot has to hold that before
anything more is acknowledged, and until then `lost` says what is missing. Without its directory a
journal has failed. A spare file that is gone was only space, which is not counted any more.

A lack of space is different: `append` raises JournalFull, the journal is as it was before the call,
and the next call tries again. A caller that must be sure asks first: `make_space` reserves space,
and for what `space_bytes` says is there, an append does not have to ask the disk.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, NoReturn

from delayd.journal.directory import Ownership, names_in, release_directory, take_directory
from delayd.journal.disk import NO_SPACE, Disk
from delayd.journal.errors import JournalFailed, JournalFull, failing
from delayd.journal.format import (
    FIRST_SEGMENT,
    FIRST_SEQUENCE,
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    IDENTITY_BYTES,
    VIRTUAL_NAME,
    Frame,
    FrameKind,
    SegmentHeader,
    check_clock,
    check_names,
)
from delayd.journal.log_end import LogEndFile
from delayd.journal.recovery import Recovery, StartWarning, start_warnings
from delayd.journal.repair import TornTail, open_directory
from delayd.journal.retention import Retention
from delayd.journal.segment import Segment, SpareFiles, segment_bytes_for
from delayd.journal.snapshot import Damage, SnapshotHeader, SnapshotWriter
from delayd.limits import (
    JOURNAL_FILES_PER_SEGMENT,
    JOURNAL_PAYLOAD_BYTES_MAX,
    JOURNAL_PENDING_BYTES_MAX,
    JOURNAL_SEGMENT_BYTES_MIN,
    JOURNAL_SHRUNK_BYTES,
    JOURNAL_UNSYNCED_SEGMENTS_MAX,
    JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC,
    SHRUNK_BYTES_FULL,
)


class Pending:
    """The frames appended since the last sync, with at most `bytes_max` of payload."""

    __slots__ = ("_bytes_max", "_dropped_sequence", "frame_bytes", "frames")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._dropped_sequence = 0
        # Bare tuples of sequence, time, wall time and payload: a `Frame` costs 0.3 µs more.
        self.frames: deque[tuple[int, int, int, bytes]] = deque()
        self.frame_bytes = 0

    def add(self, sequence: int, time_ms: int, wall_ms: int, payload: bytes) -> None:
        """Keep a frame that was appended."""
        self.frames.append((sequence, time_ms, wall_ms, payload))
        self.frame_bytes += len(payload)
        if self.frame_bytes > self._bytes_max:
            self._dropped_sequence = sequence
            self.frames.clear()
            self.frame_bytes = 0

    def release(self, synced: int) -> None:
        """Let go of what is durable now."""
        frames = self.frames
        while frames and frames[0][0] <= synced:
            self.frame_bytes -= len(frames.popleft()[3])

    def release_all(self) -> None:
        """Let go of every frame: what was appended last is durable now."""
        self.frames.clear()
        self.frame_bytes = 0

    def is_whole(self, synced: int) -> bool:
        """Tell whether every frame after this one is still here."""
        return self._dropped_sequence <= synced


# An attribute lookup on an enum costs as much as the checksum of a small frame.
_RECORDS: Final = int(FrameKind.RECORDS)


class SyncTicket(NamedTuple):
    """A sync that another part executes."""

    segment: Segment
    end: int  # the bytes of the file up to here will be durable
    last_sequence: int
    fresh_starts: int  # how many there had been


class Journal:
    """One directory of segments, owned for as long as this object, made by `open`, is open."""

    __slots__ = (
        *("_active", "_disk", "_end", "_failure", "_found", "_is_open"),
        *("_is_replayed", "_is_virtual", "_lost", "_lost_sequence", "_owned", "_pending"),
        *("_recovery", "_reserve", "_retired", "_snapshot", "_sync_turn", "_ticket_is_out"),
        *("_times", "_unsynced", "_writing", "appended_sequence", "damaged_snapshots", "directory"),
        *("fresh_starts", "identity", "on_space_lost", "on_trouble", "on_unproved", "retention"),
        *("segment_bytes", "snapshot_ms", "space_trouble", "synced_sequence", "torn_tails"),
        "warnings",
    )

    def __init__(
        self,
        directory: str,
        disk: Disk,
        segment_bytes: int,
        owned: Ownership,
        found: list[str],
        *,
        is_virtual: bool = False,
    ) -> None:
        self.directory = directory
        self._disk = disk
        self.segment_bytes = segment_bytes // JOURNAL_FILES_PER_SEGMENT
        """How long the log's files are, frames that do not fit aside."""
        self.retention = Retention(disk, segment_bytes)
        """The books: what log and snapshots take on disk, and how much of it is needed."""
        self._active: Segment | None = None
        # Segments with bytes that may not be durable, oldest first; the active one is the last.
        # The appending thread adds at the right, the syncing thread removes at the left.
        self._unsynced: deque[Segment] = deque()
        self._sync_turn = threading.Lock()
        # Held while a frame is written, and while what has been written is looked at or given up;
        # never while the disk syncs. Taken after `_sync_turn` where both are.
        self._writing = threading.RLock()
        self._ticket_is_out = False
        self._pending = Pending(JOURNAL_PENDING_BYTES_MAX)
        self._reserve = SpareFiles(disk, directory)
        self.fresh_starts = 0  # how often a write or a sync failed and the journal began again
        self._retired: list[Segment] = []  # until no sync of them can be in progress
        self.identity = b""
        """Sixteen bytes that no other log has; known when it has been replayed."""
        self._end = LogEndFile(disk, directory, b"")
        self.appended_sequence = FIRST_SEQUENCE - 1  # the last frame that was appended
        self.synced_sequence = FIRST_SEQUENCE - 1  # the last one known to be durable
        self._times = (0, 0)
        self._failure: tuple[str, str] | None = None
        # (file, reason) of the first failure, which is the last thing that happens here.
        self._is_open = True
        self._is_replayed = False
        self.on_trouble: Callable[[str], object] = lambda _trouble: None
        """Called with each of these failures, in the thread where it happens."""
        self.on_unproved: Callable[[str], object] = lambda _trouble: None
        """Called when the file `log-end` cannot be written, the first time in a row."""
        self.on_space_lost: Callable[[str], object] = lambda _paths: None
        """Called with the spare files that are gone."""
        self.space_trouble = ""
        """Why no file could be made for more space the last time; empty: for lack of space."""
        self._is_virtual = is_virtual
        self._lost = ""
        self._lost_sequence = 0  # a snapshot of the state after this frame holds what was lost
        self._snapshot: SnapshotWriter | None = None
        self._owned = owned
        self._found = found  # what was in the directory when it was taken
        self._recovery: Recovery | None = None
        self.snapshot_ms: int | None = None
        """The delayd time of the newest snapshot; None when there is none."""
        self.torn_tails: list[TornTail] = []  # what replay had to cut; for the log
        self.damaged_snapshots: list[Damage] = []  # what replay could not use; for the log
        self.warnings: list[StartWarning] = []
        """What may be a loss that nothing on the disk can prove; for the log."""

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        disk: Disk,
        segment_bytes: int,
        is_virtual: bool = False,
        identity: bytes = b"",
    ) -> "Journal":
        """Take the directory, making it if needed; `replay` comes next.

        `is_virtual`: the times to come are those of a virtual clock. `identity`: of the log that is
        copied into this one.
        Raises DirectoryLocked when another process has it, JournalFailed when it cannot be used.
        """
        assert segment_bytes >= JOURNAL_SEGMENT_BYTES_MIN, "configuration has a higher minimum"
        owned, found = take_directory(disk, directory)
        journal = cls(directory, disk, segment_bytes, owned, found, is_virtual=is_virtual)
        journal.identity = identity
        return journal

    def replay(self) -> Iterator[Frame]:
        """Yield every durable frame in order; after the last one the journal takes appends."""
        yield from self.follow()
        self.take_over()

    def follow(self) -> Iterator[Frame]:
        """Yield every durable frame in order; `take_over` comes next.

        Raises JournalCorrupt, JournalVersion or WrongClock, with nothing changed, and JournalFailed
        when a file cannot be used.
        Frames with an empty payload mark a clean close; their time counts, they carry nothing.
        """
        is_followed = self._is_replayed or self._recovery is not None
        assert not is_followed, "a journal is replayed once"
        names = names_in(self._disk, self.directory)
        check_names(self.directory, names)
        check_clock(self.directory, names, is_virtual=self._is_virtual)
        recovery = Recovery(self._disk, self.directory, names)
        frame = None
        self._recovery = recovery
        for frame in recovery.frames():
            yield frame
        if frame is not None:
            self._times = (frame.time_ms, frame.wall_ms)

    def take_over(self) -> None:
        """Make the directory ready for appends; every frame was yielded.

        A torn tail is cut after a copy was kept (see `torn_tails`). Raises JournalFailed.
        """
        recovery = self._recovery
        assert recovery is not None, "`follow` comes before `take_over`"
        self._recovery = None
        self.warnings = start_warnings(recovery, self._found)
        with failing(self.directory, "cannot be made ready for writing"):
            self._open_directory(recovery)

    def disk_free_bytes(self) -> int:
        """Return how many bytes are free on its disk. Raises OSError."""
        return self._disk.free_bytes(self.directory)

    @property
    def replay_bytes(self) -> int:
        """About how long the frames are that `replay` reads. It looks at the files each time."""
        assert self._recovery is not None, "between the first frame and the last"
        return self._recovery.expected_bytes

    def _open_directory(self, recovery: Recovery) -> None:
        if self._is_virtual and VIRTUAL_NAME not in recovery.names:
            # Durable, with all other names, before the first frame can be: no time of this clock
            # may ever pass for the other's.
            self._disk.close(self._disk.create(f"{self.directory}/{VIRTUAL_NAME}"))
        self.torn_tails, active = open_directory(
            recovery, self._reserve, self.retention, self.segment_bytes
        )
        self.damaged_snapshots = recovery.base.damaged
        if recovery.base.snapshot is not None:
            self.snapshot_ms = recovery.base.snapshot.header.time_ms
        self.appended_sequence = self.synced_sequence = recovery.sequence
        self.identity = (
            recovery.identity or self.identity or self._disk.unique_bytes(IDENTITY_BYTES)
        )
        self._end = LogEndFile(self._disk, self.directory, self.identity)
        if active is not None:
            self._active = active
            self._unsynced.append(active)
        self._is_replayed = True

    @property
    def wall_offset_ms(self) -> int:
        """How far the wall clock was ahead of delayd time when the last frame was written."""
        time_ms, wall_ms = self._times
        return wall_ms - time_ms

    @property
    def is_behind(self) -> bool:
        """Whether so many files wait for the current sync that no more should be appended."""
        return len(self._unsynced) > JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC

    # --- Space -----------------------------------------------------------------------------------

    @property
    def space_bytes(self) -> int:
        """How many bytes of frames can be appended without asking the disk for space."""
        active = self._active
        return self._reserve.space_bytes + (active.space_bytes if active else 0)

    def make_space(self, space_bytes: int, payload_bytes: int = 0, places: int = 1) -> bool:
        """See that there is this much space, and `places` for frames with so long a payload.

        Returns False when it cannot be had, with no less space than there was.
        """
        with self._writing:
            active = self._active
            space_bytes -= active.space_bytes if active else 0
            self._reserve.keep_free_bytes = self.retention.next_snapshot_bytes
            try:
                self._reserve.grow(space_bytes, payload_bytes, places, self.segment_bytes)
            except OSError as error:
                # Nothing is broken that was promised; what is missing was not accepted yet.
                self.space_trouble = (
                    "" if error.errno in NO_SPACE else error.strerror or "it failed"
                )
                return False
        self.space_trouble = ""
        return True

    def shrink_space(self, space_bytes: int) -> None:
        """Give back space that is not needed for this much space."""
        active = self._active
        with self._writing, contextlib.suppress(OSError):
            self._reserve.shrink(space_bytes - (active.space_bytes if active else 0))

    # --- Appending -------------------------------------------------------------------------------

    def append(self, payload: bytes, time_ms: int, wall_ms: int) -> int:
        """Write one frame, unsynced; return its sequence number.

        Raises JournalFull when there is no space and JournalFailed when the disk failed twice. The
        cost besides the write is one checksum and one copy of the payload, 2.5 µs for 200 bytes.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        if len(self._unsynced) > JOURNAL_UNSYNCED_SEGMENTS_MAX:
            self._catch_up()
        with self._writing:
            sequence = self.appended_sequence + 1
            try:
                self._write(sequence, payload, time_ms, wall_ms)
            except OSError as error:
                if error.errno in NO_SPACE:
                    why = f"no room to write: {error.strerror}"
                    raise JournalFull(self.directory, why) from error
                why = f"frame {sequence} cannot be written: {error.strerror}"
                self._begin_anew(self.directory, why, len(payload))
                self._write_again(sequence, payload, time_ms, wall_ms)
            self.appended_sequence = sequence
            self._times = (time_ms, wall_ms)
            self._pending.add(sequence, time_ms, wall_ms, payload)
        return sequence

    def _write(self, sequence: int, payload: bytes, time_ms: int, wall_ms: int) -> None:
        """Write a frame to the active segment or to the next one. Raises OSError."""
        segment = self._active
        if segment is None or not segment.has_space_for(len(payload)):
            segment = self._rotate(len(payload), time_ms, wall_ms)
        segment.append(_RECORDS, sequence, self.synced_sequence, time_ms, wall_ms, payload)

    def _write_again(self, sequence: int, payload: bytes, time_ms: int, wall_ms: int) -> None:
        """Write a frame after a fresh start; a second failure is final."""
        try:
            self._write(sequence, payload, time_ms, wall_ms)
        except OSError as error:
            why = f"frame {sequence} cannot be written: {error.strerror}"
            self._fail(self.directory, why, error)

    def _catch_up(self) -> None:
        """Bound what is not synced. While another thread syncs already, it need not be waited for.

        So a slow disk does not delay appends, until far more has gathered.
        """
        if self._ticket_is_out:
            return  # its holder checks `is_behind`
        segments_max = JOURNAL_UNSYNCED_SEGMENTS_MAX
        if self._sync_turn.locked():
            segments_max = JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC
        while len(self._unsynced) > segments_max:
            self.sync()

    def _rotate(self, payload_bytes: int, time_ms: int, wall_ms: int, capacity: int = 0) -> Segment:
        """Continue in a new segment that holds at least this payload.

        Raises OSError, and JournalFailed when the directory is gone.

        It is as long as `capacity` says, if that is given, and not of the reserve.

        Only the very first one is synced here. Before any other, recovery knows the journal's
        identity from its predecessors and can tell what a crash left of it.
        """
        assert self._is_open, "the journal is closed"
        assert self._is_replayed, "replay comes before append"
        assert payload_bytes <= JOURNAL_PAYLOAD_BYTES_MAX, "the service splits its batches"
        self._see_directory()
        previous = self._active
        number, previous_end = FIRST_SEGMENT, 0
        if previous is not None:
            number, previous_end = previous.number + 1, previous.end
        header = self._header(number, self.appended_sequence + 1, previous_end, time_ms, wall_ms)
        if capacity:
            segment = Segment.begin(self._disk, self.directory, header, capacity)
        else:
            segment = self._begin_segment(header, payload_bytes)
        try:
            segment.publish(self.directory)
            if previous is None:
                self._establish(segment)
        except OSError:
            self._retired.append(segment)
            raise
        self._active = segment
        self._unsynced.append(segment)
        self.retention.add(segment)
        return segment

    def _header(
        self, number: int, first_sequence: int, previous_end: int, time_ms: int, wall_ms: int
    ) -> SegmentHeader:
        """Return the header of a segment that continues where the one before it ends."""
        sequences = (first_sequence, self.synced_sequence)
        return SegmentHeader(self.identity, number, *sequences, previous_end, time_ms, wall_ms)

    def _begin_segment(self, header: SegmentHeader, payload_bytes: int) -> Segment:
        """Make a segment, not under its name yet, out of the reserve if that has a file for it.

        It takes this payload and is of the usual length if that is more. Raises OSError.
        """
        self._drop_lost_spares()
        spare = self._reserve.take(payload_bytes)
        capacity = segment_bytes_for(payload_bytes, self.segment_bytes)
        return Segment.begin(self._disk, self.directory, header, capacity, spare)

    def _establish(self, segment: Segment) -> None:
        """Make the journal's first header durable: without it recovery has nothing to go by."""
        segment.sync()
        self._disk.sync_directory(self.directory)
        segment.is_named_durably = True

    # --- Syncing ---------------------------------------------------------------------------------

    def sync(self) -> int:
        """Make everything durable that was appended before this call; return the last such frame.

        Blocks as long as the disk does. May run in another thread than `append`. Raises
        JournalFailed; what was appended since the last successful sync may then be lost.
        """
        with self._sync_turn:
            if self._failure is not None:
                raise JournalFailed(*self._failure)
            is_done = self.appended_sequence <= self.synced_sequence or self._sync_segments()
            while not is_done:
                # Everything is in a replacement segment now, which must not fail.
                is_done = self._sync_segments(is_last_try=True)
            self._close_retired()
            return self.synced_sequence

    def _take_sync_turn(self) -> Segment | None:
        """Take the turn to sync, and return the file that holds all that is not synced.

        None where only `sync` will do: there are several, or another thread syncs. Raises
        JournalFailed.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        segment = self._active
        if segment is None or len(self._unsynced) != 1 or not segment.is_named_durably:
            return None
        return segment if self._sync_turn.acquire(False) else None

    def sync_at_once(self, bytes_max: int = JOURNAL_PENDING_BYTES_MAX) -> bool:
        """Make what was appended durable; False: it takes `sync`, or is longer than that.

        Does so where all of it is in one file and no other thread syncs, the usual case, in the
        thread that appends. After an error the file is given up, as in `sync`; the replacement is
        left to that. Blocks as long as the disk does. Raises JournalFailed.
        """
        if self._pending.frame_bytes > bytes_max:
            return False
        segment = self._take_sync_turn()
        if segment is None:
            return False
        try:
            segment.sync()
            # Nothing was appended meanwhile: only this thread does that.
            segment.synced_end = segment.end
            self.synced_sequence = self.appended_sequence
            self._pending.release_all()
        except OSError as error:
            with self._writing:
                self._begin_anew(segment.path, f"cannot be synced: {error.strerror}")
            return False
        finally:
            self._sync_turn.release()
        return True

    def begin_sync(self) -> SyncTicket | None:
        """Let the caller sync: return what, or None where only `sync` will do.

        A ticket covers what was appended so far; it is given where that is all in one file, the
        usual case. No other sync begins until `end_sync` was called. Raises JournalFailed.
        """
        segment = self._take_sync_turn()
        if segment is None:
            return None
        self._ticket_is_out = True
        return SyncTicket(segment, segment.end, segment.last_sequence, self.fresh_starts)

    def end_sync(
        self, ticket: SyncTicket, error: OSError | None = None, *, is_done: bool = True
    ) -> bool:
        """Record that the sync has ended, well or with an error; False: now `sync` is needed.

        With `is_done` False it never began. Raises JournalFailed when beginning again fails too.
        """
        segment = ticket.segment
        try:
            with self._writing:
                if not is_done or self.fresh_starts != ticket.fresh_starts:
                    # In the second case a write failed meanwhile, and the file was given up.
                    return False
                if error is not None:
                    self._begin_anew(segment.path, f"cannot be synced: {error.strerror}")
                    return False
                segment.synced_end = ticket.end
                self.synced_sequence = ticket.last_sequence
                self._pending.release(self.synced_sequence)
        finally:
            self._ticket_is_out = False
            self._sync_turn.release()
        return True

    def _sync_segments(self, *, is_last_try: bool = False) -> bool:
        """Sync the segments from the oldest; False when they were given up for a replacement."""
        with self._writing:
            # What is appended from here on is left to the next sync.
            fresh_starts = self.fresh_starts
            reached = [(each, each.end, each.last_sequence) for each in self._unsynced]
        for segment, end, last_sequence in reached:
            is_full = segment is not reached[-1][0]
            try:
                if is_full:
                    segment.trim()
                segment.sync()
                if not segment.is_named_durably:
                    self._disk.sync_directory(self.directory)
            except OSError as error:
                why = f"cannot be synced: {error.strerror}"
                if is_last_try:
                    self._fail(segment.path, why, error)
                with self._writing:
                    if self.fresh_starts == fresh_starts:
                        self._begin_anew(segment.path, why)
                return False
            with self._writing:
                if self.fresh_starts != fresh_starts:
                    # A write failed meanwhile, and the file that was just synced was given up.
                    return False
                segment.is_named_durably = True
                segment.synced_end = end
                self.synced_sequence = last_sequence
                self._pending.release(self.synced_sequence)
                if is_full:
                    self._unsynced.popleft()
                    self._retired.append(segment)
        return True

    def _close_retired(self) -> None:
        """Close files that are done with; what is durable in them does not depend on it."""
        while self._retired:
            with contextlib.suppress(OSError):
                self._retired.pop().close()

    # --- Trouble ---------------------------------------------------------------------------------

    def _begin_anew(self, file: str, why: str, more_bytes: int = 0) -> None:
        """Give up the files that are not synced and continue in a replacement segment.

        `_writing` is held. The next sync makes it durable. Raises JournalFailed when it fails too.
        """
        pending, untrusted = self._pending, list(self._unsynced)
        if not pending.is_whole(self.synced_sequence) or not untrusted:
            self._fail(file, why, None)
        first = untrusted[0]
        number, previous_end = first.number, first.header.previous_valid_bytes
        if first.synced_end > HEADER_BYTES:
            number, previous_end = first.number + 1, first.synced_end
        header = self._header(number, self.synced_sequence + 1, previous_end, *self._times)
        # For the pending frames and one more payload.
        overhead_bytes = FRAME_OVERHEAD_BYTES * (len(pending.frames) + 1)
        replacement = None
        try:
            replacement = self._begin_segment(
                header, pending.frame_bytes + overhead_bytes + more_bytes
            )
            self._write_pending(untrusted, replacement)
            if number == FIRST_SEGMENT:
                self._establish(replacement)
        except OSError as error:
            if replacement is not None:
                self._retired.append(replacement)
            self._fail(file, f"{why}, and a fresh segment failed too: {error.strerror}", error)
        self._retired += untrusted
        self._active = replacement
        self.retention.add(replacement)
        self._unsynced = deque([replacement])
        self.fresh_starts += 1
        self.on_trouble(f"{file}: {why}; the log continues in {replacement.path}")

    def _write_pending(self, untrusted: Sequence[Segment], replacement: Segment) -> None:
        """Write the pending frames into the replacement segment, then give that its name.

        The segments that are given up stay open. Raises OSError.
        """
        synced = self.synced_sequence
        for sequence, time_ms, wall_ms, payload in self._pending.frames:
            replacement.append(_RECORDS, sequence, synced, time_ms, wall_ms, payload)
        after = [segment for segment in untrusted if segment.number > replacement.number]
        for segment in reversed(after):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(segment.path)
        if after:
            self._disk.sync_directory(self.directory)
        replacement.publish(self.directory)

    def _fail(self, file: str, why: str, error: OSError | None) -> NoReturn:
        """Refuse everything from here on."""
        self._failure = (file, why)
        raise JournalFailed(file, why) from error

    # --- What has vanished -----------------------------------------------------------------------

    @property
    def lost(self) -> str:
        """Name what is missing in the directory until a snapshot holds it; empty: nothing is."""
        return self._lost if self.retention.newest_sequence < self._lost_sequence else ""

    def find_lost(self) -> None:
        """See whether the directory and all files in it are still as this journal left them.

        Called between appends. Where a file is not, `lost` says so. Raises JournalFailed when the
        directory is another one or gone, or no other file can be written in it and read again.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        self._see_directory()
        with self._writing:
            self._drop_lost_spares()
            lost = self.retention.take_lost()
            if not lost:
                if not self.lost:
                    self._note_end(self.synced_sequence)
                return
            self._lost = ", ".join(f"{path} {loss}" for path, loss in lost.items())
            for segment in self._unsynced:
                if segment.path in lost:
                    self._begin_anew(segment.path, lost[segment.path])
                    break
            # A frame that is new even where none is pending, so that the next sync makes the file
            # and its name durable, and the next snapshot is another one than the last.
            self._lost_sequence = self.append(b"", *self._times)
            active = self._active
            if active is not None and (damage := active.damage()):
                self._fail(active.path, damage, None)

    def _drop_lost_spares(self) -> None:
        """Count no space of spare files that are gone; `_writing` is held."""
        if lost := self._reserve.take_lost():
            self.on_space_lost(", ".join(lost))

    def _see_directory(self) -> None:
        """Raise JournalFailed when files made now would not be in the directory that was locked."""
        try:
            there = self._disk.status(self.directory).number
            ours = self._disk.status(self._owned.directory_handle).number
            problem = "" if there == ours else "is another directory than it was"
        except FileNotFoundError:
            problem = "was removed"
        except OSError as error:
            problem = f"cannot be found any more: {error.strerror}"
        if problem:
            self._fail(self.directory, problem, None)

    # --- Snapshots -------------------------------------------------------------------------------

    def snapshot_is_due(self, live_bytes: int) -> bool:
        """Tell whether to begin a snapshot now; `live_bytes` is about what it would hold.

        Never while one is in the making, but it should be asked even then: what is live decides how
        much may be written. After a failure it is still due: when to try again is up to the caller.
        """
        is_due = self.retention.is_due(live_bytes) or bool(self.lost)
        return is_due and (self._snapshot is None or self._snapshot.is_over)

    def shrink(self, space_bytes: int, time_ms: int, wall_ms: int) -> bool:
        """Continue in a small file, which leaves this much space; tell whether that was done.

        It is so already when the last one is hardly used, and it is not where the disk has no space
        for both the file and snapshots: those come first. All other files go with the second
        snapshot that is taken from here on, the part of the reserve that is not needed goes at
        once. Called between appends, like them; raises JournalFull and JournalFailed.

        On a full disk the older snapshot makes way, and the file is as small as need be.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        active = self._active
        if active is None or active.end <= self.retention.garbage_bytes_min:
            return True
        with self._writing:
            try:
                capacity = self._shrunk_capacity(space_bytes)
                if capacity is None:
                    return False
                self._rotate(0, time_ms, wall_ms, capacity)
            except OSError as error:
                if error.errno in NO_SPACE:
                    return False
                self._begin_anew(self.directory, f"no file for a shorter log: {error.strerror}")
        self.append(b"", time_ms, wall_ms)
        self.shrink_space(space_bytes)
        return True

    def _shrunk_capacity(self, space_bytes: int) -> int | None:
        """Return the length of a small file that leaves this much space; None: there is no room.

        0: it is one of the reserve. Raises OSError.
        """
        reserve_bytes = self._reserve.space_bytes
        usual = min(self.segment_bytes, max(JOURNAL_SHRUNK_BYTES, 2 * space_bytes))
        least = space_bytes - reserve_bytes + 2 * HEADER_BYTES
        snapshot_bytes = self.retention.next_snapshot_bytes
        free_bytes = self._disk.free_bytes(self.directory)
        if usual >= least and free_bytes >= usual + 2 * snapshot_bytes:
            return usual
        if not self.retention.is_full:
            return None
        if reserve_bytes >= max(space_bytes, 1):
            return 0
        least = max(least, SHRUNK_BYTES_FULL)
        if free_bytes < least + snapshot_bytes and self.retention.give_up_older():
            free_bytes = self._disk.free_bytes(self.directory)
        capacity = min(usual, free_bytes - snapshot_bytes)
        return capacity if capacity >= least else None

    def begin_snapshot(self, sequence: int, time_ms: int, wall_ms: int) -> SnapshotWriter:
        """Begin a snapshot of the state after the last frame, which is `sequence`.

        Called between appends; what the writer does may happen in another thread, and the writer is
        finished or abandoned before the journal is closed. Raises JournalFull and JournalFailed.
        """
        assert self._snapshot is None or self._snapshot.is_over, "one snapshot at a time"
        assert sequence == self.appended_sequence, "a snapshot is of the state after the last frame"
        if sequence == self.retention.newest_sequence:
            # A second snapshot of the same state needs a number of its own.
            sequence = self.append(b"", time_ms, wall_ms)
        header = SnapshotHeader(self.identity, sequence, time_ms, wall_ms)
        with self._writing:
            # So that no later frame, the closing one above all, tells an earlier time than this.
            self._times = (time_ms, wall_ms)
        log = (self._make_durable, self._fail)
        self._snapshot = SnapshotWriter(self._disk, self.directory, header, self.retention, *log)
        return self._snapshot

    def _make_durable(self, sequence: int) -> None:
        assert self._is_open, "the journal is closed"
        if self.synced_sequence < sequence:
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
            if self.lost:
                raise JournalFailed(self.directory, f"{self.lost}, and nothing replaces it yet")
        finally:
            self._retired += self._unsynced
            self._close_retired()
            self._reserve.close()
            self._end.close()
            self._unsynced.clear()
            self._active = None
            release_directory(self._disk, self._owned)

    def _finish(self) -> None:
        """Sync, then write and sync the frame that says so."""
        synced = self.sync()
        segment = self._active
        assert segment is not None
        try:
            # Writing past the preallocated end is fine: the file is cut to its frames anyway.
            segment.append(FrameKind.CLOSED, self.appended_sequence + 1, synced, *self._times, b"")
            if not self._reserve.is_exhausted:
                # On a full disk the space is kept: the next run needs it to remove jobs.
                segment.trim()
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._failure = (segment.path, f"cannot be closed: {error.strerror}")
                raise JournalFailed(*self._failure) from error
        else:
            self.appended_sequence += 1
        self.sync()
        if not self.lost:
            self._note_end(synced, is_closed=True)

    def _note_end(self, sequence: int, *, is_closed: bool = False) -> None:
        if trouble := self._end.note(sequence, is_closed=is_closed):
            self.on_unproved(trouble)
