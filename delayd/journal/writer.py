"""The end of the log: where frames are written, made durable, and written again when a disk fails.

    append ─► active segment ─► (full) next one, out of the reserve ─► …
    sync   ─► the segments from the oldest: file, then name; what is full is done with
    error  ─► fresh segment, from memory (once; then JournalFailed)

`Writer` is the lower half of `Journal`, which adds what happens before the first frame and after
the last. Two threads use it: one appends, the other syncs. `_sync_turn` is held while syncing,
`_writing` while changing which segments there are or how long they are.
"""

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from delayd.journal.disk import NO_ROOM, Disk
from delayd.journal.errors import JournalFailed, JournalFull
from delayd.journal.format import FIRST_SEGMENT, FIRST_SEQUENCE, FrameKind, SegmentHeader
from delayd.journal.pending import Pending
from delayd.journal.replacement_segment import (
    begin_segment,
    fresh_header,
    next_header,
    replace,
    written_again_bytes,
)
from delayd.journal.reserve import Reserve
from delayd.journal.retention import Retention
from delayd.journal.segment import Segment
from delayd.limits import (
    JOURNAL_FILES_PER_SEGMENT,
    JOURNAL_PAYLOAD_BYTES_MAX,
    JOURNAL_PENDING_BYTES_MAX,
    JOURNAL_UNSYNCED_SEGMENTS_MAX,
    JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# An attribute lookup on an enum costs as much as the checksum of a small frame.
_RECORDS: Final = int(FrameKind.RECORDS)


class Ticket(NamedTuple):
    """A sync that another part executes."""

    segment: Segment
    end: int
    """The bytes of the file up to here will be durable."""
    last_sequence: int
    generation: int


class Writer:
    """Appends to the segments of one directory and syncs them."""

    __slots__ = (
        "_active",
        "_appended",
        "_directory",
        "_disk",
        "_failure",
        "_generation",
        "_identity",
        "_is_open",
        "_is_replayed",
        "_pending",
        "_reserve",
        "_retention",
        "_retired",
        "_segment_bytes",
        "_sync_turn",
        "_synced",
        "_ticket_is_out",
        "_times",
        "_unsynced",
        "_writing",
        "fresh_starts",
        "on_trouble",
    )

    def __init__(self, directory: str, disk: Disk, segment_bytes: int) -> None:
        """Write to this directory, whose log takes `segment_bytes` in addition to live data."""
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes // JOURNAL_FILES_PER_SEGMENT
        self._retention = Retention(disk, segment_bytes)
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
        self._reserve = Reserve(disk, directory)
        self._generation = 0
        # Abandoned segments, until no sync of them can be in progress.
        self._retired: list[Segment] = []
        self._identity = b""
        self._appended = FIRST_SEQUENCE - 1
        self._synced = FIRST_SEQUENCE - 1
        self._times = (0, 0)
        self._failure: tuple[str, str] | None = None
        # (file, reason) of the first failure, which is the last thing that happens here.
        self._is_open = True
        self._is_replayed = False
        self.fresh_starts = 0
        """How often a write or a sync failed and the journal began again."""
        self.on_trouble: Callable[[str], object] = _ignore
        """Called with each of them, in the thread where it happens."""

    @property
    def appended_sequence(self) -> int:
        """The last frame that was appended."""
        return self._appended

    @property
    def synced_sequence(self) -> int:
        """The last frame known to be durable."""
        return self._synced

    @property
    def is_behind(self) -> bool:
        """Whether so many files wait for the current sync that no more should be appended."""
        return len(self._unsynced) > JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC

    # --- Room ------------------------------------------------------------------------------------

    @property
    def segment_bytes(self) -> int:
        """How long the log's files are, frames that do not fit aside."""
        return self._segment_bytes

    @property
    def room_bytes(self) -> int:
        """How many bytes of frames can be appended without asking the disk for space."""
        active = self._active
        return self._reserve.room_bytes + (active.room_bytes if active else 0)

    def make_room(self, room_bytes: int, payload_bytes: int = 0, places: int = 1) -> bool:
        """See that there is this much room, and `places` for frames with so long a payload.

        Returns False when it cannot be had, with no less room than there was.
        """
        with self._writing:
            active = self._active
            room_bytes -= active.room_bytes if active else 0
            self._reserve.keep_free_bytes = self._retention.next_snapshot_bytes
            try:
                self._reserve.grow(room_bytes, payload_bytes, places, self._segment_bytes)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    # Nothing is broken that was promised; what is missing was not accepted yet.
                    self.on_trouble(f"{self._directory}: no space to be had: {error.strerror}")
                return False
        return True

    def shrink_room(self, room_bytes: int) -> None:
        """Give back space that is not needed for this much room."""
        active = self._active
        with self._writing, contextlib.suppress(OSError):
            self._reserve.shrink(room_bytes - (active.room_bytes if active else 0))

    # --- Appending -------------------------------------------------------------------------------

    def append(self, payload: bytes, time_ms: int, wall_ms: int) -> int:
        """Write one frame, unsynced; return its sequence number.

        Raises JournalFull when there is no room and JournalFailed when the disk failed twice. The
        cost besides the write is one checksum and one copy of the payload, 2.5 µs for 200 bytes.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        if len(self._unsynced) > JOURNAL_UNSYNCED_SEGMENTS_MAX:
            self._catch_up()
        with self._writing:
            sequence = self._appended + 1
            try:
                self._write(sequence, payload, time_ms, wall_ms)
            except OSError as error:
                if error.errno in NO_ROOM:
                    why = f"no room to write: {error.strerror}"
                    raise JournalFull(self._directory, why) from error
                why = f"frame {sequence} cannot be written: {error.strerror}"
                self._begin_anew(self._directory, why, len(payload))
                self._write_again(sequence, payload, time_ms, wall_ms)
            self._appended = sequence
            self._times = (time_ms, wall_ms)
            self._pending.add(sequence, time_ms, wall_ms, payload)
        return sequence

    def _write(self, sequence: int, payload: bytes, time_ms: int, wall_ms: int) -> None:
        """Write a frame to the active segment or to the next one. Raises OSError."""
        segment = self._active
        if segment is None or not segment.has_room_for(len(payload)):
            segment = self._rotate(len(payload), time_ms, wall_ms)
        segment.append(_RECORDS, sequence, self._synced, time_ms, wall_ms, payload)

    def _write_again(self, sequence: int, payload: bytes, time_ms: int, wall_ms: int) -> None:
        """Write a frame after a fresh start; a second failure is final."""
        try:
            self._write(sequence, payload, time_ms, wall_ms)
        except OSError as error:
            why = f"frame {sequence} cannot be written: {error.strerror}"
            self._fail(self._directory, why, error)

    def _catch_up(self) -> None:
        """Bound what is not synced. While another thread syncs already, it need not be waited for.

        So a slow disk does not delay appends, until far more has gathered.
        """
        if self._ticket_is_out:
            return  # whoever has it looks at `is_behind`
        segments_max = JOURNAL_UNSYNCED_SEGMENTS_MAX
        if self._sync_turn.locked():
            segments_max = JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC
        while len(self._unsynced) > segments_max:
            self.sync()

    def _rotate(self, payload_bytes: int, time_ms: int, wall_ms: int, capacity: int = 0) -> Segment:
        """Continue in a new segment that holds at least this payload. Raises OSError.

        It is as long as `capacity` says, if that is given, and not of the reserve.

        Only the very first one is synced here. Before any other, recovery knows the journal's
        identity from its predecessors and can tell what a crash left of it.
        """
        assert self._is_open, "the journal is closed"
        assert self._is_replayed, "replay comes before append"
        assert payload_bytes <= JOURNAL_PAYLOAD_BYTES_MAX, "the service splits its batches"
        previous = self._active
        sequences = (self._appended, self._synced)
        header = next_header(previous, self._identity, sequences, (time_ms, wall_ms))
        if capacity:
            segment = Segment.begin(self._disk, self._directory, header, capacity)
        else:
            segment = self._begin_segment(header, payload_bytes)
        try:
            segment.publish(self._directory)
            if previous is None:
                self._establish(segment)
        except OSError:
            self._retired.append(segment)
            raise
        self._active = segment
        self._unsynced.append(segment)
        self._retention.add(segment)
        return segment

    def _begin_segment(self, header: SegmentHeader, frame_bytes: int) -> Segment:
        home, reserve = (self._disk, self._directory), self._reserve
        return begin_segment(*home, reserve, header, frame_bytes, self._segment_bytes)

    def _establish(self, segment: Segment) -> None:
        """Make the journal's first header durable: without it recovery has nothing to go by."""
        segment.sync()
        self._disk.sync_directory(self._directory)
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
            is_done = self._appended <= self._synced or self._sync_segments()
            while not is_done:
                # Everything is in a fresh segment now, which must not fail.
                is_done = self._sync_segments(is_last_try=True)
            self._close_retired()
            return self._synced

    def begin_sync(self) -> Ticket | None:
        """Let the caller sync: return what, or None where only `sync` will do.

        A ticket covers what was appended so far; it is given where that is all in one file, the
        usual case. No other sync begins until `end_sync` was called. Raises JournalFailed.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        segment = self._active
        if segment is None or len(self._unsynced) != 1 or not segment.is_named_durably:
            return None
        if not self._sync_turn.acquire(blocking=False):
            return None
        self._ticket_is_out = True
        return Ticket(segment, segment.end, segment.last_sequence, self._generation)

    def end_sync(
        self, ticket: Ticket, error: OSError | None = None, *, is_done: bool = True
    ) -> bool:
        """Take note that the sync has ended, well or with an error; False: now `sync` is needed.

        With `is_done` False it never began. Raises JournalFailed when beginning again fails too.
        """
        segment = ticket.segment
        try:
            with self._writing:
                if not is_done or self._generation != ticket.generation:
                    # In the second case a write failed meanwhile, and the file was given up.
                    return False
                if error is not None:
                    self._begin_anew(segment.path, f"cannot be synced: {error.strerror}")
                    return False
                segment.synced_end = ticket.end
                self._synced = ticket.last_sequence
                self._pending.release(self._synced)
        finally:
            self._ticket_is_out = False
            self._sync_turn.release()
        return True

    def _sync_segments(self, *, is_last_try: bool = False) -> bool:
        """Sync the segments from the oldest; False when they were given up for a fresh one."""
        with self._writing:
            # What is appended from here on is the next sync's affair.
            generation = self._generation
            reached = [(each, each.end, each.last_sequence) for each in self._unsynced]
        for segment, end, last_sequence in reached:
            is_full = segment is not reached[-1][0]
            try:
                if is_full:
                    segment.trim()
                segment.sync()
                if not segment.is_named_durably:
                    self._disk.sync_directory(self._directory)
            except OSError as error:
                why = f"cannot be synced: {error.strerror}"
                if is_last_try:
                    self._fail(segment.path, why, error)
                with self._writing:
                    if self._generation == generation:
                        self._begin_anew(segment.path, why)
                return False
            with self._writing:
                if self._generation != generation:
                    # A write failed meanwhile, and the file that was just synced was given up.
                    return False
                segment.is_named_durably = True
                segment.synced_end = end
                self._synced = last_sequence
                self._pending.release(self._synced)
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
        """Give up the files that are not synced and continue in a fresh segment; see `fresh`.

        `_writing` is held. The next sync makes it durable. Raises JournalFailed when it fails too.
        """
        pending, untrusted = self._pending, list(self._unsynced)
        if not pending.is_whole(self._synced) or not untrusted:
            self._fail(file, why, None)
        header = fresh_header(untrusted, self._identity, self._synced, self._times)
        fresh = None
        try:
            fresh = self._begin_segment(header, written_again_bytes(pending, more_bytes))
            replace(self._disk, self._directory, untrusted, fresh, pending)
            if header.number == FIRST_SEGMENT:
                self._establish(fresh)
        except OSError as error:
            if fresh is not None:
                self._retired.append(fresh)
            self._fail(file, f"{why}, and a fresh segment failed too: {error.strerror}", error)
        self._generation += 1
        self._retired += untrusted
        self._active = fresh
        self._retention.add(fresh)
        self._unsynced = deque([fresh])
        self.fresh_starts += 1
        self.on_trouble(f"{file}: {why}; the log continues in {fresh.path}")

    def _fail(self, file: str, why: str, error: OSError | None) -> NoReturn:
        """Refuse everything from here on."""
        self._failure = (file, why)
        raise JournalFailed(file, why) from error


def _ignore(_trouble: str) -> None:
    """Take no notice."""
