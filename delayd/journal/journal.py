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
second sync of it would report success over lost pages. The journal begins anew, once, in a fresh
segment: its header says how much of the one before had been synced, and what was not is written
again, from memory. If that fails too, every later call raises JournalFailed at once.

A lack of room is different: `append` raises JournalFull, the journal is as it was before the call,
and the next call tries again. Who must be sure asks first: `make_room` takes space ahead of need,
and what `room_bytes` says is there, an append does not have to ask the disk for.

The journal refuses to know what a payload means, what time it is, and when it should sync.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from delayd.core.limits import (
    JOURNAL_PAYLOAD_BYTES_MAX,
    JOURNAL_PENDING_BYTES_MAX,
    JOURNAL_SEGMENT_BYTES_MIN,
    JOURNAL_UNSYNCED_SEGMENTS_MAX,
    JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC,
)
from delayd.journal.disk import NO_ROOM, Disk, LockHeldError
from delayd.journal.errors import DirectoryLocked, JournalFailed, JournalFull
from delayd.journal.format import (
    FIRST_SEGMENT,
    FIRST_SEQUENCE,
    IDENTITY_BYTES,
    Frame,
    FrameKind,
    SegmentHeader,
)
from delayd.journal.fresh import begin_segment, fresh_header, replace, written_again_bytes
from delayd.journal.names import LOCK_NAME, check_names
from delayd.journal.pending import Pending
from delayd.journal.recovery import Recovery, Verdict
from delayd.journal.repair import TornTail, cut, remove_leftovers, settle
from delayd.journal.reserve import Reserve
from delayd.journal.segment import Segment

# An attribute lookup on an enum costs as much as the checksum of a small frame.
_RECORDS: Final = int(FrameKind.RECORDS)


class Journal:
    """One directory of segments, owned for as long as this object is open."""

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
        "_lock_handle",
        "_pending",
        "_reserve",
        "_retired",
        "_segment_bytes",
        "_sync_turn",
        "_synced",
        "_times",
        "_unsynced",
        "_writing",
        "fresh_starts",
        "on_trouble",
        "torn_tails",
    )

    def __init__(self, directory: str, disk: Disk, segment_bytes: int, lock_handle: int) -> None:
        """Use `Journal.open`."""
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._lock_handle = lock_handle
        self._active: Segment | None = None
        # Segments with bytes that may not be durable, oldest first; the active one is the last.
        # The appending thread adds at the right, the syncing thread removes at the left.
        self._unsynced: deque[Segment] = deque()
        self._sync_turn = threading.Lock()
        # Held while a frame is written, and while what has been written is looked at or given up;
        # never while the disk syncs. Taken after `_sync_turn` where both are.
        self._writing = threading.RLock()
        self._pending = Pending(JOURNAL_PENDING_BYTES_MAX)
        self._reserve = Reserve(disk, directory)
        self._generation = 0
        # Segments given up, until nobody can be syncing them any more.
        self._retired: list[Segment] = []
        self._identity = b""
        self._appended = FIRST_SEQUENCE - 1
        self._synced = FIRST_SEQUENCE - 1
        self._times = (0, 0)
        self._failure: tuple[str, str] | None = None
        # (file, reason) of the first failure, which is the last thing that happens here.
        self._is_open = True
        self._is_replayed = False
        self.torn_tails: list[TornTail] = []
        """What replay had to cut; for the log."""
        self.fresh_starts = 0
        """How often a write or a sync failed and the journal began anew."""
        self.on_trouble: Callable[[str], object] = _ignore
        """Is told of each of them, in whichever thread it happens."""

    @classmethod
    def open(cls, directory: str, *, disk: Disk, segment_bytes: int) -> "Journal":
        """Take the directory, making it if needed; `replay` comes next.

        Raises DirectoryLocked when another process has it, JournalFailed when it cannot be used.
        """
        assert segment_bytes >= JOURNAL_SEGMENT_BYTES_MIN, "configuration has a higher minimum"
        path = f"{directory}/{LOCK_NAME}"
        try:
            disk.make_directory(directory)
            lock_handle = disk.lock(path)
        except LockHeldError as held:
            raise DirectoryLocked(path, held.holder_pid) from None
        except OSError as error:
            raise JournalFailed(path, f"cannot be locked: {error.strerror}") from error
        return cls(directory, disk, segment_bytes, lock_handle)

    @property
    def appended_sequence(self) -> int:
        """The last frame that was appended."""
        return self._appended

    @property
    def synced_sequence(self) -> int:
        """The last frame known to be durable."""
        return self._synced

    def replay(self) -> Iterator[Frame]:
        """Yield every durable frame in order; after the last one the journal takes appends.

        A torn tail is cut after a copy was kept (see `torn_tails`). Raises JournalCorrupt or
        JournalVersion, with nothing changed, and JournalFailed when a file cannot be used.
        Frames with an empty payload mark a clean close; their time counts, they carry nothing.
        """
        assert not self._is_replayed, "a journal is replayed once"
        try:
            names = self._disk.list_directory(self._directory)
        except OSError as error:
            raise JournalFailed(self._directory, f"cannot be read: {error.strerror}") from error
        check_names(self._directory, names)
        recovery = Recovery(self._disk, self._directory, names)
        frame = None
        for frame in recovery.frames():
            yield frame
        if frame is not None:
            self._times = (frame.time_ms, frame.wall_ms)
        try:
            self._take_over(recovery, names)
        except OSError as error:
            raise JournalFailed(
                self._directory, f"cannot be made ready for writing: {error.strerror}"
            ) from error

    def _take_over(self, recovery: Recovery, names: list[str]) -> None:
        """Cut what is torn, make durable what is good, and open the last segment for appending."""
        self._reserve.adopt(names)
        if recovery.verdict is Verdict.CUT:
            self.torn_tails = self._cut(recovery, names)
        settle(self._disk, self._directory, recovery)
        remove_leftovers(self._disk, self._directory, names)
        self._appended = self._synced = recovery.sequence
        self._identity = recovery.identity or self._disk.unique_bytes(IDENTITY_BYTES)
        if recovery.segments:
            self._reopen(recovery)
        self._is_replayed = True

    def _cut(self, recovery: Recovery, names: list[str]) -> list[TornTail]:
        """Cut what is torn; on a full disk the reserve makes way for the copy."""
        try:
            return cut(self._disk, self._directory, names, recovery)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._reserve.shrink(0)
            return cut(self._disk, self._directory, names, recovery)

    def _reopen(self, recovery: Recovery) -> None:
        """Open the last segment for appending, preallocated again as far as there is room."""
        last = recovery.segments[-1]
        assert last.header is not None
        handle = self._disk.open(last.path, write=True)
        capacity = max(self._segment_bytes, last.size_bytes)
        try:
            self._disk.allocate(handle, capacity)
        except OSError as error:
            # A full disk must not keep a daemon from starting: it is then that jobs need draining.
            if error.errno not in NO_ROOM:
                self._disk.close(handle)
                raise
            capacity = self._disk.size(handle)
        self._active = Segment(
            self._disk,
            last.path,
            handle,
            last.header,
            end=last.end,
            last_sequence=recovery.sequence,
            capacity=capacity,
            is_named_durably=True,
        )
        self._unsynced.append(self._active)

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
        cost beyond the write is one checksum and one copy of the payload, 2.5 µs for 200 bytes.
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

        So a slow disk holds up nobody who appends, until far more has gathered.
        """
        segments_max = JOURNAL_UNSYNCED_SEGMENTS_MAX
        if self._sync_turn.locked():
            segments_max = JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC
        while len(self._unsynced) > segments_max:
            self.sync()

    def _rotate(self, payload_bytes: int, time_ms: int, wall_ms: int) -> Segment:
        """Go on in a new segment that holds at least this payload. Raises OSError.

        Only the very first one is synced here. Before any other, recovery knows the journal's
        identity from its predecessors and can tell what a crash left of it.
        """
        assert self._is_open, "the journal is closed"
        assert self._is_replayed, "replay comes before append"
        assert payload_bytes <= JOURNAL_PAYLOAD_BYTES_MAX, "the service splits its batches"
        previous = self._active
        number = previous.number + 1 if previous else FIRST_SEGMENT
        header = SegmentHeader(
            identity=self._identity,
            number=number,
            first_sequence=self._appended + 1,
            synced_sequence=self._synced,
            previous_valid_bytes=previous.end if previous else 0,
            created_ms=time_ms,
            created_wall_ms=wall_ms,
        )
        segment = self._begin_segment(header, payload_bytes)
        segment.publish(self._directory)
        if previous is None:
            self._establish(segment)
        self._active = segment
        self._unsynced.append(segment)
        return segment

    def _begin_segment(self, header: SegmentHeader, frame_bytes: int) -> Segment:
        return begin_segment(
            self._disk, self._directory, self._reserve, header, frame_bytes, self._segment_bytes
        )

    def _establish(self, segment: Segment) -> None:
        """Make the journal's first header durable: without it recovery has nothing to go by."""
        try:
            segment.sync()
            self._disk.sync_directory(self._directory)
        except OSError:
            self._retired.append(segment)
            raise
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
            # What is appended from here on is the next sync's affair.
            target = self._appended
            is_done = target <= self._synced or self._sync_up_to(target)
            while not is_done:
                # Everything is in a fresh segment now, which must not fail.
                is_done = self._sync_up_to(target, is_last_try=True)
            self._close_retired()
            return self._synced

    def _sync_up_to(self, target: int, *, is_last_try: bool = False) -> bool:
        """Sync the segments from the oldest; False when they were given up for a fresh one."""
        generation = self._generation
        segments = list(self._unsynced)
        for segment in segments:
            is_full = segment is not segments[-1]
            with self._writing:
                end, last = segment.end, segment.last_sequence
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
                self._synced = min(target, last)
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
        """Give up the files that are not synced and go on in a fresh segment; see `fresh`.

        `_writing` is held. The next sync makes it durable. Raises JournalFailed when it fails too.
        """
        pending, untrusted = self._pending, list(self._unsynced)
        if not pending.is_whole(self._synced) or not untrusted:
            self._fail(file, why, None)
        header = fresh_header(untrusted, self._identity, self._synced, self._times)
        try:
            fresh = self._begin_segment(header, written_again_bytes(pending, more_bytes))
            self._retired.append(fresh)
            replace(self._disk, self._directory, untrusted, fresh, pending)
            if header.number == FIRST_SEGMENT:
                self._establish(fresh)
        except OSError as error:
            self._fail(file, f"{why}, and a fresh segment failed too: {error.strerror}", error)
        self._generation += 1
        self._retired.remove(fresh)
        self._retired += untrusted
        self._active = fresh
        self._unsynced = deque([fresh])
        self.fresh_starts += 1
        self.on_trouble(f"{file}: {why}; the log goes on in {fresh.path}")

    def _fail(self, file: str, why: str, error: OSError | None) -> NoReturn:
        """Refuse everything from here on."""
        self._failure = (file, why)
        raise JournalFailed(file, why) from error

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
            with contextlib.suppress(OSError):
                self._disk.close(self._lock_handle)

    def _finish(self) -> None:
        """Sync, then write and sync the frame that testifies to it."""
        synced = self.sync()
        segment = self._active
        assert segment is not None
        try:
            # Beyond the preallocated end is fine here: the file is cut to its frames anyway.
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


def _ignore(_trouble: str) -> None:
    """Take no notice."""
